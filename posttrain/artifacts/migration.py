"""Recorded artifacts that arrived damaged: named repairs of their bytes, which no reader does by itself.

A repair counts only where its result is, byte for byte, one of the recorded artifacts; the list of these is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from posttrain.artifacts.bench_verify import BENCH_HISTORICAL
from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError
from posttrain.artifacts.evidence import HISTORICAL

_BOM = b"\xef\xbb\xbf"
_NUMBERED = re.compile(rb" *(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Migration:
    """A recorded artifact as it was received and as it was recorded."""

    received: str  # digest of the bytes that arrived
    changes: tuple[str, ...]  # names of the repairs, in their order
    data: bytes  # the recorded bytes


def _strip_line_numbers(data: bytes) -> bytes:
    """Without the number of each line before it; unchanged unless every line bears its own."""
    lines = [_NUMBERED.fullmatch(line) for line in data.splitlines(keepends=True)]
    if any(line is None or int(line[1]) != number for number, line in enumerate(lines, start=1)):
        return data
    return b"".join(line[2] for line in lines if line is not None)


REPAIRS: Mapping[str, Callable[[bytes], bytes]] = {
    "bom": lambda data: data.removeprefix(_BOM),
    "crlf": lambda data: data.replace(b"\r\n", b"\n"),
    "strip-line-numbers": _strip_line_numbers,
    "final-newline": lambda data: data if data.endswith(b"\n") else data + b"\n",
}


def migrate(data: bytes, name: str = "document") -> Migration:
    """The recorded artifact that these bytes are a copy of; DocumentError where they are a copy of none."""
    received, changes = bytes_digest(data), []
    for repair, mend in REPAIRS.items():
        if bytes_digest(data) in HISTORICAL | BENCH_HISTORICAL:
            break
        if (mended := mend(data)) != data:
            changes.append(repair)
            data = mended
    if bytes_digest(data) not in HISTORICAL | BENCH_HISTORICAL:
        tried = ", ".join(changes) or f"none of {', '.join(REPAIRS)} applies"
        raise DocumentError(
            f"{name} is no copy of a recorded artifact (repairs: {tried}), and that list is closed. "
            "Run it again with posttrain, then posttrain publish RUN"
        )
    return Migration(received, tuple(changes), data)
