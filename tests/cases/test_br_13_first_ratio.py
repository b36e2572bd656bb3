"""Case BR-13: the importance ratio is not 1 on the first update, or the drift counts twice."""

import math
from dataclasses import replace

import pytest
import scalar
import tiny_lm
import torch
from test_lm_laws import LM, trainer_for

from posttrain import trainer as trainer_module
from posttrain.algorithms.grpo import GRPO
from posttrain.batch import Rewards, Scores, Signals
from posttrain.functional.corrections import Correction
from posttrain.optimization import optimizer_of


def watched(monkeypatch, made):
    """Every update's batch and scores, and the weights they were scored under."""
    seen, track = [], trainer_module.track_update

    def record(averages, batch, scores):
        weights = {name: value.clone() for name, value in made.policy.state_dict().items()}
        seen.append((batch, scores.logprobs.detach().clone(), weights))
        track(averages, batch, scores)

    monkeypatch.setattr(trainer_module, "track_update", record)
    return seen


@pytest.mark.parametrize("correction", [Correction(), Correction("tis")], ids=["stored", "recomputed"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_br_13_a_with_dropout_in_the_model_every_ratio_of_the_first_update_is_one(monkeypatch, kind, correction):
    """BR-13 (a): dropout 0.1, float32, one pass: max |ratio - 1| <= 1e-5, clip fraction 0, approximate KL <= 1e-9."""
    made = trainer_for(GRPO(kl_coef=0.0, correction=correction), LM, "float32", kind)
    config = made.policy.model.config
    for name in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.1)
    for module in made.policy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    made.policy.model.train()  # as whoever prepares a model for training leaves it
    seen = watched(monkeypatch, made)
    row = made.step(1)
    ((batch, logprobs, _),) = seen
    assert float(((logprobs - batch.rollouts.logprobs)[batch.where].exp() - 1).abs().max()) <= 1e-5
    assert row["clip_fraction"] == 0
    assert abs(row["approx_kl"]) <= 1e-9
    assert row["ratio"] == pytest.approx(1, abs=1e-5)
    made.policy.model.train()  # dropout itself would be seen: the same scores with it are far away
    ids = torch.cat([batch.rollouts.prompt_ids, batch.rollouts.completion_ids], 1)
    with torch.no_grad():
        assert float((made.policy.model(ids).logits - made.policy.model(ids).logits).abs().max()) > 0.01


def test_br_13_b_old_log_probs_stay_those_of_the_weights_that_drew(monkeypatch):
    """BR-13 (b): 2 passes x 4 minibatches; 1 at the first minibatch alone, then exp(new - old) with old frozen, against
    saved weights in float64."""
    made = trainer_for(GRPO(kl_coef=0.0), replace(LM, problems=4), "float32")
    made.options = replace(made.options, num_iterations=2, minibatch_problems=1, optim="sgd", learning_rate=2.0)
    made.optimizer, made.scheduler = optimizer_of(made.parameters, made.options)
    before = {name: value.clone() for name, value in made.policy.state_dict().items()}
    seen = watched(monkeypatch, made)
    row = made.step(1)
    exact = tiny_lm.policy("gpt2", "float64", given=made.problems)

    def scored(weights, batch):
        exact.load_state_dict(weights)
        return exact.score(batch.rollouts, batch.where).logprobs.detach()

    assert len(seen) == 8
    drift, values = [], []
    for batch, logprobs, weights in seen:
        found = (logprobs - batch.rollouts.logprobs)[batch.where].exp()
        expected = (scored(weights, batch) - scored(before, batch))[batch.where].exp()
        assert found.numpy() == pytest.approx(expected.numpy(), abs=2e-5)
        drift.append(float((found - 1).abs().max()))
        values.append(found)
    assert drift[0] <= 1e-5
    assert all(apart > 1e-3 for apart in drift[1:])
    assert row["ratio"] == pytest.approx(float(torch.cat(values).mean()), rel=1e-6)


def test_br_13_c_a_rollout_correction_is_taken_to_the_old_policy_and_the_ratio_from_it():
    """BR-13 (c): rollout -1.0, old -1.1, new -1.3: correction 0.904837, ratio 0.818731; with new in the correction it
    would be 0.740818."""
    algorithm = GRPO(kl_coef=0.0, correction=Correction("tis"))
    rollouts = scalar.completions([[0.0], [0.0]])
    told = torch.full((2, 1), -1.0, dtype=torch.float64)
    rollouts = replace(rollouts, group_size=2, logprobs=told)
    rewards = Rewards(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool))
    signals = Signals(rewards=rewards, student=Scores(told - 0.1, torch.zeros_like(told)))
    batch = algorithm.prepare(rollouts, signals)
    new = Scores(told - 0.3, torch.zeros_like(told))
    assert batch.weight[0].item() == pytest.approx(math.exp(-0.1), abs=1e-12) == pytest.approx(0.904837, abs=1e-6)
    ratio = algorithm.loss(new, batch)[0].item() / -batch.advantages[0].item()
    assert ratio == pytest.approx(0.818731, abs=1e-6)
    assert not math.isclose(batch.weight[0].item(), 0.740818, abs_tol=1e-3)
    assert batch.normaliser.tolist() == [1.0, 1.0]  # the correction weighs, it does not divide
