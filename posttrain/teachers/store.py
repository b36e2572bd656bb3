"""A content-addressed store on disk: what a teacher said, keyed by everything that decides it.

An entry is a digest followed by a safetensors payload, written beside its place and renamed into it, so that several
writers can work at once and a kill leaves no half entry. The digest is checked on every read.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

DIGEST_BYTES = 32


class CorruptEntry(ValueError):
    """An entry whose bytes are not those that were written, or not what a store writes."""


def entry_key(parts: Mapping[str, object]) -> str:
    """The key of an entry: SHA-256 over the sorted JSON of what decides its content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """Entries under `root`, two levels deep."""

    root: Path

    def get(self, key: str) -> dict[str, np.ndarray] | None:
        """The entry, None where there is none; raises CorruptEntry where its digest does not match."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data[DIGEST_BYTES:]).digest() != data[:DIGEST_BYTES]:
            raise CorruptEntry(f"teacher cache entry {path} is damaged: its bytes do not match their digest")
        try:
            return load(data[DIGEST_BYTES:])
        except SafetensorError as error:
            raise CorruptEntry(f"teacher cache entry {path} holds no tensors: {error}") from error

    def put(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the entry. Not synced to disk: an entry lost in a crash is scored again, a torn one is caught."""
        payload = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{key[:8]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def keys(self) -> list[str]:
        """All entries, sorted."""
        return sorted(path.name for path in self.root.glob("??/*") if not path.name.startswith("."))

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key
