"""`dpo`: the implicit reward recovers the judge's (arXiv 2305.18290)."""

from __future__ import annotations

from posttrain.evaluation.probes import reward_slope
from posttrain.evaluation.study import Claim, Results, Study, studies


def _slope(results: Results) -> dict[str, list[float]]:
    return {"slope": results.measure("main", "slope")}


studies.register("dpo")(
    Study(
        config="l1",
        probes={"slope": reward_slope},
        claims=(
            Claim(
                id="D1",
                claim="The implicit reward recovers gaps of the judge's reward (lower side)",
                prediction="slope 1 for Bradley-Terry labels: not below 0.8",
                metric="slope of beta times the implicit gap on the known gap, held-out pairs",
                rule="interval at least threshold",
                threshold=0.8,
                values=_slope,
            ),
            Claim(
                id="D2",
                claim="The implicit reward recovers gaps of the judge's reward (upper side)",
                prediction="slope 1 for Bradley-Terry labels: not above 1.2",
                metric="slope of beta times the implicit gap on the known gap, held-out pairs",
                rule="interval at most threshold",
                threshold=1.2,
                values=_slope,
            ),
        ),
    )
)
