"""`dapo`: a wider upper clip keeps entropy, dynamic sampling keeps every group alive (arXiv 2503.14476)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _entropy(results: Results) -> dict[str, list[float]]:
    return {"entropy": difference(results.final("main", "entropy"), results.final("narrow", "entropy"))}


def _alive(results: Results) -> dict[str, list[float]]:
    return {"groups": results.diagnostic("main", "zero_variance_groups")}


studies.register("dapo")(
    Study(
        config="l1",
        arms={"narrow": {"algorithm.clip_high": 0.2}, "no-refills": {"max_refills": 0}},
        rivals=("narrow", "no-refills"),
        claims=(
            Claim(
                id="Y1",
                claim="A wider upper clip keeps the policy's entropy higher",
                prediction="higher final entropy than with the same bound on both sides",
                metric="exact entropy minus that under clip 0.2 / 0.2, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_entropy,
            ),
            Claim(
                id="Y2",
                claim="Dynamic sampling leaves no group without a gradient",
                prediction="none in the last update",
                metric="share of groups whose rewards are all equal",
                rule="value at most threshold",
                threshold=0.0,
                values=_alive,
            ),
        ),
    )
)
