"""Closed forms on policies small enough to list every outcome: what each algorithm's gradient is in expectation, and
where training comes to rest. Labels such as B5 are those of the specification's section 6.

A policy here is tabular: one logit for each position and candidate (and, in a tree, for each pair of a choice and the
one before), so that the first T x V parameters are the logits and a gradient can be read off.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from posttrain import settings
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.lightning_opd import LightningOPD
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.sparse_opd import SparseOPD
from posttrain.algorithms.tip import TIP
from posttrain.assembly import assemble
from posttrain.batch import Problem, ProblemSet, Scores, concatenate
from posttrain.functional.selection import Select
from posttrain.policies.candidate import Factored, Tree
from posttrain.teachers.base import Surroundings
from posttrain.teachers.cached import Cached
from posttrain.testing import (
    Priced, completions, dense, every_completion, expected_gradient, group_of, prepare, price, student_as_teacher,
)  # fmt: skip
from posttrain.testing.bench import nudge


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def tabular(algorithm, policy="bandit", steps=1, candidates=4, group_size=2, problems=1, seed=0, **options):
    """A trainer whose student, teacher and reference are three random tables, and a random reward per completion."""
    rng = np.random.default_rng(seed)
    size = steps * candidates
    blocks = np.eye(problems * size).reshape(problems, steps, candidates, problems * size)
    words = tuple(map(str, range(candidates)))
    posed = tuple(Problem(f"p{i}", "", words[0], candidates=words, features=block) for i, block in enumerate(blocks))
    tables = {name: {"weight": rng.normal(size=problems * size)} for name in ("student", "teacher")}
    if policy == "tree":
        for table in tables.values():
            table["transition"] = rng.normal(size=(candidates + 1, candidates))
    value = {(p.id, " ".join(y)): float(rng.normal()) for p in posed for y in product(words, repeat=steps)}
    raw = {
        "dataset": "decisions", "policy": {"name": policy, "start": "student"}, "teacher": "frozen",
        "reward": "positions", "problems_per_step": problems, "group_size": group_size, **options,
    }  # fmt: skip
    config = replace(settings.resolve(raw, "reinforce"), algorithm=algorithm)
    trainer = assemble(config, seed, problems=ProblemSet(posed, posed, "tabular", tables))
    trainer.grader = lambda problem, text: value[problem.id, text]
    nudge(trainer.reference, 0.5, seed + 1)
    return trainer


def gradient_of(trainer, loss):
    """The gradient of a plain loss, all parameters in one row."""
    found = torch.autograd.grad(loss, trainer.parameters, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trainer.parameters, found, strict=True)]
    return torch.cat([g.flatten() for g in filled])


def sampled_step(trainer, groups=1, seed=0):
    """One step on fresh completions of the first problem."""
    posed = [trainer.problems[0]] * groups
    rollouts = trainer.policy.sample(posed, trainer.options.group_size, np.random.default_rng(seed), seed, 0)
    return prepare(trainer, posed, rollouts)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def apart(found, exact):
    """Relative distance of an expected gradient from the exact one, and the cosine of the angle between them."""
    cosine = torch.dot(found, exact) / (found.norm() * exact.norm())
    return float((found - exact).norm() / exact.norm()), float(cosine)


def kl(p, q):
    """Between log-probs [..., V]."""
    return (p.exp() * (p - q)).sum(-1)


def expected_reward(d):
    return -(d.chances * d.rewards.flatten()).sum()


def regularised(beta):
    """Minus the expected reward, plus beta times the KL of whole completions to the reference."""

    def objective(d):
        log_ratio = (d.of(d.log_probs) - d.of(d.reference)).sum(1)
        return -(d.chances * (d.rewards.flatten() - beta * log_ratio)).sum()

    return objective


def visited_kl(d):
    """The reverse KL of each state, summed over states as often as they are visited; visits are constants (B5)."""
    return (d.chances.detach()[:, None] * kl(d.log_probs, d.teacher) * d.mask).sum()


def exactly(trainer, objective):
    return gradient_of(trainer, objective(every_completion(trainer, trainer.problems[0])))


# -- reward: the mean over all K ** G groups -----------------------------------------------------------------------

TREE = {"policy": "tree", "steps": 2, "candidates": 3}
SHAPES = [{"candidates": 4, "group_size": 3}, {**TREE, "group_size": 2}]


@pytest.mark.parametrize("shape", SHAPES, ids=["bandit", "tree"])
@pytest.mark.parametrize("made", [Reinforce("none"), Reinforce("batch"), RLOO(0.0)], ids=str)
def test_reinforce_and_rloo_are_exactly_unbiased_for_the_expected_reward(made, shape):
    trainer = tabular(made, **shape)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, expected_reward))


@pytest.mark.parametrize("shape", SHAPES, ids=["bandit", "tree"])
def test_rloo_with_the_kl_in_the_reward_is_exactly_unbiased_for_the_regularised_objective(shape):
    trainer = tabular(RLOO(0.3), **shape)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, regularised(0.3)))


def test_a_baseline_over_two_problems_stays_unbiased_when_each_completion_is_left_out_of_its_own():
    trainer = tabular(Reinforce("batch"), candidates=3, group_size=2, problems=2)
    both = sum(expected_reward(every_completion(trainer, problem)) for problem in trainer.problems) / 2
    close(expected_gradient(trainer, trainer.problems), gradient_of(trainer, both))


def test_a_group_mean_shrinks_the_gradient_by_exactly_one_over_the_group_size():
    """SparseOPD with outcome credit centres on the mean of all G members: E = (G - 1) / G of the exact gradient."""
    made = SparseOPD(Select("all"), credit="outcome", normaliser="kept", surrogate="reinforce")
    trainer = tabular(made, candidates=4, group_size=3)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, expected_reward) * 2 / 3)


BIASES = {
    # name: (algorithm, shape, relative distance from the exact gradient, cosine to it)
    "grpo, pairs": (GRPO(kl_coef=0.0), {"candidates": 4, "group_size": 2}, 0.0, 0.0),
    "grpo, groups of four": (GRPO(kl_coef=0.0), {"candidates": 4, "group_size": 4}, 0.0, 0.0),
    "grpo, tree": (GRPO(kl_coef=0.0), {**TREE, "group_size": 2}, 0.0, 0.0),
    "gspo, tree": (GSPO(), {**TREE, "group_size": 2}, 0.0, 0.0),
    "ppo, bandit": (PPO(kl_coef=0.0), {"candidates": 4, "group_size": 3}, 0.0, 0.0),
    "ppo, tree": (PPO(kl_coef=0.0), {**TREE, "group_size": 2}, 0.0, 0.0),
}


@pytest.mark.parametrize("name", BIASES)
def test_the_bias_of_normalised_advantages_is_a_known_number(name):
    made, shape, distance, cosine = BIASES[name]
    trainer = tabular(made, **shape)
    policy = sum(p.numel() for n, p in trainer.policy.named_parameters() if n != "critic")
    found = expected_gradient(trainer, trainer.problems)[:policy]
    exact = exactly(trainer, expected_reward)[:policy]
    print(name, apart(found, exact))
    assert apart(found, exact) == pytest.approx((distance, cosine), abs=1e-6)
