"""One small optimizer step on which a law can be tried, made of the real parts: policy, teacher, trainer, reduction.

Completions are ragged and one is empty, some rewards are failures, and the policy has moved since the step was
prepared, so that ratios differ from one and clips bind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from posttrain import settings
from posttrain.algorithms.base import Algorithm
from posttrain.assembly import assemble
from posttrain.batch import Batch, Failure, Problem, ProblemSet, Rollouts, Signals, concatenate
from posttrain.policies.base import Policy, States
from posttrain.ranks import Ranks
from posttrain.shares import shares
from posttrain.testing.edits import cut
from posttrain.tracking import Averages
from posttrain.trainer import Trainer


@dataclass(frozen=True)
class Setting:
    """What a step is made of. `group_size` rises to what the algorithm needs, and is 2 for pairs."""

    policy: str = "tree"  # bandit, factored or tree
    problems: int = 4
    group_size: int = 3
    positions: int = 5
    shortest: int = 3
    candidates: int = 4
    temperature: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        heat = "" if self.temperature == 1 else f" at temperature {self.temperature}"
        return f"{self.policy} policy{heat}, {self.problems} groups of up to {self.group_size}"


PLAIN = Setting()


@dataclass(frozen=True)
class Step:
    """What one optimizer step reads."""

    problems: list[Problem]
    rollouts: Rollouts
    signals: Signals
    states: States | None
    batch: Batch


@dataclass(frozen=True)
class Priced:
    """The loss of a step and its gradient, all parameters in one row."""

    loss: float
    gradient: Tensor


def trainer_for(algorithm: Algorithm, setting: Setting = PLAIN) -> Trainer:
    """A trainer in the state before its first step: student, reference and teacher are three different policies."""
    size = 2 if "pairs" in algorithm.needs else max(setting.group_size, algorithm.minimum_group)
    config, problems = _built(setting, size)
    names = {**config.names, "algorithm": type(algorithm).__name__}
    trainer = assemble(replace(config, algorithm=algorithm, names=names), setting.seed, problems=problems)
    trainer.grader = grade
    nudge(trainer.policy, 0.3, setting.seed)
    if algorithm.rollouts == "once":
        trainer._sample_once()
        nudge(trainer.policy, 0.3, setting.seed + 1)
    return trainer


@lru_cache(maxsize=64)
def _built(setting: Setting, size: int) -> tuple[settings.TrainConfig, ProblemSet]:
    """Everything but the algorithm; `reinforce` keeps its place."""
    tree = {"prefix": 0.5} if setting.policy == "tree" else {}
    raw: dict[str, Any] = {
        "dataset": {
            "name": "decisions", "train_examples": setting.problems, "validation_examples": 1,
            "positions": setting.positions, "minimum_positions": min(setting.shortest, setting.positions),
            "candidates": setting.candidates, "known": 3, "new": 3, "sharpness": 2.0, "distance": 0.3, **tree,
        },
        "policy": {"name": setting.policy, "start": "student", "temperature": setting.temperature},
        "teacher": "frozen",
        "reward": "positions",
        "problems_per_step": setting.problems,
        "group_size": size,
    }  # fmt: skip
    config = settings.resolve(raw, "reinforce")
    return config, _with_responses(config.dataset.build(setting.seed), size)


def grade(problem: Problem, text: str) -> float | Failure:
    """The share of right tokens; some completions cannot be judged."""
    found = [problem.candidates.index(word) for word in text.split(" ")]
    if sum(found) % 5 == 1 and len(found) > 2:
        return Failure("the sum of its tokens leaves 1 when divided by 5")
    return sum(word == right for word, right in zip(text.split(), problem.answer.split(), strict=True)) / len(found)


def draw(trainer: Trainer, ragged: bool = True) -> tuple[list[Problem], Rollouts]:
    """Every problem once, and its completions; `ragged` cuts each completion somewhere and empties the second one."""
    problems = list(trainer.problems)
    if trainer.stored is not None:
        rollouts = concatenate(trainer.stored, range(len(problems)))
    else:
        rollouts = trainer._draw(problems, 1)
    if not ragged:
        return problems, rollouts
    rows, length = rollouts.mask.shape
    lengths = torch.randint(1, length + 1, (rows,), generator=torch.Generator().manual_seed(trainer.seed))
    lengths[1:2] = 0
    return problems, cut(rollouts, torch.arange(length) < lengths.unsqueeze(1))


def prepare(trainer: Trainer, problems: list[Problem], rollouts: Rollouts, **instead: Any) -> Step:
    """The step as the trainer prepares it; `instead` replaces signals by name."""
    signals, states = trainer._signals(problems, rollouts)
    signals = replace(signals, **instead)
    return Step(problems, rollouts, signals, states, trainer._prepared(rollouts, signals))


def price(trainer: Trainer, step: Step, micro: int | None = None, ranks: int = 1) -> Priced:
    """Loss and gradient by `Trainer.accumulate`, in micro-batches of `micro` rows, added up over `ranks` shards."""
    options, alone = trainer.options, trainer.ranks
    trainer.optimizer.zero_grad()
    trainer.options = replace(options, micro_batch_size=micro)
    loss = 0.0
    for rank in range(ranks):
        trainer.ranks = cast(Ranks, _Shard(rank, ranks))
        loss += trainer.accumulate(step.batch, 0, _states_of(step, trainer.ranks), Averages())
    trainer.options, trainer.ranks = options, alone
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainer.parameters]
    return Priced(loss, torch.cat([g.flatten() for g in found]).clone())


def _states_of(step: Step, ranks: Ranks) -> States | None:
    """The teacher's states of the rows of one rank; of the first group where it has none."""
    if step.states is None:
        return None
    rollouts = step.batch.rollouts
    mine = shares(rollouts.groups, None, ranks).mine or (0,)
    return States(step.states.hidden[rollouts.rows_of(mine)], step.states.project)


@dataclass(frozen=True)
class _Shard:
    """A rank whose sums are left to `price`, which runs all of them in turn."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


@torch.no_grad()
def nudge(policy: Policy, scale: float, seed: int) -> None:
    """Adds normal noise to every parameter, each from a stream of its own."""
    for place, parameter in enumerate(policy.parameters()):
        noise = torch.Generator().manual_seed(1000 * seed + place)
        parameter.add_(scale * torch.randn(parameter.shape, generator=noise, dtype=torch.float64).to(parameter))


@contextmanager
def moved(trainer: Trainer, scale: float = 0.3) -> Iterator[None]:
    """The student as it is some updates after the step was prepared."""
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    nudge(trainer.policy, scale, trainer.seed + 2)
    yield
    with torch.no_grad():
        for parameter, value in zip(trainer.parameters, before, strict=True):
            parameter.copy_(value)


def _with_responses(problems: ProblemSet, number: int) -> ProblemSet:
    """`number` data rows a problem: the answer first, then answers with every token moved on by one, two, ..."""

    def moved_on(problem: Problem) -> Problem:
        right = [problem.candidates.index(word) for word in problem.answer.split(" ")]
        rows = [[(token + by) % len(problem.candidates) for token in right] for by in range(number)]
        return replace(problem, responses=tuple(" ".join(problem.candidates[i] for i in row) for row in rows))

    return replace(problems, train=tuple(map(moved_on, problems.train)))
