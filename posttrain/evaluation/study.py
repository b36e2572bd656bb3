"""Studies: the claims of a paper, written down with prediction, rule and threshold before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.artifacts import statistics
from posttrain.artifacts.claims import RULES, judge
from posttrain.registry import ConfigError, Registry
from posttrain.trainer import Trainer

studies = Registry("study", "posttrain.evaluation.mechanisms")

Run = Mapping[str, Any]
Probe = Callable[[Callable[[], Trainer], Trainer], float]


@dataclass(frozen=True)
class Results:
    """The runs of every arm, seed by seed, with the readings that claims are made of."""

    runs: Mapping[str, Sequence[Run]]

    def final(self, arm: str, metric: str = "accuracy") -> list[float]:
        """The metric after training, one number per seed."""
        return [run["final"][metric] for run in self.runs[arm]]

    def gain(self, arm: str, metric: str = "accuracy") -> list[float]:
        """After minus before, one number per seed."""
        return [run["final"][metric] - run["baseline"][metric] for run in self.runs[arm]]

    def measure(self, arm: str, name: str) -> list[float]:
        """What a probe measured, one number per seed."""
        return [run["measures"][name] for run in self.runs[arm]]

    def training(self, arm: str, name: str) -> list[float]:
        """A counter or number of the training block, one per seed."""
        return [float(run["training"][name]) for run in self.runs[arm]]

    def diagnostic(self, arm: str, name: str) -> list[float]:
        """A diagnostic of the last update, one number per seed."""
        return [run["training"]["last_diagnostics"][name] for run in self.runs[arm]]


ALPHA = 0.05


def difference(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a - b, seed by seed."""
    return [x - y for x, y in zip(a, b, strict=True)]


def ratio(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a / b, seed by seed; a quotient without meaning is NaN and makes its claim inconclusive."""
    return [x / y if y else math.nan for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper as a measurement. `values` gives, for each named quantity, one number per seed.

    `rule` is one of `artifacts.claims.RULES`: `interval ...` looks at the 95 % interval of the one quantity,
    `every interval ...` at those of all of them, `value ...` at the largest absolute value over the seeds.
    """

    id: str
    claim: str
    prediction: str
    metric: str
    rule: str
    threshold: float
    values: Callable[[Results], Mapping[str, Sequence[float]]]

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"claim {self.id}: unknown rule {self.rule!r}. Write one of: {'; '.join(RULES)}")

    def written(self) -> dict[str, Any]:
        """What the plan records before the run."""
        names = ("id", "claim", "prediction", "metric", "rule", "threshold")
        return {name: getattr(self, name) for name in names}

    def decide(self, results: Results) -> dict[str, Any]:
        """The claim with what was measured and the outcome its rule gives."""
        measured = self._measured(self.values(results))
        return {**self.written(), "measured": measured, "outcome": judge(self.rule, self.threshold, measured)}

    def _measured(self, values: Mapping[str, Sequence[float]]) -> dict[str, Any] | None:
        if not all(math.isfinite(value) for numbers in values.values() for value in numbers):
            return None
        if self.rule.startswith("value"):
            (numbers,) = values.values()
            return {"value": max(map(abs, numbers)), "n": len(numbers)}
        if self.rule.startswith("every"):
            return {name: part for key, numbers in values.items() for name, part in _several(key, numbers).items()}
        (numbers,) = values.values()
        return _one(numbers)


def _one(numbers: Sequence[float]) -> dict[str, Any]:
    # Where no p can be small enough there is no interval to decide by either: the claim stays inconclusive.
    enough = len(numbers) >= statistics.seeds_needed(ALPHA, 1)
    found = statistics.interval(numbers) if enough else None
    return {
        "n": len(numbers),
        "mean": statistics.mean(numbers),
        "ci95": None if found is None else [found.low, found.high],
        "p_value": statistics.sign_flip(numbers).p_value,
    }


def _several(name: str, numbers: Sequence[float]) -> dict[str, Any]:
    one = _one(numbers)
    return {name: one["ci95"], f"{name} mean": one["mean"], f"{name} p_value": one["p_value"]}


@dataclass(frozen=True)
class Study:
    """An algorithm's claims: the configuration they are tested under, the arms, and further measurements.

    `arms` maps an arm's name to the settings in which it differs; the algorithm itself under `config` is `main`.
    `others` maps further arms to other algorithms. `rivals` are the arms `main` is compared with, one family.
    """

    config: str
    claims: tuple[Claim, ...]
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)  # arm -> algorithm
    rivals: tuple[str, ...] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    probed: tuple[str, ...] = ()  # the arms that probes look at; empty: all
    seeds: str = "42-53"

    def __post_init__(self) -> None:
        unknown = set(self.rivals) - set(self.arms) - set(self.others)
        if unknown:
            raise ConfigError(f"study: rivals {sorted(unknown)} are not among its arms")
