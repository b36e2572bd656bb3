"""Level V3 of a verification: the training itself again, in a scratch folder, as far as the budget goes.

The configuration and the code that run are those at hand under the recorded names; nothing is imported that an
artifact names.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain import settings
from posttrain.artifacts.documents import plain
from posttrain.artifacts.evidence import Evidence, gather, read_document
from posttrain.artifacts.provenance import environment_class
from posttrain.artifacts.report import Check, Report, settle
from posttrain.assembly import assemble, pin
from posttrain.evaluation.study import studies
from posttrain.evaluation.work import Unit, perform
from posttrain.registry import ConfigError
from posttrain.settings import TRUST

BUDGET = 60.0  # seconds an artifact
WHOLE_SEEDS = ("l0_smoke", "l1_mechanism")  # tiers whose seeds are short enough to run whole
TOLERANCE = 1e-12  # across environment classes, relative to max(1, |a|, |b|)


class _Enough(Exception):
    """The steps that fit the budget are done."""


def rerun(report: Report, path: Path, budget: float = BUDGET) -> Report:
    """The report with level V3: what was run again, how it compares, and what was left out."""
    file = path / "artifact.json" if path.is_dir() else path
    artifact, _ = read_document(file, "artifact-v2", "artifact")
    rest = tuple(item for item in report.not_checked if not item.startswith("V3"))
    if artifact is None:
        return replace(report, not_checked=(*rest, "V3: only artifacts of methods are run again here"))
    evidence = gather(artifact)
    if evidence.execution is None:
        return replace(report, not_checked=(*rest, "V3: without an execution record nothing says what to run"))
    config = evidence.execution.value["execution"]["config"]
    trusted = [f"{part}.{key}" for part in ("policy", "dataset") for key in TRUST if (config.get(part) or {}).get(key)]
    if trusted:
        said = f"V3: the run let code of its model or data run ({trusted[0]}=true); a record cannot ask for that"
        return replace(report, not_checked=(*rest, said))
    checks, left = _checks(evidence, budget)
    return replace(report, checks=(*report.checks, *checks), not_checked=(*left, *rest))


def _checks(evidence: Evidence, budget: float) -> tuple[list[Check], list[str]]:
    assert evidence.execution is not None
    record, artifact = evidence.execution.value["execution"], evidence.artifact.value
    pin()  # what is read below is only there once torch and its threads are as in a run
    here = plain(environment_class())
    same = here == plain(environment_class(record["environment"], record["hardware"]))
    recorded = {run["seed"]: run for run in artifact["runs"]}
    problems, warnings, left = [], [], []
    count = 0
    try:
        for seed, found, steps in _runs(evidence, record["config"], budget):
            if found is None:
                left.append(f"V3: seed {seed} was not run again: the budget of {budget:g} s is spent")
                continue
            count += 1
            expected = recorded[seed] if steps is None else _until(recorded[seed], steps)
            if steps is not None and steps < recorded[seed]["training"]["steps"]:
                left.append(f"V3: seed {seed} was run again up to step {steps} only")
            elif steps is not None and "measures" in recorded[seed]:
                left.append(f"V3: every step of seed {seed} was run again, what was measured after the last was not")
            hard, soft = _compare(expected, found, seed, same)
            problems += hard
            warnings += soft
    except ConfigError as error:
        return [], [f"V3: the recorded configuration cannot be run here: {error}"]
    kind = "the same environment class, every bit" if same else f"another environment class, floats to {TOLERANCE:g}"
    check = settle("rerun", "V3", problems, f"{count} of {len(recorded)} seeds give what is recorded ({kind})")
    if not problems and warnings:
        check = Check("rerun", "V3", "warned", f"other environment class: {'; '.join(warnings[:3])}")
    return [check], left


def _runs(
    evidence: Evidence, config: Mapping[str, Any], budget: float
) -> Iterator[tuple[int, Mapping[str, Any] | None, int | None]]:
    """Seed, run and, where it was cut short, its last step; no run where the budget was spent before."""
    artifact = evidence.artifact.value
    whole = artifact["evaluation_protocol"]["tier"] in WHOLE_SEEDS
    began, longest = time.monotonic(), 0.0
    for i, seed in enumerate(artifact["seeds"]):
        started = time.monotonic()
        if i and started - began + longest > budget:
            yield seed, None, None
            continue
        with tempfile.TemporaryDirectory() as scratch:
            unit = _unit(evidence, config, seed, Path(scratch))
            if whole:
                yield seed, plain(perform(unit).run), None
            else:
                yield seed, *_beginning(unit, budget - (started - began))
        longest = max(longest, time.monotonic() - started)


def _unit(evidence: Evidence, config: Mapping[str, Any], seed: int, folder: Path) -> Unit:
    artifact = evidence.artifact.value
    plan = {} if evidence.plan is None else evidence.plan.value["plan"]
    # Arms of a study are probed like its main arm, whose artifact names the study.
    main = plan.get("main", artifact["method"])
    probed = any("measures" in run for run in artifact["runs"])
    study = main if probed and main in studies else artifact.get("mechanism", {}).get("study")
    return Unit(artifact["method"], config["algorithm"]["name"], config, seed, folder, study)


def _beginning(unit: Unit, budget: float) -> tuple[Mapping[str, Any], int]:
    """The first evaluated steps of a seed that is too long to run whole: what fits the budget, at least one."""
    pin()
    config = settings.resolve(unit.config, unit.algorithm)
    ends = time.monotonic() + budget
    rows: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        if "accuracy" in row:
            rows.append(row)
        if rows and time.monotonic() > ends:
            raise _Enough

    trainer = assemble(config, unit.seed, folder=unit.folder, report=report)
    with suppress(_Enough):
        trainer.run()
    return {"history": rows}, int(rows[-1]["step"])


def _until(run: Mapping[str, Any], step: int) -> dict[str, Any]:
    return {"history": [row for row in run["history"] if row["step"] <= step]}


def _compare(expected: Any, found: Any, seed: int, same: bool) -> tuple[list[str], list[str]]:
    """What differs: as failures and, in another environment class, as warnings."""
    hard: list[str] = []
    soft: list[str] = []
    items = expected.get("training", {}).get("validation_examples", 0) if isinstance(expected, Mapping) else 0
    for place, a, b in differences(expected, found, f"seed {seed}: "):
        text = f"{place} is {a!r} in the record, {b!r} when run again"
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        floats = numbers and (isinstance(a, float) or isinstance(b, float))
        if same or not floats:
            hard.append(text)
        elif abs(a - b) > TOLERANCE * max(1.0, abs(a), abs(b)):
            one_item = place.endswith("/accuracy") and items and abs(a - b) <= 1.000001 / items
            (soft if one_item else hard).append(text)
    return hard, soft


def differences(expected: Any, found: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Leaves that are not the same to the bit, the sign of zero included; what was not recorded is not asked for."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key, value in expected.items():
            yield from differences(value, found.get(key), f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for i, (a, b) in enumerate(zip(expected, found, strict=True)):
            yield from differences(a, b, f"{place}/{i}")
    elif repr(expected) != repr(found):
        yield place, expected, found
