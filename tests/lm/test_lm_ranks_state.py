"""What belongs to each rank survives a stop, and what fails or is asked on one rank reaches all: real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_state
import torch

from posttrain.ranks import Ranks

HERE = Path(__file__).parent
SIZE = 2
PROMPTLY = 60.0  # seconds; a collective that waits for a rank in vain takes half an hour


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found, and what one process finds; the ranks work while it does."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(HERE / "rank_state.py")]
    started = [
        subprocess.Popen(
            [*words, str(rank), str(SIZE), str(folder)],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        for rank in range(SIZE)
    ]
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        alone = rank_state.work(Ranks(), folder / "alone")
        for process in started:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err.decode()[-3000:]
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)
        for process in started:
            process.kill()
    return {1: [alone], SIZE: [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(SIZE)]}


@pytest.mark.parametrize("size", [1, SIZE])
def test_dropout_goes_on_on_every_rank_where_it_was(found, size):
    """Bit for bit. The control: with the main rank's stream everywhere, two ranks draw something else."""
    for rank in found[size]:
        whole, halves, spoilt = (rank["dropout"][name] for name in ("whole", "halves", "one stream"))
        assert halves["from"] == rank_state.HALF
        assert torch.equal(halves["weights"], whole["weights"])
        assert torch.equal(halves["stream"], whole["stream"])
        assert halves["row"] == whole["row"]
        assert torch.equal(spoilt["weights"], whole["weights"]) is (size == 1)
    first = found[size][0]["dropout"]["whole"]
    assert all(torch.equal(rank["dropout"]["whole"]["weights"], first["weights"]) for rank in found[size])
    streams = {tuple(rank["dropout"]["whole"]["stream"].tolist()) for rank in found[size]}
    assert len(streams) == size  # ranks draw for rows of their own


@pytest.mark.parametrize("size", [1, SIZE])
def test_a_rank_that_is_asked_to_stop_stops_all_of_them_after_the_same_update(found, size):
    """SIGTERM reached the last rank alone."""
    assert [rank["dropout"]["stopped"] for rank in found[size]] == [rank_state.HALF] * size


@pytest.mark.parametrize(("what", "said"), [("_log", "writing down the update"), ("save", "saving a checkpoint")])
def test_a_full_disk_where_the_main_rank_writes_ends_every_rank_promptly_with_its_message(found, what, said):
    expected = "OSError: [Errno 28] No space left on device"
    for rank in found[SIZE]:
        message, seconds = rank["full disk"][what]
        assert message == f"rank 0 of 2 failed in {said}: {expected}"
        assert seconds < PROMPTLY
    assert found[1][0]["full disk"][what][0] == "[Errno 28] No space left on device"


@pytest.mark.parametrize("teacher", ["shuffled", "cached"])
def test_what_a_teacher_teaches_and_counts_does_not_depend_on_the_number_of_ranks(found, teacher):
    one = found[1][0][teacher]
    assert max(one["events"].values()) > 0
    for rank in found[SIZE]:
        assert rank[teacher]["events"] == one["events"]
        assert rank[teacher]["row"] == pytest.approx(one["row"], rel=1e-4, abs=1e-5)
        assert torch.allclose(rank[teacher]["weights"], one["weights"], rtol=0, atol=1e-6)


def test_a_store_is_described_as_one_process_would_describe_it(found):
    """Entries that both ranks used count once. The control: added up, they would be more."""
    one = found[1][0]["cached"]
    for rank in found[SIZE]:
        assert rank["cached"]["found"] == one["found"]
        assert rank["cached"]["tokens"] == one["tokens"]
        assert sum(rank["cached"]["of each rank"]) > one["of each rank"][0]
