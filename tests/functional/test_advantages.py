"""Advantages against loops, closed forms and hand-computed numbers (oracles F1, F2, F9, H10; case BR-11)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.advantages import gae, group_mean, group_zscore, leave_one_out, whiten

ESTIMATORS = [group_mean, group_zscore, leave_one_out]
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def everything(values):
    return torch.ones_like(values, dtype=torch.bool)


@st.composite
def groups(draw):
    """Rewards [P, G] and which of them are valid."""
    problems, size = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    numbers = st.floats(-100, 100).map(lambda x: round(x, 3))
    values = draw(st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=problems, max_size=problems))
    valid = draw(st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=problems, max_size=problems))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(valid)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=0)


def test_f1_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    values = row(1, 0, 0, 1, 0)
    others = [[float(values[0, j]) for j in range(5) if j != i] for i in range(5)]
    found = leave_one_out(values, everything(values))
    close(found, [[float(values[0, i]) - sum(others[i]) / 4 for i in range(5)]])
    close(found, 5 / 4 * (values - values.mean()))
    close(found.sum(), 0.0)


def test_f2_binary_z_scores_are_odds_times_the_factor_of_the_sample_deviation():
    """p = 2/5: sqrt((1-p)/p) = 1.2247 and sqrt(p/(1-p)) = 0.8165 by population, times sqrt(4/5) by sample deviation."""
    values = row(1, 0, 0, 1, 0)
    high, low = math.sqrt(1.5) * math.sqrt(0.8), -math.sqrt(2 / 3) * math.sqrt(0.8)
    close(group_zscore(values, everything(values), eps=0.0), [[high, low, low, high, low]])


def test_f2_two_members_are_plus_and_minus_one_over_root_two():
    values = row(3, 1)
    close(group_zscore(values, everything(values), eps=0.0), [[1 / math.sqrt(2), -1 / math.sqrt(2)]])


def test_the_population_deviation_does_not_pass_for_the_sample_deviation():
    values = row(1, 0, 0, 1, 0)
    population = (values - values.mean()) / values.std(unbiased=False)
    assert (group_zscore(values, everything(values), eps=0.0) - population).abs().max() > 0.08


def test_eps_is_added_to_the_deviation():
    """Deviation of (0, 2) is sqrt(2): 1 / (sqrt(2) + 0.5) = 0.52241."""
    values = row(0, 2)
    close(group_zscore(values, everything(values), eps=0.5), [[-0.52240775, 0.52240775]], 1e-8)


def test_br11_a_nearly_constant_group_does_not_explode():
    """(0, 0.95 x7): R - mean = -0.83125; deviation 0.95/sqrt(8) = 0.335876; others' mean = 0.95."""
    values = row(0, *[0.95] * 7).float()
    close(group_zscore(values, everything(values), eps=0.0), [[-2.4749] + [0.3536] * 7], 1e-4)
    close(leave_one_out(values, everything(values)), [[-0.95] + [0.95 / 7] * 7], 1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_statistics_of_float32_values_are_those_of_float64(estimator):
    values = torch.rand(20, 9, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(estimator(values, everything(values)), estimator(values.double(), everything(values)).float())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [[0.95] * 8, [1.0] * 4, [0.1] * 3, [1e6 + 0.1] * 7])
def test_br11_b_a_constant_group_gives_exactly_zero(estimator, dtype, values):
    values = torch.tensor([values], dtype=dtype)
    assert torch.equal(estimator(values, everything(values)), torch.zeros_like(values))


def test_br11_b_a_constant_group_is_zero_without_eps_too():
    values = row(0.95, 0.95, 0.95)
    assert torch.equal(group_zscore(values, everything(values), eps=0.0), torch.zeros_like(values))


def test_br11_c_one_success_of_four():
    """mean 1/4, deviation 1/2: (3/4)/(1/2) = 1.5, (-1/4)/(1/2) = -0.5; others' mean 0 or 1/3."""
    values = row(1, 0, 0, 0)
    close(group_zscore(values, everything(values), eps=0.0), [[1.5, -0.5, -0.5, -0.5]])
    close(leave_one_out(values, everything(values)), [[1, -1 / 3, -1 / 3, -1 / 3]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_br11_d_e_a_single_valid_member_gets_zero_and_nan_does_not_spread(estimator):
    values = torch.tensor([[1.0, math.nan, math.nan, math.nan], [math.nan, 3.0, 1.0, math.inf]])
    valid = torch.tensor([[True, False, False, False], [False, True, True, False]])
    found = estimator(values, valid)
    assert torch.equal(found[0], torch.zeros(4))
    assert found[1, 0] == 0
    assert found[1, 3] == 0
    assert found[1, 1] == -found[1, 2] > 0
    assert torch.equal(estimator(torch.ones(3, 1), torch.ones(3, 1, dtype=torch.bool)), torch.zeros(3, 1))
    assert torch.equal(estimator(values, torch.zeros_like(valid)), torch.zeros(2, 4))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@PROPERTY
@given(groups())
def test_advantages_sum_to_zero_in_each_group(estimator, drawn):
    values, valid = drawn
    close(estimator(values, valid).sum(1), torch.zeros(len(values)))


@PROPERTY
@given(groups())
def test_a_z_score_is_bounded_by_the_size_of_its_group(drawn):
    """|A| <= (n-1)/sqrt(n), reached by one success among n."""
    values, valid = drawn
    number = valid.sum(1, keepdim=True).clamp(min=1)
    assert (group_zscore(values, valid, eps=0.0).abs() <= (number - 1) / number.double().sqrt() + 1e-9).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@PROPERTY
@given(groups(), st.randoms(use_true_random=False))
def test_groups_are_equivariant_under_permutation_and_do_not_see_each_other(estimator, drawn, random):
    values, valid = drawn
    members, problems = list(range(values.shape[1])), list(range(len(values)))
    random.shuffle(members)
    random.shuffle(problems)
    found = estimator(values, valid)
    close(estimator(values[problems][:, members], valid[problems][:, members]), found[problems][:, members])
    alone = torch.cat([estimator(values[i : i + 1], valid[i : i + 1]) for i in problems])
    close(alone, found[problems])
    close(estimator(values + 7, valid), found, 1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@PROPERTY
@given(groups())
def test_an_invalid_member_counts_as_if_it_were_not_there(estimator, drawn):
    values, valid = drawn
    found = estimator(values.masked_fill(~valid, math.nan), valid)
    for i in range(len(values)):
        present = values[i : i + 1, valid[i]]
        close(found[i : i + 1, valid[i]], estimator(present, everything(present)))
        assert (found[i, ~valid[i]] == 0).all()


def test_f9_gae_at_lambda_one_is_the_return_minus_the_value():
    rewards, values = row(0, 0, 0, 1), row(0.3, 0.5, 0.2, 0.6)
    advantages, returns = gae(rewards, values, everything(values), gamma=1.0, lam=1.0)
    close(advantages, 1 - values)
    close(returns, torch.ones(1, 4))


def test_f9_gae_at_lambda_zero_is_the_td_error():
    """0 + 0.5 - 0.3 = 0.2; 0 + 0.2 - 0.5 = -0.3; 0 + 0.6 - 0.2 = 0.4; 1 + 0 - 0.6 = 0.4."""
    rewards, values = row(0, 0, 0, 1), row(0.3, 0.5, 0.2, 0.6)
    advantages, _ = gae(rewards, values, everything(values), gamma=1.0, lam=0.0)
    close(advantages, [[0.2, -0.3, 0.4, 0.4]])


def test_gae_by_hand():
    """γ = 0.9, λ = 0.5: δ_1 = 2 - 1 = 1; δ_0 = 1 + 0.9·1 - 0.5 = 1.4; A_0 = 1.4 + 0.45·1 = 1.85."""
    advantages, returns = gae(row(1, 2), row(0.5, 1), everything(row(1, 2)), gamma=0.9, lam=0.5)
    close(advantages, [[1.85, 1.0]])
    close(returns, [[2.35, 2.0]])


def test_gae_is_the_discounted_sum_of_td_errors():
    torch.manual_seed(0)
    rewards, values = torch.randn(1, 6).double(), torch.randn(1, 6).double()
    later = torch.cat([values[:, 1:], torch.zeros(1, 1).double()], 1)
    errors = rewards + 0.95 * later - values
    expected = [sum((0.95 * 0.8) ** (k - t) * float(errors[0, k]) for k in range(t, 6)) for t in range(6)]
    close(gae(rewards, values, everything(values), gamma=0.95, lam=0.8)[0], [expected])


def test_gae_ends_at_the_last_masked_token_whatever_lies_beyond():
    rewards, values = row(0, 1, math.nan, 5), row(0.5, 0.25, math.inf, math.nan)
    mask = torch.tensor([[True, True, False, False]])
    short = gae(rewards[:, :2], values[:, :2], everything(values[:, :2]), gamma=0.9, lam=0.7)
    for found, expected in zip(gae(rewards, values, mask, gamma=0.9, lam=0.7), short, strict=True):
        close(found[:, :2], expected)
        assert torch.equal(found[:, 2:], torch.zeros(1, 2).double())


def test_gae_skips_a_gap_in_the_mask():
    rewards, values = row(0, 9, 1), row(0.5, 9, 0.25)
    mask = torch.tensor([[True, False, True]])
    joined = gae(rewards[:, [0, 2]], values[:, [0, 2]], mask[:, [0, 2]], gamma=0.9, lam=0.7)[0]
    close(gae(rewards, values, mask, gamma=0.9, lam=0.7)[0][:, [0, 2]], joined)


def test_gae_of_nothing_is_zero():
    nothing = torch.zeros(2, 3)
    for found in gae(nothing + 1, nothing + 1, nothing.bool(), gamma=1.0, lam=1.0):
        assert torch.equal(found, nothing)
    assert gae(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 0).bool(), gamma=1.0, lam=1.0)[0].shape == (2, 0)


def test_h10_whitened_tokens_have_mean_zero_and_variance_one():
    torch.manual_seed(0)
    values, mask = torch.randn(5, 8).double() * 3 + 2, torch.rand(5, 8) < 0.7
    found = whiten(values.masked_fill(~mask, math.nan), mask)
    close(found[mask].mean(), 0.0)
    close(found[mask].square().mean(), 1.0)
    assert torch.equal(found[~mask], torch.zeros(int((~mask).sum())).double())


def test_whitening_by_hand():
    """(1, 3) has mean 2 and population variance 1; the masked 100 does not enter."""
    close(whiten(row(1, 3, 100), torch.tensor([[True, True, False]])), [[-1, 1, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_a_constant_a_single_token_or_nothing_gives_zero(dtype):
    values = torch.full((3, 5), 0.1, dtype=dtype)
    one = torch.zeros(3, 5, dtype=torch.bool)
    one[1, 2] = True
    for mask in (everything(values), one, torch.zeros_like(one)):
        assert torch.equal(whiten(values, mask), torch.zeros_like(values))


def test_whitening_a_part_is_not_whitening_the_whole():
    values = row(1, 2, 3, 10).reshape(2, 2)
    assert (whiten(values, everything(values))[:1] - whiten(values[:1], everything(values[:1]))).abs().max() > 0.1


def test_advantages_carry_no_gradient_and_keep_their_dtype():
    values = torch.rand(2, 4, requires_grad=True)
    valid = everything(values)
    found = [f(values, valid) for f in ESTIMATORS] + [whiten(values, valid), *gae(values, values, valid, 1.0, 0.9)]
    assert not any(x.requires_grad for x in found)
    assert {x.dtype for x in found} == {torch.float32}


def test_wrong_shapes_and_types_are_refused_by_name():
    with pytest.raises(ValueError, match=r"values, valid: found shapes \(2, 3\) and \(2, 4\)"):
        group_mean(torch.ones(2, 3), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"expected a float type and torch.bool"):
        group_mean(torch.ones(2, 3), torch.ones(2, 3))
