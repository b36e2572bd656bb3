"""`opd`: a dense teacher signal against a verifiable reward on the same prompts (Thinking Machines Lab, 2025)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies

SHARE = 0.9  # of the accuracy gained over the course of distillation


def _steps_to_share(results: Results, arm: str) -> list[float]:
    """First evaluated step at which the arm has `SHARE` of main's final gain; one period past the end if never."""
    steps = []
    for run, main in zip(results.runs[arm], results.runs["main"], strict=True):
        start = main["baseline"]["accuracy"]
        wanted = start + SHARE * (main["final"]["accuracy"] - start)
        reached = [row["step"] for row in run["history"] if row["accuracy"] >= wanted]
        steps.append(reached[0] if reached else run["history"][-1]["step"] * 1.1)
    return steps


def _speed(results: Results) -> dict[str, list[float]]:
    return {"steps saved": difference(_steps_to_share(results, "grpo"), _steps_to_share(results, "main"))}


def _distance(results: Results) -> dict[str, list[float]]:
    return {"KL to the teacher": [-gain for gain in results.gain("main", "kl_from_teacher")]}


studies.register("opd")(
    Study(
        config="l1-study",
        others={"grpo": "grpo"},
        rivals=("grpo",),
        claims=(
            Claim(
                id="O1",
                claim="Distillation needs fewer steps than reinforcement learning on the same prompts",
                prediction="90 % of its final gain in fewer steps than GRPO needs for as much",
                metric="GRPO's steps minus its own",
                rule="interval above threshold",
                threshold=0.0,
                values=_speed,
            ),
            Claim(
                id="O2",
                claim="The mean advantage rises to zero as the student approaches the teacher",
                prediction="the exact KL to the teacher falls in every seed",
                metric="exact KL(student || teacher), before minus after, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_distance,
            ),
        ),
    )
)
