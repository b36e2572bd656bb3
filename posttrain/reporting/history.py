"""Recorded artifacts from before provenance: shown, marked, and never compared with anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from posttrain.artifacts.comparisons import close
from posttrain.reporting.reading import Entry

NOT_VERIFIED, CONFIRMED = "historical, not verified", "rerun-confirmed"
_ADDED = ("seed", "status", "started_at", "wall_seconds", "outputs", "measures")  # fields that came after the record


def standing(record: Entry, entries: Iterable[Entry]) -> tuple[str, Entry | None]:
    """What a recorded artifact is worth: confirmed where a published run gives every one of its numbers again."""
    for entry in entries:
        if not entry.historical and entry.method == record.method and _same(record, entry):
            return CONFIRMED, entry
    return NOT_VERIFIED, None


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
