"""`first-half`: a reward that looks at the first half of a completion."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.batch import Failure, Problem
from posttrain.registry import rewards


@rewards.register("first-half")
@dataclass(frozen=True)
class FirstHalf:
    """The share of right tokens among the first half of the positions (rounded up), in [0, 1]."""

    def __call__(self, problem: Problem, text: str) -> float | Failure:
        right, found = problem.answer.split(" "), text.split(" ")
        if len(right) != len(found):
            return Failure(f"{len(found)} tokens where the answer has {len(right)}")
        half = (len(right) + 1) // 2
        return sum(r == f for r, f in zip(right[:half], found[:half], strict=True)) / half
