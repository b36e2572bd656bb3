"""A folder has one writer: no second one beside it, and no dead one in the way."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from posttrain.artifacts import lock
from posttrain.artifacts.lock import NAME, exclusive, started
from posttrain.registry import ConfigError

# The children do file operations only, and leave by os._exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")

DIGEST, OTHER = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32


def forked(work: Any) -> int:
    """The number of a child that does `work` and ends without any of this process's clean-up."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return pid


def holding(folder: Path, digest: str) -> int:
    """A child that holds the folder until it is killed; it does hold it when this returns."""

    def hold() -> None:
        with exclusive(folder, digest):
            time.sleep(600)

    pid = forked(hold)
    deadline = time.monotonic() + 20
    while not (folder / NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return pid


def test_the_lock_stands_while_it_is_held_and_is_gone_after(tmp_path):
    with exclusive(tmp_path / "new" / "run", DIGEST):
        held = json.loads((tmp_path / "new" / "run" / NAME).read_text())
        assert held["pid"] == os.getpid() and held["digest"] == DIGEST
    assert list((tmp_path / "new" / "run").iterdir()) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ConfigError, match="taken is a file"):
        exclusive(tmp_path / "taken", DIGEST).__enter__()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_lets_go_of_the_folder(tmp_path, error):
    with pytest.raises(error), exclusive(tmp_path, DIGEST):
        raise error
    assert not (tmp_path / NAME).exists()


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(tmp_path):
    pid = holding(tmp_path, DIGEST)
    try:
        with pytest.raises(ConfigError, match=rf"process {pid}, whose configuration is another.*abababab, here cdcd"):
            exclusive(tmp_path, OTHER).__enter__()
        with pytest.raises(ConfigError, match=rf"process {pid}, which does this very run. Wait"):
            exclusive(tmp_path, DIGEST).__enter__()
        assert json.loads((tmp_path / NAME).read_text())["pid"] == pid, "the refused writer left the lock alone"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_one_process_does_not_take_a_folder_twice(tmp_path):
    with exclusive(tmp_path, DIGEST), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        exclusive(tmp_path, DIGEST).__enter__()


@pytest.mark.parametrize("reaped", [True, False])
def test_the_lock_of_a_killed_process_holds_nobody_up(tmp_path, reaped):
    """Nor that of a zombie, whose number is still taken."""
    pid = holding(tmp_path, OTHER)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    assert (tmp_path / NAME).exists()
    with exclusive(tmp_path, DIGEST):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    if not reaped:
        os.waitpid(pid, 0)


def test_a_number_that_was_given_again_is_another_process(tmp_path):
    held = {"pid": os.getppid(), "started": "long ago", "host": lock.platform.node(), "digest": OTHER}
    (tmp_path / NAME).write_text(json.dumps(held))
    with exclusive(tmp_path, DIGEST):
        pass
    held["started"] = started(os.getppid())
    (tmp_path / NAME).write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=f"process {os.getppid()}"):
        exclusive(tmp_path, DIGEST).__enter__()


def test_of_another_machine_nothing_is_known_and_the_message_says_what_to_remove(tmp_path):
    held = {"pid": 1, "started": "long ago", "host": "another-machine", "digest": OTHER}
    (tmp_path / NAME).write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=rf"on another-machine \(if it has ended, remove .*{NAME}\)"):
        exclusive(tmp_path, DIGEST).__enter__()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": "x"}', "\x00"])
def test_a_file_that_no_writer_left_is_no_lock(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with exclusive(tmp_path, DIGEST):
        pass


def test_a_fork_does_not_take_its_parents_lock_away(tmp_path):
    code = """
import os, sys
from pathlib import Path
from posttrain.artifacts.lock import NAME, exclusive
folder = Path(sys.argv[1])
with exclusive(folder, "sha256:ab"):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print((folder / NAME).exists())
"""
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert said.stdout == "True\n", said.stderr
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("stale", [False, True])
def test_of_eight_that_come_at_once_one_holds_the_folder_at_a_time(tmp_path, stale):
    """Also where all of them find the lock of a process that has ended."""
    if stale:
        held = {"pid": 2**22 + 1, "started": "long ago", "host": lock.platform.node(), "digest": OTHER}
        (tmp_path / NAME).write_text(json.dumps(held))

    def enter() -> None:
        while True:
            with suppress(ConfigError), exclusive(tmp_path, DIGEST):
                os.close(os.open(tmp_path / "inside", os.O_CREAT | os.O_EXCL))  # fails where another is inside
                time.sleep(0.002)
                (tmp_path / "inside").unlink()
                return

    children = [forked(enter) for _ in range(8)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 8
    assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_start_however_often_one_asks(monkeypatch):
    assert started(os.getpid()) == started(os.getpid()) is not None
    time.sleep(0.05)  # a start is told to a hundredth of a second: two within one cannot be told apart
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        assert started(later.pid) not in (None, started(os.getpid()))
        later.communicate(b"\n")
    assert started(2**22 + 1) is None
    assert lock._started_elsewhere(os.getpid()) is not None
    assert lock._started_elsewhere(2**22 + 1) is None
