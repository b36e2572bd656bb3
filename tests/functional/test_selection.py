"""Token selection: which tokens, how many, ties, scopes, and randomness that depends on keys alone (oracle H8)."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.selection import Select, keyed_uniforms, select, soft_or

RULES = [
    "all", "highest", "lowest", "extremes", "tails", "random",
    "first", "last", "interval", "trajectories", "top_fraction",
]  # fmt: skip
PER_ROW = [rule for rule in RULES if rule != "trajectories"]
SCORED = ["highest", "lowest", "extremes", "tails", "top_fraction"]
SCOPES = ["completion", "group", "batch"]
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def keys_for(rows, seed=0, step=0):
    """One problem a row: (seed, step, row, 0)."""
    keys = torch.zeros(rows, 4, dtype=torch.int64)
    keys[:, 0], keys[:, 1], keys[:, 2] = seed, step, torch.arange(rows)
    return keys


def kept(rule, scores, mask=None, group_size=1):
    """Indices of what is kept, one list a row."""
    scores = torch.tensor(scores)
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    chosen = select(rule, scores, mask, group_size, keys_for(len(mask)))
    return [row.nonzero().flatten().tolist() for row in chosen]


@st.composite
def batches(draw, ties=True):
    """Scores [B, T], right-padded or ragged mask, group size, keys: B = P * G."""
    group, problems, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 7))
    rows, seed = group * problems, draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    if ties and draw(st.booleans()):
        scores = scores.round()
    lengths = torch.randint(0, length + 1, (rows, 1), generator=generator)
    mask = torch.arange(length) < lengths
    if draw(st.booleans()):
        mask &= torch.rand(rows, length, generator=generator) < 0.8
    return scores, mask, group, keys_for(rows, seed)


@st.composite
def rules(draw, names=RULES, scopes=SCOPES):
    return Select(
        rule=draw(st.sampled_from(names)),
        k=draw(st.integers(1, 6)),
        low=draw(st.integers(0, 3)),
        high=draw(st.integers(1, 3)),
        fraction=draw(st.sampled_from([0.0005, 0.07, 0.3, 0.5, 1.0])),
        scope=draw(st.sampled_from(scopes)),
    )


def test_each_rule_by_hand():
    scores = [[0.3, -2.0, 5.0, 1.0, -7.0, 0.0]]
    assert kept(Select("all"), scores) == [[0, 1, 2, 3, 4, 5]]
    assert kept(Select("highest", k=2), scores) == [[2, 3]]
    assert kept(Select("lowest", k=2), scores) == [[1, 4]]
    assert kept(Select("extremes", low=1, high=1), scores) == [[2, 4]]
    assert kept(Select("extremes", low=2, high=0), scores) == [[1, 4]]
    assert kept(Select("tails", fraction=0.2), scores) == [[1, 2, 3, 4]]  # ceil(1.2) = 2 at each end
    assert kept(Select("top_fraction", fraction=0.5), scores) == [[0, 2, 3]]
    assert kept(Select("first", k=2), scores) == [[0, 1]]
    assert kept(Select("last", k=2), scores) == [[4, 5]]
    assert kept(Select("interval", k=4), scores) == [[0, 4]]


def test_places_are_counted_within_the_mask():
    mask = [[0, 1, 0, 1, 1, 1, 0]]
    scores = [[9.0] * 7]
    assert kept(Select("first", k=2), scores, mask) == [[1, 3]]
    assert kept(Select("last", k=1), scores, mask) == [[5]]
    assert kept(Select("interval", k=2), scores, mask) == [[1, 4]]


@pytest.mark.parametrize("rule", SCORED)
def test_ties_at_completion_scope_go_to_the_lowest_index(rule):
    assert (
        kept(Select(rule, k=2, low=1, high=1, fraction=0.4), [[1.0] * 5])
        == {
            "highest": [[0, 1]],
            "lowest": [[0, 1]],
            "extremes": [[0]],
            "tails": [[0, 1]],
            "top_fraction": [[0, 1]],
        }[rule]
    )


def test_a_row_of_one_token_keeps_one_under_extremes_and_an_empty_row_keeps_none():
    assert kept(Select("extremes"), [[3.0, 1.0], [3.0, 1.0]], [[1, 0], [0, 0]]) == [[0], []]


def test_tails_round_up_per_side_and_trajectory():
    """0.0005 of 3000 tokens is 1.5, so 2 a side; of 10 tokens it is 1 a side."""
    scores = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(3000) < torch.tensor([[3000], [10]])
    chosen = select(Select("tails", fraction=0.0005), scores, mask, 1, keys_for(2))
    assert chosen.sum(1).tolist() == [4, 2]


def test_a_share_is_read_as_the_decimal_that_was_written():
    """0.07 * 100 is 7.000000000000001 in binary; seven tokens are meant."""
    assert math.ceil(0.07 * 100) == 8
    assert len(kept(Select("top_fraction", fraction=0.07), torch.randn(1, 100).tolist())[0]) == 7


def test_the_recorded_artifact_keeps_the_last_k_of_a_stable_ascending_sort_of_the_group():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 3, size=(6, 4)).astype(np.float64)
    mask = generator.random((6, 4)) < 0.7
    expected = np.zeros_like(mask)
    for start in (0, 3):
        places = np.flatnonzero(mask[start : start + 3].ravel())
        order = np.argsort(scores[start : start + 3].ravel()[places], kind="stable")
        expected[start : start + 3].ravel()[places[order[-2:]]] = True
    rule = Select("highest", k=2, scope="group")
    found = select(rule, torch.from_numpy(scores), torch.from_numpy(mask), 3, keys_for(6))
    assert np.array_equal(found.numpy(), expected)


def test_with_all_scores_equal_the_recorded_artifact_keeps_the_last_k():
    assert kept(Select("highest", k=2, scope="group"), [[0.0], [0.0], [0.0]], group_size=3) == [[], [0], [0]]


def test_a_fraction_of_the_batch_is_counted_over_all_rows_and_ties_go_to_the_lowest_flat_index():
    scores, mask = [[5.0, 1.0, 9.0], [1.0, 4.0, 1.0]], [[1, 1, 0], [1, 1, 1]]
    assert kept(Select("top_fraction", fraction=0.5, scope="batch"), scores, mask) == [[0, 1], [1]]  # ceil(2.5) = 3
    assert kept(Select("top_fraction", fraction=0.4, scope="batch"), scores, mask) == [[0], [1]]


def test_groups_are_ranked_apart():
    scores = [[1.0, 2.0], [3.0, 4.0], [9.0, 8.0], [7.0, 6.0]]
    assert kept(Select("lowest", k=1, scope="group"), scores, group_size=2) == [[0], [], [], [1]]


@PROPERTY
@given(rules(), batches())
def test_selection_stays_inside_the_mask_and_keeps_the_right_number(rule, batch):
    scores, mask, group, keys = batch
    chosen = select(rule, scores, mask, group, keys)
    assert chosen.dtype == torch.bool
    assert chosen.shape == mask.shape
    assert not (chosen & ~mask).any()
    if rule.rule == "trajectories":
        return
    scopes = {"completion": len(mask), "group": len(mask) // group, "batch": 1}
    places = rule.rule in ("all", "first", "last", "interval")
    size = scopes["completion" if places else rule.scope]
    for numbers, number in zip(mask.reshape(size, -1).sum(1).tolist(), chosen.reshape(size, -1).sum(1), strict=True):
        share = min(numbers, max(1, math.ceil(round(rule.fraction * numbers, 9))))
        assert number <= numbers
        if rule.rule in ("highest", "lowest", "random", "first", "last"):
            assert number == min(rule.k, numbers)
        elif rule.rule == "extremes":
            assert min(max(rule.low, rule.high), numbers) <= number <= min(rule.low + rule.high, numbers)
        elif rule.rule == "tails":
            assert share <= number <= min(2 * share, numbers)
        elif rule.rule == "top_fraction":
            assert number == share
        elif rule.rule == "interval":
            assert number == math.ceil(numbers / rule.k)
        else:
            assert number == numbers


@PROPERTY
@given(rules(names=["extremes", "tails"]), batches(ties=False))
def test_without_ties_both_ends_are_counted_in_full(rule, batch):
    scores, mask, group, keys = batch
    chosen = select(Select(rule.rule, low=rule.low, high=rule.high, fraction=rule.fraction), scores, mask, group, keys)
    for numbers, number in zip(mask.sum(1).tolist(), chosen.sum(1).tolist(), strict=True):
        share = max(1, math.ceil(round(rule.fraction * numbers, 9)))
        both = rule.low + rule.high if rule.rule == "extremes" else 2 * share
        assert number == min(both, numbers)


@PROPERTY
@given(rules(names=PER_ROW, scopes=["completion"]), batches(), st.randoms(use_true_random=False))
def test_per_row_rules_follow_the_rows_through_permutation_splitting_and_padding(rule, batch, random):
    scores, mask, _, keys = batch
    whole = select(rule, scores, mask, 1, keys)
    order = list(range(len(mask)))
    random.shuffle(order)
    assert torch.equal(select(rule, scores[order], mask[order], 1, keys[order]), whole[order])
    alone = [select(rule, scores[i : i + 1], mask[i : i + 1], 1, keys[i : i + 1]) for i in order]
    assert torch.equal(torch.cat(alone), whole[order])
    wide_scores, wide_mask = (torch.nn.functional.pad(x, (0, 3)) for x in (scores, mask))
    assert torch.equal(select(rule, wide_scores, wide_mask, 1, keys)[:, : mask.shape[1]], whole)


@PROPERTY
@given(rules(names=PER_ROW), batches())
def test_groups_are_selected_apart_unless_the_scope_is_the_batch(rule, batch):
    scores, mask, group, keys = batch
    if rule.scope == "batch":
        return
    whole = select(rule, scores, mask, group, keys)
    parts = [slice(start, start + group) for start in range(0, len(mask), group)]
    apart = [select(rule, scores[part], mask[part], group, keys[part]) for part in parts]
    assert torch.equal(torch.cat(apart), whole)


@PROPERTY
@given(batches(), st.sampled_from(SCOPES))
def test_everything_is_kept_at_fraction_one_a_large_k_or_interval_one(batch, scope):
    scores, mask, group, keys = batch
    for name in ("top_fraction", "tails"):
        assert torch.equal(select(Select(name, fraction=1, scope=scope), scores, mask, group, keys), mask)
    for name in ("highest", "lowest", "random", "first", "last"):
        assert torch.equal(select(Select(name, k=99, scope=scope), scores, mask, group, keys), mask)
    assert torch.equal(select(Select("interval", k=1), scores, mask, group, keys), mask)
    assert torch.equal(select(Select("extremes", low=99, high=99), scores, mask, group, keys), mask)
    assert torch.equal(select(Select("trajectories", k=99), scores, mask, group, keys), mask)


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_mask_selects_nothing_and_returns_a_mask_of_its_own(rule):
    mask = torch.zeros(4, 3, dtype=torch.bool)
    assert not select(Select(rule), torch.randn(4, 3), mask, 2, keys_for(4)).any()
    assert select(Select(rule), torch.zeros(0, 3), torch.zeros(0, 3).bool(), 2, keys_for(0)).shape == (0, 3)
    full = torch.ones(4, 3, dtype=torch.bool)
    select(Select(rule), torch.randn(4, 3), full, 2, keys_for(4)).zero_()
    assert full.all()


@pytest.mark.parametrize("rule", SCORED)
@pytest.mark.parametrize("scope", SCOPES)
def test_what_lies_outside_the_mask_is_never_read(rule, scope):
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(6) < torch.tensor([[6], [3], [0], [1]])
    expected = select(Select(rule, k=2, scope=scope), scores, mask, 2, keys_for(4))
    for poison in (math.nan, math.inf, -math.inf):
        found = select(Select(rule, k=2, scope=scope), scores.masked_fill(~mask, poison), mask, 2, keys_for(4))
        assert torch.equal(found, expected)


def test_infinite_scores_inside_the_mask_can_be_ordered_and_nan_is_refused():
    assert kept(Select("extremes"), [[0.0, -math.inf, math.inf, 7.0]], [[1, 1, 1, 0]]) == [[1, 2]]
    with pytest.raises(ValueError, match="scores: found NaN inside the mask"):
        kept(Select("highest"), [[0.0, math.nan]])


def test_a_selection_has_no_gradient():
    scores = torch.randn(2, 3, requires_grad=True)
    assert not select(Select("extremes"), scores, torch.ones(2, 3).bool(), 1, keys_for(2)).requires_grad
    assert not soft_or(scores, scores, torch.ones(2, 3).bool()).requires_grad


def test_trajectories_keep_whole_rows_at_the_budget_of_k_tokens_a_row():
    """300 rows of mean length 15, k = 2: 300 * 2 / 15 = 40 rows; the empty rows count for nothing."""
    lengths = torch.tensor([10, 20] * 150 + [0] * 20)
    mask = torch.arange(20) < lengths[:, None]
    chosen = select(Select("trajectories", k=2), None, mask, 1, keys_for(320))
    rows = chosen.any(1)
    assert rows.sum() == 40
    assert torch.equal(chosen, mask & rows[:, None])
    assert not torch.equal(rows, select(Select("trajectories", k=2), None, mask, 1, keys_for(320, step=1)).any(1))


def test_trajectories_keep_at_least_one_row_and_follow_their_keys():
    mask = torch.ones(5, 100, dtype=torch.bool)
    chosen = select(Select("trajectories", k=1), None, mask, 1, keys_for(5))
    assert chosen.any(1).sum() == 1
    order = [3, 1, 4, 0, 2]
    assert torch.equal(select(Select("trajectories", k=1), None, mask, 1, keys_for(5)[order]), chosen[order])


def test_every_token_is_drawn_equally_often():
    """20000 rows of 5 tokens, 2 kept: each is kept with probability 0.4, within four standard errors."""
    mask = torch.ones(20000, 5, dtype=torch.bool)
    rate = select(Select("random", k=2), None, mask, 1, keys_for(20000)).double().mean(0)
    assert ((rate - 0.4).abs() < 4 * math.sqrt(0.4 * 0.6 / 20000)).all()


def test_random_choices_change_with_every_word_of_the_key():
    mask = torch.ones(1, 1000, dtype=torch.bool)
    base = torch.tensor([[1, 2, 3, 4]])
    expected = select(Select("random", k=500), None, mask, 1, base)
    assert torch.equal(select(Select("random", k=500), None, mask, 1, base.clone()), expected)
    for word in range(4):
        other = base.clone()
        other[0, word] += 1
        same = (select(Select("random", k=500), None, mask, 1, other) & expected).sum()
        assert 200 < same < 300


def test_a_random_fraction_is_the_top_fraction_of_keyed_numbers():
    keys, mask = keys_for(3), torch.arange(40) < torch.tensor([[40], [20], [0]])
    chosen = select(Select("top_fraction", fraction=0.1), keyed_uniforms(keys, 40), mask, 1, keys)
    assert chosen.sum(1).tolist() == [4, 2, 0]


def splitmix64(state, count):
    """Python integers, from the published algorithm; seed 1234567 starts 6457827717110365317, 3203168211198807973."""
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def test_keyed_numbers_are_splitmix64_seeded_by_the_absorbed_key():
    assert list(splitmix64(1234567, 2)) == [6457827717110365317, 3203168211198807973]
    key, stream = [2**62 + 5, -3, 0, 7], 9
    state = next(splitmix64(stream, 1))
    for word in key:
        state = next(splitmix64(state ^ (word % 2**64), 1))
    expected = [(x >> 11) * 2.0**-53 for x in splitmix64(state, 4)]
    assert keyed_uniforms(torch.tensor([key]), 4, stream)[0].tolist() == expected


def test_keyed_numbers_are_frozen_so_that_a_recorded_run_can_be_made_again():
    found = keyed_uniforms(torch.tensor([[0, 0, 0, 0], [7, 3, 11, 2]]), 2)
    assert found.tolist() == [[0.7961956752947816, 0.16242086080033424], [0.6119478331196085, 0.3732434957498293]]


def test_keyed_numbers_are_uniform_and_a_longer_draw_begins_with_the_shorter():
    numbers = keyed_uniforms(keys_for(500), 200)
    assert numbers.dtype == torch.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean().item() - 0.5) < 4 * math.sqrt(1 / 12 / 1e5)
    counts = torch.histc(numbers, bins=50, min=0, max=1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 4 * math.sqrt(2 * 49)
    assert torch.equal(keyed_uniforms(keys_for(500), 3), numbers[:, :3])


def test_streams_rows_and_neighbouring_tokens_are_uncorrelated():
    draws = [keyed_uniforms(keys_for(500), 40, stream) for stream in (0, 1, 2, -1, -2)]
    draws += [keyed_uniforms(keys_for(500, seed=1), 40), keyed_uniforms(keys_for(500, step=1), 40)]
    for one, other in [*pairwise(draws), (draws[0][1:], draws[0][:-1]), (draws[0][:, 1:], draws[0][:, :-1])]:
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(one.numel())


def test_keys_of_another_type_or_width_are_refused():
    with pytest.raises(TypeError, match=r"keys: found torch.float32 of shape \(2, 4\), expected torch.int64 \[B, 4\]"):
        keyed_uniforms(torch.zeros(2, 4), 3)
    with pytest.raises(TypeError, match=r"expected torch.int64 \[B, 4\]"):
        keyed_uniforms(torch.zeros(2, 3, dtype=torch.int64), 3)


def test_h8_soft_or_by_hand():
    """h: (0, 1, 2) -> (0, ½, 1); d: (4, 4, 8) -> (0, 0, 1); h + d - h d = (0, ½, 1). The 99 are masked."""
    h, d = torch.tensor([[0.0, 1.0, 2.0, 99.0]]), torch.tensor([[4.0, 4.0, 8.0, 99.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert soft_or(h, d, mask).tolist() == [[0.0, 0.5, 1.0, 0.0]]


@PROPERTY
@given(batches())
def test_h8_soft_or_is_one_minus_the_product_of_doubts(batch):
    entropy, mask, _, _ = batch
    divergence = entropy.flip(1).square()

    def scale(x):
        low, high = x[mask].min(), x[mask].max()
        return (x - low) / (high - low) if high > low else 0 * x

    found = soft_or(entropy, divergence, mask)
    if not mask.any():
        assert torch.equal(found, torch.zeros_like(found))
        return
    h, d = scale(entropy)[mask], scale(divergence)[mask]
    torch.testing.assert_close(found[mask], 1 - (1 - h) * (1 - d), atol=1e-12, rtol=0)
    assert (found[mask] >= torch.maximum(h, d) - 1e-12).all()
    assert torch.equal(found[~mask], torch.zeros_like(found[~mask]))


def test_soft_or_of_constants_and_of_poison_outside_the_mask_is_zero():
    mask = torch.tensor([[True, True, False]])
    constant = torch.tensor([[0.3, 0.3, math.nan]])
    assert soft_or(constant, constant, mask).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "best"}, r"Select.rule: found 'best', expected one of all, highest"),
        ({"rule": "highest", "k": 0}, r"Select.k: found 0, expected a whole number from 1 up"),
        ({"rule": "random", "k": 1.5}, r"Select.k: found 1.5, expected a whole number"),
        ({"rule": "extremes", "low": -1}, r"Select.low: found -1, expected a whole number from 0 up"),
        ({"rule": "extremes", "low": 0, "high": 0}, r"Select.low, Select.high: found 0 and 0, expected at least one"),
        ({"rule": "tails", "fraction": 0.0}, r"Select.fraction: found 0.0, expected a number above 0 and at most 1"),
        ({"rule": "top_fraction", "fraction": 1.1}, r"Select.fraction: found 1.1"),
        ({"rule": "highest", "scope": "row"}, r"Select.scope: found 'row', expected one of completion, group, batch"),
    ],
)
def test_a_wrong_field_is_refused_with_what_was_found_and_expected(fields, message):
    with pytest.raises(ValueError, match=message):
        Select(**fields)


def test_fields_a_rule_does_not_use_do_not_matter():
    plain = Select("first", k=2)
    other = Select("first", k=2, low=0, high=0, fraction=7.0, scope="batch")
    scores, mask = torch.randn(2, 5), torch.ones(2, 5, dtype=torch.bool)
    assert torch.equal(select(plain, scores, mask, 1, keys_for(2)), select(other, scores, mask, 1, keys_for(2)))


def test_missing_scores_and_broken_groups_are_refused():
    mask = torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"scores: found None, expected shape \(3, 2\) for rule 'highest'"):
        select(Select("highest"), None, mask, 1, keys_for(3))
    with pytest.raises(ValueError, match=r"mask: found 3 rows, expected a multiple of group_size = 2"):
        select(Select("all"), None, mask, 2, keys_for(3))
