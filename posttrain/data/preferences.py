"""`preferences`: pairs of candidates labelled by a Bradley-Terry judge whose reward is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.data.decisions import GRID
from posttrain.ranges import NOT_NEGATIVE, at_least, check
from posttrain.registry import datasets


@datasets.register("preferences")
@dataclass(frozen=True)
class Preferences:
    """One pair (chosen, rejected) per problem; P(chosen beats rejected) = sigmoid(reward gap / noise)."""

    train_examples: int = 512
    validation_examples: int = 64
    candidates: int = 6
    features: int = 6
    scale: float = 2.0  # standard length of the reward's weights
    noise: float = 1.0  # 0 labels every pair by the sign of the gap

    def __post_init__(self) -> None:
        check("dataset", self, train_examples=at_least(1), validation_examples=at_least(1), candidates=at_least(2))
        check("dataset", self, features=at_least(1), scale=NOT_NEGATIVE, noise=NOT_NEGATIVE)

    def build(self, seed: int) -> ProblemSet:
        """Judge, training and held-out problems of one seed, in this order from one stream."""
        rng = np.random.default_rng(seed)
        judge = rng.integers(-GRID, GRID + 1, self.features) / GRID
        judge = self.scale * judge / max(np.sqrt((judge**2).sum()), 1e-12)
        splits = (("train", self.train_examples), ("validation", self.validation_examples))
        train, held_out = (
            tuple(self._problem(rng, judge, f"{seed}/{name}/{i}") for i in range(count)) for name, count in splits
        )
        return ProblemSet(train, held_out, "planted Bradley-Terry preferences")

    def _problem(self, rng: np.random.Generator, judge: np.ndarray, name: str) -> Problem:
        drawn = rng.integers(-GRID, GRID + 1, (self.candidates, self.features))
        first, second = (int(i) for i in rng.choice(self.candidates, 2, replace=False))
        coin = float(rng.random())
        reward = (drawn / GRID * judge).sum(-1)
        gap = reward[first] - reward[second]
        chance = 1 / (1 + np.exp(-gap / self.noise)) if self.noise else float(gap > 0)
        chosen, rejected = (first, second) if coin < chance else (second, first)
        return Problem(
            id=name,
            prompt=f"which of {self.candidates}?",
            answer=str(int(np.argmax(reward))),
            candidates=tuple(map(str, range(self.candidates))),
            features=(drawn / GRID)[None],
            responses=(str(chosen), str(rejected)),
            drawn={"features": drawn.tolist(), "pair": [first, second], "coin": coin},
            meta={"reward": reward},
        )
