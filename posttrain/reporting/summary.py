"""What a page derives from an artifact: means, changes and intervals over seeds, by the functions of `artifacts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.artifacts import statistics

METRICS = {
    "accuracy": ("accuracy", "share of items"),
    "mean_reward": ("mean reward", "reward"),
    "entropy": ("entropy", "nats per token"),
    "kl_from_reference": ("KL to the reference", "nats per token"),
    "kl_from_teacher": ("KL to the teacher", "nats per token"),
}


@dataclass(frozen=True)
class Change:
    """One metric before and after training, over the seeds that completed."""

    metric: str
    before: float
    after: float
    change: float
    ci95: tuple[float, float] | None  # of the change; None at one seed


def completed(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs that reached their end."""
    return [run for run in runs if run.get("status", "completed") == "completed" and run["final"] is not None]


def changes(runs: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Every metric that all completed runs have; an interval needs two seeds."""
    runs = completed(runs)
    names = [name for name in METRICS if runs and all(run["baseline"].get(name) is not None for run in runs)]
    return [_change(name, runs) for name in names]


def _change(metric: str, runs: Sequence[Mapping[str, Any]]) -> Change:
    before, after = ([run[point][metric] for run in runs] for point in ("baseline", "final"))
    differences = [b - a for a, b in zip(before, after, strict=True)]
    found = statistics.interval(differences)
    ends = None if found is None else (found.low, found.high)
    start, end, moved = (statistics.mean(values) for values in (before, after, differences))
    return Change(metric, start, end, moved, ends)


def across(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
    """Step, mean, low and high end of the 95 % t interval over seeds, at the steps that every curve has."""
    tracks = [dict(points) for points in curves]
    steps = sorted(set.intersection(*(set(track) for track in tracks))) if tracks else []
    found = []
    for step in steps:
        values = [track[step] for track in tracks]
        centre = statistics.mean(values)
        ends = statistics.t_interval(values) if len(values) > 1 else None
        found.append((step, centre, ends.low if ends else centre, ends.high if ends else centre))
    return found


def curve(run: Mapping[str, Any], metric: str) -> list[tuple[float, float]]:
    """Step and value, the point before training at step 0."""
    rows = [(0.0, run["baseline"].get(metric)), *((row["step"], row.get(metric)) for row in run["history"])]
    return [(step, value) for step, value in rows if value is not None]


def total(runs: Sequence[Mapping[str, Any]], counter: str) -> int:
    """A counter of the training block, added up over seeds."""
    return sum(int(run["training"].get(counter, 0)) for run in runs)
