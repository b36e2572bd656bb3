"""`bandit_policy_gradient`: GRPO on candidate policies, by exact expected return; idea: leave-one-out credit.

The settings of a cell are settings of `posttrain train`: algorithm, learning rate, steps, group size. The policy makes
one choice among K candidates, so its expected return on held-out problems is a sum, without sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Problem
from posttrain.bench.track import Idea, Settings, Track, checked, tracks
from posttrain.bench.trained import Measured, Trained
from posttrain.evaluation.study import Claim, Results
from posttrain.registry import ConfigError
from posttrain.trainer import Trainer

DRAWS = 32  # steps' worth of completions behind the measured gradient
ROUNDING = 1e-12


def expected_return(trainer: Trainer, problems: Sequence[Problem]) -> Tensor:
    """Mean over problems of the sum over candidates of probability times reward, with gradient."""
    shapes = {p.features.shape[:2] for p in problems if p.features is not None}
    if len(shapes) != 1 or next(iter(shapes))[0] != 1:
        raise ConfigError(f"data: the exact return needs one choice among equally many candidates, found {shapes}")
    values = [[_reward(trainer, problem, text) for text in problem.candidates] for problem in problems]
    rewards = torch.tensor(values, dtype=torch.float64)
    sample = trainer.policy.sample(problems, 1, np.random.default_rng(0), trainer.seed, 0)
    ids = torch.arange(rewards.shape[1]).expand(len(problems), 1, -1)
    chosen = trainer.policy.score(sample, sample.mask, support_ids=ids).support_logprobs
    assert chosen is not None
    return (chosen[:, 0].double().exp() * rewards).sum(-1).mean()


def _reward(trainer: Trainer, problem: Problem, text: str) -> float:
    value = trainer.grader(problem, text)
    if not isinstance(value, float):
        raise ConfigError(f"reward: problem {problem.id} cannot be judged, so its return is not exact")
    return value


def gradient_cosine(trainer: Trainer, draws: int = DRAWS) -> float:
    """Cosine of the loss's mean gradient, over drawn groups of all problems, to that of minus the exact return."""
    problems = list(trainer.problems)
    stream = np.random.default_rng([trainer.seed, 2])
    size, total = trainer.options.group_size, 0.0
    for draw in range(draws):
        total = total + trainer.gradient(problems, trainer.policy.sample(problems, size, stream, trainer.seed, draw))
    exact = torch.autograd.grad(-expected_return(trainer, problems), trainer.parameters)
    flat = torch.cat([part.flatten() for part in exact])
    return float(torch.nn.functional.cosine_similarity(torch.as_tensor(total), flat, dim=0))


def train(trainer: Trainer) -> Measured:
    """Exact expected return on held-out problems after training; the measure is taken at the start."""
    cosine = gradient_cosine(trainer)
    trainer.run()
    with torch.no_grad():
        return float(expected_return(trainer, trainer.evaluator.problems)), {"gradient_cosine": cosine}


def math_check() -> dict[str, Any]:
    """The exact return of the uniform policy over one right answer among K is 1/K."""
    trainer = TASK.trainer({**BUDGET, **BASE, "start": None}, track.data, 0)
    with torch.no_grad():
        value = float(expected_return(trainer, trainer.evaluator.problems))
    return checked(uniform_return=(value - 1 / track.data["candidates"], ROUNDING))


def _closer(results: Results) -> dict[str, list[float]]:
    own, rival = (results.measure(arm, "gradient_cosine") for arm in ("idea", "baseline"))
    return {"difference": [a - b for a, b in zip(own, rival, strict=True)]}


BUDGET: Settings = {"steps": 60, "problems_per_step": 8, "group_size": 8}
BASE: Settings = {
    "lr": 0.03,
    "algorithm": "grpo",
    "policy": "bandit",
    "start": "student",
    "reward": "exact",
    "kl_coef": 0.0,
}

TASK = Trained(
    run_one=train,
    common={"tier": "l1", "evaluation.accuracy": "exact", "evaluation.reward": "exact"},
    defaults={**BUDGET, **BASE},
    words={"lr": "learning_rate", "start": "policy.start", "kl_coef": "algorithm.kl_coef"},
)

track = Track(
    name="bandit_policy_gradient",
    model="candidate_policy",
    metric="exact expected return on held-out problems, reward per problem",
    direction="higher is better",
    rationale=(
        "Policy gradients without sampling noise in the metric. GRPO divides the credit of a group by its spread; the "
        "idea subtracts the mean of the other completions instead (RLOO), which is unbiased."
    ),
    task=TASK,
    budget=BUDGET,
    base=BASE,
    data={
        "name": "decisions", "train_examples": 64, "validation_examples": 128, "positions": 1, "candidates": 8,
        "known": 6, "new": 12, "fork_rate": 0.7,
    },
    sweep=tuple({"lr": lr} for lr in (0.03, 0.1, 0.3)),
    shown=("lr", "algorithm"),
    idea=Idea(
        name="leave-one-out",
        settings={"algorithm": "rloo"},
        claims=(
            Claim(
                id="B1",
                claim="Leave-one-out credit follows the exact gradient more closely than a group z-score",
                prediction="its mean gradient at the start has a higher cosine to that of the exact expected return",
                metric="cosine of rloo minus cosine of grpo, mean over seeds",
                rule="interval above threshold",
                threshold=0.0,
                values=_closer,
            ),
        ),
    ),
    math_check=math_check,
)  # fmt: skip
tracks.register(track.name)(track)
