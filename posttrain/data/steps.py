"""`steps`: chains of digits, worked out step by step, modulo ten.

`7+5-3=` is answered `7+5=2;2-3=9;9`: every step is one character to get right, completions are long enough that
positions differ, and no two-digit number spoils the alphabet. Some problems have more operations than others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.ranges import Range, at_least, check
from posttrain.registry import datasets

ALPHABET = "0123456789+-*=;"
OPERATIONS = "+-*"


@datasets.register("steps")
@dataclass(frozen=True)
class Steps:
    """Problems of `shortest` to `longest` operations, each with its worked answer as data row."""

    judged_by: ClassVar[str] = "last_step"  # the reward of an evaluation that names none

    train_examples: int = 512
    validation_examples: int = 128
    shortest: int = 2
    longest: int = 4

    def __post_init__(self) -> None:
        check("dataset", self, train_examples=at_least(1), validation_examples=at_least(1), shortest=at_least(1))
        longer = Range(f"{self.shortest} to 9", lambda value: self.shortest <= value <= 9)
        check("dataset", self, longest=longer)

    def build(self, seed: int) -> ProblemSet:
        """Training and held-out problems of one seed, in this order from one stream; no held-out one is trained on."""
        rng = np.random.default_rng(seed)
        seen: set[str] = set()
        train = tuple(self._problem(rng, f"{seed}/train/{i}", seen) for i in range(self.train_examples))
        held_out = tuple(
            self._problem(rng, f"{seed}/validation/{i}", set(seen)) for i in range(self.validation_examples)
        )
        return ProblemSet(train, held_out, "chains of digits modulo ten, worked step by step")

    def _problem(self, rng: np.random.Generator, name: str, taken: set[str]) -> Problem:
        """A problem whose question is not among `taken`; its question is added there."""
        while True:
            count = int(rng.integers(self.shortest, self.longest + 1))
            digits = rng.integers(0, 10, count + 1).tolist()
            operations = rng.integers(0, len(OPERATIONS), count).tolist()
            signs = [OPERATIONS[i] for i in operations]
            prompt = str(digits[0]) + "".join(s + str(d) for s, d in zip(signs, digits[1:], strict=True)) + "="
            if prompt not in taken:
                break
        taken.add(prompt)
        worked, answer = work_out(digits, signs)
        drawn = {"digits": digits, "operations": operations}
        return Problem(id=name, prompt=prompt, answer=answer, responses=(worked,), drawn=drawn)


def work_out(digits: list[int], signs: list[str]) -> tuple[str, str]:
    """The worked answer and the answer: one operation at a time from the left, each result modulo ten."""
    return with_slip(digits, signs, 0, 0)


def with_slip(digits: list[int], signs: list[str], place: int, by: int) -> tuple[str, str]:
    """The same with a result at step `place` that is `by` too large, modulo ten, and what follows from it."""
    value, written = digits[0], []
    for step, (sign, digit) in enumerate(zip(signs, digits[1:], strict=True)):
        exact = {"+": value + digit, "-": value - digit, "*": value * digit}[sign]
        result = (exact + (by if step == place else 0)) % 10
        written.append(f"{value}{sign}{digit}={result}")
        value = result
    return ";".join([*written, str(value)]), str(value)
