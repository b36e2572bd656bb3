"""`rloo`: a baseline of one's own group against one of the whole step (arXiv 2402.14740)."""

from __future__ import annotations

from posttrain.evaluation.probes import gradient_variance
from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _variance(results: Results) -> dict[str, list[float]]:
    step, group = (results.measure(arm, "gradient variance") for arm in ("reinforce", "main"))
    return {"variance": difference(step, group)}


studies.register("rloo")(
    Study(
        config="l1",
        others={"reinforce": "reinforce"},
        rivals=("reinforce",),
        probes={"gradient variance": gradient_variance},
        claims=(
            Claim(
                id="B1",
                claim="Leave-one-out within the group has a less noisy gradient than a baseline over the step",
                prediction="lower variance at equal samples",
                metric="trace of the gradient's covariance at the start, REINFORCE minus RLOO",
                rule="interval above threshold",
                threshold=0.0,
                values=_variance,
            ),
        ),
    )
)
