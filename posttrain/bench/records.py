"""Artifact and execution record of a bench, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import posttrain
from posttrain.artifacts import provenance
from posttrain.artifacts.bench_statistics import comparison_block, sample_std, summary
from posttrain.artifacts.digests import bytes_digest, file_digest, sealed
from posttrain.artifacts.documents import dumps
from posttrain.bench.foreign import called, own
from posttrain.bench.options import Bench, config_path
from posttrain.bench.planning import budget, outside
from posttrain.bench.track import Found, Idea, Result
from posttrain.evaluation.study import Results

if TYPE_CHECKING:
    from posttrain.bench.conduct import Unit

PACKAGE = Path(posttrain.__file__).parent
NOTES = {
    "disjoint": "tuned on seeds that the comparison does not use",
    "recorded": "tuned on evaluation seeds, as the recorded artifacts were: a small optimistic bias for both arms",
}


def value(bench: Bench, result: Result) -> float:
    """The metric, or what a failure counts as."""
    if math.isfinite(result.metric) or bench.failure_value is None:
        return result.metric
    return bench.failure_value


def artifact(
    bench: Bench,
    plan_document: Mapping[str, Any],
    tuned: Mapping[Unit, Result],
    done: Mapping[Unit, Result],
    best: Mapping[str, int],
) -> dict[str, Any]:
    """The artifact, sealed by the digest of its content."""
    track, frozen = bench.track, plan_document["plan"]
    ideas: dict[str, Idea | None] = {"baseline": None, "idea": bench.idea}
    found = {arm: _values(bench, done, arm, best[arm], bench.evaluation_seeds) for arm in ideas}
    failed = [
        s for s in bench.evaluation_seeds if any(not math.isfinite(r.metric) for u, r in done.items() if u.seed == s)
    ]
    sweeps = {arm: _sweep(bench, tuned, arm, idea) for arm, idea in ideas.items()}
    cfgs = {arm: track.cfg(track.cells(idea)[best[arm]], idea) for arm, idea in ideas.items()}
    protocol = {
        "name": bench.protocol,
        "note": NOTES[bench.protocol],
        "eval_seeds": list(bench.evaluation_seeds),
        "sweep_seeds": list(bench.tuning_seeds),
        "idea_sweep": [{key: cell[key] for key in ("cfg", "mean", "per_seed")} for cell in sweeps["idea"]],
        "budget": budget(bench),
        "identical": identical(track.name, [*tuned.items(), *done.items()]),
        "plan_sha256": plan_document["plan_sha256"],
        "alpha": bench.alpha,
        "family_id": frozen["family_id"],
        "family_size": bench.family_size,
        "sesoi_rel_pct": track.sesoi_rel_pct,
        "failure_value": bench.failure_value,
    }
    arms = {arm: {**summary(values), "std_ddof1": sample_std(values)} for arm, values in found.items()}
    runs = {arm: [{"measures": result.measures} for unit, result in done.items() if unit.arm == arm] for arm in ideas}
    complete = {arm: track.cells(idea)[best[arm]] for arm, idea in ideas.items()}
    read = Found(bench.evaluation_seeds, found, Results(runs), complete, cfgs, sweeps["idea"])
    document = {
        "bench_version": 1,
        "track": track.name,
        "model": track.model,
        "metric_direction": track.direction,
        "n_seeds": len(bench.evaluation_seeds),
        "baseline": {
            "best_cfg": cfgs["baseline"],
            "sweep": [{key: cell[key] for key in ("cfg", "mean", "per_seed")} for cell in sweeps["baseline"]],
            "full": arms["baseline"],
        },
        "idea": {**arms["idea"], "best_cfg": cfgs["idea"]},
        "comparison": comparison_block(found["baseline"], found["idea"], protocol, track.direction, failed),
        "mechanism_signature": signature(bench, read),
        "protocol": protocol,
        "manifest_ref": f"bench:{frozen['name']}",
        "provenance": {
            "artifact_path": f"docs/bench/{track.name}/metrics/{frozen['name']}.json",
            "dataset_fingerprint": frozen["dataset"]["fingerprint"],
            "manifest_sha256": bytes_digest(dumps(plan_document)),
        },
    }
    return sealed(document)


def _values(bench: Bench, done: Mapping[Unit, Result], arm: str, place: int, seeds: Sequence[int]) -> list[float]:
    by_seed = {unit.seed: result for unit, result in done.items() if (unit.arm, unit.place) == (arm, place)}
    return [value(bench, by_seed[seed]) for seed in seeds]


def _sweep(bench: Bench, tuned: Mapping[Unit, Result], arm: str, idea: Idea | None) -> list[dict[str, Any]]:
    return [
        {"cfg": bench.track.cfg(cell, idea), **summary(_values(bench, tuned, arm, place, bench.tuning_seeds))}
        for place, cell in enumerate(bench.track.cells(idea))
    ]


def identical(track: str, done: Sequence[tuple[Unit, Result]]) -> dict[str, bool]:
    """What all trainings of a seed started from alike; a difference means that seeds are no pairs, and ends the run."""
    shared: dict[str, bool] = {}
    seen: dict[tuple[int, str], str] = {}
    for unit, result in done:
        for what, digest in result.start.items():
            if seen.setdefault((unit.seed, what), digest) != digest:
                raise RuntimeError(
                    f"{track}: at seed {unit.seed} the arms differ in {what.replace('_', ' ')}, so their seeds are no "
                    "pairs. Draw it from the seed alone."
                )
            shared[what] = True
    return shared


def signature(bench: Bench, found: Found) -> dict[str, Any]:
    """What was predicted and what was observed; `confirmed` follows from the claims alone."""
    track, claims = bench.track, _decided(bench, found)
    signed = track.mechanism if bench.own_idea else None
    body = {} if signed is None else own("mechanism", signed, found)
    inner = body.get("mechanism_signature", {})
    confirmed = all(claim["outcome"] == "confirmed" for claim in claims) if claims else None
    body = {**body, "mechanism_signature": {**inner, "claims": claims, "confirmed": confirmed}}
    if track.math_check is not None:
        body["math_check"] = own("math_check", track.math_check)
    order = [key for key in body if key not in ("math_check", "protocol", "protocol_note")]
    order += [key for key in ("math_check", "protocol", "protocol_note") if key in body]
    return {**{key: body[key] for key in order}, **outside(bench)}


def _decided(bench: Bench, found: Found) -> list[dict[str, Any]]:
    given = {"results": found.results}
    return [called(f"idea.claims: {c.id}", c.decide, given) for c in bench.idea.claims]


def execution(
    bench: Bench, folder: Path, started: datetime, argv: Sequence[str], read: int, refused: int
) -> dict[str, Any]:
    """How the artifact came about."""
    ended, shipped = datetime.now(UTC), config_path(bench.track.name, bench.request[3] if bench.request else None)
    seeds = sorted({*bench.tuning_seeds, *bench.evaluation_seeds})
    streams = getattr(bench.track.task, "streams", {"all": "as the track's own task draws from it"})
    roles = [("plan.json", "plan"), ("artifact.json", "artifact")]
    roles += [("figure.svg", "figure")] if (folder / "figure.svg").is_file() else []
    roles += [(f"cells/{path.name}", "cell") for path in sorted((folder / "cells").glob("*.json"))]
    record: dict[str, Any] = {
        "method": bench.track.name,
        "config": {"budget": dict(bench.track.budget), "base": dict(bench.track.base), "data": dict(bench.track.data)},
        "config_source": [] if shipped is None else [{"path": shipped.name, "sha256": file_digest(shipped)}],
        "overrides": list(bench.overrides),
        "code": provenance.code_state(PACKAGE),
        "entrypoint": "posttrain",
        "argv": list(argv),
        "environment": provenance.environment(),
        "hardware": provenance.hardware(),
        "seeds": [
            {"name": name, "value": seed, "derivation": derivation}
            for seed in seeds
            for name, derivation in streams.items()
        ],
        "started_at": started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "ended_at": ended.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "status": "completed",
        "exit_code": 0,
        "inputs": [],
        "outputs": [
            {"path": name, "sha256": file_digest(folder / name), "bytes": (folder / name).stat().st_size, "role": role}
            for name, role in roles
        ],
        "phases": {"all": (ended - started).total_seconds()},
        "counters": {"cells_read": read, "cells_refused": refused},
        "plugins": [{"name": plugin.name, "sha256": plugin.sha256} for plugin in bench.plugins]
        + [{"name": Path(source.file).name, "sha256": source.sha256} for source in bench.sources],
    }
    if read:
        record["resumed_from"] = ["cells"]
    return record
