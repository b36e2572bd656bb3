"""`simpo`: a reward without a reference ranks the pairs (arXiv 2405.14734)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _accuracy(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("dpo"))}


studies.register("simpo")(
    Study(
        config="l1",
        others={"dpo": "dpo"},
        rivals=("dpo",),
        claims=(
            Claim(
                id="M1",
                claim="Without a reference it finds the preferred candidate as often as DPO",
                prediction="no more than 0.02 less accuracy",
                metric="accuracy minus DPO's",
                rule="interval at least threshold",
                threshold=-0.02,
                values=_accuracy,
            ),
        ),
    )
)
