"""What verification catches, by level: python benchmarks/mutations.py [--docs DIR] [--artifact FILE] [--files N]

Three kinds of edits of the published suite, in a copy: every leaf of an artifact, each alone; the same behind digests
that were formed again, as a careful forger would; and one byte of published files of each kind against `docs check`.
A level's rate is the share of edits at which one of its own checks fails; `any` is what a reader is protected by.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import bytes_digest, sealed
from posttrain.artifacts.documents import DocumentError, dumps, read
from posttrain.artifacts.manifest import execution_document, resolve_execution
from posttrain.evaluation import facts
from posttrain.reporting import build
from posttrain.reporting.actions import verifier
from posttrain.reporting.reading import SuiteError

ARTIFACT = "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json"
Where = tuple[str | int, ...]


def main() -> None:
    """Copies the suite, edits it again and again, and prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the published suite")
    parser.add_argument("--artifact", default=ARTIFACT, help="whose leaves are edited")
    parser.add_argument("--files", type=int, default=25, help="files of each kind of which a byte is edited")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        shutil.copytree(options.docs, root / "docs")
        place = root / options.artifact
        found = {
            "artifact": options.artifact,
            "leaves": of_leaves(place, resealed=False),
            "leaves, digests formed again": of_leaves(place, resealed=True),
            "bytes of published files": of_bytes(root, options.files),
        }
    print(json.dumps(found, indent=2))


def of_leaves(path: Path, *, resealed: bool) -> dict[str, Any]:
    """Edits every leaf of an artifact and counts at which levels `verify` fails."""
    verify, data, artifact = verifier([]), path.read_bytes(), read(path)
    place = resolve_execution(artifact["manifest_ref"], path, artifact["method"])
    record = place.read_bytes()
    caught, survivors, edits = Counter[str](), Counter[str](), 0
    for where in leaves(artifact):
        if resealed and where == ("provenance", "content_digest"):
            continue
        edits += 1
        try:
            changed = edited(artifact, where, other)
            path.write_bytes(dumps(sealed(changed) if resealed else changed))
            if resealed:
                _rebind(place, record, data, path.read_bytes())
            failed = {check.level for check in verify(path).checks if check.status == "failed"}
        except DocumentError:
            failed = {"V0"}
        finally:
            place.write_bytes(record)
        caught.update(failed)
        caught["any"] += bool(failed)
        if not failed:
            survivors["/".join("*" if isinstance(key, int) else key for key in where)] += 1
    path.write_bytes(data)
    return {"edits": edits, "caught": shares(caught, edits), "not caught": dict(sorted(survivors.items()))}


def _rebind(place: Path, record: bytes, old: bytes, new: bytes) -> None:
    """The execution record with the new artifact among its outputs."""
    execution = json.loads(record)["execution"]
    for file in execution["outputs"]:
        if file["sha256"] == bytes_digest(old):
            file |= {"sha256": bytes_digest(new), "bytes": len(new)}
    place.write_bytes(dumps(execution_document(execution)))


def of_bytes(root: Path, count: int) -> dict[str, Any]:
    """Flips one bit of a byte in some published files of each kind and counts what `docs check` finds."""
    methods, datasets = facts.methods(), facts.datasets()
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in (root / "docs").rglob("*") if path.is_file()):
        if kind := kind_of(path.relative_to(root).as_posix()):
            kinds.setdefault(kind, []).append(path)
    rates: dict[str, Any] = {}
    survivors = []
    for kind, paths in sorted(kinds.items()):
        chosen = random.Random(kind).sample(paths, min(count, len(paths)))
        for path in chosen:
            data = path.read_bytes()
            place = random.Random(path.name).randrange(len(data))
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            if not _found(root, methods, datasets):
                survivors.append(f"{path.relative_to(root)}, byte {place}")
            path.write_bytes(data)
        missed = sum(
            survivor.split(",")[0] in {str(path.relative_to(root)) for path in chosen} for survivor in survivors
        )
        rates[kind] = {"files": len(paths), "edits": len(chosen), "caught": round(1 - missed / len(chosen), 4)}
        print(f"{kind}: {rates[kind]}", file=sys.stderr)
    return {**rates, "not caught": survivors}


def _found(root: Path, methods: list[Any], datasets: list[Any]) -> bool:
    """Whether `docs check` has anything to say."""
    try:
        built = build.build(root, methods, datasets)
    except SuiteError:
        return True
    return bool(list(build.compare(root, built))) or bool(built.problems)


def kind_of(path: str) -> str | None:
    """What a published file is; None for what no artifact speaks of."""
    if path.startswith(("docs/adr/", "docs/guide/")) or path == "docs/README.md" or "/stylesheets/" in path:
        return None
    for part, kind in (("/manifests/", "manifest"), ("/historical/", "record"), ("/metrics/", "artifact")):
        if part in path:
            return kind
    return "figure" if path.endswith(".svg") else "page"


def leaves(value: Any, path: Where = ()) -> Iterator[Where]:
    """Every place of a document that holds no other."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [leaf for key, member in inside for leaf in leaves(member, (*path, key))]
    yield from below or [path]


def edited(document: Any, path: Where, change: Callable[[Any], Any]) -> Any:
    """A copy with another value at one place."""
    document = json.loads(json.dumps(document))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return document


def other(value: Any) -> Any:
    """Another value of the same type; the next float, the next whole number."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, int):
        return value + 1
    return value + "x" if isinstance(value, str) else 0.5


def shares(counts: Counter[str], edits: int) -> dict[str, float]:
    """Counts over all edits."""
    return {level: round(counts[level] / edits, 4) for level in sorted(counts)}


if __name__ == "__main__":
    main()
