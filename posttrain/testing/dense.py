"""Completions with their full distributions, for losses written out in plain torch, and sums over every outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from posttrain.batch import Problem, Rollouts, concatenate
from posttrain.policies.base import Policy
from posttrain.testing.bench import Step, prepare, price
from posttrain.testing.edits import take
from posttrain.tracking import judge
from posttrain.trainer import Trainer


@dataclass(frozen=True)
class Dense:
    """What a reference loss or an objective is computed from, float64. Gradient flows through two fields alone.

    [B, T, V] is every next-token log-prob at the positions of `rollouts`; `of` picks the sampled tokens.
    """

    rollouts: Rollouts
    log_probs: Tensor  # [B, T, V] of the student, with gradient
    start: Tensor  # [B, T, V] of the student when the step was prepared
    reference: Tensor  # [B, T, V]
    teacher: Tensor  # [B, T, V]
    rewards: Tensor  # [P, G]
    valid: Tensor  # [P, G] bool
    values: Tensor | None = None  # [B, T] of the critic, with gradient
    start_values: Tensor | None = None  # [B, T]

    @property
    def mask(self) -> Tensor:
        """[B, T] bool"""
        return self.rollouts.mask

    def of(self, log_probs: Tensor) -> Tensor:
        """Log-probs of the sampled tokens, 0 beyond the mask: [B, T, V] -> [B, T]."""
        sampled = log_probs.gather(-1, self.rollouts.completion_ids.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.mask, sampled, 0)

    @property
    def chances(self) -> Tensor:
        """The student's probability of each whole completion [B], with gradient."""
        return self.of(self.log_probs).sum(1).exp()


def full_log_probs(policy: Policy, rollouts: Rollouts, vocabulary: int) -> Tensor:
    """Every next-token log-prob [B, T, V], through the policy's public face."""
    every = torch.arange(vocabulary).expand(*rollouts.mask.shape, vocabulary)
    found = policy.score(rollouts, rollouts.mask, support_ids=every).support_logprobs
    assert found is not None
    return found


def dense(trainer: Trainer, step: Step, start: Policy | None = None) -> Dense:
    """The dense view of a step under the trainer's current student; `start` is the one that prepared the step."""
    rollouts, vocabulary = step.rollouts, len(step.problems[0].candidates)
    critic = "values" in trainer.algorithm.needs
    start = start or trainer.policy.snapshot()
    teacher = trainer.teacher.distribution() if trainer.teacher else None
    rewards = step.signals.rewards or judge(trainer.grader, step.problems, rollouts)

    def constant(policy: Policy) -> Tensor:
        return full_log_probs(policy, rollouts, vocabulary).detach()

    return Dense(
        rollouts,
        full_log_probs(trainer.policy, rollouts, vocabulary),
        constant(start),
        constant(trainer.reference),
        constant(teacher or trainer.reference),
        rewards.values,
        rewards.valid,
        trainer.policy.score(rollouts, rollouts.mask, values=True).values if critic else None,
        step.signals.student.values if step.signals.student else None,
    )


def completions(policy: Policy, problem: Problem) -> Rollouts:
    """Every completion of a problem, once each, as if the policy had drawn it: N = V ** T rows, groups of one."""
    assert problem.features is not None
    texts = [" ".join(words) for words in product(problem.candidates, repeat=len(problem.features))]
    listed = policy.respond([replace(problem, responses=tuple(texts))], 0, 0)
    recorded = policy.score(listed, listed.mask)
    return replace(
        listed,
        logprobs=recorded.logprobs.detach(),
        entropy=recorded.entropy.detach(),
        source=torch.zeros_like(listed.source),
        group_size=1,
    )


def group_of(listed: Rollouts, rows: Sequence[int], group_size: int) -> Rollouts:
    """Some of the enumerated completions as groups, numbered like freshly drawn ones."""
    group = replace(take(listed, rows), group_size=group_size)
    keys = group.keys.clone()
    keys[:, 3] = torch.arange(len(rows)) % group_size
    return replace(group, keys=keys)


def expected_gradient(trainer: Trainer, problems: Sequence[Problem], sampler: Policy | None = None) -> Tensor:
    """The mean of the step's gradient over every outcome of sampling: all V ** T completions in every place.

    `trainer.options.group_size` completions of each of `problems`, drawn with replacement from `sampler` (the student
    where there is none): (V ** T) ** (P * G) steps, each prepared and priced by the trainer.
    """
    size = trainer.options.group_size
    listed = [completions(sampler or trainer.policy, problem) for problem in problems]
    places = [part for part in listed for _ in range(size)]
    outcomes = product(*(range(len(part.texts)) for part in places))
    weighed = []
    for rows in outcomes:
        chance = torch.stack([part.logprobs[row].sum() for part, row in zip(places, rows, strict=True)]).sum().exp()
        weighed.append(chance * price(trainer, _step(trainer, problems, listed, rows)).gradient)
    return torch.stack(weighed).sum(0)


def _step(trainer: Trainer, problems: Sequence[Problem], listed: Sequence[Rollouts], rows: Sequence[int]) -> Step:
    size = trainer.options.group_size
    groups = [group_of(part, rows[p * size : (p + 1) * size], size) for p, part in enumerate(listed)]
    return prepare(trainer, list(problems), concatenate(groups, range(len(groups))))
