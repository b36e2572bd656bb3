"""`dr-grpo`: the step does not depend on how hard a problem is (arXiv 2503.20783)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _parity(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("grpo"))}


studies.register("dr-grpo")(
    Study(
        config="l1",
        others={"grpo": "grpo"},
        rivals=("grpo",),
        claims=(
            Claim(
                id="U1",
                claim="Without the two normalisers it learns as much as GRPO",
                prediction="no more than 0.02 less accuracy at completions of one length",
                metric="accuracy minus GRPO's",
                rule="interval at least threshold",
                threshold=-0.02,
                values=_parity,
            ),
        ),
    )
)
