"""Files of rows: JSONL, JSON, CSV and Parquet. What cannot be read exactly is refused with file and line.

Text is UTF-8 whatever the locale says, with or without a byte order mark. Python's own modules read it: nothing is
guessed about types, no cache is written, and every mistake has a line number. Parquet needs pyarrow, which comes with
`datasets`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from posttrain.registry import ConfigError, did_you_mean

BOM = b"\xef\xbb\xbf"
MISSING = frozenset(("nan", "NaN", "null", "NULL"))  # what programs that write CSV make of a missing value


class AbsentData(ConfigError):
    """Data that is not at hand: nothing is known to be wrong with it."""


@dataclass(frozen=True)
class Table:
    """Rows with the numbers they bear in their file: the line for JSONL and CSV, the place from 1 on elsewhere."""

    name: str  # as messages and problem ids call it, never an absolute path
    rows: tuple[tuple[int, Mapping[str, Any]], ...]
    missing: frozenset[str] = frozenset()  # texts that are no answer: the format has no other way to say so

    @property
    def columns(self) -> list[str]:
        """Every column that some row has, in the order of first appearance."""
        return list(dict.fromkeys(key for _, row in self.rows for key in row))

    def error(self, number: int, text: str) -> ConfigError:
        """A mistake in one row."""
        return ConfigError(f"dataset: {self.name}, row {number}: {text}")


def read_table(path: Path, field: str) -> Table:
    """The rows of a file; `field` is the setting that named it. ConfigError names file and line of what is wrong."""
    if path.suffix.lower() not in READERS:
        raise ConfigError(
            f"{field}: found `{path.name}`, expected a file that ends in {', '.join(READERS)}."
            f"{did_you_mean(path.suffix, READERS)}"
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise AbsentData(
            f"{field}: there is no file `{path}`. Give the path of a file with one row per problem."
        ) from None
    except OSError as error:
        raise ConfigError(f"{field}: `{path}` cannot be read: {error.strerror or error}") from error
    return _parsed(path.name, data)


@lru_cache(maxsize=8)
def _parsed(name: str, data: bytes) -> Table:
    """Every seed builds its problems from the same rows: they are parsed once as long as the bytes stay the same."""
    kind = Path(name).suffix.lower()
    return Table(name, tuple(READERS[kind](name, data)), MISSING if kind == ".csv" else frozenset())


# -- formats --------------------------------------------------------------------------------------------------

Rows = Iterator[tuple[int, Mapping[str, Any]]]


def _jsonl(name: str, data: bytes) -> Rows:
    """Lines end at LF alone, so U+2028 inside a string is text; a CR before it and blank lines are skipped."""
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        where = f"{name}, line {number}"
        text = _decoded(line, where).strip(" \t\r")
        if text:
            yield number, _object(_json(text, where), where)


def _json_list(name: str, data: bytes) -> Rows:
    value = _json(_decoded(data.removeprefix(BOM), name), name)
    if not isinstance(value, list):
        raise ConfigError(
            f"dataset: {name}: found {_kind(value)}, expected one list of objects. "
            "One object per line is a .jsonl file."
        )
    for number, row in enumerate(value, 1):
        yield number, _object(row, f"{name}, row {number}")


def _csv(name: str, data: bytes) -> Rows:
    """The first line names the columns; values are text. A quoted value may hold line ends."""
    lines = csv.reader(io.StringIO(_decoded(data.removeprefix(BOM), name), newline=""), strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # the usual limit of 128 KiB is shorter than some documents
    try:
        header = next(lines, [])
        if len(set(header)) < len(header):
            twice = next(column for column in header if header.count(column) > 1)
            raise ConfigError(f"dataset: {name}, line 1: two columns are called `{twice}`. Rename one.")
        other = next((mark for mark in (";", "\t") if len(header) == 1 and mark in header[0]), None)
        if other is not None:
            raise ConfigError(f"dataset: {name}, line 1: {other!r} parts the columns. Save it with commas.")
        number = lines.line_num + 1
        for row in lines:
            if row and len(row) != len(header):
                raise ConfigError(
                    f"dataset: {name}, line {number}: found {len(row)} values for {len(header)} columns. Put values "
                    "with commas, quotes or line ends in double quotes."
                )
            if row:
                yield number, dict(zip(header, row, strict=True))
            number = lines.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"dataset: {name}, line {lines.line_num}: is not valid CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _parquet(name: str, data: bytes) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"dataset: {name}: is not a readable Parquet file: {error}") from error
    yield from enumerate(rows, 1)


READERS: dict[str, Callable[[str, bytes], Rows]] = {
    ".jsonl": _jsonl,
    ".json": _json_list,
    ".csv": _csv,
    ".parquet": _parquet,
}


# -- strict text ----------------------------------------------------------------------------------------------


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        line = "" if ", line " in where else f", line {number}"
        raise ConfigError(
            f"dataset: {where}{line}: byte {data[error.start]:#04x} is not UTF-8. Save the file as UTF-8."
        ) from None


def _json(text: str, where: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"dataset: {where}: an escape stands for half a character (a lone surrogate)") from None
    except json.JSONDecodeError as error:
        # Where the text is one line of a file, the parser's own line number would be that of a line 1.
        place = f"column {error.colno}" if ", line " in where else f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"dataset: {where}: is not valid JSON: {error.msg} ({place})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"dataset: {where}: is not valid JSON: {error}") from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if [name for name, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"dataset: {where}: found {_kind(value)}, expected an object with named fields")
    return value


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", dict: "one object", type(None): "null"}.get(type(value), repr(value))
