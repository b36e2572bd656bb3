"""`forking-tokens`: the tokens of highest entropy against all, against the rest and against as many others.

arXiv 2506.01939: a fifth of the tokens is as good as all of them on Qwen3-8B, and the other four fifths train markedly
worse. Both sentences are about language models; the claims below are about `decisions`, where one position in five is
a fork, and say so in their metric.
"""

from __future__ import annotations

from collections.abc import Callable

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _over(rival: str) -> Callable[[Results], dict[str, list[float]]]:
    """Accuracy after training minus the rival's, seed by seed."""
    return lambda results: {f"over {rival}": difference(results.final("main"), results.final(rival))}


studies.register("forking-tokens")(
    Study(
        config="l1-study",
        arms={
            "all": {"algorithm.keep": 1.0},
            "rest": {"algorithm.keep": 0.8, "algorithm.score": "lowest"},
            "random": {"algorithm.score": "random"},
        },
        rivals=("all", "rest", "random"),
        claims=(
            Claim(
                id="F1",
                claim="The fifth of the tokens with the highest entropy does what all tokens do",
                prediction="no more than 0.02 less accuracy than all tokens",
                metric="accuracy minus that of all tokens",
                rule="interval at least threshold",
                threshold=-0.02,
                values=_over("all"),
            ),
            Claim(
                id="F2",
                claim="The other four fifths alone do markedly worse",
                prediction="at least 0.05 less accuracy than the fifth with the highest entropy",
                metric="accuracy minus that of the four fifths with the lowest entropy",
                rule="interval at least threshold",
                threshold=0.05,
                values=_over("rest"),
            ),
            Claim(
                id="F3",
                claim="Which fifth matters, not only how many (a control of ours)",
                prediction="more accuracy than a random fifth",
                metric="accuracy minus that of a random fifth",
                rule="interval above threshold",
                threshold=0.0,
                values=_over("random"),
            ),
        ),
    )
)
