"""`exact` and `positions`: the completion against the answer, as a whole or choice by choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posttrain.batch import Failure, Problem
from posttrain.registry import rewards
from posttrain.rewards.base import Outcome, Verdict


@rewards.register("exact")
@dataclass(frozen=True)
class Exact:
    """1 where the completion is the answer, else 0; where the problem has no answer, 0."""

    reads_answer: ClassVar[bool] = True

    def __call__(self, problem: Problem, text: str) -> float | Failure:
        return float(bool(problem.answer) and text == problem.answer)


@rewards.register("positions")
@dataclass(frozen=True)
class Positions:
    """The share of positions that hold the right token, in [0, 1]; 0 and no answer where their number is another."""

    reads_answer: ClassVar[bool] = True

    def __call__(self, problem: Problem, text: str) -> Outcome:
        right, found = problem.answer.split(" "), text.split(" ")
        if len(right) != len(found):
            return Verdict(0.0, answered=False)
        return sum(r == f for r, f in zip(right, found, strict=True)) / len(right)
