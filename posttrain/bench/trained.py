"""A cell as one seed of `posttrain train`: the task of tracks whose arms are algorithms of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from posttrain import settings
from posttrain.assembly import assemble, pin
from posttrain.bench.track import Cell, Result, Settings
from posttrain.overrides import put
from posttrain.registry import ConfigError, algorithms
from posttrain.settings import COMPONENTS
from posttrain.trainer import Trainer

HOOKS = {"model", "loss", "order", "optimizer"}
Measured = tuple[float, Mapping[str, Any]]  # the metric, and the measures that claims are made of


@dataclass(frozen=True)
class Trained:
    """A task whose settings are settings of `posttrain train`, some of them under a short word (see `track.Task`).

    `run_one` trains an assembled seed and gives its metric and measures.
    """

    streams: ClassVar[Mapping[str, str]] = dict.fromkeys(("data", "training"), "numpy.random.default_rng(seed), PCG64")

    run_one: Callable[[Trainer], Measured]
    common: Settings  # configuration that no cell changes: tier, evaluation, teacher
    defaults: Settings  # of every setting of a cell
    words: Mapping[str, str] = field(default_factory=dict)  # short word -> setting

    def config(self, options: Settings, data: Settings) -> settings.TrainConfig:
        """The configuration of a cell. A default of `algorithm.X` counts for the algorithms that have an X."""
        raw: dict[str, Any] = {"dataset": dict(data)}
        for key, value in {**self.common, **options}.items():
            word = self.words.get(key, key)
            if key != "algorithm" and not self._is_foreign(key, word, value, options["algorithm"]):
                put(raw, word, value, COMPONENTS)
        return settings.resolve(raw, options["algorithm"])

    def _is_foreign(self, key: str, word: str, value: Any, algorithm: str) -> bool:
        """Whether it is the default of an option that this algorithm lacks."""
        part, _, option = word.partition(".")
        default = key in self.defaults and value == self.defaults[key]
        return part == "algorithm" and default and not hasattr(algorithms.get(algorithm), option)

    def drawn(self, seed: int, options: Settings) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the dataset drew."""
        problems = self.config(self.defaults, options).dataset.build(seed)
        return {"train": [p.drawn for p in problems.train], "validation": [p.drawn for p in problems.validation]}

    def trainer(self, options: Settings, data: Settings, seed: int) -> Trainer:
        """The seed, assembled but not trained."""
        pin()
        return assemble(self.config(options, data), seed)

    def check(self, cell: Cell) -> None:
        """Refuses hooks, and settings that `posttrain train` would refuse."""
        if cell.idea is not None and set(cell.idea.changes) & HOOKS:
            raise ConfigError(
                "idea: this track's ideas are settings, not hooks. Write Idea(name='...', "
                "settings={'algorithm': 'mine'}) and register the algorithm in the same file."
            )
        self.config(cell.settings, cell.data)

    def rehearse(self, cells: Sequence[Cell]) -> list[Result]:
        """The first cell with a single update, measured: an algorithm from outside is called as in a training."""
        first = cells[0]
        return [self.run(replace(first, settings={**first.settings, "steps": 1}))]

    def run(self, cell: Cell) -> Result:
        """Trains and measures; both arms start from the same problems and weights."""
        self.check(cell)
        with torch.random.fork_rng(devices=()):  # a seed sets the global generator, which belongs to the caller
            trainer = self.trainer(cell.settings, cell.data, cell.seed)
            start = {"data": _digest(trainer), "initial_weights": trainer.policy.identity()["weights"]}
            metric, measures = self.run_one(trainer)
        return Result(metric, measures, start)


def _digest(trainer: Trainer) -> str:
    problems = (*trainer.problems, *trainer.evaluator.problems)
    return hashlib.sha256(repr([sorted(p.drawn.items()) for p in problems]).encode()).hexdigest()
