"""`cispo`: no token loses its gradient to the clip (arXiv 2506.13585)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _accuracy(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("grpo"))}


studies.register("cispo")(
    Study(
        config="l1",
        others={"grpo": "grpo"},
        rivals=("grpo",),
        claims=(
            Claim(
                id="I1",
                claim="With several passes over each step it learns at least as much as GRPO",
                prediction="no less accuracy than GRPO with as many passes",
                metric="accuracy minus GRPO's",
                rule="interval at least threshold",
                threshold=0.0,
                values=_accuracy,
            ),
        ),
    )
)
