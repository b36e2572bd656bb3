"""Case BR-20: one process skips its part of a step while the others wait."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import br_20_work
import pytest

from posttrain.ranks import Ranks

ROOT = Path(__file__).parents[2]
LIMIT = 60  # seconds
CASES = ("a, masked", "a, zero advantage", "b, five items", "b, one item", "d, not a number")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Both processes' exit codes and messages, and what each of them found."""
    folder = tmp_path_factory.mktemp("br-20")
    began = time.monotonic()
    command = [sys.executable, str(Path(__file__).with_name("br_20_work.py"))]
    started = [
        subprocess.Popen(
            [*command, str(rank), "2", str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        messages = [process.communicate(timeout=LIMIT)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert time.monotonic() - began < LIMIT
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return [process.returncode for process in started], messages, found


@pytest.fixture(scope="module")
def alone():
    return br_20_work.work(Ranks())


@pytest.mark.parametrize("name", CASES)
def test_br_20_both_ranks_make_the_same_updates_and_hold_the_same_parameters_after_every_step(ended, name):
    """BR-20 (a, b, d): parameter checksum, number of optimizer steps and of backward passes, per rank and step."""
    one, other = (found[name]["rows"] for found in ended[2])
    assert len(one) == len(other)
    for row, twin in zip(one, other, strict=True):
        assert row["checksum"] == twin["checksum"]
        assert row["updates"] == twin["updates"]
        assert row["passes"] == twin["passes"]


@pytest.mark.parametrize("name", CASES)
def test_br_20_two_processes_are_the_run_of_one(ended, alone, name):
    """BR-20 (a, b, d): the same data on one process gives the same updates, losses and weights."""
    expected = alone[name]["rows"]
    for found in ended[2]:
        assert len(found[name]["rows"]) == len(expected)
        for row, one in zip(found[name]["rows"], expected, strict=True):
            assert row["updates"] == one["updates"]
            assert row["weights"] == pytest.approx(one["weights"], abs=1e-12)
            assert row["loss"] == (None if one["loss"] is None else pytest.approx(one["loss"], abs=1e-12))


@pytest.mark.parametrize("name", CASES[:4])
def test_br_20_all_four_steps_are_made_and_each_of_them_moves(ended, name):
    """BR-20 (a, b): four updates on both ranks; the step in which one rank has nothing moves by the other's rows."""
    for found in ended[2]:
        rows = found[name]["rows"]
        assert [row["updates"] for row in rows] == [1, 2, 3, 4]
        assert len({row["checksum"] for row in rows}) == 4


def test_br_20_a_reward_that_raises_on_one_rank_ends_both_and_names_rank_and_function(ended):
    """BR-20 (c): both exit non-zero within the limit."""
    codes, messages, _ = ended
    assert codes == [1, 1]
    for message in messages:
        assert "rank 1 of 2 failed in the reward function Fails: ArithmeticError: cannot divide" in message


def test_br_20_a_loss_that_is_lost_on_one_rank_stops_all_at_the_same_step_with_the_weights_before_it(ended, alone):
    """BR-20 (d)."""
    for found in (*ended[2], alone):
        rows, message = found["d, not a number"]["rows"], found["d, not a number"]["lost"]
        assert message.startswith("step 3: loss is nan")
        assert [row["updates"] for row in rows] == [1, 2, 2]
        assert rows[2]["checksum"] == rows[1]["checksum"]
