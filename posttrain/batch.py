"""The data that flows through one training step, as frozen dataclasses with the shapes beside each field.

P problems, G completions each, B = P * G rows in group-major order, S prompt tokens (left-padded),
T completion tokens (right-padded), V vocabulary, K support size, F features of a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Source = Literal["student", "teacher", "data"]
SOURCES: tuple[Source, ...] = ("student", "teacher", "data")


@dataclass(frozen=True)
class Problem:
    """One question. Candidates and features exist at the mechanism tier, responses where data rows are needed."""

    id: str
    prompt: str
    answer: str
    candidates: tuple[str, ...] = ()  # [V] what each choice reads as
    features: np.ndarray | None = None  # [T, V, F] float64
    responses: tuple[str, ...] = ()  # data rows; for pairs (chosen, rejected)
    drawn: Mapping[str, Any] = field(default_factory=dict)  # what the generator drew, the basis of the fingerprint
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemSet:
    """The problems of one seed, and the weights the dataset knows of (`student`, `teacher`) at the mechanism tier."""

    train: tuple[Problem, ...]
    validation: tuple[Problem, ...]
    source: str
    checkpoints: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """What a reward returns when it could not judge: it is not a value and never counts as zero.

    `unscored` says that there is nothing to judge, `error` and `timeout` that the judging itself broke down.
    """

    reason: str
    kind: Literal["unscored", "error", "timeout"] = "unscored"

    @property
    def broke_down(self) -> bool:
        """Whether the machinery failed, rather than the completion."""
        return self.kind != "unscored"


@dataclass(frozen=True)
class Rollouts:
    """Completions with what was recorded while they were made. Data rows have no behaviour log-probs (zeros)."""

    prompt_ids: Tensor  # [B, S] int64
    prompt_mask: Tensor  # [B, S] bool
    completion_ids: Tensor  # [B, T] int64
    mask: Tensor  # [B, T] bool
    logprobs: Tensor  # [B, T] of the sampled tokens under the behaviour policy
    entropy: Tensor  # [B, T] of the behaviour policy, nats
    truncated: Tensor  # [B] bool
    texts: tuple[str, ...]  # [B]
    problem_ids: tuple[str, ...]  # [B]
    group_size: int
    source: Tensor  # [B] int64, an index into SOURCES
    keys: Tensor  # [B, 4] int64: seed, step, problem, completion

    def __post_init__(self) -> None:
        rows, length = self.completion_ids.shape
        for name in ("mask", "logprobs", "entropy"):
            _expect_shape(f"Rollouts.{name}", getattr(self, name), (rows, length))
        for name, shape in (("truncated", (rows,)), ("source", (rows,)), ("keys", (rows, 4))):
            _expect_shape(f"Rollouts.{name}", getattr(self, name), shape)
        if self.group_size < 1 or rows % self.group_size:
            raise ValueError(f"Rollouts.group_size: {rows} rows do not form groups of {self.group_size}")

    @property
    def groups(self) -> int:
        """P, the number of problems."""
        return len(self.texts) // self.group_size

    def rows(self, index: slice | Tensor) -> Rollouts:
        """Whole groups `index` (rows: a slice, or their numbers)."""
        return replace(self, **{f.name: _rows(getattr(self, f.name), index) for f in fields(self)})

    def rows_of(self, groups: Sequence[int]) -> Tensor:
        """[g * G] int64: the rows of the given groups, in their order."""
        first = torch.tensor(list(groups), dtype=torch.int64).unsqueeze(1) * self.group_size
        return (first + torch.arange(self.group_size)).flatten()


@dataclass(frozen=True)
class Targets:
    """What a teacher (or the reference) says about completions; `mask` is where it spoke."""

    logprobs: Tensor  # [B, T] of the sampled tokens
    mask: Tensor  # [B, T] bool
    support_ids: Tensor | None = None  # [B, T, K] int64, always with the sampled token
    support_logprobs: Tensor | None = None  # [B, T, K]
    entropy: Tensor | None = None  # [B, T]

    def __post_init__(self) -> None:
        _expect_shape("Targets.mask", self.mask, tuple(self.logprobs.shape))
        if self.support_ids is not None and self.support_logprobs is not None:
            _expect_shape("Targets.support_logprobs", self.support_logprobs, tuple(self.support_ids.shape))

    def rows(self, index: slice | Tensor) -> Targets:
        return replace(self, **{f.name: _rows(getattr(self, f.name), index) for f in fields(self)})


@dataclass(frozen=True)
class Rewards:
    """Rewards with the record of which ones are values: a failure is not a value."""

    values: Tensor  # [P, G]
    valid: Tensor  # [P, G] bool
    answered: Tensor | None = None  # [P, G] bool: where an answer was found; None: the reward does not look for one
    failures: tuple[Failure | None, ...] = ()  # [P * G], or empty: why there is no value
    parts: Mapping[str, Rewards] = field(default_factory=dict)  # what a sum is made of, by name

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        _expect_shape("Rewards.valid", self.valid, shape)
        if self.answered is not None:
            _expect_shape("Rewards.answered", self.answered, shape)
        if len(self.failures) not in (0, self.values.numel()):
            raise ValueError(f"Rewards.failures: found {len(self.failures)}, expected {self.values.numel()} or none")

    @property
    def judged(self) -> Tensor:
        """[P, G] bool: everything but what the machinery failed to judge."""
        broken = [failure is not None and failure.broke_down for failure in self.failures]
        return ~torch.tensor(broken).view_as(self.valid) if broken else torch.ones_like(self.valid)

    def take(self, groups: Sequence[int]) -> Rewards:
        """The given groups, in their order."""
        size, index = self.values.shape[1], torch.tensor(list(groups), dtype=torch.int64)
        return Rewards(
            self.values[index],
            self.valid[index],
            None if self.answered is None else self.answered[index],
            tuple(self.failures[group * size + i] for group in groups for i in range(size)) if self.failures else (),
            {name: part.take(groups) for name, part in self.parts.items()},
        )


@dataclass(frozen=True)
class Scores:
    """The current policy on given completions: the only tensors that carry gradient."""

    logprobs: Tensor  # [B, T]
    entropy: Tensor  # [B, T], nats
    divergence: Tensor | None = None  # [B, T], nats
    support_logprobs: Tensor | None = None  # [B, T, K]
    values: Tensor | None = None  # [B, T], the critic's


@dataclass(frozen=True)
class Signals:
    """What `needs` asked for, gathered before `prepare`. A signal nobody asked for is None."""

    rewards: Rewards | None = None
    teacher: Targets | None = None
    reference: Targets | None = None
    student: Scores | None = None  # the current policy at the start of the phase, without gradient


@dataclass(frozen=True)
class Batch:
    """Rollouts with what the loss needs. loss = sum(weight * loss_of_unit) / sum(normaliser), over all ranks."""

    rollouts: Rollouts
    weight: Tensor  # [B, T], [B] or [P]: the unit of the loss
    normaliser: Tensor  # [B]
    advantages: Tensor | None = None  # [B, T] or [B]
    teacher: Targets | None = None
    reference: Targets | None = None
    returns: Tensor | None = None  # [B, T]
    old_values: Tensor | None = None  # [B, T]

    def __post_init__(self) -> None:
        rows, length = self.rollouts.mask.shape
        allowed = {(rows, length), (rows,), (self.rollouts.groups,)}
        if tuple(self.weight.shape) not in allowed:
            raise ValueError(f"Batch.weight: found shape {tuple(self.weight.shape)}, expected one of {sorted(allowed)}")
        _expect_shape("Batch.normaliser", self.normaliser, (rows,))

    @property
    def unit(self) -> Literal["token", "row", "group"]:
        """What one entry of `weight` (and of the loss) speaks about."""
        if self.weight.dim() == 2:
            return "token"
        return "row" if self.weight.shape[0] == self.rollouts.mask.shape[0] else "group"

    @property
    def where(self) -> Tensor:
        """[B, T] bool: the tokens that carry weight, the only ones that need a vocabulary projection."""
        weight = self.weight
        if self.unit == "group":
            weight = weight.repeat_interleave(self.rollouts.group_size)
        if weight.dim() == 1:
            weight = weight.unsqueeze(1)
        return (weight != 0) & self.rollouts.mask

    def rows(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop`, whole groups; all tensors keep their meaning."""
        size, index = self.rollouts.group_size, slice(start, stop)
        taken: dict[str, Any] = {f.name: _rows(getattr(self, f.name), index) for f in fields(self)}
        if self.unit == "group":
            taken["weight"] = self.weight[start // size : stop // size]
        return replace(self, **taken)

    def split(self, rows: int | None) -> Iterator[Batch]:
        """Micro-batches of about `rows` rows in order; a group is never cut, None keeps all together."""
        size, total = self.rollouts.group_size, len(self.rollouts.texts)
        step = total if rows is None else max(1, rows // size) * size
        for start in range(0, total, max(1, step)):
            yield self.rows(start, min(start + step, total))

    def minibatches(self, problems: int | None) -> Iterator[Batch]:
        """One optimizer step each: `problems` groups in order, or everything."""
        return self.split(None if problems is None else problems * self.rollouts.group_size)

    def shard(self, rank: int, ranks: int) -> Batch:
        """The groups of one rank: an even share, possibly none."""
        size, mine = self.rollouts.group_size, share(self.rollouts.groups, rank, ranks)
        return self.rows(mine.start * size, mine.stop * size)

    def turns(self, rows: int | None, rank: int, ranks: int) -> Iterator[Batch]:
        """The micro-batches of one rank, as many on every rank.

        A rank that has run out of groups takes its turn with one that weighs nothing: a forward and a backward pass
        that one rank skips is one that the others wait in.
        """
        size, most = self.rollouts.group_size, len(share(self.rollouts.groups, ranks - 1, ranks))
        mine = list(self.shard(rank, ranks).split(rows))
        turns = 1 if rows is None else -(-most // max(1, rows // size))
        yield from mine
        first = self.rows(0, size)
        idle = replace(first, weight=torch.zeros_like(first.weight), normaliser=torch.zeros_like(first.normaliser))
        yield from [idle] * (turns - len(mine))


def share(groups: int, rank: int, ranks: int) -> range:
    """The groups of one rank: an even share, possibly none; that of the last rank is the largest."""
    return range(groups * rank // ranks, groups * (rank + 1) // ranks)


def concatenate(parts: Sequence[Rollouts], order: Sequence[int]) -> Rollouts:
    """Groups of several rollouts as one, padded to the longest; `order[i]` is the new place of group i."""
    length = max(part.mask.shape[1] for part in parts)
    width = max(part.prompt_mask.shape[1] for part in parts)
    size = parts[0].group_size
    place = torch.argsort(torch.tensor(order))
    index = (place.unsqueeze(1) * size + torch.arange(size)).flatten()
    joined: dict[str, Any] = {"group_size": size}
    for f in fields(Rollouts):
        values = [getattr(part, f.name) for part in parts]
        if isinstance(values[0], tuple):
            flat = [item for value in values for item in value]
            joined[f.name] = tuple(flat[i] for i in index.tolist())
        elif isinstance(values[0], Tensor):
            padded = values
            if f.name in _TOKEN_FIELDS:
                padded = [F.pad(value, (0, length - value.shape[1])) for value in values]
            elif f.name in _PROMPT_FIELDS:
                padded = [F.pad(value, (width - value.shape[1], 0)) for value in values]
            joined[f.name] = torch.cat(padded)[index]
    return Rollouts(**joined)


def concatenate_rewards(parts: Sequence[Rewards]) -> Rewards:
    """Groups of several rewards of one kind, in order."""
    parts = [part for part in parts if len(part.values)] or parts[:1]
    failed, looked = any(part.failures for part in parts), any(part.answered is not None for part in parts)
    answered = [torch.ones_like(part.valid) if part.answered is None else part.answered for part in parts]
    return Rewards(
        torch.cat([part.values for part in parts]),
        torch.cat([part.valid for part in parts]),
        torch.cat(answered) if looked else None,
        tuple(f for part in parts for f in part.failures or (None,) * part.values.numel()) if failed else (),
        {name: concatenate_rewards([part.parts[name] for part in parts]) for name in parts[0].parts},
    )


def completion_numbers(problems: Sequence[Problem], group_size: int) -> Tensor:
    """[B] int64: the number of each completion of its problem, counted on where a problem is drawn twice in a step.

    The last part of a row's key: two rows that a policy draws in one step never share all four.
    """
    seen: dict[str, int] = {}
    first = []
    for problem in problems:
        first.append(seen.get(problem.id, 0))
        seen[problem.id] = first[-1] + group_size
    return (torch.tensor(first).unsqueeze(1) + torch.arange(group_size)).flatten()


_TOKEN_FIELDS = {"completion_ids", "mask", "logprobs", "entropy"}  # right-padded
_PROMPT_FIELDS = {"prompt_ids", "prompt_mask"}  # left-padded


def _rows(value: Any, index: slice | Tensor) -> Any:
    if isinstance(value, Rollouts | Targets):
        return value.rows(index)
    if isinstance(value, tuple) and isinstance(index, Tensor):
        return tuple(value[row] for row in index.tolist())
    return value[index] if isinstance(value, Tensor | tuple) else value


def _expect_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{name}: found shape {tuple(value.shape)}, expected {shape}")
