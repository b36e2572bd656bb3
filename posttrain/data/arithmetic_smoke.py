"""`arithmetic-smoke`: two numbers, one operation, six candidate answers near the right one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.ranges import at_least, check
from posttrain.registry import datasets

OFFSETS = (0.0, 1.0, -1.0, 2.0, -3.0, 5.0)
FEATURES = ("bias", "signed_value", "magnitude", "integer", "concise", "has_equation", "step_count", "self_check")
OPERATIONS = ("+", "-", "*")


@dataclass(frozen=True)
class _Drawn:
    a: int
    b: int
    operation: int
    offsets: list[float]
    process_noise: list[float]
    check_noise: list[float]


@datasets.register("arithmetic-smoke")
@dataclass(frozen=True)
class ArithmeticSmoke:
    """Problems of the recorded protocol: one stream per seed, training problems first, then the held-out ones."""

    maximum_examples: int = 192  # training problems; a quarter of them, at least 64, is held out

    def __post_init__(self) -> None:
        check("dataset", self, maximum_examples=at_least(1))

    def build(self, seed: int) -> ProblemSet:
        """The problems of one seed."""
        rng = np.random.default_rng(seed)
        train = tuple(_problem(rng, f"{seed}/train/{i}") for i in range(self.maximum_examples))
        held_out = max(64, self.maximum_examples // 4)
        validation = tuple(_problem(rng, f"{seed}/validation/{i}") for i in range(held_out))
        return ProblemSet(train, validation, "deterministic arithmetic smoke suite")


def _problem(rng: np.random.Generator, name: str) -> Problem:
    a, b, operation = int(rng.integers(2, 80)), int(rng.integers(2, 80)), int(rng.integers(0, 3))
    offsets = np.array(OFFSETS)
    rng.shuffle(offsets)
    process_noise, check_noise = rng.normal(0, 0.12, 6), rng.normal(0, 0.08, 6)
    drawn = _Drawn(a, b, operation, offsets.tolist(), process_noise.tolist(), check_noise.tolist())

    gold = (a + b, a - b, a * b)[operation]
    value = gold + offsets
    steps = np.arange(6) % 3 + 1
    process = np.clip(1 - np.abs(offsets) / 5 + process_noise, 0, 1)
    check = np.clip(process + check_noise, 0, 1)
    columns = (
        np.ones(6),
        np.tanh(value / 100),
        np.tanh(np.abs(value) / 100),
        (value == np.floor(value)).astype(float),
        1 / steps,
        (steps > 1).astype(float),
        np.minimum(steps / 4, 1),
        check,
    )
    axes = {"outcome": (offsets == 0).astype(float), "format": np.ones(6), "reasoning": process, "brevity": 1 / steps}
    return Problem(
        id=name,
        prompt=f"{a} {OPERATIONS[operation]} {b} =",
        answer=str(gold),
        candidates=tuple(str(int(v)) for v in value),
        features=np.stack(columns, axis=1)[None],
        drawn=vars(drawn),
        meta={"axes": axes},
    )
