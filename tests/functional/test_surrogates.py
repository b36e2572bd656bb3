"""Surrogates against exact enumeration in float64 (oracles B1-B7, F3, F4, F7, H3, H6) and hand-computed numbers."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.advantages import group_zscore
from posttrain.functional.divergences import kl_estimator, reverse_kl
from posttrain.functional.surrogates import (
    clipped,
    importance_sampling,
    ppo_clip,
    reinforce,
    sequence_log_ratio,
    value_loss,
)

V = 7
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
NUMBERS = st.lists(st.tuples(st.floats(-4, 4), st.floats(-5, 5)), min_size=1, max_size=8)


class Bandit:
    """One softmax over V candidates, a teacher q and an older policy; all log-probs float64 [V]."""

    def __init__(self):
        torch.manual_seed(0)
        self.theta = torch.randn(V).double().requires_grad_()
        self.logp = torch.log_softmax(self.theta, 0)
        self.teacher = torch.log_softmax(torch.randn(V).double(), 0)
        self.old = torch.log_softmax(torch.randn(V).double(), 0)
        self.p = self.logp.detach().exp()
        self.credit = (self.teacher - self.logp).detach()

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.theta, retain_graph=True)[0]


@pytest.fixture
def bandit():
    return Bandit()


def f64(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=0)


def derivative(loss, ratio, *arguments, **options):
    """d loss / d log π at one ratio."""
    log_ratio = f64(math.log(ratio)).requires_grad_()
    value = loss(log_ratio, *(f64(x) for x in arguments), **options)
    return torch.autograd.grad(value, log_ratio)[0].item()


def clip(log_ratio, advantage):
    return ppo_clip(log_ratio, advantage, 0.2, 0.2)


def test_b1_the_expected_teacher_credit_is_minus_the_reverse_kl(bandit):
    close((bandit.p * bandit.credit).sum(), -(bandit.p * (bandit.p.log() - bandit.teacher)).sum())


def test_b2_reinforce_with_teacher_credit_has_the_gradient_of_the_reverse_kl_and_baselines_are_free(bandit):
    expected = bandit.gradient((bandit.logp.exp() * (bandit.logp - bandit.teacher)).sum())
    close(bandit.gradient((bandit.p * reinforce(bandit.logp, bandit.credit)).sum()), expected)
    close(bandit.gradient((bandit.p * reinforce(bandit.logp, bandit.credit + 3.7)).sum()), expected)


def test_b3_teacher_samples_give_log_ratio_weighted_imitation_and_not_the_forward_kl(bandit):
    q = bandit.teacher.exp()
    found = bandit.gradient((q * reinforce(bandit.logp, bandit.credit)).sum())
    close(found, -(q * bandit.credit - bandit.p * (q * bandit.credit).sum()))
    assert (found - (bandit.p - q)).abs().max() > 1e-2


@pytest.fixture
def tree():
    """Two tokens of a 3-letter alphabet: student log-probs [3], [3, 3] with their logits, and the teacher's."""
    torch.manual_seed(0)
    logits = torch.randn(3).double().requires_grad_(), torch.randn(3, 3).double().requires_grad_()
    teacher = torch.log_softmax(torch.randn(3).double(), 0), torch.log_softmax(torch.randn(3, 3).double(), 1)
    return logits, (torch.log_softmax(logits[0], 0), torch.log_softmax(logits[1], 1)), teacher


def tree_gradient(tree, per_path):
    """Gradient of the expectation over all nine sequences, each weighed by its constant probability."""
    logits, student, teacher = tree
    total = torch.zeros((), dtype=torch.float64)
    for i, j in product(range(3), range(3)):
        logprobs = torch.stack([student[0][i], student[1][i, j]])
        credit = (torch.stack([teacher[0][i], teacher[1][i, j]]) - logprobs).detach()
        total = total + logprobs.detach().sum().exp() * per_path(logprobs, credit)
    return torch.autograd.grad(total, logits, retain_graph=True)


def test_b4_credit_to_go_gives_the_sequence_kl_and_token_credit_only_its_last_step(tree):
    logits, student, teacher = tree
    joint, target = student[0][:, None] + student[1], teacher[0][:, None] + teacher[1]
    sequence = torch.autograd.grad((joint.exp() * (joint - target)).sum(), logits, retain_graph=True)
    to_go = tree_gradient(tree, lambda lp, a: reinforce(lp, a.flip(0).cumsum(0).flip(0)).sum())
    token = tree_gradient(tree, lambda lp, a: reinforce(lp, a).sum())
    for found, expected in zip(to_go, sequence, strict=True):
        close(found, expected)
    close(token[1], sequence[1])
    assert (token[0] - sequence[0]).abs().max() > 1e-4


def test_b5_token_credit_is_the_full_reverse_kl_with_detached_visits(tree):
    logits, student, teacher = tree
    visited = student[0].detach().exp()
    loss = reverse_kl(student[0], teacher[0]) + (visited * reverse_kl(student[1], teacher[1])).sum()
    expected = torch.autograd.grad(loss, logits, retain_graph=True)
    for found, wanted in zip(tree_gradient(tree, lambda lp, a: reinforce(lp, a).sum()), expected, strict=True):
        close(found, wanted)


def test_b6_teacher_credit_and_k2_share_each_sampled_gradient(bandit):
    for i in range(V):
        policy = bandit.gradient(reinforce(bandit.logp[i], bandit.credit[i]))
        close(policy, bandit.gradient(kl_estimator("k2", bandit.logp[i], bandit.teacher[i])))


def test_b7_frozen_rollouts_are_a_least_squares_fit_of_log_probs(bandit):
    drawn = torch.softmax(torch.randn(V).double(), 0)
    found = bandit.gradient((drawn * reinforce(bandit.logp, bandit.credit)).sum())
    close(found, bandit.gradient((drawn * 0.5 * (bandit.logp - bandit.teacher).square()).sum()))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_f3_at_ratio_one_the_gradient_is_minus_the_advantage(advantage):
    assert derivative(clip, 1.0, advantage) == pytest.approx(-advantage, abs=1e-12)
    assert derivative(importance_sampling, 1.0, advantage) == pytest.approx(-advantage, abs=1e-12)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, 1.0), (0.7, -1.0)])
def test_f4_past_the_clip_the_gradient_is_exactly_zero(ratio, advantage):
    assert derivative(clip, ratio, advantage) == 0


def test_f4_the_dual_clip_kills_the_gradient_of_a_large_ratio_with_a_negative_advantage():
    """r = 4, A = -1: max over (4, clip 1.2) = 4, cut to 3."""
    assert derivative(ppo_clip, 4.0, -1.0, low=0.2, high=0.2, dual=3.0) == 0
    assert derivative(ppo_clip, 2.9, -1.0, low=0.2, high=0.2, dual=3.0) == pytest.approx(2.9)
    found = ppo_clip(torch.tensor([4.0]).log(), torch.tensor([-1.0]), 0.2, 0.2, dual=3.0)
    assert found.item() == pytest.approx(3.0)


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [(0.5, 1.0, -0.5), (1.5, -1.0, 1.5), (1.1, 1.0, -1.1)])
def test_f4_short_of_the_clip_the_gradient_is_minus_ratio_times_advantage(ratio, advantage, expected):
    assert derivative(clip, ratio, advantage) == pytest.approx(expected, abs=1e-12)


def test_f5_a_clip_that_leaks_the_gradient_of_the_ratio_is_told_apart():
    """The form sg(clip(r) - r) + r has the right value 1.2 and the gradient of no clip, -1.3."""

    def leaking(log_ratio, advantage):
        ratio = log_ratio.exp()
        return -advantage * ((ratio.clamp(0.8, 1.2) - ratio).detach() + ratio)

    assert derivative(leaking, 1.3, 1.0) == pytest.approx(-1.3)
    assert derivative(clip, 1.3, 1.0) == 0


@PROPERTY
@given(NUMBERS, st.floats(0.05, 0.9), st.floats(0.05, 3))
def test_the_clip_is_the_formula_of_the_paper(numbers, low, high):
    log_ratio, advantages = f64(numbers).unbind(1)
    ratio = log_ratio.exp()
    expected = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    torch.testing.assert_close(ppo_clip(log_ratio, advantages, low, high), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dual", [None, 1.5, 3.0])
@PROPERTY
@given(NUMBERS)
def test_clipped_is_where_the_gradient_is_zero(dual, numbers):
    log_ratio, advantages = f64(numbers).unbind(1)
    log_ratio.requires_grad_()
    gradient = torch.autograd.grad(ppo_clip(log_ratio, advantages, 0.2, 0.3, dual).sum(), log_ratio)[0]
    assert torch.equal(clipped(log_ratio, advantages, 0.2, 0.3, dual), (gradient == 0) & (advantages != 0))


@PROPERTY
@given(NUMBERS)
def test_without_bounds_the_clip_is_importance_sampling(numbers):
    log_ratio, advantages = f64(numbers).unbind(1)
    unbounded = ppo_clip(log_ratio, advantages, math.inf, math.inf)
    torch.testing.assert_close(unbounded, importance_sampling(log_ratio, advantages))
    assert not clipped(log_ratio, advantages, math.inf, math.inf).any()


def test_a_clipped_ratio_that_would_overflow_has_a_finite_value_and_gradient():
    """exp(1000) overflows: with A > 0 it is clipped to 1.2, with A = 0 it costs nothing, with exp(-1000) and A < 0
    it is clipped to 0.8. Taking the minimum after the exponential gives a 0 * inf gradient here."""
    log_ratio = torch.tensor([1000.0, 1000.0, -1000.0, -1000.0], requires_grad=True)
    loss = ppo_clip(log_ratio, torch.tensor([1.0, 0.0, -1.0, 1.0]), 0.2, 0.2)
    gradient = torch.autograd.grad(loss.sum(), log_ratio)[0]
    assert loss.tolist() == pytest.approx([-1.2, 0.0, 0.8, 0.0])
    assert gradient.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_the_clip_is_exact_in_float64_with_bounds_that_float32_would_round():
    log_ratio = f64([5.0])
    assert ppo_clip(log_ratio, torch.ones(1).double(), 3e-4, 4e-4).item() == pytest.approx(-1.0004, abs=1e-15)


def test_advantages_broadcast_over_tokens_and_are_constants():
    log_ratio = torch.randn(3, 4).double().requires_grad_()
    advantages = torch.randn(3, 1).double().requires_grad_()
    for loss in (clip, importance_sampling, reinforce):
        found = loss(log_ratio, advantages)
        torch.testing.assert_close(found, loss(log_ratio, advantages.expand(3, 4)))
        found.sum().backward()
    assert advantages.grad is None


def test_f7_the_sequence_ratio_gives_each_token_its_share_of_the_gradient():
    """s = exp(mean log r): d(-s A)/d log π_t = -s A / L."""
    torch.manual_seed(0)
    log_ratio = (torch.randn(1, 5) * 0.01).double().requires_grad_()
    mask = torch.ones(1, 5, dtype=torch.bool)
    advantage = f64([2.0])
    found = torch.autograd.grad(ppo_clip(sequence_log_ratio(log_ratio, mask), advantage, 0.2, 0.2).sum(), log_ratio)[0]
    s = math.exp(float(log_ratio.detach().mean()))
    close(found, [[-s * 2 / 5] * 5])


def test_f7_the_token_form_of_gspo_has_the_same_gradient():
    log_ratio = f64([[0.01, -0.02, 0.005]]).requires_grad_()
    mask, advantage = torch.ones(1, 3, dtype=torch.bool), f64([2.0])
    sequence = sequence_log_ratio(log_ratio, mask)
    token = sequence.detach()[:, None] + log_ratio - log_ratio.detach()
    by_token = ppo_clip(token, advantage[:, None], 0.2, 0.2).mean()
    by_sequence = ppo_clip(sequence, advantage, 0.2, 0.2).sum()
    found, expected = (torch.autograd.grad(x, log_ratio, retain_graph=True)[0] for x in (by_token, by_sequence))
    close(found, expected)


def test_f7_a_sequence_of_one_token_has_the_ratio_of_that_token():
    log_ratio, mask = torch.tensor([[0.3, math.nan]]), torch.tensor([[True, False]])
    assert torch.equal(sequence_log_ratio(log_ratio, mask), torch.tensor([0.3]))


def test_an_empty_row_has_sequence_log_ratio_zero_and_no_gradient():
    log_ratio = torch.tensor([[math.nan, math.inf], [1.0, 2.0]], requires_grad=True)
    found = sequence_log_ratio(log_ratio, torch.tensor([[False, False], [True, True]]))
    assert found.tolist() == [0.0, 1.5]
    assert torch.autograd.grad(found.sum(), log_ratio)[0].tolist() == [[0.0, 0.0], [0.5, 0.5]]


def test_h3_on_policy_the_clip_has_value_zero_and_the_gradient_of_reinforce(bandit):
    advantages = group_zscore(f64([[1.0, 0, 0, 1, 0]]), torch.ones(1, 5, dtype=torch.bool), eps=0.0)[0]
    logprobs = bandit.logp[:5]
    loss = clip(logprobs - logprobs.detach(), advantages)
    close(loss.mean(), 0.0)
    close(bandit.gradient(loss.mean()), bandit.gradient(reinforce(logprobs, advantages).mean()))


def test_h6_importance_sampling_is_unbiased_and_a_truncated_ratio_is_not(bandit):
    torch.manual_seed(2)
    engine, reward = torch.log_softmax(torch.randn(V).double(), 0), torch.rand(V).double()
    mu, old = engine.exp(), bandit.old.exp()
    close(-(mu * importance_sampling(bandit.old - engine, torch.ones(V).double())).sum(), 1.0)
    close(-(mu * importance_sampling(bandit.old - engine, reward)).sum(), (old * reward).sum())
    assert -(mu * ppo_clip(bandit.old - engine, reward, 0.2, 0.2)).sum() < (old * reward).sum()


def test_the_expected_gradient_from_an_older_policy_is_the_exact_one(bandit):
    """E_old[r A ∇ log π] = ∇ E_π[A]."""
    reward = torch.rand(V).double()
    found = bandit.gradient((bandit.old.exp() * importance_sampling(bandit.logp - bandit.old, reward)).sum())
    close(found, bandit.gradient(-(bandit.logp.exp() * reward).sum()))


def test_the_value_loss_takes_the_worse_of_the_free_and_the_clipped_error():
    """Old 1, clip 0.2, return 2. V 1.1: ½ 0.9² = 0.405. V 1.5: clipped to 1.2, ½ 0.8² = 0.32. V 0.5: ½ 1.5² = 1.125
    (clipped to 0.8: 0.72). Gradients V - R = -0.9; 0 (clipped); -1.5."""
    values = f64([1.1, 1.5, 0.5]).requires_grad_()
    loss = value_loss(values, torch.ones(3).double(), torch.full((3,), 2.0).double(), clip=0.2)
    close(loss, [0.405, 0.32, 1.125])
    close(torch.autograd.grad(loss.sum(), values)[0], [-0.9, 0.0, -1.5])


def test_without_a_clip_the_value_loss_is_half_the_squared_error():
    values, old, returns = torch.randn(3, 4).double().unbind(0)
    close(value_loss(values, old, returns, clip=math.inf), 0.5 * (values - returns).square())


def test_old_values_and_returns_are_constants():
    values, old, returns = (torch.randn(4).requires_grad_() for _ in range(3))
    value_loss(values, old, returns, clip=0.2).sum().backward()
    assert old.grad is None
    assert returns.grad is None
