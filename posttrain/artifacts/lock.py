"""One writer for a folder: who holds it stands in a file there, and a holder that has ended holds nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from posttrain.artifacts import documents
from posttrain.registry import ConfigError

NAME = ".lock"  # in the folder; who asks whether a folder is empty leaves it out of account


@contextmanager
def exclusive(folder: Path, digest: str) -> Iterator[None]:
    """Holds the folder for the run with this digest, and makes it where it is missing.

    ConfigError where a process that still runs holds it, with that process and whether it does the same run. The lock
    of a process that has ended, killed ones included, is taken over: a process is its number and when it started, since
    numbers are given again.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output: {folder} is a file. Choose a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    mine = {"pid": os.getpid(), "started": started(os.getpid()), "host": platform.node(), "digest": digest}
    path = folder / NAME
    with _one_at_a_time(folder):
        holder = _holder(path)
        if holder is not None:
            raise ConfigError(_refusal(folder, holder, digest))
        documents.write_atomically(path, documents.dumps(mine))
    try:
        yield
    finally:
        # A fork leaves this block too, and must not take its parent's lock away.
        with suppress(OSError), _one_at_a_time(folder):
            if os.getpid() == mine["pid"] and _read(path) == mine:
                path.unlink()


def started(pid: int) -> str | None:
    """When a process of this machine started, in words that no later process with its number has; None if it ended."""
    try:
        # The name, in brackets, may hold anything; behind it come the state (field 3) and the start in ticks (22).
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return None if Path("/proc/self/stat").exists() else _started_elsewhere(pid)
    # A zombie has ended; only its parent has not noticed.
    return None if state in "ZX" else f"{boot} {fields[18]}"


def _started_elsewhere(pid: int) -> str | None:
    """Without /proc: to the second, which is as fine as `ps` tells."""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"})
    return said.stdout.strip() or None


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Reading and writing the file is one step for all processes; the kernel lets go where a process is killed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems know no locks; the file alone then serves
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> Mapping[str, Any] | None:
    """The file's content; None where there is none, or one that this module did not write."""
    try:
        value = documents.read(path)
    except (OSError, documents.DocumentError):
        return None
    return value if isinstance(value, dict) and {"pid", "started", "host", "digest"} <= value.keys() else None


def _holder(path: Path) -> Mapping[str, Any] | None:
    """Who holds the lock; None where nobody does any more. Of another machine's processes nothing is known."""
    found = _read(path)
    if found is None or found["host"] != platform.node():
        return found
    alive = isinstance(found["pid"], int) and started(found["pid"])
    return found if alive and alive == found["started"] else None


def _refusal(folder: Path, holder: Mapping[str, Any], digest: str) -> str:
    who = f"process {holder['pid']}"
    if holder["host"] != platform.node():
        who += f" on {holder['host']} (if it has ended, remove {folder / NAME})"
    if holder["digest"] == digest:
        return f"--output: {folder} is being written by {who}, which does this very run. Wait for it to end."
    return (
        f"--output: {folder} is being written by {who}, whose configuration is another one "
        f"({_short(holder['digest'])}, here {_short(digest)}). Choose a new folder."
    )


def _short(digest: Any) -> str:
    """The first digits of a digest, as messages show them."""
    return str(digest).removeprefix("sha256:")[:8]
