"""The plan of a bench: what would count as evidence, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts.bench_statistics import METRIC
from posttrain.artifacts.digests import dataset_fingerprint, dataset_set_fingerprint
from posttrain.bench.options import Bench
from posttrain.bench.track import tracks
from posttrain.evaluation.experiment import seed_words
from posttrain.evaluation.records import TEST
from posttrain.registry import ConfigError

GENERATOR_VERSION = 1
COUNTS = ("cells", "tuning_seeds", "evaluation_seeds")  # of a budget, beside the track's own keys
PREFIX = "bench."  # of the generators' names, apart from those of `posttrain.data`


def plan_name(bench: Bench) -> str:
    """Track, idea where it is not the track's own, and seeds."""
    idea = "" if bench.own_idea else "-" + "".join(c if c.isalnum() else "-" for c in bench.idea.name.lower())
    recorded = "-recorded" if bench.protocol == "recorded" else ""
    return f"{bench.track.name}{idea}-seeds{seed_words(bench.evaluation_seeds)}{recorded}"


def _dataset(bench: Bench) -> dict[str, Any]:
    seeds = sorted({*bench.tuning_seeds, *bench.evaluation_seeds})
    splits = {f"{seed}/{split}": rows for seed in seeds for split, rows in _drawn(bench, seed).items()}
    return {
        "id": bench.track.name,
        "config": dict(bench.track.data),
        "splits": [{"name": name, "n": len(rows)} for name, rows in splits.items()],
        "generator": PREFIX + bench.track.name,
        "generator_version": GENERATOR_VERSION,
        "fingerprint": dataset_fingerprint(splits),
        "set_fingerprint": dataset_set_fingerprint(splits),
    }


def _drawn(bench: Bench, seed: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    drawn = bench.track.task.drawn(seed, bench.track.data)
    if not drawn or not all(drawn.values()):
        raise ConfigError(
            f"track `{bench.track.name}`: seed {seed} gave an empty split. Draw at least one example each."
        )
    return drawn


def regenerate(dataset: Mapping[str, Any]) -> str | None:
    """The fingerprint of a plan's `dataset` block, drawn again; None where no track here draws it."""
    name = dataset["generator"].removeprefix(PREFIX)
    if name == dataset["generator"] or name not in tracks or dataset["generator_version"] != GENERATOR_VERSION:
        return None
    seeds = sorted({int(split["name"].split("/")[0]) for split in dataset["splits"]})
    drawn = {seed: tracks.get(name).task.drawn(seed, dataset["config"]) for seed in seeds}
    return dataset_fingerprint({f"{seed}/{split}": rows for seed in seeds for split, rows in drawn[seed].items()})


def plan(bench: Bench) -> dict[str, Any]:
    """What would count as evidence, before anything runs."""
    track, name = bench.track, plan_name(bench)
    others = [f"another comparison of the family, {i}" for i in range(2, bench.family_size + 1)]
    found: dict[str, Any] = {
        "name": name,
        "dataset": _dataset(bench),
        "seeds": list(bench.evaluation_seeds),
        "tier": track.tier,
        "primary_metric": METRIC,
        "direction": track.direction,
        "alpha": bench.alpha,
        "test": TEST,
        "family_id": name,
        "family": ["idea against baseline", *others],
        "sesoi": None,
        "failure_value": bench.failure_value,
        "looks": [],
        "common_config": {
            "track": track.name,
            "model": track.model,
            "metric": track.metric,
            "protocol": bench.protocol,
            "sweep_seeds": list(bench.tuning_seeds),
            "budget": budget(bench),
            "sesoi_rel_pct": track.sesoi_rel_pct,
            "base": dict(track.base),
            "baseline_sweep": [track.cfg(cell, None) for cell in track.cells(None)],
            "idea_sweep": [track.cfg(cell, bench.idea) for cell in track.cells(bench.idea)],
            **outside(bench),
        },
        "claims": [claim.written() for claim in bench.idea.claims],
    }
    if bench.protocol == "disjoint":
        cells = {"baseline": found["common_config"]["baseline_sweep"], "idea": found["common_config"]["idea_sweep"]}
        found["tuning"] = {"grid": cells, "seeds": list(bench.tuning_seeds)}
    return found


def budget(bench: Bench) -> dict[str, Any]:
    """What each arm may spend."""
    counts = (len(bench.track.sweep), len(bench.tuning_seeds), len(bench.evaluation_seeds))
    return {**dict(zip(COUNTS, counts, strict=True)), **bench.track.budget}


def outside(bench: Bench) -> dict[str, Any]:
    """The custom track and the idea, where they came from a file."""
    found: dict[str, Any] = {}
    for source in bench.sources:
        file = {"file": Path(source.file).name, "sha256": source.sha256}
        if source.kind == "track":
            found["custom_track"] = {"name": bench.track.name, **file, "domain": bench.track.domain}
        else:
            found["custom_idea"] = {"name": bench.idea.name, **file, "changes": bench.idea.changes}
    return found
