"""The published suite: every artifact below `docs/` with its plan, execution record and rivals, read strictly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError, load, parse
from posttrain.artifacts.manifest import NAMESPACES, ManifestError, split_reference
from posttrain.artifacts.migration import migrate
from posttrain.artifacts.schema import Name, violations

POST_TRAINING, BENCH = "docs/post-training", "docs/bench"
TIERS = ("l0_smoke", "l1_mechanism", "l2_tiny_lm", "l3_real_model")
_SCHEMAS: dict[str, Name] = {"schema_version": "artifact-v2", "bench_version": "bench-v1"}
_READ = {"schema_version": 2, "bench_version": 1}


class SuiteError(ValueError):
    """A published file that cannot be used: the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class File:
    """A published JSON file."""

    path: str  # from the root, with forward slashes
    digest: str
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One published artifact and its manifest; a historical one has none, but may have copies it was mended from."""

    artifact: File
    plan: File | None = None
    execution: File | None = None
    received: tuple[File, ...] = ()
    outside: tuple[File, ...] = ()  # code from outside the package that it ran, as published with it

    @property
    def value(self) -> Mapping[str, Any]:
        """The artifact's content."""
        return self.artifact.value

    @property
    def historical(self) -> bool:
        """Whether it lies among the recorded artifacts, which serve no comparison."""
        return "/historical/" in self.artifact.path

    @property
    def bench(self) -> bool:
        """Whether it is of a bench track."""
        return "bench_version" in self.value

    @property
    def method(self) -> str:
        """Method or track, the arm of a study included."""
        return self.value["track"] if self.bench else self.value["method"]

    @property
    def page(self) -> str:
        """The method whose page it belongs to: an arm `<method>.<arm>` belongs to its method's."""
        return self.method if self.bench else self.method.split(".")[0]

    @property
    def is_arm(self) -> bool:
        """Whether another artifact of the same plan is the main one."""
        return self.plan is not None and self.plan.value["plan"].get("main", self.method) != self.method

    @property
    def tier(self) -> str:
        """The evaluation tier."""
        return self.value["evaluation_protocol"]["tier"]

    @property
    def files(self) -> tuple[File, ...]:
        """Artifact, plan, execution record, received copies and code from outside, those that are there."""
        files = (self.artifact, self.plan, self.execution, *self.received, *self.outside)
        return tuple(file for file in files if file is not None)


def _rivals(entry: Entry) -> set[str]:
    """Digests of the artifacts that an artifact compares itself with."""
    return {comparison["against"].get("artifact_sha256") for comparison in entry.value.get("comparison", [])}


@dataclass(frozen=True)
class Suite:
    """Everything published below one root."""

    root: Path
    entries: tuple[Entry, ...]  # by path

    def comparing(self, rival: Entry) -> tuple[Entry, ...]:
        """The entries of other pages that compare themselves with an artifact."""
        return tuple(
            entry
            for entry in self.entries
            if not entry.bench and entry.page != rival.page and rival.artifact.digest in _rivals(entry)
        )

    def of(self, page: str, *, bench: bool = False) -> tuple[Entry, ...]:
        """The entries that belong to the page of a method or track."""
        return tuple(entry for entry in self.entries if entry.page == page and entry.bench == bench)

    def with_digest(self, digest: str) -> Entry | None:
        """The entry whose artifact has these bytes."""
        return next((entry for entry in self.entries if entry.artifact.digest == digest), None)


def read_suite(root: Path) -> Suite:
    """Reads every artifact; SuiteError at the first file that cannot be used."""
    paths = sorted(_paths(root), key=lambda path: path.relative_to(root).as_posix())
    return Suite(root, tuple(_entry(root, path) for path in paths))


def _paths(root: Path) -> Iterator[Path]:
    for place in (POST_TRAINING, BENCH):
        yield from (root / place).glob("*/metrics/*.json")
        yield from (root / place).glob("historical/*.json")


def read_file(root: Path, relative: str) -> File:
    """A JSON file below the root; no part of its path may be a symbolic link."""
    data = read_bytes(root, relative)
    try:
        return File(relative, bytes_digest(data), parse(data, relative))
    except DocumentError as error:
        raise SuiteError(str(error).replace(f"{root}/", "")) from None


def read_bytes(root: Path, relative: str) -> bytes:
    """The content of a file below the root; no part of its path may be a symbolic link."""
    path = root
    for part in Path(relative).parts:
        path = path / part
        if path.is_symlink():
            raise SuiteError(f"{relative}: {part} is a symbolic link; put the file itself there")
    try:
        return load(path)
    except DocumentError as error:
        raise SuiteError(str(error).replace(f"{root}/", "")) from None
    except FileNotFoundError:
        raise SuiteError(f"{relative} is missing; publish its run again with posttrain publish RUN") from None


def received_files(root: Path) -> list[Path]:
    """Recorded artifacts as they arrived, where that is not as they were recorded; each bears its digest as name."""
    return sorted(path for place in (POST_TRAINING, BENCH) for path in (root / place).glob("historical/received/*"))


def _received(root: Path, file: File) -> Iterator[File]:
    """The copies that a recorded artifact was mended from, with the repairs."""
    for path in received_files(root):
        name = path.relative_to(root).as_posix()
        try:
            found = migrate(load(path), name)
        except DocumentError as error:
            raise SuiteError(str(error).replace(f"{root}/", "")) from None
        if path.name != f"{found.received.removeprefix('sha256:')}.bin":
            raise SuiteError(f"{name} holds {found.received}, its name says another digest; restore the copy")
        if bytes_digest(found.data) == file.digest:
            yield File(name, found.received, {"changes": list(found.changes)})


def _entry(root: Path, path: Path) -> Entry:
    file = read_file(root, path.relative_to(root).as_posix())
    version = next((key for key in _SCHEMAS if isinstance(file.value, Mapping) and key in file.value), None)
    if version is None:
        raise SuiteError(f"{file.path} is no artifact: it has neither schema_version nor bench_version")
    if file.value[version] != _READ[version]:
        found = file.value[version]
        raise SuiteError(f"{file.path} has {version} {found!r}, this posttrain reads {_READ[version]}; use a newer one")
    _require(file, _SCHEMAS[version])
    if "/historical/" in file.path:
        return Entry(file, received=tuple(_received(root, file)))
    if "manifest_ref" not in file.value:
        raise SuiteError(f"{file.path} names no plan; an artifact from before plans belongs into historical/")
    try:
        namespace, name, _ = split_reference(file.value["manifest_ref"])
    except ManifestError as error:
        raise SuiteError(f"{file.path}: {error}") from None
    place = NAMESPACES[namespace]
    method = file.value["track" if version == "bench_version" else "method"]
    plan = _require(read_file(root, f"{place}/{name}.json"), "plan-v1")
    execution = _require(read_file(root, f"{place}/{name}/{method}.json"), "execution-v1")
    plugins = execution.value["execution"].get("plugins", [])
    return Entry(file, plan, execution, outside=tuple(_outside(root, f"{place}/{name}", plugins)))


def outside_path(folder: str, plugin: Mapping[str, Any]) -> str:
    """Where a file of code from outside lies, in the folder of its plan's execution records."""
    return f"{folder}/code/{Path(plugin['name']).name}"


def _outside(root: Path, folder: str, plugins: Iterable[Mapping[str, Any]]) -> Iterator[File]:
    """The published code from outside, with the bytes that ran."""
    for plugin in plugins:
        if not plugin["name"].endswith(".py"):
            continue
        path = outside_path(folder, plugin)
        digest = bytes_digest(read_bytes(root, path))
        if digest != plugin["sha256"]:
            raise SuiteError(
                f"{path} is {digest}, the run had {plugin['sha256']}; restore it, or publish the run again"
            )
        yield File(path, digest, {})


def _require(file: File, schema: Name) -> File:
    found = violations(file.value, schema)
    if found:
        raise SuiteError(f"{file.path} does not keep {schema}: {found[0]}")
    return file
