"""Vocabularies compared by what their ids mean: a map from id to bytes, never a size.

Two models may share a tokenizer and differ in the rows of their embeddings (padding to a round number), or have equal
sizes and different tokens. What counts is the list of ids the tokenizer knows, and the bytes each of them stands for.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from posttrain.registry import ConfigError


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token id; None where an id below the highest one stands for nothing."""

    tokens: tuple[bytes | None, ...]

    @property
    def size(self) -> int:
        """V: one more than the highest id the tokenizer knows; embedding rows from here on are padding."""
        return len(self.tokens)

    def text(self, index: int) -> str:
        """One token by itself; bytes that are no whole character as `\\xNN`, `<id>` for nothing."""
        token = _at(self, index)
        return f"<{index}>" if token is None else token.decode(errors="backslashreplace")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all ids and their bytes."""
        state = hashlib.sha256()
        for token in self.tokens:
            state.update(b"-" if token is None else len(token).to_bytes(4, "big") + token)
        return state.hexdigest()


def vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a transformers tokenizer."""
    names: dict[int, str] = {index: token for token, index in tokenizer.get_vocab().items()}
    added = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}
    if not names and not added:
        raise ConfigError("policy.model: its tokenizer has no tokens. Give a folder with a complete tokenizer.")
    byte_level = _decodes_byte_level(tokenizer)
    known: dict[int, bytes] = {index: _bytes(token, byte_level) for index, token in names.items()}
    known |= {index: token.encode() for index, token in added.items()}
    return Vocabulary(tuple(known.get(index) for index in range(max(known) + 1)))


def same_vocabulary(student: Vocabulary, teacher: Vocabulary, what: str = "teacher") -> None:
    """Raises ConfigError where the two differ, and names the first id that does."""
    found = first_difference(student, teacher)
    if found is not None:
        raise ConfigError(
            f"{what}: its tokens are not the student's. The first id that differs is {found}: "
            f"{_shown(student, found)} for the student ({student.size} ids), {_shown(teacher, found)} for the {what} "
            f"({teacher.size} ids). Choose a {what} with the student's tokenizer."
        )


def first_difference(a: Vocabulary, b: Vocabulary) -> int | None:
    """The lowest id that stands for other bytes in `b` than in `a`, or for nothing in one of them."""
    for index in range(max(a.size, b.size)):
        if _at(a, index) != _at(b, index):
            return index
    return None


def _at(known: Vocabulary, index: int) -> bytes | None:
    return known.tokens[index] if index < known.size else None


def _shown(known: Vocabulary, index: int) -> str:
    token = _at(known, index)
    return "nothing" if token is None else repr(token)


def _decodes_byte_level(tokenizer: Any) -> bool:
    """Whether tokens are written in the alphabet of GPT-2, one character for each byte."""
    if not tokenizer.is_fast:
        return False
    pieces = json.loads(tokenizer.backend_tokenizer.to_str())
    return any('"ByteLevel"' in json.dumps(pieces.get(part)) for part in ("decoder", "pre_tokenizer"))


def _bytes(token: str, byte_level: bool) -> bytes:
    """The bytes of one token: byte-level alphabets, sentencepiece's `▁` and `<0xNN>`, or the text itself."""
    if byte_level and all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    if written := re.fullmatch("<0x([0-9A-Fa-f]{2})>", token):
        return bytes.fromhex(written[1])
    return token.replace("▁", " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _alphabet()
