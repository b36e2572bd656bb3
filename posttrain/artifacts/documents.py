"""JSON documents: a strict reader, a plain writer and the atomic replacement of a file.

What `dumps` writes, `parse` reads back equal; both refuse what two JSON readers could understand differently.
"""

import json
import math
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64
MAX_INTEGER = 2**53 - 1

# Strings are skipped whole, an unterminated one up to the end; possessive, so that no input makes it backtrack.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LEFTOVER = ".{name}.{token}.writing"


class DocumentError(ValueError):
    """A document that is not strict JSON, or a value that strict JSON cannot hold."""


def load(path: Path) -> bytes:
    """Bytes of a regular file of at most 16 MiB; OSError where it cannot be read."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DocumentError(f"{path} is not a regular file; give the path of a JSON document")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DocumentError(f"{path} is larger than {MAX_BYTES} bytes; keep bulk data in files beside the document")
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; a pipe that nobody writes to must not hold the reader up."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(data: bytes, name: str = "document") -> Any:
    """The one JSON value in the bytes; DocumentError on anything that is not strict JSON."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{name} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
    if text.startswith("\ufeff"):
        raise DocumentError(f"{name} starts with a byte order mark; write UTF-8 without one")
    _refuse_depth(text, name)
    try:
        value = _DECODER.decode(text)
        # Only an escape can smuggle in half a surrogate pair: decoding has refused the bytes of one.
        return plain(value) if "\\u" in text else value
    except json.JSONDecodeError as error:
        raise DocumentError(f"{name} is not one JSON value: {error}") from None
    except DocumentError as error:
        raise DocumentError(f"{name}: {error}") from None


def read(path: Path | str) -> Any:
    """The JSON value in a file; DocumentError on anything that is not strict JSON, OSError if it cannot be read."""
    return parse(load(Path(path)), str(path))


def _refuse_depth(text: str, name: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise DocumentError(f"{name} nests deeper than {MAX_DEPTH} levels at character {match.start()}")
        elif match[0] in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DocumentError(f"the key {shown(twice)} stands twice in one object; keep one of them")
    return members


def _integer(literal: str) -> int:
    # The length first: turning thousands of digits into a number is slow, and Python refuses it anyway.
    if len(literal) > 17 or abs(int(literal)) > MAX_INTEGER:
        raise DocumentError(f"the integer {shown(literal)} lies beyond 2^53 - 1; write it as a string")
    return int(literal)


def _float(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise DocumentError(f"the number {shown(literal)} is too large for a float64")
    return number


def _constant(literal: str) -> float:
    raise DocumentError(f"{literal} is not JSON; write null and say why beside it")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def shown(value: Any) -> str:
    """A value as a message quotes it: short, and escaped so that hostile text cannot steer a terminal."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."


def pointer(path: tuple[str | int, ...]) -> str:
    """JSON Pointer (RFC 6901) of a place in a document; the whole document is ''."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def plain(value: Any) -> Any:
    """The value in JSON's own types (dict, list, str, bool, int, float, None), numbers of other libraries exactly.

    DocumentError names the JSON Pointer of what strict JSON cannot hold.
    """
    return _plain(value, ())


def _plain(value: Any, path: tuple[str | int, ...]) -> Any:
    if len(path) > MAX_DEPTH:
        raise _unwritable(path[:3], f"nests deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise _unwritable(path, "holds half a surrogate pair, which UTF-8 cannot write")
        return str(value)
    if isinstance(value, Real):
        return _plain_number(value, path)
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise _unwritable(path, f"has the key {shown(odd[0])} of type {_type(odd[0])}; keys are strings")
        return {_plain(key, (*path, key)): _plain(member, (*path, key)) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, i)) for i, item in enumerate(value)]
    raise _unwritable(path, f"is a {_type(value)}; convert it to a JSON type (.tolist(), float, bool or str)")


def _plain_number(value: Any, path: tuple[str | int, ...]) -> int | float:
    if isinstance(value, Integral):
        if abs(int(value)) > MAX_INTEGER:
            raise _unwritable(path, "is an integer beyond 2^53 - 1; write it as a string")
        return int(value)
    number = float(value)
    if not math.isfinite(number):
        raise _unwritable(path, f"is {number}, which JSON cannot hold; write null and say why beside it")
    if number != value:
        raise _unwritable(path, f"is the {_type(value)} {value}, which float64 would round; convert it yourself")
    return number


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _unwritable(path: tuple[str | int, ...], what: str) -> DocumentError:
    return DocumentError(f"the value at '{pointer(path)}' {what}")


def dumps(value: Any) -> bytes:
    """UTF-8 JSON with two-space indentation, keys in insertion order and a newline at the end.

    DocumentError names the JSON Pointer of a non-finite number and of anything else that strict JSON cannot hold.
    """
    data = (json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    if len(data) > MAX_BYTES:
        raise DocumentError(f"the document has {len(data)} bytes, over the cap of {MAX_BYTES}; move bulk data out")
    return data


def write_atomically(path: Path | str, data: bytes) -> None:
    """Replaces a file by the bytes: at every instant the old file or the new one is there, complete and on disk.

    On an error (disk full, no permission) the old file is untouched, or the new one complete if only the folder could
    not be flushed, and no temporary file stays. A killed process can leave one: see `remove_leftovers`.
    """
    path = Path(path)
    temporary = path.with_name(_LEFTOVER.format(name=path.name, token=secrets.token_hex(8)))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path | str) -> list[Path]:
    """Deletes the temporary files that killed writers left in a folder; only for the folder's sole writer."""
    leftovers = sorted(Path(folder).glob(_LEFTOVER.format(name="*", token="*")))
    for leftover in leftovers:
        leftover.unlink()
    return leftovers
