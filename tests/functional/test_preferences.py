"""Preference losses against closed forms (oracles G1, G8, H11) and hand-computed numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from posttrain.functional.preferences import dpo, margins, sequence_logprob

BETA, CHOSEN, REJECTED, V = 0.1, 1, 4, 7


@pytest.fixture
def reference():
    torch.manual_seed(0)
    return torch.log_softmax(torch.randn(V).double(), 0)


def f64(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def pair(log_probs):
    return torch.stack([log_probs[CHOSEN], log_probs[REJECTED]])


def loss_of(theta, reference, smoothing=0.0):
    return dpo(margins(pair(torch.log_softmax(theta, 0)), pair(reference)), BETA, smoothing).sum()


def test_g1_at_the_reference_dpo_is_log_two_and_pushes_both_logits_by_half_beta(reference):
    theta = reference.clone().requires_grad_()
    loss = loss_of(theta, reference)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    direction = (F.one_hot(torch.tensor(CHOSEN), V) - F.one_hot(torch.tensor(REJECTED), V)).double()
    torch.testing.assert_close(torch.autograd.grad(loss, theta)[0], -BETA / 2 * direction, atol=1e-9, rtol=0)


def test_g1_elsewhere_the_push_is_beta_times_the_doubt(reference):
    theta = torch.randn(V).double().requires_grad_()
    log_probs = torch.log_softmax(theta.detach(), 0)
    margin = float((log_probs - reference)[CHOSEN] - (log_probs - reference)[REJECTED])
    direction = (F.one_hot(torch.tensor(CHOSEN), V) - F.one_hot(torch.tensor(REJECTED), V)).double()
    expected = -BETA / (1 + math.exp(BETA * margin)) * direction
    torch.testing.assert_close(torch.autograd.grad(loss_of(theta, reference), theta)[0], expected, atol=1e-9, rtol=0)


def test_g8_two_candidates_and_a_uniform_reference_are_logistic_regression():
    theta = f64([0.3, -1.2])
    log_probs, uniform = torch.log_softmax(theta, 0), torch.full((2,), math.log(0.5)).double()
    expected = math.log1p(math.exp(-BETA * (0.3 + 1.2)))
    assert dpo(margins(log_probs, uniform), BETA).item() == pytest.approx(expected, abs=1e-7)


def test_h11_at_the_regularised_optimum_the_margin_is_the_reward_gap(reference):
    torch.manual_seed(1)
    rewards, beta = torch.randn(V).double(), 0.7
    optimum = torch.log_softmax(reference + rewards / beta, 0)
    found = beta * margins(pair(optimum), pair(reference))
    torch.testing.assert_close(found, (rewards[CHOSEN] - rewards[REJECTED])[None], atol=1e-9, rtol=0)


def test_margins_pair_neighbouring_rows_chosen_first():
    """(-1 + 2) - (-3 + 3) = 1 and (-5 + 1) - (-2 + 4) = -6."""
    policy, reference = torch.tensor([-1.0, -3.0, -5.0, -2.0]), torch.tensor([-2.0, -3.0, -1.0, -4.0])
    assert margins(policy, reference).tolist() == [1.0, -6.0]


def test_smoothing_mixes_the_two_labels():
    """β m = 0.2: -0.9 log σ(0.2) - 0.1 log σ(-0.2) = 0.9·0.598139 + 0.1·0.798139 = 0.618139."""
    assert dpo(f64([2.0]), BETA, 0.1).item() == pytest.approx(0.618139, abs=1e-6)
    half = f64([2.0, -2.0])
    torch.testing.assert_close(dpo(half, BETA, 0.5)[:1], dpo(half, BETA, 0.5)[1:])


def test_extreme_margins_stay_finite():
    margin = torch.tensor([-1e6, 1e6, 0.0], requires_grad=True)
    loss = dpo(margin, 1.0)
    gradient = torch.autograd.grad(loss.sum(), margin)[0]
    assert loss.tolist() == pytest.approx([1e6, 0.0, math.log(2)])
    assert gradient.tolist() == pytest.approx([-1.0, 0.0, -0.5])


def test_a_sequence_logprob_sums_its_tokens_and_nothing_else():
    logprobs = torch.tensor([[-1.0, -2.0, math.nan], [-4.0, -math.inf, 3.0], [7.0, 7.0, 7.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    found = sequence_logprob(logprobs, mask)
    assert found.tolist() == [-3.0, -4.0, 0.0]
    assert torch.equal(torch.autograd.grad(found.sum(), logprobs)[0], mask.float())


def test_the_reference_is_a_constant():
    policy, reference = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    dpo(margins(policy, reference), BETA).sum().backward()
    assert reference.grad is None
    assert policy.grad is not None


def test_an_odd_number_of_rows_is_refused():
    with pytest.raises(ValueError, match=r"expected one even \[B\]: \(chosen, rejected\) pairs"):
        margins(torch.zeros(3), torch.zeros(3))
