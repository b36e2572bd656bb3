"""`ppo`: what a critic is worth when the reward comes at the end (arXiv 1707.06347, 2203.02155)."""

from __future__ import annotations

from posttrain.evaluation.probes import critic_variance_saved, explained_variance
from posttrain.evaluation.study import Claim, Results, Study, studies


def _explained(results: Results) -> dict[str, list[float]]:
    return {"explained variance": results.measure("main", "explained variance")}


def _saved(results: Results) -> dict[str, list[float]]:
    return {"variance saved": results.measure("main", "variance saved")}


studies.register("ppo")(
    Study(
        config="l1",
        others={"grpo": "grpo"},
        rivals=("grpo",),
        probed=("main",),
        probes={"explained variance": explained_variance, "variance saved": critic_variance_saved},
        claims=(
            Claim(
                id="P1",
                claim="The critic learns to predict returns",
                prediction="a positive explained variance on held-out problems",
                metric="1 - Var(return - V) / Var(return)",
                rule="interval above threshold",
                threshold=0.0,
                values=_explained,
            ),
            Claim(
                id="P2",
                claim="With a delayed reward the critic lowers the advantage's variance against a group baseline",
                prediction="a lower variance per token at equal samples",
                metric="1 - Var(return - V) / Var(group-centred reward)",
                rule="interval above threshold",
                threshold=0.0,
                values=_saved,
            ),
        ),
    )
)
