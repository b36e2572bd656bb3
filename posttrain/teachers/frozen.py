"""`frozen`: another policy in the process, asked online."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Rollouts, Scores, Targets
from posttrain.functional.selection import keyed_uniforms
from posttrain.policies.base import Policy, States
from posttrain.registry import ConfigError, did_you_mean, teachers
from posttrain.teachers.base import Events, Gather, Surroundings, alone

SHUFFLE_STREAM = 7  # keeps the shuffle's draws apart from those of the selection


@teachers.register("frozen")
@dataclass(frozen=True)
class Frozen:
    """An online teacher that never changes."""

    policy: str = "teacher"  # a checkpoint the dataset knows of, or `student` for the student's own start
    model: str | None = None  # in place of it, a language model by folder, hub id or `tiny:teacher`
    shuffle: bool = False  # control arm: answers are moved to random other tokens, so they carry no information

    def build(self, surroundings: Surroundings) -> FrozenTeacher:
        """The teacher over a model or one of the dataset's checkpoints."""
        return FrozenTeacher(self._policy(surroundings), self.shuffle)

    def _policy(self, surroundings: Surroundings) -> Policy:
        if self.model is not None:
            if surroundings.load is None:
                raise ConfigError("teacher.model: a language model teaches language models. Write policy=causal_lm.")
            return surroundings.load(self.model)
        found = {"student": surroundings.student, **surroundings.checkpoints}
        if self.policy not in found:
            hint = did_you_mean(self.policy, found)
            raise ConfigError(
                f"teacher.policy: this dataset has no checkpoint `{self.policy}`.{hint} "
                "Write teacher.model=FOLDER for a language model; dataset=decisions brings a teacher of its own."
            )
        return found[self.policy].snapshot()


@dataclass
class FrozenTeacher:
    """Scores with a policy of its own and counts each completion it is asked about."""

    policy: Policy
    shuffle: bool = False
    counted: Events = field(default_factory=Events)
    watches_student: bool = False

    @property
    def full_distribution(self) -> bool:
        """A shuffled teacher has nothing but answers to give."""
        return not self.shuffle

    def prefill(self, rollouts: Rollouts, top_k: int | None) -> None:
        """Nothing to prepare: it is asked online."""

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
        """Log-probs at `where` (see `Teacher.targets`)."""
        self.counted.online_teacher_calls += int(where.any(-1).sum())
        return self.policy.targets(rollouts, where, top_k)

    def heard(self, targets: Targets, rollouts: Rollouts) -> Targets:
        """The answers as they were given or, in the control arm, at other tokens of the step."""
        return _shuffled(targets, rollouts) if self.shuffle else targets

    def states(self, rollouts: Rollouts) -> States:
        """Hidden states for a full-vocabulary divergence."""
        self.counted.online_teacher_calls += int(rollouts.mask.any(-1).sum())
        return self.policy.states(rollouts)

    def watch(self, rollouts: Rollouts, student: Scores) -> None:
        """The student is none of its business."""

    def after_update(self, step: int, student: Policy) -> None:
        """It never changes."""

    def distribution(self) -> Policy | None:
        """Its own policy."""
        return self.policy

    def events(self, gather: Gather = alone) -> Events:
        """Counters so far (see `Teacher.events`)."""
        return Events.over(gather(self.counted))

    def state_dict(self) -> dict[str, Any]:
        """Counters alone."""
        return {"counted": asdict(self.counted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on counting."""
        self.counted = Events(**state["counted"])


def _shuffled(targets: Targets, rollouts: Rollouts) -> Targets:
    """Each answer replaced by that of the next supervised token in a random order drawn from the rows' keys.

    An answer is the log-prob with the entropy of the distribution it was taken from. The rollouts are a whole step: a
    rank's own rows in an order of their own would make what is learnt depend on the number of ranks.
    """
    where = targets.mask.flatten()
    draws = keyed_uniforms(rollouts.keys, targets.mask.shape[1], stream=SHUFFLE_STREAM)
    order = np.argsort(torch.as_tensor(draws).flatten()[where].numpy(), kind="stable")
    there = where.nonzero().squeeze(1)[torch.from_numpy(order)]

    def moved(values: Tensor) -> Tensor:
        found = values.flatten().clone()
        found[there] = values.flatten()[there.roll(1)]
        return found.view_as(values)

    entropy = None if targets.entropy is None else moved(targets.entropy)
    return Targets(moved(targets.logprobs), targets.mask, entropy=entropy)
