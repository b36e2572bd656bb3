r"""`maths`: symbolic equality that accepts nothing wrong, and a deadline that holds in any thread and process."""

import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from posttrain.batch import Failure, Problem
from posttrain.registry import ConfigError
from posttrain.rewards import maths, symbolic
from posttrain.rewards.base import Verdict
from posttrain.rewards.maths import Maths
from posttrain.rewards.worker import Broken, Late, Worker

pytest.importorskip("math_verify")

RIGHT, WRONG, NONE = Verdict(1.0, True), Verdict(0.0, True), Verdict(0.0, False)
HANGS = "$(10^9)!$"  # a factorial of nine billion digits


def judged(text: str, gold: str, **options):
    return Maths(**options)(Problem("0", "", gold), text)


def program(code: str) -> Worker:
    """A worker that runs other code than the package's own."""
    worker = Worker("posttrain")
    worker.command = [sys.executable, "-c", code]
    return worker


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("the price is $29.00.", "29", RIGHT),
        ("1,234", "1234", RIGHT),
        ("\u22125", "-5", RIGHT),
        ("1.5e3", "1500", RIGHT),
        (r"1.5\times 10^3", "1500", RIGHT),
        ("2 2/3", "8/3", RIGHT),
        ("2 2/3", "2", WRONG),
        ("4 10/3", "10", WRONG),
        ("4 10/3", "22/3", WRONG),
        ("3/4", "0.75", RIGHT),
        ("12 cm", "12", RIGHT),
        ("50%", "50", RIGHT),
        ("1/2006!", "1/2004!", WRONG),
        ("1/2^98", "1/2^99", WRONG),
        (r"4\sqrt(2)", "4", WRONG),
        (r"4\sqrt(2)", r"4\sqrt{2}", RIGHT),
        ("1:00", "12:00", WRONG),
        ("12:00", "12:00", RIGHT),
        ("", "5", NONE),
        (r"so it is \boxed{}", "5", NONE),
        ("The answer is (B) because it is larger.", "B", RIGHT),
        ("The answer is B, because it is larger.", "B", RIGHT),
        ("The answer is (B).", "B", RIGHT),
        ("The answer is (C) because it is larger.", "B", WRONG),
        ("The answer is A and B", "A", WRONG),
    ],
)
def test_br_23_each_line_is_right_wrong_or_no_answer(text, gold, expected):
    """BR-23, with what math-verify alone accepts wrongly or misses."""
    assert judged(text, gold) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}"),
        ("x^2+2x+1", "(x+1)^2"),
        ("x=5", "5"),
        (r"\{1,2\}", r"\{2,1\}"),
        ("[1,2)", "[1, 2)"),
        (r"2\pi", "2*pi"),
        ("sqrt(8)", "2*sqrt(2)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("y=2x+1", "2x - y + 1 = 0"),
        ("x>3", "3<x"),
        (r"(-\infty,1)\cup(2,\infty)", r"(-\infty, 1) \cup (2, \infty)"),
        (r"\frac{1}{2}x", "x/2"),
        (r"\text{(C)}", "C"),
        ("A - a", "$A-a$"),
        (r"\sin A", r"\sin(A)"),
    ],
)
def test_equal_expressions_are_equal_in_both_orders(a, b):
    for one, other in ((a, b), (b, a)):
        assert judged(rf"\boxed{{{one}}}", other) == RIGHT


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"2\sqrt{2}", "2"),
        ("x/2^{98}", "x/2^{99}"),
        (r"\{1,2^{-98}\}", r"\{1,2^{-99}\}"),
        ("(1,2^{-98})", "(1,2^{-99})"),
        ("y=x/2^{98}", "y=x/2^{99}"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("y=x", "y=2x"),
        ("hello", "ehllo"),
        ("10^{50}", "10^{50}+1"),
        (r"\pi", "3.14159265358979"),
        (r"4\frac{10}{3}", "22/3"),
        (r"x\ge 3", "x>3"),
        ("x=1", "y=1"),
        ("1/0", "2/0"),
        ("2^{3^{2}}", "64"),
        (r"\frac{A}{a}", "1"),
        ("A-a", "0"),
        ("2A+b", "2a+B"),
        ("Aa", "a^2"),
    ],
)
def test_different_expressions_are_different_in_both_orders(a, b):
    """Small, tiny and nearly equal ones too: math-verify rounds to six decimals and evaluates to fifteen digits."""
    for one, other in ((a, b), (b, a)):
        assert judged(rf"\boxed{{{one}}}", other) == WRONG


def test_an_answer_that_hangs_is_a_timeout_and_the_next_one_is_judged():
    """R12: the process ends at the deadline; the sample has no value, in particular not 0."""
    reward = Maths(timeout=1.0)
    reward(Problem("0", "", "x+1"), "1+x")  # the process has begun
    began = time.monotonic()
    found = reward.judge([Problem("0", "", "x+1")] * 3, ["1+x", HANGS, "x+2"])
    assert time.monotonic() - began < 30
    assert [found[0], found[2]] == [RIGHT, WRONG]
    assert isinstance(found[1], Failure)
    assert found[1].kind == "timeout"
    assert "no answer within 1 s" in found[1].reason


def test_the_deadline_holds_off_the_main_thread_too():
    """A signal's handler would run in the main thread alone: there every answer would become a 0."""
    found = []
    reward = Maths(timeout=1.0)
    thread = threading.Thread(target=lambda: found.extend(judged(t, "x+1", timeout=1.0) for t in (HANGS, "1+x")))
    thread.start()
    thread.join(60)
    assert [type(found[0]), found[1]] == [Failure, RIGHT]
    assert reward(Problem("0", "", "x+1"), "1+x") == RIGHT


def test_a_process_that_dies_is_an_error_and_not_a_wrong_answer(monkeypatch):
    """R12: error, timeout, missing answer and wrong answer are four states."""
    worker = program("print('\"ready\"', flush=True); input(); raise SystemExit(1)")
    monkeypatch.setattr(maths, "_worker", lambda process, seconds: worker)
    found = judged("x+2", "x+1")
    assert isinstance(found, Failure)
    assert found.kind == "error"
    assert "has ended" in found.reason


def test_what_sympy_cannot_do_is_an_error_with_its_reason(monkeypatch):
    worker = program("print('\"ready\"', flush=True); input(); print('\"TypeError: no\"', flush=True)")
    monkeypatch.setattr(maths, "_worker", lambda process, seconds: worker)
    assert judged("x+2", "x+1") == Failure("'x+2' against 'x+1': TypeError: no", "error")
    worker.end()


def test_a_worker_ends_with_whoever_asked_it():
    """Also when it hangs and its parent was killed: nobody is left behind."""
    code = (
        "import json, os\nfrom posttrain.rewards.worker import Worker\n"
        "w = Worker('posttrain.rewards.symbolic', '1')\nw.ask(['x', 'y', 0.0], 60)\n"
        f"w.process.stdin.write(json.dumps(['x', {HANGS!r}, 0.0]).encode() + b'\\n')\nw.process.stdin.flush()\n"
        "print(w.process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout
    pid, ends = int(out), time.monotonic() + 60
    while _runs(pid) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_late_and_broken_workers_are_replaced():
    worker = program(
        "import sys, time\nprint('0', flush=True)\n"
        "for line in sys.stdin:\n    time.sleep(float(line))\n    print(line, end='', flush=True)"
    )
    assert worker.ask(0, 60) == 0
    with pytest.raises(Late, match=r"no answer within 0\.2 s"):
        worker.ask(60, 0.2)
    assert worker.ask(0.5, 60) == 0.5
    worker.end()
    broken = program("raise SystemExit(1)")
    with pytest.raises(Broken, match="has ended"):
        broken.ask(0, 60)


def test_a_fork_does_not_share_its_parents_worker():
    assert maths._worker(os.getpid(), 1) is maths._worker(os.getpid(), 1)
    assert maths._worker(os.getpid() + 1, 1) is not maths._worker(os.getpid(), 1)


@pytest.mark.parametrize("text", ["hello world", "4 10/3", "2^3^4", "1:2", "", "3\\frac{10}{3}"])
def test_what_is_not_read_whole_is_not_read(text):
    assert symbolic.parsed(text) is None


def test_numbers_differ_from_the_fiftieth_digit_on():
    a, b = r"\sqrt{2}", r"\sqrt{2}+10^{-45}"
    assert not symbolic.equal(a, b)
    assert symbolic.equal(a, b, 1e-9)
    assert math.isclose(2**0.5, 2**0.5 + 1e-45)


@pytest.mark.parametrize(("option", "value"), [("timeout", 0.0), ("tolerance", -1.0)])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ConfigError, match=rf"reward\.{option}: found {value}"):
        Maths(**{option: value})


def test_without_math_verify_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(maths.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'posttrain\[math\]'"):
        Maths()


@pytest.mark.parametrize(
    ("gold", "text"),
    [("12", r"\boxed{1 2}"), ("410/3", r"\boxed{4 10/3}"), ("34", "The answer is 3 4"), ("15", "$1 5$")],
)
def test_pieces_of_numbers_do_not_fuse(gold, text):
    found = Maths()(Problem("0", "", gold), text)
    assert not (isinstance(found, Verdict) and found.value == 1.0)


def test_the_kernel_ends_a_worker_that_works_on_after_its_time():
    """Whether or not anybody waits: a second and one more of processor time, here about two on the clock."""
    code = "from posttrain.rewards.symbolic import _limit_time\n_limit_time(1)\nwhile True:\n    pass"
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert ended.returncode == -signal.SIGXCPU
    assert time.monotonic() - began > 1


def test_every_question_begins_with_a_limit_of_its_own_and_the_used_time_is_not_counted():
    worker = Worker("posttrain.rewards.symbolic", "3")
    worker.ask(["x+1", "1+x", 0.0], 60)
    assert worker.process is not None
    pid = worker.process.pid
    soft, _ = resource.prlimit(pid, resource.RLIMIT_CPU)
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    used = ticks / os.sysconf("SC_CLK_TCK")
    assert used < soft <= used + 3 + 1
    worker.end()


def test_a_worker_that_is_late_is_killed_at_once_and_leaves_no_process():
    worker = program("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('0', flush=True)\n"
                     "input()\ntime.sleep(600)")  # fmt: skip
    worker._start()
    process = worker.process
    assert process is not None
    with pytest.raises(Late):
        worker.ask(1, 0.2)
    assert process.returncode == -signal.SIGKILL
    assert worker.process is None
    assert not _runs(process.pid)
