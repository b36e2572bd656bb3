"""What artifacts found, number by number: what each is of, so that a sentence about accuracy needs an accuracy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from posttrain.artifacts.gap import gap_closed
from posttrain.reporting.outcomes import BASELINE
from posttrain.reporting.reading import Entry
from posttrain.reporting.summary import METRICS, changes, completed

GAP, P, OTHER = "gap", "p", "other"  # further things a finding may be of, beside `summary.METRICS`
SETTING = "setting"  # what was set or spent: no result, and no multiple of anything


@dataclass(frozen=True)
class Source:
    """What a finding was found in."""

    page: str  # the method or track
    tier: str
    plan: str
    arm: str | None = None  # of the page's method; None for the method itself


@dataclass(frozen=True)
class Finding:
    """One number of one published artifact."""

    value: Decimal
    of: str  # a metric of `summary.METRICS`, or GAP, P, OTHER, SETTING
    source: Source
    seed: int | None = None  # of one training; None for what a page says of all


@dataclass(frozen=True)
class Count:
    """So many of so many seeds."""

    some: int
    all: int
    of: str  # a metric; OTHER
    says: frozenset[str]  # what happened to them: higher, lower, won, lost
    source: Source
    rival: str | None = None  # whom they won or lost against, without the method's name


def decimal(value: float) -> Decimal:
    """A number as it is written in JSON."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def plan_of(entry: Entry) -> str:
    """The name of the plan behind an artifact."""
    return str(entry.value.get("manifest_ref", "")).rpartition(":")[2]


def source_of(entry: Entry) -> Source:
    """What the findings of an artifact were found in."""
    arm = entry.method.partition(".")[2] or None
    return Source(entry.page, "bench" if entry.bench else entry.tier, plan_of(entry), arm)


def findings_of(entry: Entry) -> Iterator[Finding]:
    """Every number that a sentence may repeat; a historical artifact's too, since a page shows them."""
    source = source_of(entry)
    for of, value, seed in _of_bench(entry.value) if entry.bench else _of_runs(entry.value):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield Finding(decimal(value), of, source, seed)
    execution = {} if entry.execution is None else entry.execution.value["execution"]
    runs = 1 if entry.bench else len(entry.value["runs"])
    spent = [*execution.get("phases", {}).values(), sum(execution.get("phases", {}).values())]
    plan = {} if entry.plan is None else entry.plan.value["plan"]
    declared = leaves([plan.get("common_config", {}), plan.get("alpha"), plan.get("sesoi")])
    for value in (*spent, *(seconds / runs for seconds in spent), *declared):
        yield Finding(decimal(value), SETTING, source)


_Numbers = Iterator[tuple[str, Any, int | None]]  # what of, the value, the seed


def _of_runs(artifact: Mapping[str, Any]) -> _Numbers:
    for change in changes(artifact["runs"]):
        for value in (change.before, change.after, change.change, *(change.ci95 or ())):
            yield change.metric, value, None
    for seed, run in zip(artifact["seeds"], artifact["runs"], strict=False):
        if run.get("status", "completed") == "completed" and run["final"] is not None:
            yield from ((metric, run[point].get(metric), seed) for point in ("baseline", "final") for metric in METRICS)
            yield OTHER, run["training"]["last_diagnostics"].get("supervision_fraction"), None
    gap = gap_closed(artifact)
    if gap is not None:
        yield from ((GAP, value, None) for value in (gap.mean, *(gap.ci95 or ())))
        yield from ((GAP, value, seed) for seed, value in gap.shares.items())
    for entry in artifact.get("comparison", []):
        metric = entry["metric"].rpartition("/")[2]
        for value in (entry["delta_mean"], *(entry["ci95"] or ()), entry["mde_80"], entry.get("sesoi")):
            yield metric, value, None
        yield P, entry["p_adjusted"], None
    for claim in artifact.get("mechanism", {}).get("claims", []):
        yield from ((OTHER, value, None) for value in leaves([claim["measured"], claim["threshold"]]))


def _of_bench(artifact: Mapping[str, Any]) -> _Numbers:
    found = artifact["comparison"]
    values = [artifact["baseline"]["full"]["mean"], artifact["idea"]["mean"]]
    values += [found.get(key) for key in ("delta_mean", "mde", "mde_rel_pct", "mde_80", "sesoi", "sesoi_rel_pct")]
    values += list(found.get("ci95") or ())
    yield from ((OTHER, value, None) for value in values)
    yield P, found["p_value"], None
    seeds = artifact.get("protocol", {}).get("eval_seeds", range(artifact["n_seeds"]))
    for arm in (artifact["baseline"]["full"]["per_seed"], artifact["idea"]["per_seed"]):
        yield from ((OTHER, value, seed) for seed, value in zip(seeds, arm, strict=True))
    signature = artifact.get("mechanism_signature", {})
    yield from ((OTHER, value, None) for value in leaves(signature.get("mechanism_signature", signature)))


def counts_of(entry: Entry) -> Iterator[Count]:
    """Seeds that rose or fell in a metric, that completed, and that won or tied against a rival."""
    source = source_of(entry)
    if entry.bench:
        found = entry.value["comparison"]
        lower = entry.value["metric_direction"].startswith("lower")
        yield from _won((found["idea_wins"], found["n_pairs"], found.get("ties") or 0), lower, OTHER, source, BASELINE)
        return
    artifact = entry.value
    runs, done = artifact["runs"], completed(artifact["runs"])
    yield Count(len(done), len(runs), OTHER, frozenset(), source)
    yield Count(len(runs) - len(done), len(runs), OTHER, frozenset(), source)
    for change in changes(runs):
        moves = [run["final"][change.metric] - run["baseline"][change.metric] for run in done]
        yield Count(sum(move > 0 for move in moves), len(done), change.metric, frozenset({"higher"}), source)
        yield Count(sum(move < 0 for move in moves), len(done), change.metric, frozenset({"lower"}), source)
    gap = gap_closed(artifact)
    if gap is not None:
        yield Count(len(gap.missing), len(gap.shares), GAP, frozenset(), source)
    for compared in artifact.get("comparison", []):
        if compared["wins"] is not None:
            counted = compared["wins"], compared["n_pairs"], compared["ties"] or 0
            metric, rival = (compared["metric"].rpartition("/")[2], compared["against"]["method"].rpartition(".")[2])
            yield from _won(counted, compared["direction"].startswith("lower"), metric, source, rival)


def _won(counted: tuple[int, int, int], lower: bool, of: str, source: Source, rival: str) -> Iterator[Count]:
    """Counts of a comparison: wins, pairs and ties."""
    wins, pairs, ties = counted
    won, lost = ("lower", "higher") if lower else ("higher", "lower")
    yield Count(wins, pairs, of, frozenset({"won", won}), source, rival)
    yield Count(pairs - wins - ties, pairs, of, frozenset({"lost", lost}), source, rival)
    yield Count(ties, pairs, of, frozenset(), source, rival)


def leaves(value: Any, without: Collection[str] = ()) -> Iterator[float]:
    """Every number in plain data, but what lies below some keys."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in without:
                yield from leaves(part, without)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, without)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
