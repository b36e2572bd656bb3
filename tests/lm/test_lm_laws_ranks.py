"""Law 1 on real processes: two and three ranks over gloo do what one does, for every registered algorithm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_work
import torch

from posttrain.ranks import Ranks

HERE = Path(__file__).parent
SIZES = (2, 3)
RELATIVE = 2e-6
ROUNDING = 4 * torch.finfo(torch.float32).eps  # of weights of size one, each moved by four updates
SHAPES = (*rank_work.SHAPES, "nothing selected")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank of each world found, by size; 1 is this process. All worlds share three processes."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(HERE / "rank_work.py")]
    sizes = [str(size) for size in SIZES]
    started = [
        subprocess.Popen(
            [*words, str(rank), str(folder), *sizes], env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE
        )
        for rank in range(max(SIZES))
    ]
    try:
        alone = rank_work.work(Ranks())
        for process in started:
            _, err = process.communicate(timeout=500)
            assert process.returncode == 0, err.decode()[-3000:]
    finally:
        for process in started:
            process.kill()
    worlds = {
        size: [torch.load(folder / f"{size}-{rank}.pt", weights_only=True) for rank in range(size)] for size in SIZES
    }
    return {1: [alone], **worlds}


def apart(value, expected):
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


@pytest.fixture(scope="module")
def names(found):
    (alone,) = found[1]
    assert all(part.keys() == alone.keys() for size in SIZES for part in found[size])
    return list(alone)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
def test_law_1_the_gradient_is_that_of_one_process(found, names, size, shape):
    """Also where a rank has no group, or a group without a single token."""
    for name in names:
        expected = found[1][0][name][shape]
        assert expected.isfinite().all(), name
        for rank in found[size]:
            assert apart(rank[name][shape], expected) <= RELATIVE, name
    assert any(found[1][0][name][shape].abs().max() > 1e-3 for name in names)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_runs_as_many_forward_and_backward_passes_as_every_other(found, names, size):
    for name in names:
        for shape in SHAPES:
            counted = [rank[name][f"{shape}: passes"] for rank in found[size]]
            assert counted == [counted[0]] * size, (name, shape)
            assert counted[0]["forward"] >= 1, (name, shape)
            assert counted[0]["backward"] >= 1, (name, shape)


@pytest.mark.parametrize("size", SIZES)
def test_a_step_whose_rows_are_shared_out_draws_measures_and_moves_as_one_process_does(found, names, size):
    """Each rank samples, grades and asks the teacher about its own groups alone; 2e-6 of the size of the numbers."""
    for name in names:
        one = found[1][0][name]
        for rank in found[size]:
            assert torch.equal(rank[name]["ids"], one["ids"]), name
            assert torch.equal(rank[name]["keys"], one["keys"]), name
            moved = float(one["moved"].abs().max())
            assert float((rank[name]["moved"] - one["moved"]).abs().max()) <= RELATIVE * moved + ROUNDING, name
            assert rank[name]["row"].keys() == one["row"].keys(), name
            assert rank[name]["row"] == pytest.approx(one["row"], rel=2e-5, abs=RELATIVE), name


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_hold_the_same_weights_to_the_bit(found, names, size):
    for name in names:
        first = found[size][0][name]["moved"]
        assert float(first.abs().max()) > 1e-5, name
        assert all(torch.equal(rank[name]["moved"], first) for rank in found[size]), name
