"""`numeric`: the number a completion ends in against the answer, in exact rational arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posttrain.batch import Failure, Problem
from posttrain.ranges import NOT_NEGATIVE, check
from posttrain.registry import rewards
from posttrain.rewards.answers import Percent, close, final_answer
from posttrain.rewards.base import Outcome, Verdict


@rewards.register("numeric")
@dataclass(frozen=True)
class Numeric:
    r"""1 where the final number (boxed, after `####` or 'answer is', or the last one) is the answer, else 0.

    Equal means |a - b| <= tolerance * max(|a|, |b|) of exact fractions. `percent` says what 50% is: with a `unit` it is
    50, as 12 cm is 12; as a `fraction` it is 1/2. An answer of the dataset that is no number leaves its problem out.
    """

    reads_answer: ClassVar[bool] = True

    tolerance: float = 0.0
    percent: Percent = "unit"

    def __post_init__(self) -> None:
        check("reward", self, tolerance=NOT_NEGATIVE)

    def __call__(self, problem: Problem, text: str) -> Outcome:
        right = final_answer(problem.answer, self.percent)
        if right is None or right.value is None:
            return Failure(f"the answer {problem.answer!r} is no number; write reward=maths or reward=exact")
        found = final_answer(text, self.percent)
        if found is None:
            return Verdict(0.0, answered=False)
        equal = found.value is not None and close(found.value, right.value, self.tolerance)
        return Verdict(float(equal), answered=True)
