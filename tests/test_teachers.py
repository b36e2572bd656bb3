"""Teachers: what each says, what it counts, and that a store of answers is as good as the one who gave them."""

import gc
import hashlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain import settings
from posttrain.assembly import assemble
from posttrain.batch import Scores
from posttrain.data.decisions import Decisions
from posttrain.policies.candidate import Factored, Tree
from posttrain.registry import ConfigError
from posttrain.teachers.base import Events, Surroundings
from posttrain.teachers.cached import Cached
from posttrain.teachers.frozen import Frozen
from posttrain.teachers.ledger import Ledger
from posttrain.teachers.snapshot import Snapshot
from posttrain.teachers.store import FORMAT, CorruptEntry, Store, entry_key, name_of, read_header, shelf, shelves
from posttrain.testing.bench import nudge
from posttrain.testing.edits import cut, take

ROOT = Path(__file__).parents[1]
DATA = Decisions(6, 2, positions=5, minimum_positions=2, candidates=4, known=3, new=3, sharpness=2.0, distance=0.3)
PROBLEMS = DATA.build(0)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def surroundings(folder=None, kind=Factored, **options) -> Surroundings:
    """A student and the two checkpoints of `decisions`."""
    everything = (*PROBLEMS.train, *PROBLEMS.validation)
    known = {name: kind(**options).build(everything, weights, False) for name, weights in PROBLEMS.checkpoints.items()}
    return Surroundings(kind(**options).build(everything, PROBLEMS.checkpoints["student"], False), known, folder)


def drawn(around: Surroundings, group_size=2, seed=0):
    return around.student.sample(list(PROBLEMS.train), group_size, np.random.default_rng(seed), seed, 1)


def same_targets(a, b) -> None:
    """Bit for bit, where the first one spoke."""
    assert torch.equal(a.mask, b.mask)
    for name in ("logprobs", "entropy", "support_ids", "support_logprobs"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert torch.equal(left[a.mask], right[b.mask]), name


# -- frozen -----------------------------------------------------------------------------------------------------------


def test_a_frozen_teacher_counts_the_completions_it_is_asked_about():
    """12 rows; asked about tokens of rows 0 and 5 alone it counts 2, about everything 12 more, about nothing none."""
    around = surroundings()
    teacher, rollouts = Frozen().build(around), drawn(around)
    some = torch.zeros_like(rollouts.mask)
    some[[0, 5], :2] = True
    assert teacher.targets(rollouts, some, None).mask.sum() == 4
    assert teacher.events() == Events(online_teacher_calls=2)
    teacher.targets(rollouts, rollouts.mask, None)
    teacher.targets(rollouts, torch.zeros_like(rollouts.mask), None)
    assert teacher.events().online_teacher_calls == 14
    teacher.states(rollouts)
    assert teacher.events().online_teacher_calls == 26


def test_a_frozen_teacher_is_the_checkpoint_as_it_was_whatever_becomes_of_the_student():
    around = surroundings()
    teacher, rollouts = Frozen("student").build(around), drawn(around)
    before = teacher.targets(rollouts, rollouts.mask, None)
    assert torch.equal(before.logprobs, rollouts.logprobs)
    nudge(around.student, 1.0, 0)
    teacher.after_update(1, around.student)
    same_targets(before, teacher.targets(rollouts, rollouts.mask, None))


def test_a_checkpoint_that_the_dataset_lacks_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"teacher\.policy: this dataset has no checkpoint `teecher`.*`teacher`"):
        Frozen("teecher").build(surroundings())


def test_a_shuffled_teacher_says_the_same_things_about_other_tokens():
    """The answers are a permutation of the true ones: as informative in sum, and of no use."""
    around = surroundings()
    rollouts = drawn(around)
    plain, shuffling = (Frozen(shuffle=s).build(around) for s in (False, True))
    told = shuffling.targets(rollouts, rollouts.mask, None)
    same_targets(plain.heard(told, rollouts), told)
    moved = shuffling.heard(told, rollouts)
    assert not torch.equal(told.logprobs, moved.logprobs)
    assert torch.equal(told.logprobs[told.mask].sort().values, moved.logprobs[told.mask].sort().values)
    assert torch.equal(moved.mask, told.mask)
    assert torch.equal(shuffling.heard(told, rollouts).logprobs, moved.logprobs)


def test_an_entropy_that_a_shuffled_teacher_reports_is_that_of_the_distribution_its_log_prob_is_from():
    around = surroundings()
    rollouts, teacher = drawn(around), Frozen(shuffle=True).build(around)
    told = teacher.targets(rollouts, rollouts.mask, None)
    moved = teacher.heard(told, rollouts)
    pairs = [set(zip(t.logprobs[t.mask].tolist(), t.entropy[t.mask].tolist(), strict=True)) for t in (told, moved)]
    assert pairs[0] == pairs[1]
    assert not torch.equal(told.entropy, moved.entropy)


# -- snapshot ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_counts_refreshes_and_nothing_else():
    around = surroundings()
    teacher, rollouts = Snapshot(refresh_every=3).build(around), drawn(around)
    for step in range(1, 11):
        teacher.targets(rollouts, rollouts.mask, None)
        teacher.states(rollouts)
        teacher.after_update(step, around.student)
    assert teacher.events() == Events(rollout_policy_refreshes=3)


def test_a_snapshot_is_the_student_of_the_last_refresh():
    around = surroundings()
    teacher = Snapshot(refresh_every=2).build(around)
    seen = [around.student.weight.detach().clone()]
    for step, last_refresh in ((1, 0), (2, 2), (3, 2), (4, 4)):
        nudge(around.student, 1.0, step)
        seen.append(around.student.weight.detach().clone())
        teacher.after_update(step, around.student)
        assert torch.equal(teacher.policy.weight, seen[last_refresh])


def test_a_snapshot_is_not_something_to_be_near_to():
    assert Snapshot().build(surroundings()).distribution() is None


# -- cached -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Factored, Tree])
@pytest.mark.parametrize("top_k", [None, 2, 4])
def test_a_cached_teacher_says_what_the_frozen_one_says_bit_for_bit(tmp_path, kind, top_k):
    around = surroundings(tmp_path, kind)
    rollouts = drawn(around)
    some = rollouts.mask & (torch.arange(rollouts.mask.shape[1]) % 2 == 0)
    for where in (rollouts.mask, some):
        expected = Frozen().build(around).targets(rollouts, where, top_k)
        for _ in ("asked", "read back"):
            same_targets(expected, Cached().build(around).targets(rollouts, where, top_k))


def test_a_prefilled_teacher_is_asked_once_a_completion_before_training_and_never_again(tmp_path):
    """12 rows; rows that are equal (same problem, same tokens) share an entry and a call."""
    around = surroundings(tmp_path)
    teacher, rollouts = Cached(on_miss="error").build(around), drawn(around)
    different = len({(p, t) for p, t in zip(rollouts.problem_ids, rollouts.texts, strict=True)})
    teacher.prefill(rollouts, None)
    expected = Events(teacher_cache_entries=different, teacher_prefill_calls=different)
    assert teacher.events() == expected
    for _ in range(3):
        teacher.targets(rollouts, rollouts.mask, None)
    teacher.prefill(rollouts, None)
    assert teacher.events() == expected


def test_a_miss_is_scored_once_and_counted_as_a_call_during_training(tmp_path):
    around = surroundings(tmp_path)
    teacher, rollouts = Cached(on_miss="score").build(around), drawn(around, group_size=1)
    for _ in range(2):
        teacher.targets(rollouts, rollouts.mask, None)
    assert teacher.events() == Events(teacher_cache_entries=6, online_teacher_calls=6)


def test_a_miss_that_is_masked_leaves_its_tokens_out_and_asks_nobody(tmp_path):
    around = surroundings(tmp_path)
    teacher, rollouts = Cached(on_miss="mask").build(around), drawn(around, group_size=1)
    teacher.prefill(rollouts.rows(slice(0, 2)), None)
    found = teacher.targets(rollouts, rollouts.mask, None)
    expected = Frozen().build(around).targets(rollouts, rollouts.mask, None)
    assert torch.equal(found.mask[:2], rollouts.mask[:2])
    assert torch.equal(found.logprobs[:2], expected.logprobs[:2])
    assert not found.mask[2:].any()
    assert not found.logprobs[2:].any()
    assert teacher.events() == Events(teacher_cache_entries=2, teacher_prefill_calls=2)


@pytest.mark.parametrize("top_k", [None, 2])
def test_a_store_without_a_single_entry_masks_everything(tmp_path, top_k):
    around = surroundings(tmp_path)
    rollouts = drawn(around)
    found = Cached(on_miss="mask").build(around).targets(rollouts, rollouts.mask, top_k)
    assert not found.mask.any()
    assert not found.logprobs.any()
    assert (found.support_logprobs is None) == (top_k is None)


@pytest.mark.parametrize("known", [0, 1, 5, 6], ids="{} of 6".format)
def test_distillation_from_a_masked_store_learns_from_what_is_there_and_stays_finite(tmp_path, known):
    """GKD on the teacher's two best tokens: the gradient is that of the known rows alone, zero where there is none."""
    raw = {
        "dataset": {"name": "decisions", **settings.spelled(DATA)},
        "policy": {"name": "factored", "start": "student"},
        "teacher": {"name": "cached", "on_miss": "mask", "store": str(tmp_path)},
        "algorithm": {"support": 2, "student_share": 1.0},
        "problems_per_step": 6,
    }
    trainer = assemble(settings.resolve(raw, "gkd"), 0)
    problems = list(trainer.problems)
    rollouts = trainer.policy.sample(problems, 1, np.random.default_rng(0), 0, 1)
    if known:
        trainer.teacher.prefill(rollouts.rows(slice(0, known)), 2)
    found = trainer.gradient(problems, rollouts)
    assert torch.isfinite(found).all()
    trainer.teacher = Frozen().build(Surroundings(trainer.policy, {"teacher": trainer.teacher.policy}))
    part = trainer.gradient(problems[:known], rollouts.rows(slice(0, known))) if known else torch.zeros_like(found)
    assert torch.allclose(found, part, rtol=1e-12, atol=0)


def test_a_miss_that_is_an_error_stops_and_says_what_to_write(tmp_path):
    around = surroundings(tmp_path)
    rollouts = drawn(around)
    with pytest.raises(RuntimeError, match=r"no sound entry for completion .* Write teacher\.on_miss=score or mask"):
        Cached(on_miss="error").build(around).targets(rollouts, rollouts.mask, None)


def keys_of(around, rollouts, top_k=None, **options) -> set[str]:
    return set(Cached().build(around)._keys(rollouts, top_k))


def test_the_key_of_an_entry_is_made_of_all_that_decides_it_and_of_nothing_else():
    """Other weights, tokens, temperature, floor, precision, table or support: another key. Other rows: the same."""
    around = surroundings()
    rollouts = drawn(around, group_size=1)
    keys = keys_of(around, rollouts)
    assert keys == keys_of(around, take(rollouts, [3, 1, 0, 2, 4, 5]))
    assert keys == keys_of(around, replace(rollouts, logprobs=rollouts.logprobs * 2, keys=rollouts.keys + 1))
    heavier = surroundings()
    nudge(heavier.checkpoints["teacher"], 1e-9, 0)
    last = rollouts.mask & (rollouts.mask.flip(1).cumsum(1).flip(1) == 1)
    others = {
        "weights": keys_of(heavier, rollouts),
        "temperature": keys_of(surroundings(temperature=0.5), rollouts),
        "floor": keys_of(surroundings(log_floor=1e-12), rollouts),
        "precision": keys_of(surroundings(dtype="float32"), rollouts),
        "support": keys_of(around, rollouts, top_k=2),
        "tokens": keys_of(around, replace(rollouts, completion_ids=(rollouts.completion_ids + last) % 4)),
        "length": keys_of(around, cut(rollouts, ~last)),
        "prompt": keys_of(around, replace(rollouts, prompt_ids=rollouts.prompt_ids + 1)),
    }
    for name, other in others.items():
        assert not keys & other, name


def test_entries_that_nobody_can_find_again_are_gone_with_their_teacher():
    """Without a store and without a run's folder they lie in one of their own, which nothing else would remove."""
    around = surroundings()
    teacher, rollouts = Cached().build(around), drawn(around)
    teacher.targets(rollouts, rollouts.mask, None)
    place = teacher.store.root.parent
    assert entries_in(place)
    del teacher
    gc.collect()
    assert not place.exists()


def test_a_run_on_several_ranks_needs_and_finds_what_it_does_on_one(tmp_path):
    """A completion that is drawn again may fall to another rank; it is one entry, needed once."""
    around = surroundings()
    first, second = drawn(around, seed=0), drawn(around, seed=1)
    again = take(first, list(range(11, -1, -1)))  # the same completions, on the other ranks
    before = {"one": Cached(store=str(tmp_path / "one")), "two": Cached(store=str(tmp_path / "two"))}
    for config in before.values():  # an earlier run has made some of the entries
        config.build(around).prefill(second.rows(slice(0, 4)), None)

    def work(teachers, shares):
        for teacher, (early, late, last) in zip(teachers, shares, strict=True):
            teacher.prefill(early, None)
            for rollouts in (late, last):
                teacher.targets(rollouts, rollouts.mask, None)
        return teachers

    def halves(rollouts):
        return rollouts.rows(slice(0, 6)), rollouts.rows(slice(6, 12))

    (alone,) = work([before["one"].build(around)], [(first, second, again)])
    pair = [before["two"].build(around) for _ in range(2)]
    work(pair, zip(*map(halves, (first, second, again)), strict=True))
    gathered = [teacher.ledger for teacher in pair]
    events = alone.events()
    assert pair[0].events(lambda mine: gathered) == events
    assert Ledger.over(gathered).found == alone.found
    assert events.teacher_cache_entries == events.teacher_prefill_calls + events.online_teacher_calls
    assert min(events.teacher_prefill_calls, events.online_teacher_calls, alone.found.teacher_store_hits) > 0
    summed = sum(teacher.events().teacher_cache_entries for teacher in pair)
    assert summed > events.teacher_cache_entries  # the control: added up, the numbers are others


def test_a_rank_without_a_group_asks_a_full_distribution_about_nothing():
    around = surroundings()
    teacher, rollouts = Frozen().build(around), drawn(around)
    teacher.states(replace(rollouts, mask=torch.zeros_like(rollouts.mask)))
    assert teacher.events() == Events()


# -- the guard --------------------------------------------------------------------------------------------------------


def drift(teacher, rollouts, by: float) -> None:
    """Shows the teacher a student whose log-probs lie `by` nats below those of the policy that sampled."""
    teacher.watch(rollouts, Scores(torch.where(rollouts.mask, rollouts.logprobs - by, 0.0), rollouts.entropy))


def test_the_guard_fires_once_each_time_the_student_leaves_and_again_after_its_return(tmp_path):
    """d = 1 is exp(-1) - 1 + 1 = 0.368 nats, d = 2 is exp(-2) + 1 = 1.135: the limit of 0.5 lies between them."""
    around = surroundings(tmp_path)
    teacher, rollouts = Cached(drift_limit=0.5).build(around), drawn(around)
    seen = []
    for by in (0.0, 1.0, 2.0, 2.0, 3.0, 1.0, 0.0, 2.0, 2.0):
        drift(teacher, rollouts, by)
        seen.append(teacher.events().drift_events)
    assert seen == [0, 0, 1, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(("limit", "fires"), [(0.3678, 1), (0.3680, 0)])
def test_the_guard_measures_nats_per_token_by_the_k3_estimate(tmp_path, limit, fires):
    """exp(-1) = 0.36788."""
    around = surroundings(tmp_path)
    teacher = Cached(drift_limit=limit).build(around)
    drift(teacher, drawn(around), 1.0)
    assert teacher.events().drift_events == fires


def test_the_guard_does_not_look_at_data_rows_which_have_no_log_probs_of_their_own(tmp_path):
    around = surroundings(tmp_path)
    teacher = Cached(drift_limit=0.01).build(around)
    rows = around.student.respond(list(PROBLEMS.train), 0, 1)
    teacher.watch(rows, around.student.score(rows, rows.mask))
    assert teacher.events().drift_events == 0


def test_the_guard_stops_the_run_where_it_is_told_to(tmp_path):
    around = surroundings(tmp_path)
    teacher = Cached(on_drift="error").build(around)
    with pytest.raises(RuntimeError, match=r"drifted 1\.14 nats per token .*teacher\.on_drift=record"):
        drift(teacher, drawn(around), 2.0)


# -- the store --------------------------------------------------------------------------------------------------------


def pickle_of_a_crime() -> bytes:
    """What a careless reader would run: it would make the folder `crime`."""
    return b"cos\nmkdir\n(S'crime'\ntR."


def entries_in(root: Path) -> list[Path]:
    """The entries of all teachers of a store."""
    return sorted(path for path in root.glob("*/??/*") if path.is_file())


ARRAYS = {"logprobs": np.linspace(-3, 0, 3)[None], "support_ids": np.array([[[2, 1], [0, 3], [1, 0]]])}


def test_an_entry_is_read_as_it_was_written_and_an_unknown_key_is_none(tmp_path):
    store = Store(tmp_path)
    store.put("ab12", ARRAYS)
    found = store.get("ab12")
    assert found.keys() == ARRAYS.keys()
    assert all(np.array_equal(found[name], ARRAYS[name]) and found[name].dtype == ARRAYS[name].dtype for name in found)
    assert store.get("ab13") is None
    assert store.keys() == ["ab12"]


def test_the_key_is_the_digest_of_the_sorted_json():
    """sha256 of {"a":[1,2],"b":null}, however the parts are ordered."""
    expected = "f25109c4111335e4a32d49373585e7a788ff5b10e70023f7004b170e7f84716a"
    assert entry_key({"b": None, "a": [1, 2]}) == entry_key({"a": [1, 2], "b": None}) == expected


def test_every_flipped_bit_and_every_cut_of_an_entry_is_noticed(tmp_path):
    store = Store(tmp_path)
    store.put("ab12", {"x": np.zeros(1)})
    (path,) = tmp_path.glob("ab/*")
    written = path.read_bytes()
    flipped = [bytearray(written) for _ in range(8 * len(written))]
    for place, changed in enumerate(flipped):
        changed[place // 8] ^= 1 << place % 8
    unnoticed = []
    for changed in [*flipped, *(written[:length] for length in range(len(written))), written + b"0"]:
        path.write_bytes(changed)
        with suppress(CorruptEntry):
            unnoticed.append(store.get("ab12"))
    assert unnoticed == []
    assert len(flipped) > 8 * 32
    path.write_bytes(written)
    assert store.get("ab12") is not None


@pytest.mark.parametrize("place", [0, 31, 32, 40, -1], ids="byte {}".format)
def test_a_damaged_entry_is_scored_again_counted_and_repaired(tmp_path, place):
    around = surroundings(tmp_path)
    rollouts = drawn(around, group_size=1)
    expected = Cached().build(around).targets(rollouts, rollouts.mask, None)
    path = entries_in(tmp_path)[0]
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1
    path.write_bytes(changed)
    teacher = Cached().build(around)
    for _ in range(2):
        same_targets(expected, teacher.targets(rollouts, rollouts.mask, None))
    assert teacher.events() == Events(teacher_cache_entries=6, online_teacher_calls=6)
    found = teacher.found
    assert (found.teacher_store_hits, found.teacher_store_scored, found.teacher_store_corrupt) == (5, 1, 1)


def test_only_damage_during_the_run_is_an_event_of_the_run(tmp_path):
    """Before it: found. After its first use: an event, too, and made again even where a miss is an error."""
    around = surroundings(tmp_path)
    rollouts = drawn(around, group_size=1)
    Cached().build(around).prefill(rollouts, None)
    entries_in(tmp_path)[0].write_bytes(b"")
    teacher = Cached(on_miss="error").build(around)
    teacher.prefill(rollouts, None)
    assert (teacher.events().corrupt_cache_entries, teacher.found.teacher_store_corrupt) == (0, 1)
    expected = Frozen().build(around).targets(rollouts, rollouts.mask, None)
    entries_in(tmp_path)[1].write_bytes(b"")
    same_targets(expected, teacher.targets(rollouts, rollouts.mask, None))
    assert teacher.events() == Events(teacher_cache_entries=6, teacher_prefill_calls=6, corrupt_cache_entries=1)
    assert teacher.found.teacher_store_corrupt == 2


def test_a_damaged_entry_is_repaired_by_a_prefill(tmp_path):
    around = surroundings(tmp_path)
    rollouts = drawn(around, group_size=1)
    Cached().build(around).prefill(rollouts, None)
    entries_in(tmp_path)[0].write_bytes(b"")
    teacher = Cached(on_miss="error").build(around)
    teacher.prefill(rollouts, None)
    teacher.targets(rollouts, rollouts.mask, None)
    assert teacher.events() == Events(teacher_cache_entries=6, teacher_prefill_calls=6)
    assert (teacher.found.teacher_store_scored, teacher.found.teacher_store_corrupt) == (1, 1)


def test_an_entry_in_the_place_of_another_is_not_believed(tmp_path):
    """The digest covers the key: a copy is whole, and still not what was written there."""
    store = Store(tmp_path)
    store.put("ab12", ARRAYS)
    store.path("ab13").write_bytes(store.path("ab12").read_bytes())
    with pytest.raises(CorruptEntry, match="ab13 is damaged"):
        store.get("ab13")


@pytest.mark.parametrize("payload", [b"", b"no safetensors", b'\x08\0\0\0\0\0\0\0{"x":{}}', pickle_of_a_crime()])
def test_br_39_a_payload_that_a_forger_has_digested_is_refused_and_runs_nothing(tmp_path, payload, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    store.put("ab12", ARRAYS)
    store.path("ab12").write_bytes(hashlib.sha256(b"ab12" + payload).digest() + payload)
    with pytest.raises(CorruptEntry, match="ab12 holds no tensors"):
        store.get("ab12")
    assert not Path("crime").exists()


def test_br_39_an_npy_file_with_a_pickle_in_a_store_is_named_and_never_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    store.put("ab12", ARRAYS)
    (store.root / "ab" / "logprobs.npy").write_bytes(b"\x93NUMPY\x01\0" + pickle_of_a_crime())
    assert store.keys() == ["ab12"]
    assert store.strangers() == [store.root / "ab" / "logprobs.npy"]
    assert store.get("ab12") is not None
    assert not Path("crime").exists()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from posttrain.teachers.store import Store

store, me = Store(Path(sys.argv[1])), int(sys.argv[2])
for round in range(8):
    for entry in range(10):
        key = f"{entry:02d}-key"
        found = store.get(key)
        assert found is None or (found["x"] == entry).all(), found
        store.put(key, {"x": np.full(2000, float(entry))})
"""


def python(code: str, *arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, text=True, **options)


def test_several_writers_of_one_store_agree_and_nobody_reads_half_an_entry(tmp_path):
    writers = [python(WRITER, str(tmp_path), str(me), stderr=subprocess.PIPE) for me in range(8)]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    store = Store(tmp_path)
    assert store.keys() == [f"{entry:02d}-key" for entry in range(10)]
    assert all((store.get(f"{entry:02d}-key")["x"] == entry).all() for entry in range(10))
    assert on_their_way(tmp_path) == []


def on_their_way(root: Path) -> list[Path]:
    return sorted(root.glob(".writing/*"))


KILLED = """
import os, sys, time
from pathlib import Path
import numpy as np
from posttrain.teachers.store import Store

def wait(*_):
    print("written", flush=True)
    time.sleep(60)

os.replace = wait
Store(Path(sys.argv[1])).put("ab12", {"x": np.zeros(2000)})
"""


def test_a_writer_that_is_killed_leaves_no_half_entry(tmp_path):
    writer = python(KILLED, str(tmp_path), stdout=subprocess.PIPE)
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=10)
    store = Store(tmp_path)
    assert store.keys() == []
    assert store.get("ab12") is None
    assert len(on_their_way(tmp_path)) == 1
    store.put("ab12", ARRAYS)
    assert store.keys() == ["ab12"]
    assert len(store.sweep()) == 1
    assert on_their_way(tmp_path) == []


def test_writers_killed_at_any_moment_leave_whole_entries_and_nothing_on_its_way(tmp_path):
    """Each is killed some milliseconds after its first entry; whoever opens the store next sweeps up behind it."""
    identity = {"weights": "w"}
    for delay in (0.0, 0.003, 0.011):
        writer = python(HURRIED, str(tmp_path), stdout=subprocess.PIPE)
        assert writer.stdout.readline() == "begun\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=10)
        store = shelf(tmp_path, identity, {"teacher": "t", "prompt": None})
        assert on_their_way(store.root) == []
        written = store.keys()
        assert all(len(store.get(key)["x"]) == 200_000 for key in written)
    assert written


HURRIED = """
import sys
from pathlib import Path
import numpy as np
from posttrain.teachers.store import shelf

store = shelf(Path(sys.argv[1]), {"weights": "w"}, {"teacher": "t", "prompt": None})
entry = 0
while True:
    store.put(f"{entry:04d}", {"x": np.zeros(200_000)})
    if not entry:
        print("begun", flush=True)
    entry += 1
"""


def test_what_a_living_writer_has_on_its_way_is_left_alone_and_an_old_one_of_another_machine_is_not(tmp_path):
    store = Store(tmp_path)
    store.put("ab12", ARRAYS)
    mine, young, old = (
        store.root / ".writing" / name
        for name in (f"{socket.gethostname()},{os.getpid()},a", "elsewhere,1,b", "elsewhere,1,c")
    )
    for path in (mine, young, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert store.sweep() == [old]
    assert on_their_way(tmp_path) == sorted([mine, young])


def test_a_writer_whose_file_was_swept_writes_it_again(tmp_path, monkeypatch):
    """A process in another container looks dead from here."""
    replace_, swept = os.replace, []

    def sweep_once(source, target):
        if not swept:
            swept.append(source)
            os.unlink(source)
        replace_(source, target)

    monkeypatch.setattr(os, "replace", sweep_once)
    Store(tmp_path).put("ab12", ARRAYS)
    assert len(swept) == 1
    assert Store(tmp_path).keys() == ["ab12"]


def test_the_header_names_the_teacher_and_a_damaged_one_is_written_again(tmp_path):
    identity, said = {"weights": "w", "settings": "1.0"}, {"teacher": "tiny:teacher", "prompt": None}
    store = shelf(tmp_path, identity, said)
    assert read_header(store) == {"format": FORMAT, **said, "identity": identity}
    assert store.root.name == name_of(identity) != name_of({**identity, "settings": "0.9"})
    assert shelves(tmp_path) == [store]
    path = store.root / "teacher.json"
    for damage in (b"", b"[]", b'{"identity": 3}', path.read_bytes().replace(b'"w"', b'"v"')):
        path.write_bytes(damage)
        assert read_header(store) is None
        assert shelf(tmp_path, identity, said) == store
        assert read_header(store)["identity"] == identity


def test_a_run_counts_the_same_needs_whatever_it_finds(tmp_path):
    """Cold, warm, and warmed by a run that needed more: the artifact's counters agree, the record's do not."""
    around = surroundings(tmp_path)
    rollouts = drawn(around, group_size=1)
    counted, found = [], []
    for before in (0, 3, 6):
        shutil.rmtree(tmp_path)
        Cached().build(around).prefill(rollouts.rows(slice(0, before)), None)
        if before == 6:
            Cached().build(around).prefill(drawn(around, group_size=4, seed=9), None)
        teacher = Cached().build(around)
        teacher.prefill(rollouts.rows(slice(0, 4)), None)
        teacher.targets(rollouts, rollouts.mask, None)
        counted.append(teacher.events())
        found.append((teacher.found.teacher_store_hits, teacher.found.teacher_store_scored))
        assert teacher.found.teacher_store_tokens == int(rollouts.mask.sum())
    assert counted == [Events(teacher_cache_entries=6, teacher_prefill_calls=4, online_teacher_calls=2)] * 3
    assert found == [(0, 6), (3, 3), (6, 0)]


def test_a_resumed_run_goes_on_counting(tmp_path):
    around = surroundings(tmp_path)
    rollouts = drawn(around, group_size=1)
    teacher, whole = Cached().build(around), Cached().build(around)
    teacher.prefill(rollouts.rows(slice(0, 4)), None)
    resumed = Cached(on_miss="error").build(around)
    resumed.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    entries_in(tmp_path)[0].unlink()  # what this run has had once it may make again
    resumed.targets(rollouts.rows(slice(0, 4)), rollouts.mask[:4], None)
    whole.prefill(rollouts.rows(slice(0, 4)), None)
    whole.targets(rollouts.rows(slice(0, 4)), rollouts.mask[:4], None)
    assert resumed.events() == whole.events() == Events(teacher_cache_entries=4, teacher_prefill_calls=4)


def test_a_snapshot_comes_back_as_it_was(tmp_path):
    around = surroundings()
    teacher, rollouts = Snapshot(refresh_every=2).build(around), drawn(around)
    for step in range(1, 4):
        nudge(around.student, 1.0, step)
        teacher.after_update(step, around.student)
    again = Snapshot(refresh_every=2).build(around)
    again.load_state_dict(teacher.state_dict())
    assert again.events() == teacher.events() == Events(rollout_policy_refreshes=1)
    same_targets(teacher.targets(rollouts, rollouts.mask, 2), again.targets(rollouts, rollouts.mask, 2))


def test_a_writer_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        Store(tmp_path).put("ab12", ARRAYS)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# -- support ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Factored, Tree])
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 9])
def test_the_support_holds_the_sampled_token_and_the_best_others_each_once(kind, top_k):
    """Of V = 4 tokens: the k best, the worst of them replaced by the sampled token where that is not among them."""
    around = surroundings(kind=kind)
    rollouts = drawn(around, group_size=8)
    teacher = around.checkpoints["teacher"]
    found = teacher.targets(rollouts, rollouts.mask, top_k)
    states = teacher.states(rollouts)
    everything = states.project(states.hidden)
    size = min(top_k, 4)
    assert found.support_ids.shape == (*rollouts.mask.shape, size)
    for row, step in rollouts.mask.nonzero().tolist():
        ids, sampled = found.support_ids[row, step].tolist(), int(rollouts.completion_ids[row, step])
        best = everything[row, step].argsort(descending=True).tolist()
        expected = best[:size] if sampled in best[:size] else [*best[: size - 1], sampled]
        assert sorted(ids) == sorted(expected)
        assert torch.equal(found.support_logprobs[row, step], everything[row, step][ids])
        assert math.isclose(found.logprobs[row, step], everything[row, step, sampled], abs_tol=0)


def test_the_support_reports_log_probs_under_the_same_floor_as_the_sampled_token():
    around = surroundings(log_floor=1e-2)
    rollouts = drawn(around)
    found = around.checkpoints["teacher"].targets(rollouts, rollouts.mask, 4)
    at = (found.support_ids == rollouts.completion_ids.unsqueeze(-1)).to(torch.int64).argmax(-1, keepdim=True)
    assert torch.equal(found.support_logprobs.gather(-1, at).squeeze(-1)[found.mask], found.logprobs[found.mask])


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cached(drift_limit=0.0), r"teacher\.drift_limit: found 0\.0, expected a number above 0"),
        (lambda: Cached(drift_limit=math.nan), r"teacher\.drift_limit: found nan"),
        (lambda: Snapshot(refresh_every=0), r"teacher\.refresh_every: found 0, expected at least 1"),
    ],
)
def test_options_without_a_meaning_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_cache_has_no_full_distributions_and_says_what_to_write(tmp_path):
    around = surroundings(tmp_path)
    teacher = Cached().build(around)
    assert not teacher.full_distribution
    with pytest.raises(ConfigError, match=r"Write teacher\.name=frozen or algorithm\.support=K"):
        teacher.states(drawn(around))
