"""Dynamic sampling: groups that teach nothing are drawn anew, up to a cap, from keys of their own."""

import torch

from posttrain.assembly import assemble
from posttrain.settings import load


def trainer(*overrides):
    return assemble(load("dapo", overrides=("dataset.train_examples=16", "steps=4", *overrides)), 0)


def test_every_group_of_a_step_has_rewards_that_differ():
    one = trainer()
    for step in range(1, 5):
        problems, rollouts, rewards = one._collect(step)
        signals, _ = one._signals(problems, rollouts, rewards)
        assert len(problems) == one.options.problems_per_step == rollouts.groups
        assert (signals.rewards.values.amin(1) < signals.rewards.values.amax(1)).all()
    assert one.refills > 0


def test_what_was_judged_to_accept_a_group_is_not_judged_again():
    """A judge that never says the same twice: the rewards that are trained on are those the groups were chosen by."""
    one = trainer()
    asked, usual = [], one.grader

    def counting(problem, text):
        asked.append(text)
        return usual(problem, text)

    one.grader = counting
    one.step(1)
    rows = one.options.problems_per_step * one.options.group_size
    assert len(asked) == rows * (1 + one.refills)


def test_no_two_completions_of_a_step_share_a_key():
    keys = trainer()._collect(1)[1].keys
    assert len(torch.unique(keys, dim=0)) == len(keys)


def test_the_cap_ends_the_search_and_the_step_trains_on_what_there_is():
    one = trainer("max_refills=0")
    problems, rollouts, rewards = one._collect(1)
    signals, _ = one._signals(problems, rollouts, rewards)
    assert one.refills == 0
    assert 0 < len(problems) < one.options.problems_per_step
    assert (signals.rewards.values.amin(1) < signals.rewards.values.amax(1)).all()


def test_a_step_without_any_group_worth_training_on_has_no_gradient_and_does_not_stop_the_run():
    """Ten choices per completion and only all of them right count: every reward is 0."""
    one = trainer("dataset.positions=10", "dataset.fork_rate=1.0", "max_refills=1", "policy.start=null")
    before = one.policy.weight.clone()
    found = one.step(1)
    assert found["loss"] == 0
    assert found["zero_variance_groups"] == 1
    assert one.refills == 1
    torch.testing.assert_close(one.policy.weight, before)
