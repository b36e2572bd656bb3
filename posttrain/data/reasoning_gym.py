"""`reasoning_gym`: tasks of the reasoning-gym package by name. A task whose scorer cannot be trusted is refused.

Some scorers of the package are wrong: they give a task's own answers 0, or any text 1. Each is tried on its own answers
and on garbage before anything is trained on it.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.ranges import at_least, check
from posttrain.registry import ConfigError, datasets, did_you_mean

GARBAGE = ("", "garbage", "I do not know.")  # right nowhere
TRIED = 16  # items on which a scorer is tried
OWN_AT_LEAST, GARBAGE_AT_MOST = 0.99, 0.5  # mean scores; several scorers give some credit to any text
ROUNDS = 20  # as many times more items than asked for are looked through for held-out ones
# Tasks of 0.1.25 whose items follow the order of a set of texts, which Python shuffles anew in every process.
SHUFFLED = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")


@dataclass(frozen=True)
class _Drawn:
    question: str
    answer: str


@datasets.register("reasoning_gym")
@dataclass(frozen=True)
class ReasoningGym:
    """A task of reasoning-gym by name, with its own scorer as reward=reasoning_gym (needs reasoning-gym)."""

    task: str = ""
    train_examples: int = 512
    validation_examples: int = 128
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task, such as options.min_terms=2
    judged_by: ClassVar[str] = "reasoning_gym"
    allow_eval: bool = False  # true: a scorer may run Python's eval on what the model wrote

    def __post_init__(self) -> None:
        check("dataset", self, train_examples=at_least(1), validation_examples=at_least(1))

    def build(self, seed: int) -> ProblemSet:
        """Items of one seed: training items first; held-out ones ask nothing that was asked before."""
        # A task's item i is drawn from its seed + i: neighbouring seeds of ours must not become neighbours there.
        place = int(np.random.default_rng(seed).integers(2**31))
        items = self._items(place)
        train = [next(items) for _ in range(self.train_examples)]
        self._try_out(train[:TRIED])
        asked = {entry["question"] for entry, _ in train}
        held_out = []
        for entry, scorer in items:
            if entry["question"] not in asked:
                asked.add(entry["question"])
                held_out.append((entry, scorer))
            if len(held_out) == self.validation_examples:
                break
        if len(held_out) < self.validation_examples:
            raise ConfigError(
                f"dataset.validation_examples: `{self.task}` has only {len(held_out)} questions beyond those of "
                f"{self.train_examples} training items. Lower dataset.train_examples, or widen dataset.options."
            )
        splits = (("train", train), ("validation", held_out))
        found = [tuple(_problem(f"{seed}/{name}/{i}", *item) for i, item in enumerate(some)) for name, some in splits]
        return ProblemSet(found[0], found[1], f"reasoning-gym's {self.task}")

    def _items(self, place: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Items with the dataset that scores them, in order of their seeds."""
        size = self.train_examples + self.validation_examples
        for number in range(ROUNDS):
            made = self._made(place + number * size, size)
            for i in range(size):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    yield made[i], made

    def _made(self, place: int, size: int) -> Any:
        """The package's dataset; whatever it refuses is a ConfigError."""
        try:
            import reasoning_gym  # noqa: F401  # registers the tasks
            from reasoning_gym.factory import DATASETS, create_dataset
        except ImportError as error:
            raise ConfigError("dataset: needs reasoning-gym. Write: pip install 'posttrain[reasoning-gym]'") from error
        if self.task not in DATASETS:
            raise ConfigError(
                f"dataset.task: found {self.task!r}, expected a task of reasoning-gym."
                f"{did_you_mean(self.task, DATASETS)}"
            )
        if self.task in SHUFFLED and not os.environ.get("PYTHONHASHSEED", "random").isdigit():
            raise ConfigError(
                f"dataset.task: the items of `{self.task}` change with Python's hash seed, so no seed makes them "
                "again. Start the program with PYTHONHASHSEED=0, or choose another task."
            )
        cls, settings = DATASETS[self.task]
        if not self.allow_eval and re.search(r"\b(eval|exec|parse_expr)\(", inspect.getsource(cls.score_answer)):
            raise ConfigError(
                f"dataset.task: the scorer of `{self.task}` runs Python's eval on what the model wrote. Write "
                "dataset.allow_eval=true if that may happen on this machine, or choose another task."
            )
        known = {f.name for f in fields(settings)} - {"seed", "size"}
        for name in self.options:
            if name not in known:
                raise ConfigError(
                    f"dataset.options.{name}: `{self.task}` has no such option.{did_you_mean(name, known)}"
                )
        try:
            return create_dataset(self.task, seed=place, size=size, **self.options)
        except (AssertionError, ValueError, TypeError) as error:
            raise ConfigError(f"dataset.options: `{self.task}` refuses them: {error}") from error

    def _try_out(self, items: list[tuple[dict[str, Any], Any]]) -> None:
        """Refuses the task if its scorer does not tell its own answers from garbage."""
        own = [score(scorer, entry["answer"], entry) for entry, scorer in items]
        garbage = {text: [score(scorer, text, entry) for entry, scorer in items] for text in GARBAGE}
        worst = max(GARBAGE, key=lambda text: sum(garbage[text]))
        right, wrong = sum(own) / len(own), sum(garbage[worst]) / len(items)
        if right < OWN_AT_LEAST or wrong > GARBAGE_AT_MOST:
            raise ConfigError(
                f"dataset.task: the scorer of `{self.task}` cannot be trusted: on {len(items)} items it gives the "
                f"task's own answers {right:.2f} (expected 1) and {worst!r} {wrong:.2f} (expected 0) on average. "
                "Choose another task."
            )


def _problem(name: str, entry: Mapping[str, Any], scorer: Any) -> Problem:
    question, answer = str(entry["question"]), str(entry["answer"])
    meta = {**entry.get("metadata", {}), "entry": entry, "score": partial(scored, scorer, entry=entry)}
    meta.pop("messages", None)
    return Problem(name, question, answer, drawn=vars(_Drawn(question, answer)), meta=meta)


def scored(scorer: Any, answer: Any, entry: Mapping[str, Any]) -> float:
    """What the task's own scorer says of an answer; it may raise anything on what it cannot read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(scorer.score_answer(answer, entry))


def score(scorer: Any, answer: Any, entry: Mapping[str, Any]) -> float:
    """`scored`, or 0 where the scorer raises."""
    try:
        return scored(scorer, answer, entry)
    except Exception:  # code from outside: any error may come out of it
        return 0.0
