"""The `comparison` block of an artifact: its runs against each rival's, made and checked by the same code."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posttrain.artifacts.documents import shown
from posttrain.artifacts.verdicts import Comparison, adjust, compare

TOLERANCE = 1e-12  # relative to max(1, |a|, |b|): means, p-values and intervals; counts and differences are exact
_EXACT = {"per_seed_diffs", "seeds"}


@dataclass(frozen=True)
class Rival:
    """One arm that the runs of an artifact are compared with."""

    method: str
    artifact_sha256: str
    runs: Sequence[Mapping[str, Any]]


def metric_by_seed(runs: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    """The number at a JSON Pointer of each run, by training seed; NaN where the run did not complete.

    Raises ValueError if a run has no seed of its own or the pointer leads to no number.
    """
    seeds = [run.get("seed") for run in runs]
    if None in seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"runs pair by seed: each needs its own, found {seeds}")
    return {run["seed"]: _at(run, metric) for run in runs}


def _at(run: Mapping[str, Any], metric: str) -> float:
    if run.get("status", "completed") != "completed":
        return math.nan
    place: Any = run
    for part in metric.removeprefix("/").split("/"):
        if not isinstance(place, Mapping) or part not in place:
            raise ValueError(f"the metric {metric!r} is not in a run: no {part!r}; write one like /final/accuracy")
        place = place[part]
    if isinstance(place, bool) or not isinstance(place, int | float):
        raise ValueError(f"the metric {metric!r} leads to {shown(place)}; name a number")
    return float(place)


def compare_runs(
    runs: Sequence[Mapping[str, Any]], rivals: Sequence[Rival], protocol: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The `comparison` block: every rival on the primary metric of the evaluation protocol, Holm over the family."""
    measured = [_compare(runs, rival, protocol) for rival in rivals]
    return [
        {"against": {"method": rival.method, "artifact_sha256": rival.artifact_sha256}, **comparison.as_json()}
        for rival, comparison in zip(rivals, adjust(measured), strict=True)
    ]


def _compare(runs: Sequence[Mapping[str, Any]], rival: Rival, protocol: Mapping[str, Any]) -> Comparison:
    """The runs against one rival, not yet adjusted for the family."""
    metric = protocol["primary_metric"]
    return _judge(metric_by_seed(runs, metric), metric_by_seed(rival.runs, metric), rival.method, protocol)


def _judge(
    idea: Mapping[int, float], rival: Mapping[int, float], name: str, protocol: Mapping[str, Any], **changed: Any
) -> Comparison:
    """`compare` under the protocol's plan. Monte Carlo signs and bootstrap draw from what no one could tune."""
    plan = {key: protocol[key] for key in ("direction", "alpha", "family_size", "sesoi", "failure_value")}
    seed = f"{protocol['plan_sha256']}\n{name}\n{protocol['primary_metric']}".encode()
    return compare(idea, rival, metric=protocol["primary_metric"], seed=seed, **(plan | changed))


def comparison_problems(
    runs: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    rivals: Mapping[str, Sequence[Mapping[str, Any]]],
    protocol: Mapping[str, Any],
) -> list[str]:
    """Where a recorded block differs from what its numbers give, one sentence each.

    `rivals` holds the runs of other arms by the digest of their artifact; an entry whose rival is not among them is
    worked out again from its own differences.
    """
    try:
        expected = adjust([_again(runs, entry, rivals, protocol) for entry in entries])
    except (ValueError, OverflowError) as error:
        return [f"the comparisons cannot be worked out again: {error}"]
    problems = []
    for i, (entry, comparison) in enumerate(zip(entries, expected, strict=True)):
        source = "the runs give" if entry["against"]["artifact_sha256"] in rivals else "its differences give"
        for key, value in comparison.as_json().items():
            if key in entry and not close(entry[key], value, exact=key in _EXACT):
                problems.append(f"/comparison/{i}/{key} is {entry[key]!r}, {source} {value!r}")
    return problems


def _again(
    runs: Sequence[Mapping[str, Any]],
    entry: Mapping[str, Any],
    rivals: Mapping[str, Sequence[Mapping[str, Any]]],
    protocol: Mapping[str, Any],
) -> Comparison:
    """The comparison of one entry, not yet adjusted; its differences alone are those from a rival of zeros."""
    against = entry["against"]
    if against["artifact_sha256"] in rivals:
        return _compare(runs, Rival(**against, runs=rivals[against["artifact_sha256"]]), protocol)
    sesoi = entry.get("sesoi") if protocol["sesoi"] is None else protocol["sesoi"]
    if (entry["verdict"] or "").startswith("invalid: "):
        kept = {key: entry[key] for key in ("n_failed", "verdict")}
        plan = {key: protocol[key] for key in ("direction", "alpha", "family_size")}
        return Comparison(
            metric=protocol["primary_metric"], seeds=tuple(sorted(entry["seeds"])), sesoi=sesoi, **plan, **kept
        )
    seeds = sorted(run["seed"] for run in runs)
    if entry["seeds"] != seeds or len(entry["per_seed_diffs"]) != len(seeds):
        raise ValueError(f"against {against['method']}: needs one difference for each seed in {seeds}")
    differences = dict(zip(seeds, map(float, entry["per_seed_diffs"]), strict=True))
    zeros = dict.fromkeys(differences, 0.0)
    comparison = _judge(differences, zeros, against["method"], protocol, sesoi=sesoi)
    return replace(comparison, n_failed=entry["n_failed"])


def close(a: Any, b: Any, *, exact: bool = False) -> bool:
    """Whether two JSON values agree: numbers within the tolerance or exactly, everything else only if equal."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(close(a[key], b[key], exact=exact) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, exact=exact) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float) and not isinstance(b, bool) and not exact:
        return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))
    return type(a) is type(b) and a == b
