"""Rewards of a step: what the grader says as tensors, what is counted of it, and how many failures a run bears."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from posttrain.batch import Failure, Problem, Rewards, Rollouts
from posttrain.rewards.base import Grader, Outcome, RewardError, Verdict, outcomes


def judge(grader: Grader, problems: Sequence[Problem], rollouts: Rollouts) -> Rewards:
    """Rewards [P, G] of completions of `problems`; a failure is kept apart from a value."""
    each = [problem for problem in problems for _ in range(rollouts.group_size)]
    shape = (len(problems), rollouts.group_size)
    return _rewards(outcomes(grader, each, rollouts.texts), shape, rollouts.logprobs.dtype)


def _rewards(found: Sequence[Outcome], shape: tuple[int, int], dtype: torch.dtype) -> Rewards:
    values = [outcome.value if isinstance(outcome, Verdict) else outcome for outcome in found]
    failures = [value if isinstance(value, Failure) else None for value in values]
    verdicts = [outcome for outcome in found if isinstance(outcome, Verdict)]
    answered = [not isinstance(outcome, Verdict) or outcome.answered is not False for outcome in found]
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.parts)
    nothing = Failure("not judged")
    parts = {name: [v.parts.get(name, nothing) if isinstance(v, Verdict) else nothing for v in found] for name in names}
    numbers = [0.0 if isinstance(value, Failure) else value for value in values]
    return Rewards(
        torch.tensor(numbers, dtype=dtype).view(shape),
        torch.tensor([failure is None for failure in failures], dtype=torch.bool).view(shape),
        torch.tensor(answered).view(shape) if any(v.answered is not None for v in verdicts) else None,
        tuple(failures) if any(failures) else (),
        {name: _rewards(part, shape, dtype) for name, part in parts.items()},
    )


def named_parts(rewards: Rewards) -> dict[str, Rewards]:
    """The parts of a sum by the names they are logged under."""
    return {f"reward_{name}": part for name, part in rewards.parts.items()}


def count_outcomes(rewards: Rewards) -> dict[str, int]:
    """How many samples have no reward, of which kinds, how many give no answer, and how many each part speaks of."""
    kinds = [failure.kind for failure in rewards.failures if failure is not None]
    counted = {"unscored": len(kinds), **{f"unscored_{kind}": kinds.count(kind) for kind in ("error", "timeout")}}
    if rewards.answered is not None:
        counted["no_answer"] = int((rewards.valid & ~rewards.answered).sum())
    return counted | {f"{name}_scored": int(part.valid.sum()) for name, part in named_parts(rewards).items()}


@dataclass
class FailureWatch:
    """Stops a run whose rewards break down: failures are left out of a step, so too many would change what it learns.

    The rule: of the latest steps that together hold 1000 samples (the whole run, while it has fewer), at most 1 % may
    be errors or timeouts. While there are fewer than 100 samples they count as 100, so that one is always borne.
    """

    share: float = 0.01
    window: int = 1000
    fewest: int = 100
    steps: deque[tuple[int, int]] = field(default_factory=deque)  # samples and failures of each step in the window
    last: str = "before this process began"  # reason of the last failure; the step that tips the scale may have none

    def load(self, steps: Sequence[Sequence[int]]) -> None:
        """Goes on from the `steps` of another watch."""
        self.steps = deque((samples, failed) for samples, failed in steps)

    def add(self, rewards: Rewards) -> None:
        """Takes note of a step; raises RewardError where too many of the window's samples failed."""
        failed = int((~rewards.judged).sum())
        reasons = [failure.reason for failure in rewards.failures if failure is not None and failure.broke_down]
        self.last = reasons[-1] if reasons else self.last
        self.steps.append((rewards.values.numel(), failed))
        while sum(samples for samples, _ in self.steps) - self.steps[0][0] >= self.window:
            self.steps.popleft()
        samples, failures = (sum(column) for column in zip(*self.steps, strict=True))
        if failures > self.share * max(samples, self.fewest):
            raise RewardError(
                f"reward: {failures} of the last {samples} samples could not be judged, more than {self.share:.0%}. "
                f"The run stops here: what is left out would change what is learnt. The last one: {self.last}"
            )
