"""`decisions`: long completions of small choices, one right token per position, with a student and a teacher.

Most positions are routine: features whose meaning the student knows decide them. A share of the positions are forks,
decided by features the student has to learn. That is the shape of the claim behind sparse supervision: few tokens
carry what the teacher can teach. The teacher's distance turns its taste in the known features away from the truth.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.ranges import NOT_NEGATIVE, UNIT, Range, at_least, check
from posttrain.registry import ConfigError, datasets

# Features and directions are drawn as whole numbers, so they are equal on every machine; directions on a finer grid, or
# two tokens would often be worth exactly the same.
GRID = 8
DIRECTION_GRID = 1000
TIE = 1e-9
TRIES = 1000  # draws of a position until one token is better than all others


@datasets.register("decisions")
@dataclass(frozen=True)
class Decisions:
    """Planted linear decisions. Every number of a problem is drawn; the right token follows from the truth."""

    train_examples: int = 128
    validation_examples: int = 64
    positions: int = 64
    minimum_positions: int | None = None  # shorter problems down to this length; None: all equally long
    candidates: int = 8
    known: int = 6  # features whose meaning the student starts with
    new: int = 6  # features it has to learn
    hidden: int = 0  # features only the teacher (and the truth) sees: they limit what the student can reach
    fork_rate: float = 0.25  # share of positions that new and hidden features decide
    distance: float = 0.0  # 0: the teacher shares the student's taste in known features; 1: a right angle to it
    sharpness: float = 6.0  # logits of teacher and truth per unit of their direction
    prefix: float = 0.0  # strength of the dependence on the token before (policy.name=tree)

    def __post_init__(self) -> None:
        one = at_least(1)
        check("dataset", self, train_examples=one, validation_examples=one, positions=one, known=one, new=one)
        check("dataset", self, candidates=at_least(2), hidden=at_least(0), fork_rate=UNIT, distance=UNIT)
        length = Range(f"1 to {self.positions}, or null", lambda value: value is None or 1 <= value <= self.positions)
        check("dataset", self, minimum_positions=length, sharpness=NOT_NEGATIVE, prefix=NOT_NEGATIVE)

    def build(self, seed: int) -> ProblemSet:
        """World, training and held-out problems of one seed, in this order from one stream."""
        rng = np.random.default_rng(seed)
        truth = self._truth(rng)
        train = tuple(self._problem(rng, truth, f"{seed}/train/{i}") for i in range(self.train_examples))
        held_out = tuple(self._problem(rng, truth, f"{seed}/validation/{i}") for i in range(self.validation_examples))
        return ProblemSet(train, held_out, "planted linear decisions", self._checkpoints(truth))

    def _truth(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Unit directions of the feature blocks, a direction off the known one, and the table of prefix effects."""
        sizes = {"known": self.known, "off": self.known, "new": self.new + self.hidden}
        truth = {name: _unit(_draw(rng, size, DIRECTION_GRID)) for name, size in sizes.items()}
        truth["off"] = _unit(truth["off"] - (truth["off"] @ truth["known"]) * truth["known"])
        truth["prefix"] = _draw(rng, (self.candidates + 1, self.candidates)) / GRID
        return truth

    def _checkpoints(self, truth: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        turned = np.cos(np.pi / 2 * self.distance) * truth["known"] + np.sin(np.pi / 2 * self.distance) * truth["off"]
        student = {"weight": self.sharpness * np.concatenate([truth["known"], np.zeros(self.new)])}
        teacher = {"weight": self.sharpness * np.concatenate([turned, truth["new"]])}
        if self.prefix:
            teacher["transition"] = self.prefix * self.sharpness * truth["prefix"]
        return {"student": student, "teacher": teacher}

    def _problem(self, rng: np.random.Generator, truth: dict[str, np.ndarray], name: str) -> Problem:
        shortest = self.positions if self.minimum_positions is None else self.minimum_positions
        length = int(rng.integers(shortest, self.positions + 1))
        forks = rng.integers(0, 1000, length) < round(1000 * self.fork_rate)
        drawn = _draw(rng, (length, self.candidates, self.known + self.new + self.hidden))
        for _ in range(TRIES):
            features = drawn / GRID
            features[forks, :, : self.known] = 0.0
            features[~forks, :, self.known :] = 0.0
            values = (features * np.concatenate([truth["known"], truth["new"]])).sum(-1)
            answer, lead = _greedy_path(values, self.prefix * truth["prefix"])
            tied = lead < TIE
            if not tied.any():
                break
            drawn[tied] = _draw(rng, drawn[tied].shape)  # one right token at every position
        else:
            raise ConfigError("dataset: so few features leave several right tokens. Write more, or fewer candidates.")
        text = " ".join(map(str, answer))
        return Problem(
            id=name,
            prompt=f"{length} decisions among {self.candidates}",
            answer=text,
            candidates=tuple(map(str, range(self.candidates))),
            features=features,
            responses=(text,),
            drawn={"forks": forks.astype(int).tolist(), "features": _digest(drawn), "answer": answer},
            meta={"forks": forks},
        )


def _draw(rng: np.random.Generator, shape: Any, largest: int = GRID) -> np.ndarray:
    return rng.integers(-largest, largest + 1, shape).astype(np.float64)


def _unit(vector: np.ndarray) -> np.ndarray:
    norm = np.sqrt((vector**2).sum())
    return vector / norm if norm else vector


def _greedy_path(values: np.ndarray, prefix: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The right token at each position [T], given the right ones before it, and its lead over the next best."""
    path, lead, before = [], [], len(prefix) - 1
    for row in values:
        worth = row + prefix[before]
        before = int(np.argmax(worth))
        path.append(before)
        lead.append(worth[before] - np.partition(worth, -2)[-2])
    return path, np.array(lead)


def _digest(drawn: np.ndarray) -> dict[str, Any]:
    """A large array of small integers, by shape and digest of its bytes."""
    return {"shape": list(drawn.shape), "int8": hashlib.sha256(drawn.astype(np.int8).tobytes()).hexdigest()}
