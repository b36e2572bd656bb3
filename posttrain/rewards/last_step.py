"""`last_step`: what stands after the last semicolon of a worked answer, against the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posttrain.batch import Failure, Problem
from posttrain.registry import rewards


@rewards.register("last_step")
@dataclass(frozen=True)
class LastStep:
    """1 where the last step is the answer, else 0; a completion without steps is wrong, not unjudged."""

    reads_answer: ClassVar[bool] = True

    def __call__(self, problem: Problem, text: str) -> float | Failure:
        return float(text.rpartition(";")[2] == problem.answer)
