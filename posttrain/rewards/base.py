"""What a reward may say of a completion, and how it is asked.

A reward is a callable `(problem, text)`, or a `BatchReward` that is asked about many completions at one time. Its
answer is a number, a `Verdict` (a number with what is known beside it), `None` (it has nothing to say) or a `Failure`.
One that compares with `Problem.answer` says so by `reads_answer = True`, and is refused where problems have none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from posttrain.batch import Failure, Problem


class RewardError(RuntimeError):
    """A reward broke its contract, or too many samples could not be judged: the run stops and says which."""


@dataclass(frozen=True)
class Verdict:
    """A value with what is known beside it. A missing answer is worth as much as a wrong one, but told apart."""

    value: float | Failure
    answered: bool | None = None  # whether the completion gives an answer at all; None: not looked for
    parts: Mapping[str, Outcome] = field(default_factory=dict)  # what a sum is made of, by name


Outcome = float | Verdict | Failure
Grader = Callable[[Problem, str], Outcome | None]


class BatchReward(ABC):
    """A reward that judges many completions at one time."""

    @abstractmethod
    def judge(self, problems: Sequence[Problem], texts: Sequence[str]) -> Sequence[Outcome]:
        """One outcome for each completion `texts[i]` of `problems[i]`; a problem comes once per completion."""

    def __call__(self, problem: Problem, text: str) -> Outcome:
        """The outcome of one completion."""
        return self.judge([problem], [text])[0]


def outcomes(grader: Grader, problems: Sequence[Problem], texts: Sequence[str]) -> list[Outcome]:
    """What the grader says of each completion, checked: RewardError names the first sample whose outcome is none."""
    batched = isinstance(grader, BatchReward)
    found = grader.judge(problems, texts) if batched else [grader(p, t) for p, t in zip(problems, texts, strict=True)]
    checked = []
    for i, value in enumerate(found):
        try:
            checked.append(outcome(value))
        except ValueError as error:
            raise RewardError(
                f"reward `{type(grader).__name__}`, sample {i} (problem {problems[i].id}): {error}"
            ) from error
    return checked


def outcome(value: Any) -> Outcome:
    """A number of any library as a float, None as a failure; ValueError for what is neither."""
    if value is None:
        return Failure("not judged")
    if isinstance(value, Failure):
        return value
    if isinstance(value, Verdict):
        inner = outcome(value.value)
        assert not isinstance(inner, Verdict)
        return Verdict(inner, value.answered, value.parts)
    # A bool is a number in Python; numpy's bool and torch's tensors are not, but hold one.
    if isinstance(value, np.generic | np.ndarray | Tensor) and value.ndim == 0:
        value = value.item()
    try:
        number = float(value) if isinstance(value, Real | Decimal) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"found {value!r:.80}, expected a finite number, None or a Failure")
    return number
