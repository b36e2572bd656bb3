"""Changes to a step that must not change its gradient: other rows and columns, and garbage where nothing counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from posttrain.batch import Batch, Rollouts, Scores, Signals, Targets
from posttrain.policies.base import Divergence, Policy, States
from posttrain.teachers.base import Teacher
from posttrain.teachers.frozen import FrozenTeacher
from posttrain.trainer import Trainer

TOKEN_FIELDS = ("completion_ids", "mask", "logprobs", "entropy")  # of Rollouts, [B, T]
GARBAGE = 1000.0  # the scale of what is written beyond a mask, in nats: its exponential overflows


def cut(rollouts: Rollouts, mask: Tensor) -> Rollouts:
    """The tokens inside `mask` alone; their texts (and so their rewards) stay."""
    mask = mask & rollouts.mask
    kept = {name: torch.where(mask, getattr(rollouts, name), 0) for name in TOKEN_FIELDS if name != "mask"}
    return replace(rollouts, mask=mask, **kept)


def untie(rollouts: Rollouts) -> Rollouts:
    """Recorded log-probs with the noise of an engine, so that no two rows tie: a tie is broken by order alone."""
    noise = torch.randn(rollouts.mask.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return replace(rollouts, logprobs=torch.where(rollouts.mask, rollouts.logprobs + 0.1 * noise, 0))


def take(rollouts: Rollouts, rows: Sequence[int]) -> Rollouts:
    """Rows in any order, also several times; the group size stays."""
    index = torch.tensor(rows)
    taken: dict[str, Any] = {}
    for f in fields(Rollouts):
        value = getattr(rollouts, f.name)
        if isinstance(value, Tensor):
            taken[f.name] = value[index]
        elif isinstance(value, tuple):
            taken[f.name] = tuple(value[row] for row in rows)
    return replace(rollouts, **taken)


def spoil(value: Tensor, keep: Tensor, seed: int = 0, negative: bool = False) -> Tensor:
    """Large numbers (below zero for log-probs) wherever `keep` [B, T] or [B] is false; integers stay what they are."""
    if not value.is_floating_point():
        return value
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noise = GARBAGE * (-noise.abs() if negative else noise)
    keep = keep.reshape(*keep.shape, *[1] * (value.dim() - keep.dim()))
    return torch.where(keep, value, noise.to(value))


def spoil_rollouts(rollouts: Rollouts, vocabulary: int) -> Rollouts:
    """Other ids, log-probs and entropies beyond the mask."""
    noise = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary, rollouts.mask.shape, generator=noise)
    return replace(
        rollouts,
        completion_ids=torch.where(rollouts.mask, rollouts.completion_ids, ids),
        logprobs=spoil(rollouts.logprobs, rollouts.mask, 2, negative=True),
        entropy=spoil(rollouts.entropy, rollouts.mask, 3),
    )


def spoil_targets(targets: Targets | None, keep: Tensor) -> Targets | None:
    """Garbage where the teacher did not speak."""
    return None if targets is None else _spoil_fields(targets, keep & targets.mask)


def spoil_signals(signals: Signals, mask: Tensor) -> Signals:
    """Garbage in every signal beyond the mask, and in the value of every failed reward."""
    rewards, student = signals.rewards, signals.student
    return replace(
        signals,
        teacher=spoil_targets(signals.teacher, mask),
        reference=spoil_targets(signals.reference, mask),
        student=None if student is None else _spoil_fields(student, mask),
        rewards=None if rewards is None else replace(rewards, values=spoil(rewards.values, rewards.valid, 4)),
    )


def spoil_batch(batch: Batch) -> Batch:
    """Garbage in every constant of the loss where it has no weight."""
    where = batch.where
    spoilt: dict[str, Any] = {}
    for name in ("advantages", "returns", "old_values"):
        value = getattr(batch, name)
        if value is not None:
            spoilt[name] = spoil(value, where if value.dim() == 2 else where.any(1), 5)
    for name in ("teacher", "reference"):
        spoilt[name] = spoil_targets(getattr(batch, name), where)
    rollouts = replace(batch.rollouts, logprobs=spoil(batch.rollouts.logprobs, where, 6, negative=True))
    return replace(batch, rollouts=rollouts, **spoilt)


def _spoil_fields(holder: Any, keep: Tensor) -> Any:
    values = {f.name: getattr(holder, f.name) for f in fields(holder)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return replace(holder, **{n: spoil(v, keep, 7, negative=n.endswith("logprobs")) for n, v in tensors.items()})


# -- padding --------------------------------------------------------------------------------------------------


def pad(value: Tensor, extra: int) -> Tensor:
    """`extra` columns of zeros behind the tokens of [B, T, ...]."""
    return torch.cat([value, value.new_zeros(value.shape[0], extra, *value.shape[2:])], dim=1)


def frozen(policy: Policy) -> Teacher:
    """A policy in the place of the online teacher."""
    return cast(Teacher, FrozenTeacher(policy))


def padded(trainer: Trainer, rollouts: Rollouts, extra: int) -> tuple[Trainer, Rollouts]:
    """The same step in a batch whose longest completion is `extra` tokens longer."""
    wider = replace(rollouts, **{name: pad(getattr(rollouts, name), extra) for name in TOKEN_FIELDS})
    other = replace(trainer, policy=_padded(trainer.policy, extra), reference=_padded(trainer.reference, extra))
    if isinstance(trainer.teacher, FrozenTeacher):
        other.teacher = frozen(_padded(trainer.teacher.policy, extra))
    return other, wider


@dataclass(frozen=True)
class _Padded:
    """A policy that is shown `extra` columns too many, as in a batch with a longer completion beside these."""

    policy: Policy
    extra: int

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.policy.parameters()

    def score(
        self,
        rollouts: Rollouts,
        where: Tensor,
        *,
        support_ids: Tensor | None = None,
        divergence: Divergence | None = None,
        against: States | None = None,
        values: bool = False,
    ) -> Scores:
        support_ids = None if support_ids is None else support_ids[:, : -self.extra]
        against = None if against is None else States(against.hidden[:, : -self.extra], against.project)
        scores = self.policy.score(
            self._narrow(rollouts), where[:, : -self.extra],
            support_ids=support_ids, divergence=divergence, against=against, values=values,
        )  # fmt: skip
        return self._widen(scores)

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None = None) -> Targets:
        return self._widen(self.policy.targets(self._narrow(rollouts), where[:, : -self.extra], top_k))

    def states(self, rollouts: Rollouts) -> States:
        states = self.policy.states(self._narrow(rollouts))
        return States(pad(states.hidden, self.extra), states.project)

    def _narrow(self, rollouts: Rollouts) -> Rollouts:
        return replace(rollouts, **{name: getattr(rollouts, name)[:, : -self.extra] for name in TOKEN_FIELDS})

    def _widen(self, holder: Any) -> Any:
        values = {f.name: getattr(holder, f.name) for f in fields(holder)}
        return replace(holder, **{n: pad(v, self.extra) for n, v in values.items() if isinstance(v, Tensor)})


def _padded(policy: Policy, extra: int) -> Policy:
    return cast(Policy, _Padded(policy, extra))
