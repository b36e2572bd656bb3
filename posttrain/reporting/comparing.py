"""Compares finished artifacts under one plan: the first against each of the others, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts.comparisons import Rival, compare_runs
from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError, load, parse
from posttrain.artifacts.report import Report
from posttrain.artifacts.statistics import seeds_needed
from posttrain.reporting.formatting import declared, interval, number, seeds

Verify = Callable[[Path], Report]


class Refused(ValueError):
    """Artifacts that may not be compared: the message says what is needed."""


@dataclass(frozen=True)
class Finished:
    """A verified artifact and the file it was read from."""

    path: Path
    digest: str
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The first artifact against the others."""

    artifacts: tuple[Finished, ...]
    entries: tuple[Mapping[str, Any], ...]  # as in an artifact's `comparison` block
    family_size: int
    declared: bool  # whether a plan named these rivals before the runs

    def as_json(self) -> dict[str, Any]:
        """Everything that was found, as JSON values."""
        protocol = self.artifacts[0].value["evaluation_protocol"]
        return {
            "method": self.artifacts[0].value["method"],
            "artifact_sha256": self.artifacts[0].digest,
            "plan_sha256": protocol["plan_sha256"],
            "family_size": self.family_size,
            "declared_before_the_runs": self.declared,
            "comparison": list(self.entries),
        }


def named_as_files(words: Sequence[str]) -> bool:
    """Whether the words of `posttrain compare` are artifacts that are there, and not names of algorithms."""
    return any(word.endswith(".json") or (Path(word) / "artifact.json").is_file() for word in words)


def compare_files(paths: Sequence[Path], verify: Verify) -> Comparison:
    """Verifies, pairs and tests; Refused where plan, data, seeds, budget or metric differ."""
    if len(paths) < 2:
        raise Refused("found one artifact, expected two or more: posttrain compare A.json B.json")
    artifacts = [_finished(path, verify) for path in paths]
    first, *others = artifacts
    for other in others:
        _require_pair(first, other)
    methods = [artifact.value["method"] for artifact in artifacts]
    if len(set(methods)) < len(methods):
        raise Refused(f"{methods} names one method twice; runs of one method differ in nothing that a plan could name")
    protocol = dict(first.value["evaluation_protocol"])
    planned = {entry["against"]["artifact_sha256"] for entry in first.value.get("comparison", [])}
    known = all(other.digest in planned for other in others)
    protocol["family_size"] = max(protocol["family_size"], len(others))
    rivals = [Rival(other.value["method"], other.digest, other.value["runs"]) for other in others]
    try:
        entries = compare_runs(first.value["runs"], rivals, protocol)
    except ValueError as error:
        raise Refused(str(error)) from None
    return Comparison(tuple(artifacts), tuple(entries), protocol["family_size"], known)


def _finished(path: Path, verify: Verify) -> Finished:
    file = path / "artifact.json" if path.is_dir() else path
    try:
        data = load(file)
        value = parse(data, file.name)
    except (DocumentError, OSError) as error:
        raise Refused(f"{path}: {error}") from None
    if not isinstance(value, Mapping) or "schema_version" not in value:
        raise Refused(
            f"{path} is no artifact of a method; bench artifacts are put side by side by `posttrain bench report`, "
            "evaluations by `posttrain eval MODEL --against EVAL`"
        )
    report = verify(path)
    if report.exit_code:
        failed = [f"{check.name}: {check.message}" for check in report.checks if check.status == "failed"]
        why = failed[0] if failed else "; ".join(report.unverifiable)
        raise Refused(f"{path} is not verified: {why}. Compare runs that posttrain verify passes")
    return Finished(path, bytes_digest(data), value)


def _require_pair(a: Finished, b: Finished) -> None:
    """The conditions that two compared runs share; each refusal says which run is missing."""
    one, other = a.value, b.value
    names = f"{one['method']} ({a.path}) and {other['method']} ({b.path})"
    methods = dict.fromkeys(value["method"].split(".")[0] for value in (one, other))
    again = (
        f"posttrain compare {' '.join(methods)}"
        if len(methods) > 1
        else f"one run of posttrain reproduce {one['method']}"
    )
    if sorted(one["seeds"]) != sorted(other["seeds"]):
        found = f"{seeds(sorted(one['seeds']))} and {seeds(sorted(other['seeds']))}"
        data = sorted({run["dataset"] for value in (one, other) for run in value["runs"]})
        # Other seeds alone make other fingerprints, so that only other names are known to be other data.
        more = f", and other data: {' and '.join(data)}" if len(data) > 1 else ""
        needed = "the same seeds and data" if more else "the same"
        raise Refused(f"{names} have other seeds: {found}{more}. Needed: both under {needed}: {again} seeds=...")
    if one["provenance"]["dataset_fingerprint"] != other["provenance"]["dataset_fingerprint"]:
        data = [f"{v['runs'][0]['dataset']} {v['provenance']['dataset_fingerprint'][:17]}" for v in (one, other)]
        raise Refused(f"{names} saw other data: {data[0]}, {data[1]}. Needed: both on the same problems: {again}")
    for key in ("tier", "plan_sha256", "primary_metric", "direction", "alpha"):
        pair = [value["evaluation_protocol"].get(key) for value in (one, other)]
        if pair[0] != pair[1]:
            raise Refused(f"{names} differ in {key}: {pair[0]} and {pair[1]}. Needed: both under one plan: {again}")
    for key in ("steps", "validation_examples", "train_examples"):
        counts = [sorted({run["training"][key] for run in value["runs"]}) for value in (one, other)]
        if counts[0] != counts[1]:
            raise Refused(f"{names} differ in {key}: {counts[0]} and {counts[1]}. Needed: equal budgets: {again}")


def render(found: Comparison) -> str:
    """The comparison as plain text."""
    first = found.artifacts[0].value
    protocol = first["evaluation_protocol"]
    lines = [
        f"{first['method']} minus each rival: {protocol['primary_metric'].rpartition('/')[2]} after training, paired "
        f"by seed ({protocol['direction']})",
        f"exact two-sided sign-flip test, Holm over a family of {found.family_size} at {declared(protocol['alpha'])}",
    ]
    for entry in found.entries:
        lines += ["", f"against {entry['against']['method']}"]
        pairs = zip(entry["seeds"], entry["per_seed_diffs"], strict=False)
        lines.append("  by seed     " + "  ".join(f"{seed}: {number(d, 3, signed=True)}" for seed, d in pairs))
        lines += [f"  {name:<11} {text}" for name, text in _numbers(entry, found.declared)]
    lines += ["", *_notes(found)]
    return "\n".join(lines).rstrip()


def _numbers(entry: Mapping[str, Any], declared_before: bool) -> list[tuple[str, str]]:
    count = "" if entry["p_count"] is None else f" ({entry['p_count']} of {entry['p_total']} sign patterns)"
    mde = "none: too few seeds or no spread" if entry["mde_80"] is None else number(entry["mde_80"])
    return [
        ("difference", f"{number(entry['delta_mean'], signed=True)}, 95 % interval {interval(entry['ci95'])}"),
        ("wins", f"{entry['wins']} of {entry['n_pairs']}, {entry['ties']} ties"),
        ("p", f"{number(entry['p_value'])}{count}; Holm {number(entry['p_adjusted'])}"),
        ("MDE (80 % power)", mde),
        ("verdict", f"{entry['verdict']}{'' if declared_before else ' - a look, not a claim: see the note'}"),
    ]


def _notes(found: Comparison) -> list[str]:
    notes = []
    first = found.artifacts[0].value
    protocol = first["evaluation_protocol"]
    if not found.declared:
        methods = " ".join(artifact.value["method"].split(".")[0] for artifact in found.artifacts)
        notes.append(
            "note: no plan named these rivals before the runs, so this is a look and not a claim. "
            f"A claim needs: posttrain compare {methods} --seeds 12"
        )
    needed = seeds_needed(protocol["alpha"], found.family_size)
    if len(first["seeds"]) < needed:
        notes.append(
            f"note: {len(first['seeds'])} seeds cannot reach {declared(protocol['alpha'])}; {needed} are the least"
        )
    return notes
