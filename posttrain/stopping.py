"""A polite end: SIGTERM lets the current update finish, then the run saves its state and stops."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXIT_CODE = 143  # what a shell reports of a process that SIGTERM ended

_asked = [False]  # a plain flag: a signal may arrive while any lock is held
_shared: list[Any] = []  # events of multiprocessing, through which processes that share the work tell each other


class Stopped(Exception):
    """The run was asked to stop and its state is on disk."""


def requested() -> bool:
    """Whether this process, or one it shares its work with, was asked to stop."""
    return _asked[0] or any(event.is_set() for event in _shared)


def share(event: Any) -> None:
    """Makes the request known through an event of multiprocessing, both ways."""
    _shared.append(event)


def request(*_: Any) -> None:
    """Asks for the end; also the handler of the signal."""
    # The handler may have interrupted `is_set`, which holds the lock that `set` waits for: another thread sets them.
    _asked[0] = True
    if _shared:
        _thread.start_new_thread(_tell, ())


def _tell() -> None:
    for event in list(_shared):
        event.set()


@contextmanager
def listening() -> Iterator[None]:
    """In here SIGTERM asks for the end instead of killing. Signals reach the main thread alone; elsewhere: nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _asked[0] = False
        _shared.clear()


@contextmanager
def interrupting() -> Iterator[None]:
    """In here SIGTERM interrupts as Ctrl-C does and ends in Stopped: for work that keeps each finished part anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = []

    def interrupt(number: int, _: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        if asked:
            raise Stopped(str(error)) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent() -> None:
    """From now on this process ends when the one that started it does: killed with -9, that one can tell nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: Any) -> None:
    parent.join()
    os._exit(1)
