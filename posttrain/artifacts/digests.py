"""Digests: canonical JSON (RFC 8785) and the SHA-256 of bytes, documents, data sets and code.

A file digest covers raw bytes; a content digest covers a value, so that 1.0 and 1, or -0.0 and 0, are the same there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from posttrain.artifacts.documents import plain

PREFIX = "sha256:"


def canonical(value: Any) -> bytes:
    """The value as RFC 8785 canonical JSON; DocumentError on NaN, an integer of 2^53 and beyond, or a non-JSON type."""
    return _encoded(plain(value)).encode()


def _encoded(value: Any) -> str:
    if isinstance(value, dict):
        # UTF-16 code units, as ECMAScript sorts: U+FB33 comes after the surrogates of an emoji.
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{_encoded(key)}:{_encoded(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encoded, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """A finite float as ECMAScript prints it: the shortest digits that read back, exponents from 1e21 and to 1e-7."""
    if value == 0:
        return "0"
    negative, numerals, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    point = len(numerals) + exponent  # the decimal point stands after this many digits
    digits, sign = "".join(map(str, numerals)).rstrip("0"), "-" if negative else ""
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def bytes_digest(data: bytes) -> str:
    """`sha256:<hex>` of raw bytes."""
    return PREFIX + hashlib.sha256(data).hexdigest()


def file_digest(path: Path | str) -> str:
    """`sha256:<hex>` of a file's raw bytes; OSError if it cannot be read."""
    with open(path, "rb") as file:
        return PREFIX + hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(value: Any) -> str:
    """`sha256:<hex>` of a value's canonical form."""
    return bytes_digest(canonical(value))


def sealed(artifact: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an artifact that bears the digest of all its other content in `provenance.content_digest`."""
    provenance = {key: value for key, value in artifact["provenance"].items() if key != "content_digest"}
    bare = {**artifact, "provenance": provenance}
    return {**bare, "provenance": {**provenance, "content_digest": content_digest(bare)}}


def dataset_fingerprint(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """`sha256:<hex>` of the examples of every split, in order; splits count in the order of their names."""
    return _fingerprint("posttrain-dataset-v1\n", splits, ordered=True)


def dataset_set_fingerprint(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """`sha256:<hex>` of the examples of every split, whatever their order within it."""
    return _fingerprint("posttrain-dataset-set-v1\n", splits, ordered=False)


def _fingerprint(tag: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], *, ordered: bool) -> str:
    digest = hashlib.sha256(tag.encode())
    for name in sorted(splits):
        examples = [hashlib.sha256(canonical(example)).digest() for example in splits[name]]
        digest.update(canonical({"n": len(examples), "split": name}) + b"\n")
        for example in examples if ordered else sorted(examples):
            digest.update(example)
    return PREFIX + digest.hexdigest()


def code_digest(root: Path | str, patterns: str | Iterable[str] = "**/*.py") -> str:
    """`sha256:<hex>` of the files below a folder that match, names and bytes (in-toto `dirHash` over sorted paths).

    `patterns` is one glob or several, such as ("**/*.py", "configs/**/*.yaml"); FileNotFoundError if none matches.
    """
    root, globs = Path(root), [patterns] if isinstance(patterns, str) else list(patterns)
    files = {path.relative_to(root).as_posix(): path for glob in globs for path in root.glob(glob) if path.is_file()}
    if not files:
        raise FileNotFoundError(f"no file below {root} matches {', '.join(globs)}; give the folder of the sources")
    lines = [f"{file_digest(files[name]).removeprefix(PREFIX)}  {name}\n" for name in sorted(files)]
    return bytes_digest("".join(lines).encode())
