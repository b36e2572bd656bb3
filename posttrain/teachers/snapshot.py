"""`snapshot`: the student as it was some updates ago."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.batch import Rollouts, Scores, Targets
from posttrain.policies.base import Policy, States
from posttrain.ranges import at_least, check
from posttrain.registry import teachers
from posttrain.teachers.base import Events, Gather, Surroundings, alone


@teachers.register("snapshot")
@dataclass(frozen=True)
class Snapshot:
    """The student as it was, taken anew every `refresh_every` updates."""

    refresh_every: int = 16

    def __post_init__(self) -> None:
        check("teacher", self, refresh_every=at_least(1))

    def build(self, surroundings: Surroundings) -> SnapshotTeacher:
        """The first snapshot is the student's start."""
        return snapshot_teacher(surroundings.student, self.refresh_every)


def snapshot_teacher(
    student: Policy, refresh_every: int, seen: Callable[[Policy], Policy] = lambda policy: policy
) -> SnapshotTeacher:
    """A teacher that starts from the student as it is; `seen` turns each snapshot into what answers."""
    moving = [parameter.requires_grad for parameter in student.parameters()]
    return SnapshotTeacher(seen(student.snapshot()), refresh_every, moving, seen)


@dataclass
class SnapshotTeacher:
    """Counts refreshes, not calls: no teacher is queried when a student looks at its own past."""

    policy: Policy
    refresh_every: int
    moving: list[bool]  # which of the student's parameters are trained, in their order
    seen: Callable[[Policy], Policy]
    counted: Events = field(default_factory=Events)
    watches_student: bool = False
    full_distribution: bool = True

    def prefill(self, rollouts: Rollouts, top_k: int | None) -> None:
        """Nothing to prepare."""

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
        """The past student's log-probs at `where`."""
        return self.policy.targets(rollouts, where, top_k)

    def heard(self, targets: Targets, rollouts: Rollouts) -> Targets:
        """All of it."""
        return targets

    def states(self, rollouts: Rollouts) -> States:
        """The past student's hidden states."""
        return self.policy.states(rollouts)

    def watch(self, rollouts: Rollouts, student: Scores) -> None:
        """Nothing to see."""

    def after_update(self, step: int, student: Policy) -> None:
        """Takes a new snapshot when the period is over."""
        if step % self.refresh_every == 0:
            self.policy = self.seen(student.snapshot())
            self.counted.rollout_policy_refreshes += 1

    def distribution(self) -> Policy | None:
        """None: a moving target is not something to be near to."""
        return None

    def events(self, gather: Gather = alone) -> Events:
        """Counters so far (see `Teacher.events`)."""
        return Events.over(gather(self.counted))

    def state_dict(self) -> dict[str, Any]:
        """The counters and the weights of the last snapshot, as far as they are trained."""
        return {"counted": asdict(self.counted), "weights": self._trained()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The snapshot as it was."""
        self.counted = Events(**state["counted"])
        for weight, saved in zip(self._trained(), state["weights"], strict=True):
            weight.copy_(saved)

    def _trained(self) -> list[Tensor]:
        return [weight for weight, moves in zip(self.policy.parameters(), self.moving, strict=True) if moves]
