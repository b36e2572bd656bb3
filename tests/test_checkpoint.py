"""Checkpoints on disk: whole or not at all, whatever the disk, a kill or a flipped bit does."""

import errno
import hashlib
import io
import os
import pickle
from pathlib import Path

import pytest
import torch

from posttrain.checkpoint import Broken, Checkpoints, read_sealed, write_sealed
from posttrain.registry import ConfigError

IDENTITY = {"configuration": "sha256:00", "seed": 3, "ranks": 1}
OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "close")


def state(step: int) -> dict:
    shared = torch.arange(6, dtype=torch.float32).view(2, 3) + step
    return {
        "weights": [shared, shared[:1], shared.t()],  # shared memory, and not contiguous
        "optimizer": [{"step": torch.tensor(float(step)), "exp_avg": torch.full((2,), -0.0, dtype=torch.float64)}, {}],
        "stream": {"state": 2**127 + step, "name": "PCG64"},
        "history": [{"step": 1.0, "loss": -0.0, "accuracy": 0.1 + 0.2}],
        "texts": ["tensor:/weights/0", "tensor:tensor:x", " \n"],
        "none": None,
    }


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a.contiguous() == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def made(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, IDENTITY)
    for step in steps:
        checkpoints.save(step, state(step))
    return checkpoints


def test_what_is_saved_is_loaded_to_the_bit(tmp_path):
    found, broken = made(tmp_path / "new", 7).load()
    assert same(state(7), found)
    assert torch.signbit(found["optimizer"][0]["exp_avg"]).all()
    assert broken == []


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert Checkpoints(tmp_path / "none", IDENTITY).load() == (None, [])


def test_two_generations_stay_and_the_order_is_that_of_numbers(tmp_path):
    """BR-33 (b): after 9000 to 10000 in steps of 100, text order would have removed 10000."""
    made(tmp_path, *range(9000, 10001, 100))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-10000.json",
        "step-10000.safetensors",
        "step-9900.json",
        "step-9900.safetensors",
    ]


def test_generations_of_an_abandoned_future_do_not_push_out_good_ones(tmp_path):
    checkpoints = made(tmp_path, 10, 20, 30)
    (tmp_path / "step-30.json").write_bytes(b"torn")
    assert same(checkpoints.load()[0], state(20))
    checkpoints.save(25, state(25))
    assert checkpoints._steps("json") == [20, 25]


def small(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder, IDENTITY)
    for step in (1, 2):
        checkpoints.save(step, {"step": step, "weights": torch.full((2,), float(step))})
    return checkpoints


@pytest.mark.parametrize("name", ["step-2.json", "step-2.safetensors"])
def test_every_flipped_bit_is_caught_the_file_named_and_the_older_generation_taken(tmp_path, name):
    checkpoints = small(tmp_path)
    good = (tmp_path / name).read_bytes()
    for place in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / name).write_bytes(flipped)
        found, broken = checkpoints.load()
        assert found["step"] == 1, f"bit {place} of {name} went unnoticed"
        assert "step-2.json" in broken[0]


@pytest.mark.parametrize("name", ["step-2.json", "step-2.safetensors"])
def test_every_truncation_is_caught(tmp_path, name):
    checkpoints = small(tmp_path)
    good = (tmp_path / name).read_bytes()
    for length in range(len(good)):
        (tmp_path / name).write_bytes(good[:length])
        assert checkpoints.load()[0]["step"] == 1
    (tmp_path / name).unlink()
    assert checkpoints.load()[0]["step"] == 1


def test_where_every_generation_is_broken_all_are_named_and_none_is_loaded(tmp_path):
    checkpoints = made(tmp_path, 1, 2)
    for path in tmp_path.glob("*.json"):
        path.write_bytes(path.read_bytes()[:-1])
    found, broken = checkpoints.load()
    assert found is None
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in broken] == ["step-2.json", "step-1.json"]


@pytest.mark.parametrize("key", IDENTITY)
def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path, key):
    made(tmp_path, 1)
    other = {**IDENTITY, key: "another"}
    with pytest.raises(ConfigError, match=f"step-1.json was written with {key} .*, this run has another"):
        Checkpoints(tmp_path, other).load()


def test_a_pickle_in_place_of_a_checkpoint_never_runs(tmp_path):
    """BR-39 (a): the reducer would make a marker file."""
    marker = tmp_path / "marker"

    class Hostile:
        def __reduce__(self):
            return Path.touch, (marker,)

    whole = io.BytesIO()
    torch.save({"x": Hostile()}, whole)
    for payload in (pickle.dumps(Hostile()), whole.getvalue()):
        checkpoints = made(tmp_path / "run", 1)
        for suffix in ("json", "safetensors"):
            checkpoints._path(1, suffix).write_bytes(payload)
            found, broken = checkpoints.load()
            assert found is None
            assert "step-1.json" in broken[0]
            checkpoints.save(1, state(1))
    assert not marker.exists()


def test_a_sealed_file_tells_its_own_content_from_any_other(tmp_path):
    write_sealed(tmp_path / "x", {"a": [1, None, "é"]})
    assert read_sealed(tmp_path / "x") == {"a": [1, None, "é"]}
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(Broken):
        read_sealed(tmp_path / "x")


NO_JSON = [b"", b"{", b"\xff\xfe", b"\x80pickle", b"[" * 200_000]


@pytest.mark.parametrize("body", NO_JSON, ids=range(len(NO_JSON)))
def test_a_seal_around_what_is_no_json_is_a_broken_file_like_any_other(tmp_path, body):
    (tmp_path / "x").write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(Broken, match="its digest agrees, but it holds no JSON"):
        read_sealed(tmp_path / "x")


@pytest.mark.parametrize("content", [[], 3, None, {}, {"format": 1}])
def test_a_sealed_file_that_is_no_checkpoint_is_passed_over_and_named(tmp_path, content):
    checkpoints = made(tmp_path, 1, 2)
    write_sealed(tmp_path / "step-2.json", content)
    found, broken = checkpoints.load()
    assert same(found, state(1))
    assert "step-2.json: its format is" in broken[0]


def test_sealed_tensors_that_are_none_are_passed_over_and_named(tmp_path):
    checkpoints = made(tmp_path, 1, 2)
    content = read_sealed(tmp_path / "step-2.json")
    (tmp_path / "step-2.safetensors").write_bytes(b"no tensors")
    write_sealed(tmp_path / "step-2.json", {**content, "tensors": hashlib.sha256(b"no tensors").hexdigest()})
    found, broken = checkpoints.load()
    assert same(found, state(1))
    assert "step-2.json: its digests agree, but it holds no state" in broken[0]


class Faulty:
    """Lets the k-th file operation of this process fail, or ends the process there."""

    def __init__(self, monkeypatch, at: int | None, fault):
        self.count = 0
        for name in OPERATIONS:
            real = getattr(os, name)

            def operation(*args, real=real, name=name, **kwargs):
                self.count += 1
                if self.count == at:
                    return fault(name, real, args, kwargs)
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, operation)


def ends(name, real, args, kwargs):
    os._exit(137)


def fails(code: int):
    def fault(name, real, args, kwargs):
        if name == "close":
            real(*args, **kwargs)  # a descriptor is gone even where close reports an error
        raise OSError(code, os.strerror(code))

    return fault


def writes_little(name, real, args, kwargs):
    return real(args[0], bytes(args[1])[:1]) if name == "write" else real(*args, **kwargs)


def operations_of_a_save(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        counting = Faulty(patch, None, ends)
        made(folder, 1, 2, 3)
    return counting.count


def test_a_kill_at_every_file_operation_leaves_an_old_state_or_the_new_one(tmp_path):
    total = operations_of_a_save(tmp_path / "count")
    assert total > 30
    for k in range(1, total + 1):
        folder = tmp_path / str(k)
        child = os.fork()
        if not child:
            Faulty(pytest.MonkeyPatch(), k, ends)
            made(folder, 1, 2, 3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137
        found, broken = Checkpoints(folder, IDENTITY).load()
        assert broken == []
        before = 0 if found is None else int(found["stream"]["state"] - 2**127)
        assert found is None or same(state(before), found)
        # What the kill left over is cleaned up by the next save, which works.
        after = made(folder, before + 1)
        assert same(state(before + 1), after.load()[0])
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EINTR])
def test_a_fault_at_every_file_operation_is_an_error_and_costs_no_older_state(tmp_path, code):
    total = operations_of_a_save(tmp_path / "count")
    for k in range(1, total + 1):
        folder, reached, raised = tmp_path / str(k), 0, False
        with pytest.MonkeyPatch.context() as patch:
            Faulty(patch, k, fails(code))
            checkpoints = Checkpoints(folder, IDENTITY)
            try:
                for step in (1, 2, 3):
                    checkpoints.save(step, state(step))
                    reached = step
            except OSError:
                raised = True
        # The folder is there: not being able to make it again is no fault.
        assert raised or reached == 3, f"operation {k} failed in silence"
        found = checkpoints.load()[0]
        assert (0 if found is None else found["stream"]["state"] - 2**127) in (reached, reached + 1)


def test_short_writes_are_gone_on_with(tmp_path):
    for k in range(1, operations_of_a_save(tmp_path / "count") + 1):
        with pytest.MonkeyPatch.context() as patch:
            Faulty(patch, k, writes_little)
            checkpoints = made(tmp_path / str(k), 1, 2, 3)
        assert same(state(3), checkpoints.load()[0])
