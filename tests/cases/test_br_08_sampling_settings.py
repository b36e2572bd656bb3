"""Case BR-08: the sampler draws from another distribution than the one whose log-probs are trained on."""

import math
from dataclasses import replace

import pytest
import torch
from test_lm_laws import LM, trainer_for

from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.sparse_opd import SparseOPD
from posttrain.policies.candidate import Bandit
from posttrain.policies.lm_head import Head, Question, answer
from posttrain.policies.lm_projection import distribution
from posttrain.registry import ConfigError
from posttrain.samplers.in_process import _next
from posttrain.settings import load
from posttrain.testing import draw, prepare

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])
COLD, WARM = -0.142932, -0.407606  # log-prob of token 0 at temperatures 0.5 and 1


def head(temperature):
    return Head(torch.eye(3), temperature=temperature)


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, COLD), (1.0, WARM)])
def test_br_08_a_sampler_and_trainer_divide_the_logits_by_one_temperature(temperature, expected):
    """BR-08 (a): -0.142932 under T = 0.5 on both sides, ratio 1; a mixture would give 0.767456."""
    token, drawn, _ = _next(distribution(head(temperature), LOGITS), torch.zeros(1, dtype=torch.float64))
    scored = answer(head(temperature), LOGITS, Question(token)).logprobs
    assert token.tolist() == [0]
    assert drawn.item() == pytest.approx(expected, abs=1e-6)
    assert (scored - drawn).exp().item() == pytest.approx(1.0, abs=1e-7)
    assert math.exp(WARM - COLD) == pytest.approx(0.767456, abs=1e-6)


def test_br_08_a_candidate_policies_too():
    """BR-08 (a): the same two numbers from the policy of the mechanism tier."""
    import numpy as np

    from posttrain.batch import Problem

    problem = Problem("p", "", "0", ("0", "1", "2"), np.array([[[2.0], [1.0], [0.0]]]))
    for temperature, expected in ((0.5, COLD), (1.0, WARM)):
        policy = Bandit(temperature=temperature).build([problem], {"weight": np.ones(1)}, False)
        rollouts = policy.sample([problem], 64, np.random.default_rng(0), 0, 1)
        scores = policy.score(rollouts, rollouts.mask)
        first = rollouts.completion_ids == 0
        assert rollouts.logprobs[first].tolist() == pytest.approx([expected] * int(first.sum()), abs=1e-6)
        assert torch.equal(scores.logprobs.detach(), rollouts.logprobs)


@pytest.mark.parametrize("word", ["policy.top_p=0.8", "policy.top_k=20", "policy.min_p=0.1", "top_p=0.8"])
@pytest.mark.parametrize("tier", ["l1", "l2"])
def test_br_08_b_a_sampler_that_leaves_tokens_out_is_refused_for_training(word, tier):
    """BR-08 (b): with top_p = 0.8 token 0 is drawn with 0.731059 and scored with 0.665241, a ratio of 0.909969."""
    with pytest.raises(ConfigError) as caught:
        load("grpo", tier, overrides=[word])
    key = word.partition("=")[0]
    assert str(caught.value).startswith(f"{key}: completions are drawn from the policy's whole distribution")
    full = torch.softmax(LOGITS[0], 0)
    assert float(full[0]) == pytest.approx(0.665241, abs=1e-6)
    assert float(full[0] / full[:2].sum()) == pytest.approx(0.731059, abs=1e-6)
    assert float(full[:2].sum()) == pytest.approx(0.909969, abs=1e-3)


@pytest.mark.parametrize("made", [GRPO(kl_coef=0.04), PPO(), OPD(), SparseOPD()], ids=lambda made: type(made).__name__)
def test_br_08_c_old_new_reference_and_own_past_agree_before_the_first_update(made):
    """BR-08 (c): at T = 0.6 max |ratio - 1| <= 1e-5 in float32 for each of them; the plain softmax is far from it."""
    trainer = trainer_for(made, replace(LM, temperature=0.6), "float32")
    trainer.reference = trainer.policy.snapshot()
    trainer.teacher = replace(trainer.teacher, policy=trainer.policy.snapshot())  # as `snapshot` is at the start
    step = prepare(trainer, *draw(trainer))
    mask = step.rollouts.mask
    new = trainer.policy.score(step.rollouts, mask).logprobs.detach()
    others = {"old": step.batch.rollouts.logprobs, "recorded": step.rollouts.logprobs}
    for name, targets in (("reference", step.signals.reference), ("teacher", step.signals.teacher)):
        others |= {} if targets is None else {name: targets.logprobs}
    for name, found in others.items():
        assert float(((new - found)[mask].exp() - 1).abs().max()) <= 1e-5, name
    trainer.policy.config = replace(trainer.policy.config, temperature=1.0)
    plain = trainer.policy.score(step.rollouts, mask).logprobs.detach()
    assert float(((plain - new)[mask].exp() - 1).abs().max()) > 0.3
