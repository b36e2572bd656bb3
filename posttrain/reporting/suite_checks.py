"""Level V4 of a verification: the published suite as a whole, where one artifact alone looks well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from posttrain.artifacts.comparisons import metric_by_seed
from posttrain.artifacts.manifest import NAMESPACES
from posttrain.artifacts.report import Check, Report, settle
from posttrain.artifacts.statistics import holm
from posttrain.reporting import build
from posttrain.reporting.facts import Dataset, Method
from posttrain.reporting.reading import POST_TRAINING, Entry, Suite, SuiteError, read_suite, received_files

LEFT = ("V3: no training was run again; write --rerun",)


def verify_suite(
    root: Path, methods: Sequence[Method], verify: Callable[[Path], Report], datasets: Sequence[Dataset] = ()
) -> list[Report]:
    """A report for each published artifact, and one for what only all of them together can show."""
    try:
        suite = read_suite(root)
    except SuiteError as error:
        return [Report(f"{root / 'docs'}", (Check("suite", "V0", "failed", str(error)),), LEFT)]
    reports = [verify(root / entry.artifact.path) for entry in suite.entries]
    return [*reports, Report(str(root / "docs"), tuple(_checks(suite, methods, datasets)), LEFT)]


def is_suite(path: Path) -> bool:
    """Whether a path is the `docs/` folder of a suite."""
    return path.is_dir() and (path / POST_TRAINING.removeprefix("docs/")).is_dir()


def _checks(suite: Suite, methods: Sequence[Method], datasets: Sequence[Dataset]) -> Iterator[Check]:
    entries = [entry for entry in suite.entries if not entry.historical and not entry.bench]
    yield settle("pairing", "V4", _pairing(suite, entries), "every rival is published, with the same seeds and plan")
    yield settle("families", "V4", _families(entries), "no family holds more than it declared; Holm worked out again")
    yield settle("orphans", "V4", _orphans(suite), "every manifest has its artifact, every planned arm is published")
    yield settle("methods", "V4", _strangers(entries, methods), "every artifact is of a registered method")
    reused = list(_reused(entries))
    status = "warned" if reused else "passed"
    yield Check("seeds", "V4", status, "; ".join(reused[:3]) or "no two families rest on the same data and seeds")
    try:
        built = build.build(suite.root, methods, datasets)
        differ = [text.splitlines()[0] for text in build.compare(suite.root, built)]
        problems = [*differ, *map(str, built.problems)]
    except SuiteError as error:
        problems = [str(error)]
    yield settle("pages", "V4", problems, "every page is what the artifacts give, and says no more than they license")


def _pairing(suite: Suite, entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        for comparison in entry.value.get("comparison", []):
            against = comparison["against"]
            rival = suite.with_digest(against["artifact_sha256"])
            where = f"{entry.artifact.path} against {against['method']}"
            if rival is None:
                yield f"{where}: the rival's artifact is not published"
                continue
            if rival.value["seeds"] != entry.value["seeds"]:
                yield f"{where}: seeds {entry.value['seeds']} and {rival.value['seeds']}"
            if rival.plan is None or entry.plan is None or rival.plan.digest != entry.plan.digest:
                yield f"{where}: they do not share a plan"
            metric = entry.value["evaluation_protocol"]["primary_metric"]
            own, other = (metric_by_seed(value["runs"], metric) for value in (entry.value, rival.value))
            if [own[seed] - other[seed] for seed in comparison["seeds"]] != comparison["per_seed_diffs"]:
                yield f"{where}: the differences are not those of the two artifacts"


def _families(entries: Sequence[Entry]) -> Iterator[str]:
    """Comparisons of one family over all artifacts: cherry-picking shows as more members than were declared."""
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.value.get("comparison"):
            families.setdefault(entry.value["evaluation_protocol"]["family_id"], []).append(entry)
    for name, members in sorted(families.items()):
        comparisons = [comparison for entry in members for comparison in entry.value["comparison"]]
        size = members[0].value["evaluation_protocol"]["family_size"]
        if len(comparisons) > size:
            yield f"the family {name} declares {size} comparisons, {len(comparisons)} are published"
            continue
        known = [1.0 if c["p_value"] is None else c["p_value"] for c in comparisons] + [1.0] * (size - len(comparisons))
        for comparison, expected in zip(comparisons, holm(known), strict=False):
            found = comparison["p_adjusted"]
            if found is not None and abs(found - expected) > 1e-12:
                yield f"the family {name}: against {comparison['against']['method']} Holm gives {expected}, not {found}"


def _orphans(suite: Suite) -> Iterator[str]:
    used = {file.path for entry in suite.entries for file in entry.files}
    found = [path for folder in NAMESPACES.values() for path in sorted((suite.root / folder).rglob("*"))]
    for path in [*found, *received_files(suite.root)]:
        name = path.relative_to(suite.root).as_posix()
        if path.is_file() and name not in used:
            yield f"{name} belongs to no published artifact"
    published = {(entry.plan.digest, entry.method) for entry in suite.entries if entry.plan}
    for entry in suite.entries:
        if entry.plan is None:
            continue
        for arm in entry.plan.value["plan"].get("arms", {}):
            if (entry.plan.digest, arm) not in published:
                yield f"{entry.plan.path} plans the arm {arm}, which is not published"


def _strangers(entries: Sequence[Entry], methods: Sequence[Method]) -> Iterator[str]:
    known = {method.name for method in methods}
    for entry in entries:
        if entry.page not in known:
            yield f"{entry.artifact.path} is of {entry.page!r}, which is not registered here"


def _reused(entries: Sequence[Entry]) -> Iterator[str]:
    """Families that draw on the same problems and seeds are not independent, whatever each one's test says."""
    seen: dict[tuple[str, str, tuple[int, ...]], str] = {}
    for entry in entries:
        if entry.is_arm or not entry.value.get("comparison"):
            continue
        protocol = entry.value["evaluation_protocol"]
        key = (entry.page, entry.value["provenance"]["dataset_fingerprint"], tuple(entry.value["seeds"]))
        family = protocol["family_id"]
        if seen.setdefault(key, family) != family:
            yield f"{entry.page}: the families {seen[key]} and {family} rest on the same data and seeds"
