"""A content-addressed store on disk: what teachers said, keyed by everything that decides it.

    STORE/<teacher>/teacher.json    who answers here, named by the digest of its identity
    STORE/<teacher>/<ab>/<abc...>   one entry: a digest, then a safetensors payload
    STORE/<teacher>/.writing/       entries on their way

An entry is written beside its place and renamed into it, so that several writers can work at once and a kill leaves no
half entry. Its digest covers key and payload and is checked on every read. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

FORMAT = 2  # of entries; part of every key
DIGEST_BYTES = 32
HEADER = "teacher.json"
WRITING = ".writing"
STALE_SECONDS = 3600  # after which a file on its way is a dead writer's, whatever machine it ran on
ATTEMPTS = 3
HEX = frozenset("0123456789abcdef")


class CorruptEntry(ValueError):
    """An entry whose bytes are not those that were written, or not what a store writes."""


def entry_key(parts: Mapping[str, object]) -> str:
    """The key of an entry: SHA-256 over the sorted JSON of what decides its content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """The entries of one teacher, two levels deep under `root`."""

    root: Path

    def get(self, key: str) -> dict[str, np.ndarray] | None:
        """The entry, None where there is none; raises CorruptEntry where its digest does not match."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if _digest(key, data[DIGEST_BYTES:]) != data[:DIGEST_BYTES]:
            raise CorruptEntry(f"teacher cache entry {path} is damaged: its bytes do not match their digest")
        try:
            return load(data[DIGEST_BYTES:])
        except (SafetensorError, ValueError, KeyError) as error:  # a forger can make a digest, too
            raise CorruptEntry(f"teacher cache entry {path} holds no tensors: {error}") from error

    def put(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the entry. Not synced to disk: an entry lost in a crash is scored again, a torn one is caught."""
        payload = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        _place(self.root, self.path(key), _digest(key, payload) + payload)

    def keys(self) -> list[str]:
        """All entries, sorted."""
        return sorted(path.name for path in self.root.glob("??/*") if self.path(path.name) == path)

    def path(self, key: str) -> Path:
        """Where an entry lies, or would."""
        return self.root / key[:2] / key

    def strangers(self) -> list[Path]:
        """Files that are neither entries nor the header: nothing here ever reads them."""
        known = {self.path(key) for key in self.keys()} | {self.root / HEADER}
        files = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path for path in files if path not in known and path.parent != self.root / WRITING)

    def sweep(self) -> list[Path]:
        """Deletes what killed writers left on its way."""
        left = [path for path in (self.root / WRITING).glob("*") if _abandoned(path)]
        for path in left:
            path.unlink(missing_ok=True)
        return left


def shelf(root: Path, identity: Mapping[str, str], described: Mapping[str, Any]) -> Store:
    """The store of the teacher with this identity under `root`, with a header that names it; made where missing.

    `described` says in the user's words which teacher it is; the identity alone decides.
    """
    store = Store(root / name_of(identity))
    header = {"format": FORMAT, **described, "identity": dict(identity)}
    if read_header(store) is None:
        store.root.mkdir(parents=True, exist_ok=True)
        _place(store.root, store.root / HEADER, (json.dumps(header, indent=2) + "\n").encode())
    store.sweep()
    return store


def name_of(identity: Mapping[str, str]) -> str:
    """The folder of a teacher: the first half of the SHA-256 of its identity."""
    return entry_key({"format": FORMAT, **identity})[:32]


def shelves(root: Path) -> list[Store]:
    """The stores of all teachers under `root`, sorted."""
    named = (path for path in root.glob("*") if len(path.name) == 32 and set(path.name) <= HEX)
    return [Store(path) for path in sorted(named) if path.is_dir()]


def read_header(store: Store) -> dict[str, Any] | None:
    """What the header says; None where there is none or it is not this store's."""
    try:
        header = json.loads((store.root / HEADER).read_bytes())
        return header if name_of(header["identity"]) == store.root.name else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(key: str, payload: bytes) -> bytes:
    """Of both, so that an entry in the place of another is noticed."""
    return hashlib.sha256(key.encode() + payload).digest()


def _place(root: Path, path: Path, data: bytes) -> None:
    """Writes bytes on their way and renames them into their place."""
    for folder in (root / WRITING, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        handle, temporary = tempfile.mkstemp(dir=root / WRITING, prefix=f"{socket.gethostname()},{os.getpid()},")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
            return
        except FileNotFoundError:  # swept by a process that cannot see that this one lives, as between containers
            if attempt == ATTEMPTS - 1:
                raise
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _abandoned(path: Path) -> bool:
    """Whether the writer of a file on its way is dead, or has had all the time it could need."""
    host, process, _ = (*path.name.rsplit(",", 2), "", "")[:3]
    try:
        age = time.time() - path.stat().st_mtime
        if host == socket.gethostname() and process.isdigit():
            os.kill(int(process), 0)
    except PermissionError:
        return False
    except (FileNotFoundError, ProcessLookupError, OverflowError):
        return True
    return age > STALE_SECONDS
