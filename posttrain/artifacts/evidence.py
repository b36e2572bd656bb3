"""Evidence: an artifact and the records found around it, read strictly and never followed out of their folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError, load, parse
from posttrain.artifacts.manifest import (
    ManifestError,
    ManifestNotFoundError,
    inside,
    published_root,
    resolve,
    resolve_execution,
)
from posttrain.artifacts.report import Check, settle
from posttrain.artifacts.schema import Name, violations

SENTINEL = "not recorded in historical artifact"
# Artifacts from before provenance was recorded. The list is closed: a file with these very bytes, or not at all.
HISTORICAL = frozenset({"sha256:b3d2b04ac61670e1bbcf65b1f094547d9e7afd2b3f7192d2799fcb931313d890"})
_MISSING = {
    "plan": "the plan is missing",
    "execution": "the run is incomplete or was copied without its execution record",
}


@dataclass(frozen=True)
class Document:
    """A JSON document and the file it was read from."""

    path: Path
    digest: str  # of the file's bytes
    size: int  # bytes
    value: Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """An artifact that keeps its schema, with its plan, execution record and the other arms of its study."""

    artifact: Document
    plan: Document | None = None
    execution: Document | None = None
    arms: Mapping[str, Document] = field(default_factory=dict)  # by name: those that keep the schema
    checks: tuple[Check, ...] = ()  # what reading showed
    unverifiable: tuple[str, ...] = ()  # what is missing for a verification

    @property
    def historical(self) -> bool:
        """Whether this very file is on the closed list of those from before provenance was recorded."""
        return self.artifact.digest in HISTORICAL

    def arm_with(self, digest: str) -> Document | None:
        """The arm whose artifact has these bytes, None if it is not at hand."""
        return next((arm for arm in self.arms.values() if arm.digest == digest), None)


def read_document(path: Path, schema: Name, what: str) -> tuple[Document | None, tuple[Check, ...]]:
    """A file that is strict JSON and keeps its schema, else None, and the checks that say so."""
    try:
        data = load(path)
        value = parse(data, path.name)
    except DocumentError as error:
        return None, (Check(f"{what} syntax", "V0", "failed", str(error)),)
    syntax = Check(f"{what} syntax", "V0", "passed", "one strict JSON value")
    shape = settle(f"{what} schema", "V0", map(str, violations(value, schema)), f"keeps {schema}")
    document = Document(path, bytes_digest(data), len(data), value) if shape.status == "passed" else None
    return document, (syntax, shape)


def gather(artifact: Document) -> Evidence:
    """The records around an artifact: beside it first, then below `docs/`. A historical artifact has none."""
    if artifact.digest in HISTORICAL:
        count = sum(value == SENTINEL for value in artifact.value["provenance"].values())
        return Evidence(artifact, unverifiable=(f"historical: {count} field{'s' * (count != 1)} not recorded",))
    reference, method = artifact.value["manifest_ref"], artifact.value["method"]
    plan, of_plan, no_plan = _record("plan", "plan-v1", lambda: resolve(reference, artifact.path))
    execution, of_execution, no_execution = _record(
        "execution", "execution-v1", lambda: resolve_execution(reference, artifact.path, method)
    )
    arms, of_arms = _arms(artifact)
    checks = (*of_plan, *of_execution, *of_arms)
    return Evidence(artifact, plan, execution, arms, checks, (*no_plan, *no_execution))


def _record(
    what: str, schema: Name, seek: Callable[[], Path]
) -> tuple[Document | None, tuple[Check, ...], tuple[str, ...]]:
    """A plan or execution record, the checks of its shape, and what is missing."""
    try:
        path = seek()
    except ManifestNotFoundError as error:
        return None, (), (f"{_MISSING[what]}: {error}",)
    except (ManifestError, DocumentError) as error:
        return None, (Check(f"{what} file", "V0", "failed", str(error)),), ()
    return *read_document(path, schema, what), ()


def _arms(artifact: Document) -> tuple[dict[str, Document], tuple[Check, ...]]:
    """The other arms: `arms/<name>/artifact.json` beside the artifact or, once published, the files below `docs/`."""
    folder, pattern, root = artifact.path.resolve().parent, "arms/*/artifact.json", None
    if artifact.value.get("comparison"):
        root = published_root(artifact.path)
    if root is not None:
        folder, pattern = root, "docs/post-training/*/metrics/*.json"
    arms, checks = {}, []
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder).as_posix() if root else path.parent.name
        try:
            inside(folder, path.relative_to(folder).as_posix())
        except ManifestError as error:
            checks.append(Check(f"arm {name}", "V0", "failed", str(error)))
            continue
        document, made = read_document(path, "artifact-v2", f"arm {name}")
        # Another published file is judged when it is verified itself; here it only serves as a rival.
        checks += [] if root else made
        if document is not None:
            arms[name] = document
    return arms, tuple(checks)
