"""Measurements beside training: gradients, critics and divergences, each with generators of its own.

A probe is `probe(fresh, trained) -> float`: `fresh()` gives a new trainer at its start, `trained` is the finished one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posttrain.algorithms.base import judged
from posttrain.batch import Problem, Rollouts
from posttrain.functional.advantages import gae, group_mean
from posttrain.policies.base import Divergence
from posttrain.tracking import judge
from posttrain.trainer import Trainer

Fresh = Callable[[], Trainer]
PROBE_STREAM = 2  # `default_rng([seed, PROBE_STREAM])`, apart from training and samples


def _stream(trainer: Trainer) -> np.random.Generator:
    return np.random.default_rng([trainer.seed, PROBE_STREAM])


def _problems(trainer: Trainer, count: int) -> list[Problem]:
    return list(trainer.problems[:count])


def _draw(trainer: Trainer, problems: list[Problem], stream: np.random.Generator, step: int) -> Rollouts:
    return trainer.policy.sample(problems, trainer.options.group_size, stream, trainer.seed, step)


def gradients(trainer: Trainer, batches: int, problems: int) -> Tensor:
    """Gradients [batches, parameters] of one step each, on fresh completions of the same problems, without updates."""
    stream, chosen = _stream(trainer), _problems(trainer, problems)
    return torch.stack(
        [trainer.gradient(chosen, _draw(trainer, chosen, stream, step)) for step in range(1, batches + 1)]
    )


def gradient_variance(fresh: Fresh, trained: Trainer) -> float:
    """Trace of the covariance of the step's gradient at the start, from 64 batches of 4 problems."""
    return float(gradients(fresh(), 64, 4).var(0).sum())


def first_gradient_norm(fresh: Fresh, trained: Trainer) -> float:
    """Norm of the gradient of the first step."""
    return fresh().step(1)["gradient_norm"]


def expected_reward_gradient(trainer: Trainer, problems: list[Problem]) -> Tensor:
    """The exact gradient [parameters] of minus the mean reward of one choice each (bandit policies).

    d/dw E[R] = sum_v p_v R_v grad log p_v, by enumeration of all candidates.
    """
    total: Tensor | float = 0.0
    for problem in problems:
        row = trainer.policy.sample([problem], 1, _stream(trainer), trainer.seed, 0)
        log_probs = []
        for choice in range(len(problem.candidates)):
            ids = torch.full_like(row.completion_ids, choice)
            log_probs.append(trainer.policy.score(replace(row, completion_ids=ids), row.mask).logprobs.sum())
        rewards = torch.tensor([trainer.grader(problem, text) for text in problem.candidates], dtype=torch.float64)
        total = total - (torch.stack(log_probs).exp() * rewards).sum() / len(problems)
    assert isinstance(total, Tensor)
    found = torch.autograd.grad(total, trainer.parameters)
    return torch.cat([gradient.flatten() for gradient in found])


def gradient_bias(fresh: Fresh, trained: Trainer) -> float:
    """Largest |mean sampled gradient - exact gradient| in standard errors over components, at the trained policy."""
    problems = _problems(trained, 4)
    sampled = gradients(trained, 2000, 4)
    error = sampled.std(0) / len(sampled) ** 0.5
    apart = (sampled.mean(0) - expected_reward_gradient(trained, problems)).abs()
    alive = error > 1e-9 * error.max()  # features that are constant within a problem have no gradient but rounding
    return float((apart[alive] / error[alive]).max())


def explained_variance(fresh: Fresh, trained: Trainer) -> float:
    """1 - Var(return - V) / Var(return) over tokens of new completions of held-out problems."""
    returns, values, mask = _returns(trained)
    return float(1 - (returns - values)[mask].var() / returns[mask].var())


def critic_variance_saved(fresh: Fresh, trained: Trainer) -> float:
    """Variance per token of the group-centred reward minus that of return - V, over the former."""
    returns, values, mask = _returns(trained)
    problems, rollouts = _held_out(trained)
    rewards = judge(trained.grader, problems, rollouts)
    group = group_mean(rewards.values, rewards.valid).flatten().unsqueeze(1).expand(mask.shape)
    return float(1 - (returns - values)[mask].var() / group[mask].var())


def _held_out(trainer: Trainer) -> tuple[list[Problem], Rollouts]:
    problems = list(trainer.evaluator.problems)
    return problems, _draw(trainer, problems, _stream(trainer), 0)


def _returns(trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Undiscounted returns [B, T] of the reward at the last token, the critic's values, and where there are any.

    A completion without a reward has no return: as in training, it is left out.
    """
    problems, rollouts = _held_out(trainer)
    rewards = judge(trainer.grader, problems, rollouts)
    mask = judged(rollouts, rewards)
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    with torch.no_grad():
        values = trainer.policy.score(rollouts, rollouts.mask, values=True).values
    assert values is not None
    _, returns = gae(last * rewards.values.flatten().unsqueeze(1), values, mask, 1.0, 1.0)
    return returns, values, mask


def forward_kl_on_own_states(fresh: Fresh, trained: Trainer) -> float:
    """Mean KL(teacher || student) per token on completions that the student draws for held-out problems."""
    return _forward_kl(trained, _held_out(trained)[1])


def forward_kl_on_data_states(fresh: Fresh, trained: Trainer) -> float:
    """Mean KL(teacher || student) per token on the held-out problems' own data rows."""
    return _forward_kl(trained, trained.policy.respond(trained.evaluator.problems, trained.seed, 0))


def _forward_kl(trainer: Trainer, rollouts: Rollouts) -> float:
    teacher = trainer.teacher.distribution() if trainer.teacher else None
    assert teacher is not None
    with torch.no_grad():
        apart = trainer.policy.score(
            rollouts, rollouts.mask, divergence=Divergence("forward_kl"), against=teacher.states(rollouts)
        ).divergence
    assert apart is not None
    return float(apart[rollouts.mask].mean())


def reward_slope(fresh: Fresh, trained: Trainer) -> float:
    """Slope of beta * (implicit reward gap) on the judge's reward gap, over all pairs of held-out candidates."""
    beta = trained.algorithm.beta  # type: ignore[attr-defined]
    implicit, known = [], []
    for problem in trained.evaluator.problems:
        row = trained.policy.sample([problem], 1, _stream(trained), trained.seed, 0)
        for policy, sign in ((trained.policy, 1.0), (trained.reference, -1.0)):
            with torch.no_grad():
                states = policy.states(row)
                implicit.append(sign * beta * states.project(states.hidden)[0, 0])
        known.append(torch.as_tensor(problem.meta["reward"]))
    gained = torch.stack(implicit[0::2]) + torch.stack(implicit[1::2])
    x, y = (_gaps(values) for values in (torch.stack(known), gained))
    return float((x * y).sum() / (x * x).sum())


def _gaps(values: Tensor) -> Tensor:
    """All differences [P, V, V] between the candidates of a problem."""
    return (values.unsqueeze(2) - values.unsqueeze(1)).to(torch.float64)
