"""A run that is killed, wherever that is, goes on to the same bytes; and a folder has one writer."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bench_shared import PLANTED, REPOSITORY

from posttrain.artifacts import documents
from posttrain.artifacts.lock import NAME, exclusive
from posttrain.bench import conduct as conduct_module
from posttrain.bench.conduct import conduct
from posttrain.bench.options import load
from posttrain.registry import ConfigError

# The children do file operations and arithmetic, and leave by os._exit or a kill.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
SMALL = ["evaluation_seeds=0-5", "tuning_seeds=100"]
OPERATIONS = ("open", "write", "fsync", "replace", "mkdir", "unlink")


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package counts as unchanged, even where someone edits it while the tests run."""
    monkeypatch.setattr(conduct_module, "code_digest", lambda root: "sha256:" + "0" * 64)


def forked(work: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return pid


def counting(limit: int | None) -> Callable[[], int]:
    """From here on this process dies before its file operation number `limit`; gives how many there have been."""
    done = [0]

    def before(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] == limit:
                os._exit(137)
            return real(*args, **options)

        return call

    for name in OPERATIONS:
        setattr(os, name, before(getattr(os, name)))
    return lambda: done[0]


def complete(folder: Path) -> dict[str, bytes]:
    """Everything a run leaves but the record of when and where it ran."""
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    assert "execution.json" in files
    return {name: path.read_bytes() for name, path in files.items() if name != "execution.json"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A run that nobody disturbed; its figure is drawn here once and remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conduct_module, "code_digest", lambda root: "sha256:" + "0" * 64)
        folder = tmp_path_factory.mktemp("whole") / "run"
        conduct(load(PLANTED, overrides=SMALL), folder)
    return complete(folder)


def test_a_run_killed_before_any_file_operation_goes_on_to_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """The first operations and the last ones, and some between."""
    reader, writer = os.pipe()

    def count() -> None:
        found = counting(None)
        conduct(load(PLANTED, overrides=SMALL), tmp_path / "counted")
        os.write(writer, str(found()).encode())

    os.waitpid(forked(count), 0)
    total = int(os.read(reader, 20))
    assert total > 100
    ends = [*range(1, 12), *range(total - 12, total + 1)]
    places = sorted({*ends, *random.Random(0).sample(range(12, total - 12), 8)})
    for place in places:
        folder = tmp_path / f"killed-{place}"

        def run(folder: Path = folder, place: int = place) -> None:
            counting(place)
            conduct(load(PLANTED, overrides=SMALL), folder)

        _, status = os.waitpid(forked(run), 0)
        if (folder / "execution.json").exists():
            assert place > total - 6, "complete, only the lock was still to be given back"
            continue
        assert os.waitstatus_to_exitcode(status) == 137
        conduct(load(PLANTED, overrides=SMALL), folder)
        assert complete(folder) == whole, f"killed before operation {place} of {total}"


def test_a_run_killed_again_and_again_at_random_moments_ends_with_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    chance, kills = random.Random(1), 0
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        moment = 0.005  # the first kill comes too early for any machine to be done
        while True:
            pid = forked(lambda folder=folder: conduct(load(PLANTED, overrides=SMALL), folder))
            # Later and later: on a busy machine a run that is always killed early would never come to its end.
            deadline, moment = time.monotonic() + moment, moment + chance.uniform(0.01, 0.1)
            while time.monotonic() < deadline:
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)
            kills += os.waitpid(pid, 0)[1] == signal.SIGKILL
            if (folder / "execution.json").exists():
                break
        (folder / NAME).unlink(missing_ok=True)  # killed between its last file and giving the folder back
        assert complete(folder) == whole
    assert kills >= 3


def test_a_folder_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    bench = load(PLANTED, overrides=SMALL)
    with exclusive(tmp_path / "run", "sha256:" + "ab" * 32):
        with pytest.raises(ConfigError, match=rf"process {os.getpid()}, whose configuration is another"):
            conduct(bench, tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [NAME], "the refused one wrote nothing"


def test_of_eight_processes_with_one_run_one_does_it(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def run() -> None:
        try:
            conduct(load(PLANTED, overrides=SMALL), tmp_path / "run")
        except ConfigError as error:
            os._exit(3 if "does this very run" in str(error) or "complete run" in str(error) else 4)

    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [forked(run) for _ in range(8)]]
    assert sorted(codes) == [0] + [3] * 7
    assert complete(tmp_path / "run") == whole


def test_a_second_run_with_other_settings_leaves_a_killed_one_as_it_is(tmp_path: Path) -> None:
    def run() -> None:
        counting(60)
        conduct(load(PLANTED, overrides=SMALL), tmp_path / "run")

    os.waitpid(forked(run), 0)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.json") if p.name != NAME}
    with pytest.raises(ConfigError, match=r"what another plan began: alpha 0\.05 -> 0\.01"):
        conduct(load(PLANTED, overrides=[*SMALL, "alpha=0.01"]), tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.json") if p.name != NAME} == before


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    text = Path(PLANTED).read_text().replace("import math\n", "import math\nimport time\n")
    slow.write_text(
        text.replace("        own = cell.settings\n", "        own = cell.settings\n        time.sleep(0.05)\n")
    )
    command = [sys.executable, "-m", "posttrain", "bench", "run", str(slow), "--jobs", "2", "--output", "run"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        cells = tmp_path / "run" / "cells"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(list(cells.glob("[!.]*.json"))) < 3:
            time.sleep(0.01)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(children) >= 2
        run.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.05)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert documents.read(tmp_path / "run" / "execution.json")["execution"]["counters"]["cells_read"] >= 3


def alive(session: int) -> list[str]:
    """Processes of a session that have not ended, by /proc."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, its_session, *_ = (place / "stat").read_text().rpartition(")")[2].split()
            command = (place / "cmdline").read_text().replace("\0", " ")  # empty where it is just ending
            if int(its_session) == session and state not in "ZX" and command:
                found.append(f"{place.name} {command}")
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "to", "code", "words"),
    [
        (signal.SIGINT, "everyone, as Ctrl-C in a terminal does", 130, "interrupted."),
        (signal.SIGTERM, "the parent alone", 143, "stopped as asked; the state is saved."),
    ],
)
def test_after_an_interrupt_no_worker_trains_on_and_one_line_says_where_it_goes_on(
    tmp_path: Path, number: int, to: str, code: int, words: str
) -> None:
    """Cells take a minute, so that whoever waited for one would be seen."""
    slow = tmp_path / "slow.py"
    text = Path(PLANTED).read_text().replace("import math\n", "import math\nimport time\n")
    begun = "        open('begun', 'a').close()\n        time.sleep(60)\n"
    slow.write_text(text.replace("        own = cell.settings\n", "        own = cell.settings\n" + begun))
    command = [sys.executable, "-m", "posttrain", "bench", "run", str(slow), "--jobs", "2", "--output", "run"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own
        # A suite that runs in the background of a shell ignores SIGINT, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as run:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not ((tmp_path / "begun").exists() and len(alive(run.pid)) >= 3):
            time.sleep(0.01)
        assert len(alive(run.pid)) >= 3, "a parent and two workers"
        sent = time.monotonic()
        (os.kill if to == "the parent alone" else os.killpg)(run.pid, number)
        try:
            said = run.communicate(timeout=30)[1]
        finally:
            left = alive(run.pid)
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert time.monotonic() - sent < 20, "nobody waited for a cell"
    assert run.returncode == code
    assert said == f"posttrain: {words} run is incomplete. The same command goes on with it.\n"
    assert [process for process in left if "resource_tracker" not in process] == []  # which ends when it notices
