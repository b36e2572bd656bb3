"""Recorded artifacts from before provenance: shown, marked, and never compared with anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.artifacts.comparisons import close
from posttrain.artifacts.documents import DocumentError, parse
from posttrain.artifacts.migration import migrate
from posttrain.reporting.reading import BENCH, POST_TRAINING, Entry, SuiteError

NOT_VERIFIED, CONFIRMED = "historical, not verified", "rerun-confirmed"
_ADDED = ("seed", "status", "started_at", "wall_seconds", "outputs", "measures")  # fields that came after the record


def standing(record: Entry, entries: Iterable[Entry]) -> tuple[str, Entry | None]:
    """What a recorded artifact is worth: confirmed where a published run gives every one of its numbers again."""
    for entry in entries:
        if not entry.historical and entry.method == record.method and _same(record, entry):
            return CONFIRMED, entry
    return NOT_VERIFIED, None


def mended(records: Iterable[Entry]) -> str:
    """A sentence for each recorded artifact that arrived damaged, with the repairs by name; empty where none did."""
    return "\n\n".join(
        f"`{record.artifact.path}` arrived damaged (`{file.digest}`) and was mended by "
        f"{' and '.join(f'`{change}`' for change in file.value['changes'])}."
        for record in records
        for file in record.received
    )


def restore(root: Path, data: bytes, name: str) -> dict[Path, bytes]:
    """The files that a received copy of a recorded artifact gives below `docs/`; SuiteError where it is none."""
    try:
        found = migrate(data, name)
        value = parse(found.data, name)
    except DocumentError as error:
        raise SuiteError(str(error)) from None
    bench = "bench_version" in value
    folder = root / (BENCH if bench else POST_TRAINING) / "historical"
    stem = value["track"].replace("_", "-") if bench else f"{value['method']}-{_stem(value)}"
    files = {folder / f"{stem}.json": found.data}
    if found.changes:
        files[folder / "received" / f"{found.received.removeprefix('sha256:')}.bin"] = data
    for path, content in files.items():
        if path.is_file() and path.read_bytes() != content:
            raise SuiteError(f"{path.relative_to(root)} holds something else; nothing was written")
    return files


def _stem(artifact: Mapping[str, Any]) -> str:
    return artifact["provenance"]["artifact_path"].rpartition("/")[2].removesuffix(".json")


def _same(record: Entry, entry: Entry) -> bool:
    if record.bench != entry.bench:
        return False
    if record.bench:
        pairs = [(value["baseline"]["full"], value["idea"]) for value in (record.value, entry.value)]
        return all(_agrees(a, b) for a, b in zip(*pairs, strict=True))
    runs, again = record.value["runs"], entry.value["runs"]
    return record.value["seeds"] == entry.value["seeds"] and all(
        _agrees(run, {key: other[key] for key in other if key in run or key not in _ADDED})
        for run, other in zip(runs, again, strict=True)
    )


def _agrees(recorded: Any, found: Any) -> bool:
    """Whether everything recorded is found again: texts and counts equal, other numbers to 1e-12."""
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        return all(key in found and _agrees(value, found[key]) for key, value in recorded.items())
    if isinstance(recorded, list) and isinstance(found, list):
        return len(recorded) == len(found) and all(_agrees(a, b) for a, b in zip(recorded, found, strict=True))
    return close(recorded, found)
