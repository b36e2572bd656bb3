"""`grpo`: group z-scores in place of a critic (arXiv 2402.03300)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _parity(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("ppo"))}


studies.register("grpo")(
    Study(
        config="l1",
        others={"ppo": "ppo"},
        rivals=("ppo",),
        claims=(
            Claim(
                id="C1",
                claim="Without a critic it does as well as PPO on verifiable rewards",
                prediction="no more than 0.02 less accuracy",
                metric="accuracy minus PPO's",
                rule="interval at least threshold",
                threshold=-0.02,
                values=_parity,
            ),
        ),
    )
)
