"""Measurements beside training: what they leave out is what training leaves out."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.ppo import PPO
from posttrain.batch import Failure
from posttrain.evaluation import probes
from posttrain.testing import trainer_for
from posttrain.tracking import Evaluator


def trainer(grader):
    """PPO on a few problems, with a critic that has an opinion."""
    made = trainer_for(PPO())
    made.grader = grader
    made.evaluator = Evaluator(tuple(made.problems), grader, grader)
    made.options = replace(made.options, group_size=4)
    with torch.no_grad():
        for place, parameter in enumerate(made.parameters):
            parameter.add_(0.1 * (place + 1))
    return made


def value_of(text):
    return sum(map(ord, text)) % 7 / 7


def test_a_completion_without_a_reward_has_no_return_and_enters_no_variance():
    """A failure is no reward of zero: whatever number stands in its place, the measures are the same."""

    def grade(other):
        return lambda problem, text: other if value_of(text) < 0.4 else value_of(text)

    failing = trainer(grade(Failure("not judged", "error")))
    returns, values, mask = probes._returns(failing)
    drawn = probes._held_out(failing)[1]
    kept = torch.tensor([value_of(text) >= 0.4 for text in drawn.texts]).unsqueeze(1)
    assert torch.equal(mask, drawn.mask & kept)
    assert 0 < int(kept.sum()) < len(kept)
    expected = torch.tensor([value_of(text) for text in drawn.texts], dtype=returns.dtype).unsqueeze(1)
    assert torch.allclose(returns[mask], expected.expand(mask.shape)[mask])
    assert probes.explained_variance(None, failing) == pytest.approx(
        float(1 - (expected.expand(mask.shape) - values)[mask].var() / expected.expand(mask.shape)[mask].var())
    )
    zero = trainer(grade(0.0))
    assert probes.explained_variance(None, zero) != pytest.approx(probes.explained_variance(None, failing))
    assert torch.tensor(probes.critic_variance_saved(None, failing)).isfinite()
