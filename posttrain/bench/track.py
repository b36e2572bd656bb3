"""A track is data: what is learnt, by which model, under which budget, and what counts as better.

Both arms are overrides on one base. What they may not override is what makes them comparable: data, epochs, batch
size, seeds, initial weights and order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

from posttrain.artifacts.statistics import Direction
from posttrain.evaluation.study import Claim, Results
from posttrain.registry import ConfigError, Registry, did_you_mean

tracks = Registry("track", "posttrain.bench.tracks")

Settings = Mapping[str, Any]
NAME = r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}"  # of ideas and tracks: files and folders are called after them


@dataclass(frozen=True)
class Cell:
    """One training: an arm's settings at one seed."""

    settings: Settings  # budget, base, the idea's and the sweep's, merged in this order
    data: Settings  # options of the generator, the same in both arms
    seed: int  # decides data, initial weights and order
    idea: Idea | None = None  # whose hooks apply; None in the baseline


@dataclass(frozen=True)
class Result:
    """What one training leaves behind."""

    metric: float
    measures: Mapping[str, Any] = field(default_factory=dict)  # numbers that claims and the signature are made of
    start: Mapping[str, str] = field(default_factory=dict)  # digests of what both arms share: data, weights, order


class Task(Protocol):
    """How a cell is run. `loops.Training` is the usual one. It may have a `check(cell)` that refuses bad settings."""

    def drawn(self, seed: int, options: Settings) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the generator draws for a seed, example by example, for each split."""
        ...

    def run(self, cell: Cell) -> Result:
        """Trains and measures; a pure function of the cell."""
        ...


@dataclass(frozen=True)
class Found:
    """A finished sweep, as the signature of a track reads it."""

    seeds: tuple[int, ...]  # of the evaluation
    metrics: Mapping[str, Sequence[float]]  # by arm, in the order of the seeds
    results: Results  # the winning cells' measures: results.measure("idea", name)
    settings: Mapping[str, Settings]  # the winning cell of each arm, complete
    best: Mapping[str, Settings]  # the same as cfg
    idea_sweep: Sequence[Mapping[str, Any]]  # cfg, mean, per_seed


@dataclass(frozen=True)
class Idea:
    """What someone wants to try: settings, a sweep as large as the baseline's, and hooks into the training.

    `model(base, settings)` gets the baseline's model with its initial weights and gives the changed one, a Module.
    `loss(model, batch, settings, base)` gives a float tensor []; `base(model, batch, settings)` is the track's own.
    `order(base, data, settings)` gets example numbers [E, N] (int64; E epochs, N training examples) and gives others of
    the same shape.
    `optimizer(parameters, settings)` gets a list of parameters and gives a torch optimizer.
    Settings that nothing reads are refused, and every hook is called once before anything is tuned (`rehearsal`).
    """

    name: str
    settings: Settings = field(default_factory=dict)
    sweep: tuple[Settings, ...] = ()  # overrides for each cell; empty: the baseline's cells
    model: Callable[[Any, Settings], Any] | None = None
    loss: Callable[[Any, Any, Settings, Callable[..., Any]], Any] | None = None
    order: Callable[[Any, Any, Settings], Any] | None = None
    optimizer: Callable[[Any, Settings], Any] | None = None
    claims: tuple[Claim, ...] = ()  # predictions with rule and threshold, written into the plan

    def __post_init__(self) -> None:
        check_name("idea", self.name)

    @property
    def changes(self) -> list[str]:
        """What the idea changes, by name."""
        hooks = [name for name in ("model", "loss", "order", "optimizer") if getattr(self, name) is not None]
        return hooks + sorted({*self.settings, *(key for cell in self.sweep for key in cell)})


@dataclass(frozen=True)
class Track:
    """A benchmark. Seeds, thresholds and settings are defaults that `key=value` words may change."""

    name: str
    model: str  # mlp_tiny, transformer_tiny, ...
    metric: str  # what one number per seed means, with its unit
    direction: Direction
    rationale: str
    task: Task
    budget: Settings  # epochs, batch size, ...: no arm may change them
    base: Settings  # every other setting with its default
    data: Settings  # options of the generator: no arm may change them
    sweep: tuple[Settings, ...]  # the baseline's cells, overrides on `base`
    shown: tuple[str, ...]  # the settings that a `cfg` holds, in this order
    idea: Idea
    mechanism: Callable[[Found], dict[str, Any]] | None = None  # the track's own signature fields
    math_check: Callable[[], dict[str, Any]] | None = None  # analytic checks that need no training
    seeds: tuple[int, ...] = tuple(range(8))
    tuning_seeds: tuple[int, ...] = (100, 101, 102, 103)
    recorded_tuning: int = 4  # how many evaluation seeds the recorded protocol tunes on
    sesoi_rel_pct: float = 5.0  # smallest effect of interest, % of the absolute baseline mean
    domain: str | None = None
    tier: str = "l1_mechanism"  # what may be concluded at most: see posttrain.reporting.page.TIER_NAMES

    def __post_init__(self) -> None:
        check_name("track", self.name)
        if self.direction not in ("lower is better", "higher is better"):
            raise ConfigError(
                f"track.direction: found {self.direction!r}, expected 'lower is better' or 'higher is better'"
            )
        if not self.sweep:
            raise ConfigError("track.sweep: found no cell. Give at least one, such as ({'lr': 0.01},)")
        for key in {key for cell in self.sweep for key in cell} | set(self.shown):
            if key not in {**self.base, **self.budget}:
                raise ConfigError(f"track: the sweep names `{key}`.{did_you_mean(key, {**self.base, **self.budget})}")
        check_arm(self, {}, self.sweep, "the baseline")

    def check(self, cell: Cell) -> None:
        """Refuses what the task cannot run, before anything runs."""
        own = getattr(self.task, "check", None)
        if own is not None:
            own(cell)

    def cells(self, idea: Idea | None) -> list[Settings]:
        """Complete settings of every cell of an arm; both arms have equally many."""
        own: Settings = {} if idea is None else idea.settings
        varied = self.sweep if idea is None or not idea.sweep else idea.sweep
        if idea is not None:
            check_arm(self, own, varied, f"the idea `{idea.name}`")
            if len(varied) != len(self.sweep):
                raise ConfigError(
                    f"idea.sweep: found {len(varied)} cells, but the baseline is tuned over {len(self.sweep)}. "
                    f"Give {len(self.sweep)} cells, so that both arms have the same budget."
                )
        return [{**self.budget, **self.base, **own, **cell} for cell in varied]

    def cfg(self, settings: Settings, idea: Idea | None) -> dict[str, Any]:
        """What an artifact shows of a cell: the track's keys, then the idea's own."""
        own = [] if idea is None else [*idea.settings, *(key for cell in idea.sweep for key in cell)]
        return {key: settings[key] for key in dict.fromkeys((*self.shown, *own))}


def check_name(kind: str, name: Any) -> None:
    """Refuses what no file can be called."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ConfigError(
            f"{kind}.name: found {name!r}, expected at most 64 letters, digits, blanks and any of . _ + -, the first a "
            f"letter or digit: {kind.capitalize()}(name='my-{kind}', ...)"
        )


def check_arm(track: Track, own: Settings, sweep: Sequence[Settings], arm: str) -> None:
    """Refuses an arm that changes the budget or the data (its seeds would be no pairs), or a setting's type."""
    for place, cell in enumerate((own, *sweep)):
        if not isinstance(cell, Mapping):
            where = "settings" if place == 0 else f"sweep[{place - 1}]"
            raise ConfigError(f"{where}: {arm} has {cell!r} there, expected a mapping such as {{'lr': 0.01}}")
        for key, value in cell.items():
            if key in track.budget or key in track.data:
                part = "settings" if key in track.budget else "data"
                raise ConfigError(
                    f"{key}: {arm} sets it, but both arms share budget and data. Leave it out, or change it for both "
                    f"with {part}.{key}=VALUE."
                )
            if key in track.base:
                of_type(f"{key}: {arm} sets it to", value, track.base[key])


def of_type(what: str, value: Any, default: Any) -> Any:
    """A setting as the type of its default; a whole number may stand for a float. A default of None takes anything."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and type(value) is not type(default):
        raise ConfigError(f"{what} {value!r}, expected the type of its default {default!r}")
    return value


def grid(**axes: Sequence[Any]) -> tuple[Settings, ...]:
    """Every combination, the last axis varying fastest."""
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def checked(**checks: tuple[float, float]) -> dict[str, Any]:
    """`checks` and `confirmed` of a math_check: for each name its error and tolerance."""
    rows = [
        {"name": name, "error": error, "tolerance": tolerance, "ok": abs(error) <= tolerance}
        for name, (error, tolerance) in checks.items()
    ]
    return {"confirmed": all(row["ok"] for row in rows), "checks": rows}
