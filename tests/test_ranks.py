"""What ranks do together, with the collective replaced by one whose answer is known."""

import pytest
import torch

from posttrain import ranks
from posttrain.algorithms.opd import OPD
from posttrain.batch import share
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError
from posttrain.shares import shares
from posttrain.teachers.base import Events
from posttrain.testing import trainer_for


@pytest.mark.parametrize("limit", [1, 100, 10**6])
def test_gradients_travel_in_buckets_and_each_comes_back_to_its_own(monkeypatch, limit):
    """Whatever a bucket holds; a parameter without a gradient gets zeros, and types are never mixed."""
    sent = []

    def doubled(tensor):
        sent.append(tensor.dtype)
        tensor.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", doubled)
    monkeypatch.setattr(ranks, "BUCKET_BYTES", limit)
    shapes = [((3, 2), torch.float64), ((5,), torch.float64), ((), torch.float32), ((2, 2), torch.float64)]
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes]
    expected = []
    for place, parameter in enumerate(parameters[:3]):
        parameter.grad = torch.full_like(parameter, place + 1.0)
        expected.append(2 * parameter.grad)
    Ranks(0, 2).sum_gradients(iter(parameters))
    assert len(sent) == {1: 4, 100: 3, 10**6: 3}[limit]
    for parameter, value in zip(parameters, [*expected, torch.zeros(2, 2, dtype=torch.float64)], strict=True):
        assert torch.equal(parameter.grad, value)


@pytest.mark.parametrize("groups", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("minibatch", [None, 1, 2, 4])
def test_every_group_has_one_rank_and_ranks_differ_by_one_group_a_minibatch(groups, size, minibatch):
    held = shares(groups, minibatch, Ranks(0, size))
    assert sorted(group for mine in held.groups for group in mine) == list(range(groups))
    lengths = [len(share(minibatch or groups, rank, size)) for rank in range(size)]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) == lengths[-1]


def test_work_that_fails_on_another_rank_fails_here_with_its_name(monkeypatch):
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (None, "KeyError: 'x'")])
    with pytest.raises(RuntimeError, match=r"^rank 1 of 2 failed in grading: KeyError: 'x'$"):
        Ranks(0, 2).together("grading", lambda: 1)


def test_work_that_fails_here_says_so_and_keeps_its_cause(monkeypatch):
    def fails():
        raise KeyError("x")

    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (1, None)])
    with pytest.raises(RuntimeError, match=r"^rank 0 of 2 failed in grading: KeyError: 'x'$") as caught:
        Ranks(0, 2).together("grading", fails)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("meet", ["together", "each", "alone"])
def test_a_mistake_of_the_user_stays_one_whichever_rank_finds_it(monkeypatch, meet):
    found = ConfigError("policy.model: there is no such folder")
    told = found if meet == "each" else (None, found)
    fine = None if meet == "each" else (1, None)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [fine, told])
    with pytest.raises(ConfigError, match=r"^policy\.model: there is no such folder$"):
        getattr(Ranks(0, 2), meet)("putting the run together", lambda: 1)


def test_what_the_main_rank_alone_does_fails_on_every_rank_with_its_message(monkeypatch):
    done = []
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [(None, "OSError: [Errno 28] No space left"), value])
    with pytest.raises(RuntimeError, match=r"^rank 0 of 2 failed in saving a checkpoint: OSError: \[Errno 28\]"):
        Ranks(1, 2).alone("saving a checkpoint", lambda: done.append(1))
    assert done == []


def test_a_rank_that_is_gone_is_told_from_an_error_of_ones_own(monkeypatch):
    def closed(*arguments):
        raise RuntimeError("[gloo] Connection closed by peer\nmore")

    monkeypatch.setattr(torch.distributed, "all_reduce", closed)
    monkeypatch.setattr(torch.distributed, "all_gather_object", closed)
    parameter = torch.nn.Parameter(torch.zeros(2))
    for meet in (
        lambda: Ranks(0, 2).sum(torch.zeros(1)),
        lambda: Ranks(0, 2).gather(1),
        lambda: Ranks(0, 2).sum_gradients([parameter]),
    ):
        with pytest.raises(RuntimeError, match=r"^another rank has ended; .*\(\[gloo\] Connection closed by peer\)$"):
            meet()


def test_one_process_hears_its_own_error():
    with pytest.raises(ZeroDivisionError):
        Ranks().together("grading", lambda: 1 / 0)


def test_calls_and_entries_of_a_teacher_add_up_over_ranks_and_what_all_of_them_saw_does_not():
    one = Events(teacher_cache_entries=7, online_teacher_calls=3, drift_events=1, rollout_policy_refreshes=2)
    other = Events(teacher_cache_entries=7, online_teacher_calls=2, drift_events=1, rollout_policy_refreshes=2)
    assert Events.over([one]) == one
    assert Events.over([one, other]) == Events(14, 0, 5, 1, 2, 0)


def test_a_resumed_rank_counts_on_from_what_its_own_teacher_was_asked(monkeypatch):
    """Only the main rank writes a checkpoint; it holds the counters of all of them."""

    def gather(self, value):
        return [value, {**value, "teacher": {"counted": {**value["teacher"]["counted"], "online_teacher_calls": 9}}}]

    monkeypatch.setattr(Ranks, "gather", gather)
    main = trainer_for(OPD())
    main.ranks = Ranks(0, 2)
    main.teacher.counted.online_teacher_calls = 5
    state = main.state_dict()
    for rank, calls in ((0, 5), (1, 9)):
        resumed = trainer_for(OPD())
        resumed.ranks = Ranks(rank, 2)
        resumed.load_state_dict(state)
        assert resumed.teacher.events().online_teacher_calls == calls
