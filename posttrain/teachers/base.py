"""The one interface of every teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from posttrain.batch import Problem, Rollouts, Scores, Targets
from posttrain.policies.base import Policy, States

Gather = Callable[[Any], list[Any]]  # one object of each rank, in rank order, on every rank


def alone(value: Any) -> list[Any]:
    """The gathering of one process."""
    return [value]


@dataclass
class Events:
    """What a run needs of its teacher, counted per completion: the same numbers whatever a store held before, and on
    however many ranks it runs.
    """

    teacher_cache_entries: int = 0  # different completions that the run looked up in a store
    teacher_prefill_calls: int = 0  # completions needed before training
    online_teacher_calls: int = 0  # completions needed during training
    drift_events: int = 0  # times the student was found to have left the policy a cache was made for
    rollout_policy_refreshes: int = 0
    corrupt_cache_entries: int = 0  # entries damaged after the run had used them; they are made again

    @classmethod
    def over(cls, ranks: Sequence[Events]) -> Events:
        """What happened on all ranks: calls add up, each rank having its own rows; the rest all of them saw."""
        added = ("teacher_cache_entries", "teacher_prefill_calls", "online_teacher_calls", "corrupt_cache_entries")
        columns = {f.name: [getattr(events, f.name) for events in ranks] for f in fields(cls)}
        return cls(**{name: sum(column) if name in added else max(column) for name, column in columns.items()})


@dataclass
class Found:
    """What a run found in a store, which depends on earlier runs: for the execution record, not for the artifact."""

    teacher_store_hits: int = 0  # entries of earlier runs, or of other processes
    teacher_store_scored: int = 0  # entries made by asking the teacher
    teacher_store_masked: int = 0  # look-ups without an answer, left out of the loss
    teacher_store_corrupt: int = 0  # all entries that failed their digest; they are made again, never used
    teacher_store_tokens: int = 0  # of the entries that were read or made, each once
    teacher_store_bytes: int = 0  # their size on disk


@dataclass(frozen=True)
class Surroundings:
    """What a teacher may be built from."""

    student: Policy  # at its start
    checkpoints: Mapping[str, Policy] = field(default_factory=dict)  # policies the dataset knows of
    folder: Path | None = None  # where a run may keep a store
    load: Callable[[str], Policy] | None = (
        None  # another language model, refused if its vocabulary is not the student's
    )
    problems: Sequence[Problem] = ()  # training and held-out ones


class Teacher(Protocol):
    """Answers about completions. `watches_student` asks for the student's scores on each step's completions."""

    watches_student: bool
    full_distribution: bool

    def prefill(self, rollouts: Rollouts, top_k: int | None) -> None:
        """Is told, before training, of completions that will be used throughout."""
        ...

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
        """What the teacher says at `where` [B, T]."""
        ...

    def heard(self, targets: Targets, rollouts: Rollouts) -> Targets:
        """What reaches the student of the answers to a whole step, put together from all ranks."""
        ...

    def states(self, rollouts: Rollouts) -> States:
        """Full distributions, where `full_distribution` says there are any."""
        ...

    def watch(self, rollouts: Rollouts, student: Scores) -> None:
        """Sees the student before each update."""
        ...

    def after_update(self, step: int, student: Policy) -> None:
        """Is told of each update, counted from 1."""
        ...

    def distribution(self) -> Policy | None:
        """The fixed policy to measure the student's distance to, if there is one."""
        ...

    def events(self, gather: Gather = alone) -> Events:
        """Counters so far, of all ranks whose counts `gather` brings together; each of them asks."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside what `build` makes again: counters, and weights that have moved."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict`."""
        ...


class TeacherConfig(Protocol):
    """A registered teacher's options."""

    def build(self, surroundings: Surroundings) -> Teacher:
        """The teacher; what it lacks is a ConfigError."""
        ...
