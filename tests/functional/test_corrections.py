"""Corrections for completions that another policy drew: hand numbers, limits, and where the ratios end up."""

import math
from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.base import corrected
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.assembly import assemble
from posttrain.functional.corrections import Correction, correction_weights
from posttrain.settings import load
from posttrain.trainer import Trainer


def trainer(algorithm: str, *overrides: str) -> Trainer:
    words = ("dataset.train_examples=4", "dataset.validation_examples=2", "steps=1", *overrides)
    return assemble(load(algorithm, overrides=words), 0)


def test_the_correction_and_the_ratio_are_two_numbers():
    """One token: sampler -1, old -1.1, new -1.3. exp(old - sampler) = exp(-0.1) = 0.904837, exp(new - old) = exp(-0.2)
    = 0.818731. Taking the new policy in the correction would give exp(-0.3) = 0.740818 and count the drift twice."""
    rho = correction_weights(Correction("tis"), torch.tensor([-1.1 - -1.0]))
    assert rho.item() == pytest.approx(0.904837, abs=1e-6)
    assert math.exp(-1.3 - -1.1) == pytest.approx(0.818731, abs=1e-6)


def test_weights_are_finite_where_rho_is_beyond_any_float():
    """A row's log rho is a sum over its tokens."""
    log_rho = torch.tensor([100.0, -200.0, 0.0])
    assert correction_weights(Correction("icepop"), log_rho).tolist() == [0, 0, 1]
    assert correction_weights(Correction("tis", cap=2.0), log_rho).tolist() == [2, 0, 1]


def test_tis_truncates_above_and_icepop_drops_on_both_sides():
    log_rho = torch.tensor([0.25, 0.6, 1.0, 3.0, 6.0], dtype=torch.float64).log()
    assert correction_weights(Correction("tis", cap=2.0), log_rho).tolist() == pytest.approx([0.25, 0.6, 1, 2, 2])
    assert correction_weights(Correction("icepop"), log_rho).tolist() == pytest.approx([0, 0.6, 1, 3, 0])
    assert correction_weights(Correction("icepop", low=0.0, high=9.0), log_rho).tolist() == pytest.approx(
        log_rho.exp().tolist()
    )
    assert correction_weights(Correction(), log_rho).tolist() == [1] * 5


@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo", "gspo", "ppo", "dr-grpo", "dapo", "cispo"])
@pytest.mark.parametrize("rule", ["tis", "icepop"])
def test_without_a_mismatch_a_correction_changes_nothing(name, rule):
    plain, option = trainer(name), trainer(name, f"algorithm.correction={rule}")
    problems, rollouts = plain._rollouts(1)
    torch.testing.assert_close(
        option.gradient(problems, rollouts), plain.gradient(problems, rollouts), rtol=1e-12, atol=1e-14
    )


def test_with_a_mismatch_the_weights_are_rho_and_the_ratios_are_one():
    option = trainer("grpo", "policy.mismatch=0.5", "algorithm.correction.rule=tis", "algorithm.correction.cap=1.5")
    problems, rollouts = option._rollouts(1)
    signals, _ = option._signals(problems, rollouts)
    batch = option.algorithm.prepare(rollouts, signals)
    rho = (signals.student.logprobs - rollouts.logprobs).exp()
    assert (rho - 1).abs().max() > 0.1
    plain = replace(option.algorithm, correction=Correction()).prepare(rollouts, signals)
    torch.testing.assert_close(batch.weight, plain.weight * rho.clamp(max=1.5))
    torch.testing.assert_close(batch.normaliser, plain.normaliser)
    torch.testing.assert_close(batch.rollouts.logprobs, signals.student.logprobs)
    assert not batch.weight.requires_grad


def test_a_loss_of_whole_completions_is_weighed_by_the_product_of_its_ratios():
    option = trainer("gspo", "policy.mismatch=0.2", "algorithm.correction.rule=tis", "algorithm.correction.cap=100")
    problems, rollouts = option._rollouts(1)
    signals, _ = option._signals(problems, rollouts)
    plain = GSPO().prepare(rollouts, signals)
    log_rho = ((signals.student.logprobs - rollouts.logprobs) * rollouts.mask).sum(1)
    weight = corrected(plain, signals, Correction("tis", cap=100.0)).weight
    torch.testing.assert_close(weight, log_rho.exp().clamp(max=100))


def test_an_untruncated_correction_undoes_the_mismatch_in_expectation():
    """E_mu[rho f] = E_old[f]: the reward of completions drawn by a mismatched sampler, weighed by rho over whole rows,
    has the mean it has under the trainer's policy, within four standard errors; without weights it has not."""
    off, exact = trainer("grpo", "policy.mismatch=1.5", "group_size=4000"), trainer("grpo", "group_size=4000")
    problem = [exact.problems[0]]
    means = []
    for one in (off, exact):
        rollouts = one.policy.sample(problem, 4000, one.stream, 0, 1)
        own = exact.policy.score(rollouts, rollouts.mask).logprobs.detach()
        rho = ((own - rollouts.logprobs) * rollouts.mask).sum(1).exp()
        reward = torch.tensor([one.grader(problem[0], text) for text in rollouts.texts])
        means.append((rho * reward, reward))
    (weighed, raw), (_, expected) = means
    error = math.sqrt(float(weighed.var() + expected.var()) / 4000)
    assert abs(float(weighed.mean() - expected.mean())) < 4 * error
    assert abs(float(raw.mean() - expected.mean())) > 4 * math.sqrt(float(raw.var() + expected.var()) / 4000)


def test_bounds_that_exclude_one_are_refused():
    with pytest.raises(ValueError, match=r"low <= 1 <= high"):
        Correction("icepop", low=1.2)
    with pytest.raises(ValueError, match="above 0"):
        Correction("tis", cap=0.0)
    assert GRPO().correction.rule == "none"
