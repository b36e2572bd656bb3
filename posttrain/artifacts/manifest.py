"""The manifest: a plan frozen before the first run and shared by all methods, and one execution record per method.

The plan says what would count as evidence; the execution says how one run came about and is written last. Where they
lie: `plan.json` and `execution.json` beside an artifact, or below `docs/` once it is published.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import content_digest
from posttrain.artifacts.documents import plain, read
from posttrain.artifacts.redaction import redact, redact_config
from posttrain.artifacts.schema import Name, violations

MANIFEST_VERSION = 1
PART = "part.json"  # beside the record of one seed of a plan: the whole experiment it belongs to
NAMESPACES = {"post-training": "docs/post-training/manifests", "bench": "docs/bench/manifests"}

_REFERENCE = re.compile(r"([a-z0-9-]+):([a-z0-9][a-z0-9._-]*)(?:@(sha256:[0-9a-f]{64}))?")


class ManifestError(ValueError):
    """A plan, execution record or manifest reference that cannot be used as it is."""


class ManifestNotFoundError(ManifestError):
    """A manifest that is not where its reference says; nothing is known to be wrong with it."""


def plan_document(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `plan.json`: the plan, secrets taken out, and its digest; ManifestError if it cannot be meant."""
    frozen = redact_config(plain(plan))
    document = {"manifest_version": MANIFEST_VERSION, "plan": frozen, "plan_sha256": content_digest(frozen)}
    _require(document, "plan-v1")
    problems = plan_problems(frozen)
    if problems:
        raise ManifestError(f"the plan {frozen['name']!r} cannot be meant: {'; '.join(problems)}")
    return document


def plan_problems(plan: Mapping[str, Any]) -> list[str]:
    """What in a plan of the right shape contradicts itself, one sentence each."""
    problems = []
    shared = sorted(set(plan.get("tuning", {}).get("seeds", [])) & set(plan["seeds"]))
    if shared:
        problems.append(f"seeds {shared} serve tuning and evaluation; tune on other seeds")
    ids = [claim["id"] for claim in plan.get("claims", [])]
    if len(set(ids)) < len(ids):
        problems.append(f"two claims bear one id, found {ids}; give each its own")
    strangers = sorted(set(plan.get("controls", [])) - set(plan.get("arms", {}))) if "arms" in plan else []
    if strangers:
        problems.append(f"controls {strangers} are no arms; name arms among {sorted(plan['arms'])}")
    spent = sum(look["alpha"] for look in plan["looks"])
    if spent > plan["alpha"] * (1 + 1e-12):
        problems.append(f"the looks spend alpha {spent}, the plan has {plan['alpha']}; split it among them")
    names = [split["name"] for split in plan["dataset"]["splits"]]
    if len(set(names)) < len(names):
        problems.append(f"two splits bear one name, found {names}; give each its own")
    return problems


def execution_document(execution: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `execution.json`: the record, secrets taken out, and its digest; ManifestError if malformed."""
    record = dict(plain(execution))
    for key, clean in (("argv", redact), ("overrides", redact), ("config", redact_config)):
        if key in record:
            record[key] = clean(record[key])
    document = {
        "manifest_version": MANIFEST_VERSION,
        "execution": record,
        "execution_sha256": content_digest(record),
    }
    _require(document, "execution-v1")
    if datetime.fromisoformat(record["ended_at"]) < datetime.fromisoformat(record["started_at"]):
        raise ManifestError(f"the run ends at {record['ended_at']}, before it starts at {record['started_at']}")
    return document


def _require(document: Mapping[str, Any], name: Name) -> None:
    found = violations(document, name)
    if found:
        raise ManifestError(f"not a {name} document: {'; '.join(map(str, found[:5]))}")


def split_reference(reference: str) -> tuple[str, str, str | None]:
    """Namespace, name and pinned plan digest of `<namespace>:<name>[@sha256:<hex>]`; ManifestError otherwise."""
    match = _REFERENCE.fullmatch(reference)
    if not match:
        raise ManifestError(
            f"{reference!r} is no manifest reference; write <namespace>:<name> or <namespace>:<name>@sha256:<64 hex>"
        )
    namespace, name, pin = match.groups()
    if namespace not in NAMESPACES:
        raise ManifestError(f"the namespace {namespace!r} is unknown; use one of {', '.join(NAMESPACES)}")
    return namespace, name, pin


def inside(folder: Path, relative: str) -> Path:
    """The path below a folder; ManifestError if it leaves the folder, by `..`, an absolute path or a symlink."""
    root = folder.resolve()
    path = root / relative
    if ".." in Path(relative).parts or not path.resolve().is_relative_to(root):
        raise ManifestError(f"{relative!r} leads out of {folder}; keep the file inside and name it relative to it")
    return path


def resolve(manifest_ref: str, artifact_path: Path | str) -> Path:
    """The plan file of an artifact: `plan.json` beside it, else the published one below `docs/`; its pin is checked.

    ManifestNotFoundError if there is neither, ManifestError if the reference or the file may not be used.
    """
    namespace, name, pin = split_reference(manifest_ref)
    artifact = Path(artifact_path)
    path = _first(artifact, "plan.json", f"{NAMESPACES[namespace]}/{name}.json")
    if pin is not None:
        plan = read(path)
        found = content_digest(plan.get("plan") if isinstance(plan, dict) else plan)
        if found != pin:
            raise ManifestError(f"{path} holds the plan {found}, the reference pins {pin}; restore the pinned plan")
    return path


def resolve_execution(manifest_ref: str, artifact_path: Path | str, method: str) -> Path:
    """The execution file of an artifact: `execution.json` beside it or, for a published one, below `docs/`.

    A run folder without its own record is incomplete, whatever a published run of that method left.
    """
    namespace, name, _ = split_reference(manifest_ref)
    published = f"{NAMESPACES[namespace]}/{name}/{method}.json" if published_root(artifact_path) else None
    return _first(Path(artifact_path), "execution.json", published)


def _first(artifact: Path, beside: str, published: str | None) -> Path:
    places = [inside(artifact.resolve().parent, beside)]
    root = documentation_root(artifact)
    if root is not None and published is not None:
        places.append(inside(root, published))
    for place in places:
        if place.is_file():
            return place
    raise ManifestNotFoundError(f"found none of {beside} beside {artifact.name}, {published or 'no published file'}")


def published_root(artifact_path: Path | str) -> Path | None:
    """The folder whose `docs/` holds an artifact, where its recorded place is binding; None for one elsewhere."""
    root = documentation_root(artifact_path)
    inside_docs = root is not None and Path(artifact_path).resolve().is_relative_to(root / "docs")
    return root if inside_docs else None


def documentation_root(path: Path | str) -> Path | None:
    """The nearest folder above a path that holds `docs/post-training` or `docs/bench`; None if there is none."""
    for folder in Path(path).resolve().parents:
        if any((folder / place).parent.is_dir() for place in NAMESPACES.values()):
            return folder
    return None
