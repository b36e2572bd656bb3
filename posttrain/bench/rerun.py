"""Level V3 of a bench artifact: its trainings again, as far as the budget goes. Nothing is written.

What runs is the track of the recorded name, as it is here, under the recorded plan. Code that an artifact names is not
imported, unless whoever asks names a file with the recorded bytes as a plugin.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.artifacts.bench_statistics import summary
from posttrain.artifacts.bench_verify import as_artifact, is_bench
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.documents import plain
from posttrain.artifacts.evidence import Evidence, gather, read_document
from posttrain.artifacts.provenance import environment_class
from posttrain.artifacts.report import Check, Report, settle
from posttrain.assembly import pin
from posttrain.bench import planning, records
from posttrain.bench.conduct import Unit, perform
from posttrain.bench.options import Bench, find_track, read_idea
from posttrain.bench.rehearsal import ARMS
from posttrain.bench.track import Found, Result, tracks
from posttrain.evaluation.rerun import BUDGET, TOLERANCE, differences
from posttrain.evaluation.study import Results
from posttrain.registry import ConfigError

FAR = 3.0  # standard deviations over seeds: on another kind of machine, more than this is another result


class _Unusable(Exception):
    """What was recorded cannot be run here; the message says why."""


def handles(path: Path) -> bool:
    """Whether this is a bench artifact, or the folder of one."""
    file = path / "artifact.json" if path.is_dir() else path
    return file.is_file() and is_bench(file)


def rerun(report: Report, path: Path, budget: float = BUDGET, plugins: Sequence[str] = ()) -> Report:
    """The report with level V3: how many trainings gave what is recorded, and how many the budget left out.

    `plugins` are the files of code from outside that may run.
    """
    file = path / "artifact.json" if path.is_dir() else path
    artifact, _ = read_document(file, "bench-v1", "artifact")
    rest = tuple(item for item in report.not_checked if not item.startswith("V3"))
    try:
        if artifact is None or "protocol" not in artifact.value:
            raise _Unusable("no plan was recorded, so nothing says what to run")
        evidence = gather(as_artifact(artifact))
        bench = _recorded(evidence, plugins)
        checks, left = _checks(bench, evidence, budget)
    except (_Unusable, ConfigError) as error:
        return replace(report, not_checked=(*rest, f"V3: {error}"))
    return replace(report, checks=(*report.checks, *checks), not_checked=(*left, *rest))


def _recorded(evidence: Evidence, plugins: Sequence[str]) -> Bench:
    """The bench that the plan describes, on the track as it is here."""
    if evidence.plan is None or evidence.execution is None:
        raise _Unusable("without plan and execution record nothing says what to run and where it ran")
    plan = evidence.plan.value["plan"]
    common = plan["common_config"]
    from_file, of_idea = (_trusted(common, f"custom_{kind}", plugins) for kind in ("track", "idea"))
    if from_file is None and common["track"] not in tracks:
        raise _Unusable(f"there is no track `{common['track']}` here")
    track, sources = find_track(from_file or common["track"])
    idea = track.idea
    if of_idea is not None:
        idea, source = read_idea(Path(of_idea))
        sources = (*sources, source)
    track = replace(
        track,
        base=common["base"],
        budget={key: common["budget"].get(key) for key in track.budget},
        data=plan["dataset"]["config"],
        sesoi_rel_pct=common["sesoi_rel_pct"],
    )
    bench = Bench(
        track=track,
        idea=idea,
        own_idea=of_idea is None,
        protocol=common["protocol"],
        tuning_seeds=tuple(common["sweep_seeds"]),
        evaluation_seeds=tuple(plan["seeds"]),
        alpha=plan["alpha"],
        failure_value=plan["failure_value"],
        family_size=len(plan["family"]),
        sources=sources,
    )
    other = sorted({place.split("/")[1] for place, _, _ in differences(plan, plain(planning.plan(bench)), "")})
    if other:
        raise _Unusable(f"the track here is another one than the recorded: its plan differs in {', '.join(other)}")
    return bench


def _trusted(common: Mapping[str, Any], kind: str, plugins: Sequence[str]) -> str | None:
    """The file of a plan's code from outside, among those that the caller lets run; None where the plan has none."""
    if kind not in common:
        return None
    recorded, said = common[kind], kind.replace("_", " ")
    same = [name for name in plugins if Path(name).name == recorded["file"]]
    if not same:
        raise _Unusable(
            f"{said}: {recorded['file']} is code from outside. Where you have read and trust it, write --plugin FILE"
        )
    if recorded["sha256"] not in [file_digest(name) for name in same]:
        raise _Unusable(f"{said}: {same[0]} has other bytes than the {recorded['file']} that ran")
    return next(name for name in same if file_digest(name) == recorded["sha256"])


def _checks(bench: Bench, evidence: Evidence, budget: float) -> tuple[list[Check], list[str]]:
    assert evidence.execution is not None
    record, artifact = evidence.execution.value["execution"], evidence.artifact.value
    pin()  # what is read below is only there once torch and its threads are as in a run
    same = plain(environment_class()) == plain(environment_class(record["environment"], record["hardware"]))
    expected = _values(bench, artifact)
    problems, warnings = [], []
    done: dict[Unit, Result] = {}
    for unit, result in _run(bench, list(expected), budget):
        done[unit] = result
        spread = artifact["baseline"]["full"] if unit.arm == "baseline" else artifact["idea"]
        hard, soft = _compare(unit, expected[unit], records.value(bench, result), spread.get("std_ddof1"), same)
        problems, warnings = [*problems, *hard], [*warnings, *soft]
    kind = "the same environment class, every bit" if same else f"another environment class, floats to {TOLERANCE:g}"
    passed = f"{len(done)} of {len(expected)} trainings give what is recorded ({kind})"
    checks = [_settled("rerun", problems, warnings, passed)]
    left = []
    if len(done) < len(expected):
        count = len(expected) - len(done)
        left.append(f"V3: {count} of {len(expected)} trainings were not run again: the budget of {budget:g} s is spent")
    if all(unit in done for unit in expected if unit.seed in bench.evaluation_seeds):
        checks.append(_signature(bench, artifact, done, same))
    else:
        left.append("V3: the signature was not measured again: it needs every evaluation seed")
    return checks, left


def _cells(artifact: Mapping[str, Any], arm: str) -> Sequence[Mapping[str, Any]]:
    """The sweep of an arm."""
    return artifact["baseline"]["sweep"] if arm == "baseline" else artifact["protocol"]["idea_sweep"]


def _best(artifact: Mapping[str, Any], arm: str) -> int:
    """The place of the chosen cell in its sweep."""
    return next(i for i, cell in enumerate(_cells(artifact, arm)) if cell["cfg"] == artifact[arm]["best_cfg"])


def _values(bench: Bench, artifact: Mapping[str, Any]) -> dict[Unit, float]:
    """What is recorded of each training: the evaluation seed by seed, then the sweeps; none stands twice."""
    full = {"baseline": artifact["baseline"]["full"]["per_seed"], "idea": artifact["idea"]["per_seed"]}
    best = {arm: _best(artifact, arm) for arm in ARMS}
    found = {Unit(arm, best[arm], seed): full[arm][i] for i, seed in enumerate(bench.evaluation_seeds) for arm in ARMS}
    for arm in ARMS:
        for place, cell in enumerate(_cells(artifact, arm)):
            for seed, value in zip(bench.tuning_seeds, cell["per_seed"], strict=True):
                found.setdefault(Unit(arm, place, seed), value)
    return found


def _run(bench: Bench, units: list[Unit], budget: float) -> Iterator[tuple[Unit, Result]]:
    """Trainings in order: those of the first seed whatever they take, further ones while they fit the budget."""
    began, longest = time.monotonic(), 0.0
    for unit in units:
        started = time.monotonic()
        if unit.seed != units[0].seed and started - began + longest > budget:
            return
        yield unit, perform(bench, unit)
        longest = max(longest, time.monotonic() - started)


def _compare(
    unit: Unit, recorded: float, found: float, spread: float | None, same: bool
) -> tuple[list[str], list[str]]:
    """What differs: as failures and, in another environment class, as warnings with the distance in deviations."""
    if repr(recorded) == repr(found) or (not same and abs(recorded - found) <= TOLERANCE * max(1.0, abs(recorded))):
        return [], []
    text = f"{unit.name.removesuffix('.json')} is {recorded!r} in the record, {found!r} when run again"
    if same or not spread:
        return [text], []
    distance = abs(recorded - found) / spread
    text = f"{text}, {distance:.2g} standard deviations over seeds apart"
    return ([], [text]) if distance <= FAR else ([text], [])


def _signature(bench: Bench, artifact: Mapping[str, Any], done: Mapping[Unit, Result], same: bool) -> Check:
    """Predictions and analytic checks from what was measured now."""
    best, ideas = {arm: _best(artifact, arm) for arm in ARMS}, {"baseline": None, "idea": bench.idea}
    results = {arm: [done[Unit(arm, best[arm], seed)] for seed in bench.evaluation_seeds] for arm in ARMS}
    found = Found(
        seeds=bench.evaluation_seeds,
        metrics={arm: [records.value(bench, result) for result in results[arm]] for arm in ARMS},
        results=Results({arm: [{"measures": result.measures} for result in results[arm]] for arm in ARMS}),
        settings={arm: bench.track.cells(ideas[arm])[best[arm]] for arm in ARMS},
        best={arm: artifact[arm]["best_cfg"] for arm in ARMS},
        idea_sweep=[{**cell, **summary(cell["per_seed"])} for cell in artifact["protocol"]["idea_sweep"]],
    )
    again = plain(records.signature(bench, found))
    apart = list(differences(artifact["mechanism_signature"], again, ""))
    if not same:  # numbers may move; what they decide may not
        apart = [entry for entry in apart if not isinstance(entry[1], float)]
    problems = [f"/mechanism_signature{place} is {a!r} in the record, {b!r} when run again" for place, a, b in apart]
    return settle("signature again", "V3", problems, "measured again, the same")


def _settled(name: str, problems: list[str], warnings: list[str], passed: str) -> Check:
    if not problems and warnings:
        return Check(name, "V3", "warned", f"other environment class: {'; '.join(warnings[:3])}")
    return settle(name, "V3", problems, passed)
