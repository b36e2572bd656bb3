"""A disk that is full: known by whichever library found it, and told with the folder and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

SAID = "No space left on device"  # by libraries that raise errors of their own


def disk_is_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that there is no space left (or none of the user's quota)."""
    while True:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or SAID in str(error):
            return True
        if error.__cause__ is None:
            return False
        error = error.__cause__


def full_disk(folder: Path, then: str) -> str:
    """What to say: where, and what to do when there is space again."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize / 2**20
    return f"the disk is full: {folder.absolute()} cannot be written ({free:.0f} MiB free). {then}"
