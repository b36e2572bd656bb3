"""`reinforce`: unbiased, and less noisy with a baseline (Williams, 1992)."""

from __future__ import annotations

from posttrain.evaluation.probes import gradient_bias, gradient_variance
from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _bias(results: Results) -> dict[str, list[float]]:
    return {"standard errors": results.measure("main", "gradient bias")}


def _variance(results: Results) -> dict[str, list[float]]:
    without, with_baseline = (results.measure(arm, "gradient variance") for arm in ("no-baseline", "main"))
    return {"variance": difference(without, with_baseline)}


studies.register("reinforce")(
    Study(
        config="l1-bandit",
        arms={"no-baseline": {"algorithm.baseline": "none"}},
        rivals=("no-baseline",),
        probes={"gradient bias": gradient_bias, "gradient variance": gradient_variance},
        claims=(
            Claim(
                id="R1",
                claim="The sampled gradient is unbiased",
                prediction="every component within 4.5 standard errors of the enumerated gradient, in every seed",
                metric="largest deviation over components and seeds, standard errors of 2000 batches",
                rule="value at most threshold",
                threshold=4.5,
                values=_bias,
            ),
            Claim(
                id="R2",
                claim="A baseline of the other completions' mean reward lowers the gradient's variance",
                prediction="lower than without one",
                metric="trace of the gradient's covariance, without minus with",
                rule="interval above threshold",
                threshold=0.0,
                values=_variance,
            ),
        ),
    )
)
