"""The types of a step: what they refuse, and that no cut of a batch changes what its rows mean."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posttrain.batch import SOURCES, Batch, Rewards, Rollouts, Targets, concatenate
from posttrain.testing.edits import take


def drawn(groups: int, size: int, length: int = 3, start: int = 0) -> Rollouts:
    """Rollouts in which every row is recognisable: its number stands in every field."""
    rows = groups * size
    number = torch.arange(start, start + rows)
    token = number.unsqueeze(1) * 10 + torch.arange(length)
    return Rollouts(
        prompt_ids=number.unsqueeze(1),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=token,
        mask=torch.arange(length) < (number % length + 1).unsqueeze(1),
        logprobs=-token.double(),
        entropy=token.double() / 7,
        truncated=number % 2 == 0,
        texts=tuple(f"text {i}" for i in number.tolist()),
        problem_ids=tuple(f"problem {i // size}" for i in number.tolist()),
        group_size=size,
        source=number % len(SOURCES),
        keys=torch.stack([number * 0 + 5, number * 0 + 6, number // size, number % size], dim=1),
    )


def batch_of(rollouts: Rollouts, unit: str = "token", **parts) -> Batch:
    rows, length = rollouts.mask.shape
    shape = {"token": (rows, length), "row": (rows,), "group": (rollouts.groups,)}[unit]
    weight = torch.arange(1.0, 1.0 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    return Batch(rollouts, weight, torch.arange(rows).double(), **parts)


def targets_of(rollouts: Rollouts) -> Targets:
    return Targets(
        rollouts.logprobs * 2,
        rollouts.mask,
        rollouts.completion_ids.unsqueeze(-1),
        rollouts.logprobs.unsqueeze(-1) * 2,
        rollouts.entropy * 2,
    )


def same(a, b) -> bool:
    """Field by field, nested types too."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask", "logprobs", "entropy", "truncated", "source", "keys"])
def test_rollouts_of_another_shape_are_refused_by_the_name_of_the_field(name):
    rollouts = drawn(2, 2)
    with pytest.raises(ValueError, match=rf"Rollouts\.{name}: found shape"):
        replace(rollouts, **{name: getattr(rollouts, name)[:-1]})


@pytest.mark.parametrize("size", [0, 3])
def test_rows_that_form_no_whole_groups_are_refused(size):
    with pytest.raises(ValueError, match=rf"4 rows do not form groups of {size}"):
        replace(drawn(2, 2), group_size=size)


def test_the_mask_of_a_teacher_has_the_shape_of_its_log_probs():
    targets = targets_of(drawn(2, 2))
    with pytest.raises(ValueError, match=r"Targets\.mask"):
        replace(targets, mask=targets.mask[:, :1])
    with pytest.raises(ValueError, match=r"Targets\.support_logprobs"):
        replace(targets, support_logprobs=targets.support_logprobs[..., :0])


def test_every_reward_is_marked_as_a_value_or_as_a_failure():
    with pytest.raises(ValueError, match=r"Rewards\.valid"):
        Rewards(torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(4, 2), (3,), (2, 3), ()])
def test_a_weight_speaks_of_tokens_rows_or_groups_and_of_nothing_else(shape):
    with pytest.raises(ValueError, match=r"Batch\.weight"):
        Batch(drawn(2, 2), torch.ones(shape), torch.ones(4))


def test_a_normaliser_has_one_entry_a_row():
    with pytest.raises(ValueError, match=r"Batch\.normaliser"):
        Batch(drawn(2, 2), torch.ones(4), torch.ones(2))


def test_nothing_that_flows_through_a_step_can_be_written_to():
    for value in (drawn(1, 1), targets_of(drawn(1, 1)), batch_of(drawn(1, 1))):
        with pytest.raises(FrozenInstanceError):
            value.mask = None


# -- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["token", "row", "group"])
def test_the_shape_of_the_weight_says_what_a_unit_is(unit):
    assert batch_of(drawn(2, 2), unit).unit == unit


def test_with_groups_of_one_a_weight_per_row_is_read_as_one_per_row():
    """[P] and [B] are the same shape then, and mean the same."""
    assert Batch(drawn(3, 1), torch.ones(3), torch.ones(3)).unit == "row"


@pytest.mark.parametrize(
    ("weight", "kept"),
    [
        ([[1.0, 0, 2], [3, 4, 5], [0, 0, 0], [-1, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]),
        ([0.5, 0, 1, 0], [[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]]),
        ([0.0, 1], [[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]]),
    ],
    ids=["token", "row", "group"],
)
def test_where_is_the_weight_brought_to_the_tokens_inside_the_mask(weight, kept):
    """Rows 0 to 3 have 1, 2, 3 and 1 tokens; a negative weight counts, a zero does not."""
    rollouts = drawn(2, 2)
    assert rollouts.mask.sum(1).tolist() == [1, 2, 3, 1]
    batch = Batch(rollouts, torch.tensor(weight, dtype=torch.float64), torch.ones(4))
    assert batch.where.long().tolist() == kept


# -- cuts -------------------------------------------------------------------------------------------------------------


def joined(parts, name):
    return torch.cat([getattr(part, name) for part in parts])


units = st.sampled_from(["token", "row", "group"])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), units)
def test_splits_are_whole_groups_that_join_to_the_batch(groups, size, rows, unit):
    rollouts = drawn(groups, size)
    batch = batch_of(rollouts, unit, teacher=targets_of(rollouts), advantages=rollouts.logprobs * 3)
    parts = list(batch.split(rows))
    assert all(len(part.rollouts.texts) % size == 0 for part in parts)
    assert all(len(part.rollouts.texts) <= max(rows, size) for part in parts)
    assert all(part.unit == batch.unit or size == 1 for part in parts)
    assert [text for part in parts for text in part.rollouts.texts] == list(rollouts.texts)
    assert all(torch.equal(joined(parts, name), getattr(batch, name)) for name in ("weight", "normaliser"))
    assert torch.equal(joined(parts, "where"), batch.where)
    for f in fields(Targets):
        assert torch.equal(joined([p.teacher for p in parts], f.name), getattr(batch.teacher, f.name))
    assert torch.equal(joined([p.rollouts for p in parts], "keys"), rollouts.keys)


def test_without_a_size_the_batch_stays_whole():
    batch = batch_of(drawn(3, 2))
    (whole,) = batch.split(None)
    (step,) = batch.minibatches(None)
    assert same(whole, batch)
    assert same(step, batch)


def test_a_minibatch_takes_so_many_problems_and_the_last_one_the_rest():
    """Five problems by two: 2, 2 and 1, of three rows each."""
    sizes = [len(part.rollouts.texts) for part in batch_of(drawn(5, 3)).minibatches(2)]
    assert sizes == [6, 6, 3]


@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 9), units)
def test_the_shards_of_all_ranks_are_the_batch_and_no_two_differ_by_more_than_a_group(groups, size, ranks, unit):
    batch = batch_of(drawn(groups, size), unit)
    shards = [batch.shard(rank, ranks) for rank in range(ranks)]
    assert [text for shard in shards for text in shard.rollouts.texts] == list(batch.rollouts.texts)
    assert torch.equal(joined(shards, "weight"), batch.weight)
    counts = [shard.rollouts.groups for shard in shards]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == groups


# -- joining ----------------------------------------------------------------------------------------------------------


def test_joined_groups_stand_where_the_order_says_padded_to_the_longest():
    """Groups a (length 2), b and c (length 3) to the places 1, 2, 0: the order is c, a, b."""
    short, long = drawn(1, 2, length=2), drawn(2, 2, length=3, start=2)
    both = concatenate([short, long], [1, 2, 0])
    assert both.texts == ("text 4", "text 5", "text 0", "text 1", "text 2", "text 3")
    assert both.completion_ids[2:4].tolist() == [[0, 1, 0], [10, 11, 0]]
    assert both.mask[2:4].tolist() == [[True, False, False], [True, True, False]]
    assert both.logprobs[2:4, 2].tolist() == [0.0, 0.0]
    assert both.prompt_ids.flatten().tolist() == [4, 5, 0, 1, 2, 3]


@given(st.data())
def test_groups_cut_apart_and_joined_in_any_order_are_the_rows_in_that_order(data):
    groups, size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    cut = data.draw(st.integers(0, groups))
    place = data.draw(st.permutations(range(groups)))
    whole = drawn(groups, size)
    parts = [whole.rows(slice(0, cut * size)), whole.rows(slice(cut * size, groups * size))]
    found = concatenate([part for part in parts if part.texts], place)
    order = sorted(range(groups), key=lambda group: place[group])
    assert same(found, take(whole, [group * size + row for group in order for row in range(size)]))
