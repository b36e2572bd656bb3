"""A process of one's own for work that may hang: every answer has a deadline, after which the process is ended.

Neither signals nor threads are involved (a signal's handler runs in the main thread alone, and a thread cannot be
ended): the deadline holds in any thread, in worker processes and on every rank. Lines of JSON go in and come out.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock
from typing import Any

import posttrain

STARTUP = 120.0  # seconds until a process has imported what it needs


class Late(Exception):
    """There was no answer before the deadline; the process has been ended."""


class Broken(Exception):
    """The process ended by itself, or never began."""


class Worker:
    """One process that runs a module of this package, started when it is first asked something."""

    def __init__(self, module: str, *words: str) -> None:
        self.command = [sys.executable, "-m", module, *words]
        self.process: subprocess.Popen[bytes] | None = None
        self.unread = b""
        self.lock = Lock()  # one question at a time, whichever thread asks
        self.owner = os.getpid()
        atexit.register(self._leave)

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer to one question; raises Late or Broken, after which the next question finds a new process."""
        with self.lock:
            return self._asked(question, seconds)

    def _asked(self, question: Any, seconds: float) -> Any:
        if self.process is None:
            self._start()
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            self.end()
            raise Broken("the process that judges has ended") from error
        return self._read(seconds)

    def end(self) -> None:
        """Ends the process at once."""
        process, self.process, self.unread = self.process, None, b""
        if process is not None:
            process.kill()
            process.communicate()

    def _leave(self) -> None:
        if os.getpid() == self.owner:  # not in a fork, which ends before us
            self.end()

    def _start(self) -> None:
        places = [str(Path(posttrain.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is answered by whoever started the run, whose end closes our input
        )
        try:
            self._read(STARTUP)
        except Late as error:
            raise Broken(f"the process that judges did not start within {STARTUP:g} s") from error

    def _read(self, seconds: float) -> Any:
        """One line of what the process writes."""
        assert self.process is not None and self.process.stdout is not None
        ends = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.unread:
                if not selector.select(max(0.0, ends - time.monotonic())):
                    self.end()
                    raise Late(f"no answer within {seconds:g} s")
                found = os.read(self.process.stdout.fileno(), 1 << 16)
                if not found:
                    self.end()
                    raise Broken("the process that judges has ended")
                self.unread += found
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)
