"""Closed forms on policies small enough to list every outcome: what each algorithm's gradient is in expectation, and
where training comes to rest. Labels such as B5 are those of the specification's section 6.

A policy here is tabular: one logit for each position and candidate (and, in a tree, for each pair of a choice and the
one before), so that the first T x V parameters are the logits and a gradient can be read off.
"""

import math
from dataclasses import replace
from functools import cache
from itertools import permutations, product

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
from posttrain.batch import Problem, ProblemSet, Scores
from posttrain.functional.selection import Select
from posttrain.policies.candidate import Factored, Tree
from posttrain.teachers.base import Surroundings
from posttrain.teachers.cached import Cached
from posttrain.testing import (
    completions,
    dense,
    every_completion,
    expected_gradient,
    group_of,
    prepare,
    price,
    student_as_teacher,
)  # fmt: skip
from posttrain.testing.bench import nudge


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def tabular(algorithm, policy="bandit", positions=1, candidates=4, group_size=2, problems=1, seed=0, **options):
    """A trainer whose student, teacher and reference are three random tables, and a random reward per completion."""
    rng = np.random.default_rng(seed)
    size = positions * candidates
    blocks = np.eye(problems * size).reshape(problems, positions, candidates, problems * size)
    words = tuple(map(str, range(candidates)))
    rows = tuple(" ".join([words[i % candidates]] * positions) for i in range(group_size))
    posed = tuple(
        Problem(f"p{i}", "", words[0], candidates=words, features=block, responses=rows)
        for i, block in enumerate(blocks)
    )
    tables = {name: {"weight": rng.normal(size=problems * size)} for name in ("student", "teacher")}
    if policy == "tree":
        for table in tables.values():
            table["transition"] = rng.normal(size=(candidates + 1, candidates))
    raw = {
        "dataset": "decisions", "policy": {"name": policy, "start": "student"}, "teacher": "frozen",
        "reward": "positions", "problems_per_step": problems, "group_size": group_size, **options,
    }  # fmt: skip
    config = replace(settings.resolve(raw, "reinforce"), algorithm=algorithm)
    trainer = assemble(config, seed, problems=ProblemSet(posed, posed, "tabular", tables))
    trainer.grader = random_reward
    nudge(trainer.reference, 0.5, seed + 1)
    return trainer


@cache
def drawn_for(name, text):
    return float(np.random.default_rng([len(name), *(name + text).encode()]).normal())


def random_reward(problem, text):
    return drawn_for(problem.id, text)


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


def along(found, exact):
    """How long an expected gradient is along the exact one (1 where unbiased), and the cosine of their angle."""
    dot = torch.dot(found, exact)
    return float(dot / exact.square().sum()), float(dot / (found.norm() * exact.norm()))


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

TREE = {"policy": "tree", "positions": 2, "candidates": 3}
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
    # algorithm, shape, how long the expected gradient is along the exact one, cosine of the angle between them.
    # GRPO and GSPO also divide by the length: one half in the tree of two steps.
    "grpo, pairs": (GRPO(kl_coef=0.0), {"candidates": 4, "group_size": 2}, 0.3425358394, 0.9942576054),
    "grpo, groups of four": (GRPO(kl_coef=0.0), {"candidates": 4, "group_size": 4}, 0.6180250122, 0.9970719966),
    "grpo, tree": (GRPO(kl_coef=0.0), {**TREE, "group_size": 2}, 0.6624538818, 0.9116160714),
    "gspo, tree": (GSPO(), {**TREE, "group_size": 2}, 0.6624538818, 0.9116160714),
    "ppo, bandit": (PPO(kl_coef=0.0), {"candidates": 4, "group_size": 3}, 0.6428790117, 0.9955596639),
    "ppo, tree": (PPO(kl_coef=0.0), {**TREE, "group_size": 2}, 0.9075168436, 0.7812497315),
}


@pytest.mark.parametrize("name", BIASES)
def test_the_bias_of_normalised_advantages_is_a_known_number(name):
    made, shape, *recorded = BIASES[name]
    trainer = tabular(made, **shape)
    policy = sum(p.numel() for n, p in trainer.policy.named_parameters() if n != "critic")
    found = expected_gradient(trainer, trainer.problems)[:policy]
    exact = exactly(trainer, expected_reward)[:policy]
    assert along(found, exact) == pytest.approx(recorded, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_with_binary_rewards_grpo_scales_each_problem_by_a_known_function_of_its_success_rate(seed):
    """Given k successes of G, sum_i A_i grad log pi_i has the mean (k a / p - (G - k) b / (1 - p)) grad p, with the
    z-scores a of a success and b of a failure: an average over the binomial k, about 1 / sqrt(p (1 - p)) for large G.
    """
    trainer = tabular(GRPO(kl_coef=0.0), candidates=3, group_size=4, seed=seed)
    trainer.grader = lambda problem, text: float(text == "1")
    size, p = 4, float(every_completion(trainer, trainer.problems[0]).chances[1].detach())
    scale = 0.0
    for k in range(1, size):
        deviation = math.sqrt(k * (size - k) / (size * (size - 1))) + 1e-4
        a, b = (1 - k / size) / deviation, (0 - k / size) / deviation
        scale += math.comb(size, k) * p**k * (1 - p) ** (size - k) * (k * a / p - (size - k) * b / (1 - p)) / size
    close(expected_gradient(trainer, trainer.problems), scale * exactly(trainer, expected_reward))


RECORDED = SparseOPD(Select("highest", k=2, scope="group"), "abs_log_ratio", "outcome", "kept", "reinforce")


def without_replacement(trainer, size):
    """The mean gradient over ordered groups of distinct candidates, each with the probability of drawing it so."""
    problem = trainer.problems[0]
    listed = completions(trainer.policy, problem)
    total = []
    for rows in permutations(range(len(listed.texts)), size):
        left, chance = 1.0, 1.0
        for row in rows:
            p = float(listed.logprobs[row].exp())
            chance, left = chance * p / left, left - p
        total.append(chance * price(trainer, prepare(trainer, [problem], group_of(listed, rows, size))).gradient)
    return torch.stack(total).sum(0)


@pytest.mark.parametrize(
    ("made", "recorded"), [(RLOO(0.0), (1.3307227287, 0.9989915232)), (RECORDED, (1.0157972544, 0.8567726806))], ids=str
)
def test_the_bias_of_drawing_without_replacement_is_a_known_number(made, recorded):
    trainer = tabular(made, candidates=5, group_size=4)
    assert along(without_replacement(trainer, 4), exactly(trainer, expected_reward)) == pytest.approx(
        recorded, abs=1e-9
    )


def test_without_replacement_a_group_of_all_candidates_no_longer_sees_the_policy():
    """Every candidate comes up once whatever the policy, so the mean is one uniform sum: negative test of 6.3."""
    trainer = tabular(RLOO(0.0), candidates=3, group_size=3)
    problem, exact = trainer.problems[0], exactly(trainer, expected_reward)
    listed = completions(trainer.policy, problem)
    uniform = price(trainer, prepare(trainer, [problem], group_of(listed, range(3), 3))).gradient
    close(without_replacement(trainer, 3), uniform)
    assert float((uniform - exact).norm() / exact.norm()) > 0.5
    close(expected_gradient(trainer, [problem]), exact)


def test_h3_at_the_sampling_policy_grpo_has_value_zero_and_the_gradient_of_reinforce_with_z_scores():
    trainer = tabular(GRPO(kl_coef=0.0), policy="tree", positions=3, candidates=3, group_size=5)
    step = sampled_step(trainer)
    found, d = price(trainer, step), dense(trainer, step)
    rewards = d.rewards.flatten()
    z = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert found.loss == pytest.approx(0.0, abs=1e-15)
    close(found.gradient, gradient_of(trainer, -(z[:, None] * d.of(d.log_probs)).sum() / (5 * 3)))


def test_f7_the_gradient_of_gspo_in_each_token_is_minus_ratio_times_advantage_over_length():
    trainer = tabular(GSPO(0.9, 0.9), policy="tree", positions=4, candidates=3, group_size=3)
    batch = sampled_step(trainer).batch
    shift = 0.2 * torch.randn(batch.weight.shape[0], 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logprobs = (batch.rollouts.logprobs + shift).requires_grad_()
    loss = trainer.algorithm.loss(Scores(logprobs, torch.zeros_like(logprobs)), batch)
    (found,) = torch.autograd.grad(loss.sum(), logprobs)
    close(found, -(shift.mean(1).exp() * batch.advantages / 4)[:, None].expand(-1, 4))


# -- reward with a critic -------------------------------------------------------------------------------------------


def whitened(values):
    return (values - values.mean()) / values.std(correction=0)


def test_f3_f4_the_gradient_of_ppo_is_minus_the_whitened_advantage_at_ratio_one_and_zero_past_the_clip():
    trainer = tabular(PPO(value_coef=0.0), policy="tree", positions=3, candidates=3, group_size=6)
    nudge(trainer.policy, 0.3, 5)
    batch = sampled_step(trainer).batch
    close(batch.advantages, whitened(batch.returns - batch.old_values))
    for ratio, dead in ((1.0, None), (1.3, batch.advantages > 0), (0.7, batch.advantages < 0)):
        logprobs = (batch.rollouts.logprobs + math.log(ratio)).requires_grad_()
        scores = Scores(logprobs, torch.zeros_like(logprobs), values=batch.old_values)
        (found,) = torch.autograd.grad(trainer.algorithm.loss(scores, batch).sum(), logprobs)
        expected = -ratio * batch.advantages
        close(found, expected if dead is None else expected.masked_fill(dead, 0))


def test_f9_at_lambda_one_advantages_are_reward_minus_value_and_at_lambda_zero_td_errors():
    for lam in (1.0, 0.0):
        trainer = tabular(PPO(kl_coef=0.0, lam=lam), policy="tree", positions=3, candidates=3, group_size=4)
        nudge(trainer.policy, 0.3, 5)
        step = sampled_step(trainer)
        values, rewards = step.batch.old_values, step.signals.rewards.values.flatten()[:, None]
        following = torch.cat([values[:, 1:], rewards], 1)
        expected = rewards - values if lam else following - values
        close(step.batch.returns - values, expected)


def test_the_critic_of_ppo_learns_the_mean_reward_where_the_state_shows_nothing_more():
    """On a bandit the critic sees no choice: at rest of the expected value loss it is the mean reward."""
    trainer = tabular(PPO(kl_coef=0.0, clip=0.5, value_clip=0.9), candidates=3, group_size=2)
    problem = trainer.problems[0]
    d = every_completion(trainer, problem)
    mean = float((d.chances * d.rewards.flatten()).sum().detach())
    values = d.values.detach()
    with torch.no_grad():  # the constant feature carries the whole value
        trainer.policy.critic[-1] += mean - values[0, 0]
    critic = expected_gradient(trainer, [problem])[-len(trainer.policy.critic) :]
    assert float(critic.abs().max()) < 1e-12


# -- distillation ---------------------------------------------------------------------------------------------------


def test_b1_the_expected_loss_of_opd_is_the_reverse_kl():
    trainer = tabular(OPD(), group_size=1)
    d = every_completion(trainer, trainer.problems[0])
    listed = completions(trainer.policy, trainer.problems[0])
    losses = [price(trainer, prepare(trainer, trainer.problems, group_of(listed, [row], 1))).loss for row in range(4)]
    assert sum(p * x for p, x in zip(d.chances.tolist(), losses, strict=True)) == pytest.approx(
        float(visited_kl(d).detach())
    )


@pytest.mark.parametrize("made", [OPD(normaliser="sequence_sum"), OPD(), LightningOPD()], ids=str)
def test_b2_on_a_bandit_the_expected_gradient_of_distillation_is_that_of_the_reverse_kl(made):
    trainer = tabular(made, candidates=5, group_size=1)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, visited_kl))


def test_b5_on_a_tree_it_is_that_of_the_states_reverse_kl_with_constant_visits():
    trainer = tabular(OPD(normaliser="sequence_sum"), **TREE, group_size=1)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, visited_kl))


def test_b4_it_is_that_of_the_sequence_kl_at_the_last_step_only():
    trainer = tabular(OPD(normaliser="sequence_sum"), **TREE, group_size=1)
    found = expected_gradient(trainer, trainer.problems)

    def sequence(d):
        return (d.chances * (d.of(d.log_probs) - d.of(d.teacher)).sum(1)).sum()

    difference = (found - exactly(trainer, sequence))[:6].view(2, 3)  # logits of the first and of the second step
    assert float(difference[1].abs().max()) < 1e-9
    assert float(difference[0].abs().max()) > 1e-2


def test_a_reward_beside_the_teacher_adds_its_own_gradient():
    """The group mean shrinks the reward's part by (G - 1) / G; the teacher's part is whole."""
    trainer = tabular(OPD(reward_weight=0.5, normaliser="sequence_sum"), candidates=3, group_size=2)
    expected = exactly(trainer, visited_kl) + 0.5 * exactly(trainer, expected_reward) / 2
    close(expected_gradient(trainer, trainer.problems), expected)


def test_b6_b7_lightning_opd_fits_the_teachers_log_probs_by_least_squares_on_completions_drawn_once():
    """Several real steps of the trainer equal gradient descent on the mean of ½ (log pi - log q)²."""
    trainer = tabular(LightningOPD(), **TREE, group_size=8, optim="sgd", learning_rate=0.3)
    trainer._sample_once()
    twin = trainer.policy.snapshot().requires_grad_(True)
    for step in range(1, 5):
        _, rollouts = trainer._rollouts(step)
        targets = trainer.teacher.targets(rollouts, rollouts.mask, None)
        trainer.step(step)
        loss = 0.5 * (twin.score(rollouts, rollouts.mask).logprobs - targets.logprobs).square().mean()
        with torch.no_grad():
            for p, g in zip(twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
                p -= 0.3 * g
    for a, b in zip(trainer.policy.parameters(), twin.parameters(), strict=True):
        close(a, b)


# -- sparse distillation --------------------------------------------------------------------------------------------

ROW = {"policy": "factored", "positions": 9, "candidates": 5, "group_size": 1}


def sparse_gradient(trainer, step, made):
    trainer.algorithm = made
    return price(trainer, prepare(trainer, step.problems, step.rollouts)).gradient


def test_e1_keeping_everything_is_dense_distillation():
    trainer = tabular(OPD(), **ROW)
    step = sampled_step(trainer, groups=3)
    whole = price(trainer, step).gradient
    for normaliser in ("kept", "response_length"):  # the rows are equally long
        close(sparse_gradient(trainer, step, SparseOPD(Select("all"), normaliser=normaliser)), whole)


@pytest.mark.parametrize(("normaliser", "share"), [("response_length", 1 / 9), ("kept", 1.0)])
def test_e2_one_uniform_token_is_dense_over_the_length_or_dense_itself(normaliser, share):
    trainer = tabular(OPD(), **ROW)
    step = sampled_step(trainer)
    whole = price(trainer, step).gradient
    trainer.algorithm = SparseOPD(Select("all"), normaliser=normaliser)
    one_by_one = []
    for t in range(9):
        heard = replace(step.signals.teacher, mask=step.rollouts.mask & (torch.arange(9) == t))
        one_by_one.append(price(trainer, prepare(trainer, step.problems, step.rollouts, teacher=heard)).gradient)
    close(torch.stack(one_by_one).mean(0), share * whole)


def test_e2_so_is_the_mean_over_the_random_rules_own_draws_within_four_standard_errors():
    trainer = tabular(SparseOPD(Select("random", k=1)), **ROW)
    step = sampled_step(trainer)
    whole = sparse_gradient(trainer, step, SparseOPD(Select("all")))
    trainer.algorithm = SparseOPD(Select("random", k=1))
    keys = [torch.tensor([[seed, 0, 0, 0]]) for seed in range(600)]
    drawn = [price(trainer, prepare(trainer, step.problems, replace(step.rollouts, keys=k))).gradient for k in keys]
    within_four_standard_errors(torch.stack(drawn), whole / 9)


def test_e3_the_extremes_are_the_lowest_plus_the_highest_under_the_response_length():
    trainer = tabular(OPD(), **ROW)
    step = sampled_step(trainer, groups=4)
    low, high, both = (
        sparse_gradient(trainer, step, SparseOPD(rule))
        for rule in (Select("lowest"), Select("highest"), Select("extremes", low=1, high=1))
    )
    close(low + high, both)


def test_e4_e5_a_dropped_token_has_gradient_zero_and_a_kept_one_minus_a_over_length_times_its_score():
    trainer = tabular(SparseOPD(), **ROW)
    step = sampled_step(trainer)
    found = price(trainer, step).gradient.view(9, 5)
    kept, credit, ids = step.batch.where[0], step.batch.advantages[0], step.rollouts.completion_ids[0]
    policy = dense(trainer, step).log_probs[0].exp().detach()
    assert int(kept.sum()) == 2 and not found[~kept].any()
    expected = -(credit[:, None] / 9) * (torch.nn.functional.one_hot(ids, 5) - policy)
    close(found[kept], expected[kept])
    assert (found[kept].norm(dim=1) <= math.sqrt(2) * credit[kept].abs() / 9).all()


def test_e6_the_first_step_of_adam_does_not_see_the_normaliser_and_that_of_sgd_does():
    def moves(optim, normaliser):
        made = SparseOPD(normaliser=normaliser)
        trainer = tabular(made, **ROW, optim=optim, learning_rate=0.1, adam_epsilon=1e-14, max_grad_norm=None)
        before = trainer.policy.weight.detach().clone()
        trainer.step(1)
        return trainer.policy.weight.detach() - before

    by_length, by_kept = moves("adamw_torch", "response_length"), moves("adamw_torch", "kept")
    close(by_length, by_kept, 1e-6)
    close(moves("sgd", "response_length") * 9 / 2, moves("sgd", "kept"))


def test_e7_a_student_equal_to_its_teacher_has_gradient_zero_under_any_mask():
    for rule in (Select("all"), Select("extremes"), Select("random", k=3), Select("tails", fraction=0.2)):
        trainer = tabular(SparseOPD(rule), **ROW)
        student_as_teacher(trainer)
        assert not price(trainer, sampled_step(trainer)).gradient.any()


# -- full divergences -----------------------------------------------------------------------------------------------


def priced_by(trainer, step, made):
    trainer.algorithm = made
    return price(trainer, prepare(trainer, step.problems, step.rollouts))


def test_c1_the_scaled_limits_of_the_jsd_are_the_two_kls_and_its_ends_are_defined_so():
    trainer = tabular(GKD(student_share=1.0), **TREE)
    step = sampled_step(trainer)
    for end, beta, kind in ((0.0, 1e-6, "forward_kl"), (1.0, 1 - 1e-6, "reverse_kl")):
        exact = priced_by(trainer, step, GKD(kind, student_share=1.0))
        near = priced_by(trainer, step, GKD("jsd", beta, 1.0))
        close(near.gradient / 1e-6, exact.gradient, 1e-4)
        assert near.loss / 1e-6 == pytest.approx(exact.loss, rel=1e-4)
        assert torch.equal(priced_by(trainer, step, GKD("jsd", end, 1.0)).gradient, exact.gradient)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_c2_the_jsd_is_at_most_the_binary_entropy_of_beta(beta):
    trainer = tabular(GKD("jsd", beta, 1.0), **TREE)
    nudge(trainer.policy, 8.0, 1)
    loss = price(trainer, sampled_step(trainer)).loss
    entropy = -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)
    assert 0.3 * entropy < loss <= entropy


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_d1_a_support_with_its_tail_never_raises_the_divergence(kind):
    trainer = tabular(GKD(), policy="tree", positions=2, candidates=6, group_size=4)
    step = sampled_step(trainer)
    full = priced_by(trainer, step, GKD(kind, 0.3, 1.0)).loss
    for k in range(1, 6):
        assert 0 < priced_by(trainer, step, GKD(kind, 0.3, 1.0, support=k)).loss <= full + 1e-12


@pytest.mark.parametrize("made", [GKD("reverse_kl", student_share=1.0), TIP(keep=1.0)], ids=str)
def test_a_full_reverse_kl_has_the_expected_gradient_of_opd_without_its_variance(made):
    trainer = tabular(made, **TREE, group_size=1)
    close(expected_gradient(trainer, trainer.problems), exactly(trainer, visited_kl) / 2)


# -- sampled means --------------------------------------------------------------------------------------------------


def within_four_standard_errors(draws, exact):
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    assert (error > 0).any()


ON_POLICY = [
    Reinforce("none"), RLOO(0.3), GRPO(kl_coef=0.2), GSPO(), OPD(), OPD(reward_weight=0.5), SparseOPD(),
    SparseOPD(Select("highest", k=1, scope="group"), normaliser="kept"), GKD("forward_kl", student_share=1.0),
]  # fmt: skip


@pytest.mark.parametrize("made", ON_POLICY, ids=str)
def test_the_mean_gradient_of_sampled_groups_is_the_enumerated_one_within_four_standard_errors(made):
    """25 steps of 400 groups each, drawn by the policy's own sampler."""
    trainer = tabular(made, **TREE)
    exact = expected_gradient(trainer, trainer.problems)
    means = [price(trainer, sampled_step(trainer, groups=400, seed=seed)).gradient for seed in range(25)]
    within_four_standard_errors(torch.stack(means), exact)


@pytest.mark.parametrize("made", [PPO(), TIP(), Reinforce("batch")], ids=str)
def test_so_it_is_for_algorithms_that_see_the_whole_step(made):
    trainer = tabular(made, **TREE)
    exact = expected_gradient(trainer, trainer.problems)
    draws = [price(trainer, sampled_step(trainer, seed=seed)).gradient for seed in range(300)]
    within_four_standard_errors(torch.stack(draws), exact)


# -- preferences ----------------------------------------------------------------------------------------------------


def pairs_of(trainer, ordered):
    """One step on given (chosen, rejected) completions of the first problem."""
    posed = [replace(trainer.problems[0], responses=pair) for pair in ordered]
    return prepare(trainer, posed, trainer.policy.respond(posed, 0, 0))


def test_g1_at_the_reference_dpo_is_log_two_and_pushes_by_half_beta():
    trainer = tabular(DPO(0.3), **TREE)
    trainer.reference = trainer.policy.snapshot()
    step = pairs_of(trainer, [("0 2", "1 1"), ("2 2", "2 0")])
    found, d = price(trainer, step), dense(trainer, step)
    margin = d.of(d.log_probs).sum(1).view(2, 2)
    assert found.loss == pytest.approx(math.log(2))
    close(found.gradient, gradient_of(trainer, -0.15 * (margin[:, 0] - margin[:, 1]).mean()))


def test_g8_with_two_candidates_and_a_uniform_reference_dpo_is_logistic_regression_on_the_logits():
    trainer = tabular(DPO(0.7), candidates=2)
    with torch.no_grad():
        trainer.reference.weight.zero_()
    found = price(trainer, pairs_of(trainer, [("1", "0")]))
    logits = trainer.policy.weight
    exact = torch.nn.functional.softplus(-0.7 * (logits[1] - logits[0]))
    assert found.loss == pytest.approx(float(exact.detach()))
    close(found.gradient, gradient_of(trainer, exact))


def test_h11_trained_on_all_pairs_of_a_bradley_terry_judge_dpo_recovers_the_reward_gaps():
    """The optimum has beta times the margin equal to the reward gap for every pair, at any start and reference."""
    trainer = tabular(DPO(0.5), candidates=4)
    reward = torch.tensor([0.0, 0.4, -0.7, 1.5], dtype=torch.float64)
    ordered = [(w, r) for w in range(4) for r in range(4) if w != r]
    step = pairs_of(trainer, [(str(w), str(r)) for w, r in ordered])
    gaps = torch.stack([reward[w] - reward[r] for w, r in ordered])
    step = replace(step, batch=replace(step.batch, weight=torch.sigmoid(gaps)))

    def loss():
        found = price(trainer, step)
        trainer.policy.weight.grad = found.gradient.clone()
        return torch.tensor(found.loss, dtype=torch.float64)

    torch.optim.LBFGS([trainer.policy.weight], max_iter=200, tolerance_grad=1e-12, tolerance_change=0).step(loss)
    d = dense(trainer, step)
    margins = (d.of(d.log_probs) - d.of(d.reference)).sum(1).view(-1, 2)
    close(0.5 * (margins[:, 0] - margins[:, 1]).detach(), gaps, 1e-6)


# -- where training comes to rest -----------------------------------------------------------------------------------


def optimum(trainer, beta, scale=1.0):
    """Log-probs of ref * exp(scale * reward / beta), normalised, on a bandit."""
    d = every_completion(trainer, trainer.problems[0])
    return torch.log_softmax(d.reference[0, 0] + scale * d.rewards.flatten() / beta, 0)


def expectation_step(trainer, size):
    """Every group of `size` candidates as one group of a single step, weighed by its probability."""
    listed = completions(trainer.policy, trainer.problems[0])
    rows = list(product(range(len(listed.texts)), repeat=size))
    groups = group_of(listed, [row for group in rows for row in group], size)
    step = prepare(trainer, [trainer.problems[0]] * len(rows), groups)
    chances = groups.logprobs.sum(1).view(-1, size).sum(1).exp().repeat_interleave(size)
    weight = step.batch.weight * (chances[:, None] if step.batch.unit == "token" else chances)
    return replace(step, batch=replace(step.batch, weight=weight, normaliser=chances * step.batch.normaliser))


def train(trainer, size, rate, steps):
    for _ in range(steps):
        gradient = price(trainer, expectation_step(trainer, size)).gradient
        with torch.no_grad():
            trainer.policy.weight -= rate * gradient
    listed = completions(trainer.policy, trainer.problems[0])
    return listed.logprobs.sum(1)


def test_a_step_over_all_groups_at_once_is_the_enumerated_mean():
    for made, size in ((RLOO(0.3), 2), (OPD(), 1), (GRPO(), 2)):
        trainer = tabular(made, candidates=3, group_size=size)
        found = price(trainer, expectation_step(trainer, size)).gradient
        close(found, expected_gradient(trainer, trainer.problems))


@pytest.mark.parametrize("made", [OPD(), GKD("forward_kl", student_share=1.0), SparseOPD(Select("all"))], ids=str)
def test_distillation_comes_to_rest_at_the_teacher(made):
    trainer = tabular(made, candidates=4, group_size=1)
    teacher = every_completion(trainer, trainer.problems[0]).teacher[0, 0]
    close(train(trainer, 1, rate=2.0, steps=300), teacher, 1e-6)


def test_h11_rloo_with_k1_in_the_reward_comes_to_rest_at_the_regularised_optimum():
    trainer = tabular(RLOO(1.0), candidates=3)
    wanted = optimum(trainer, 1.0)
    close(train(trainer, 2, rate=2.0, steps=300), wanted, 1e-6)


def test_h12_k2_in_the_loss_comes_to_rest_there_too_and_k3_elsewhere():
    """With pairs and binary rewards the z-score is the leave-one-out advantage times 0.5 / (sqrt(½) + 1e-4)."""
    scale = 0.5 / (math.sqrt(0.5) + 1e-4)
    rest = {}
    for kind in ("k2", "k3_plus", "ratio_k3", "k3"):
        trainer = tabular(GRPO(kl_coef=0.5, kl=kind), candidates=3)
        trainer.grader = lambda problem, text: float(text == "1")
        wanted = optimum(trainer, 0.5, scale)
        rest[kind] = float(kl(train(trainer, 2, rate=2.0, steps=300), wanted))
    assert all(abs(rest[kind]) < 1e-9 for kind in ("k2", "k3_plus", "ratio_k3"))
    assert rest["k3"] == pytest.approx(0.0052500415, abs=1e-9), "nats from the optimum, a known number"


def test_h12_at_the_optimum_the_residual_of_k3_is_beta_times_forward_minus_reverse_kl():
    trainer = tabular(GRPO(kl_coef=0.5, kl="k2"), candidates=4)
    with torch.no_grad():
        trainer.policy.weight.copy_(optimum(trainer, 0.5))
    k2 = expected_gradient(trainer, trainer.problems)
    trainer.algorithm = GRPO(kl_coef=0.5, kl="k3")
    residual = expected_gradient(trainer, trainer.problems) - k2

    def both(d):
        p, ref = d.log_probs[0, 0], d.reference[0, 0]
        return 0.5 * (kl(ref, p) - kl(p, ref))

    close(residual, exactly(trainer, both))
    trainer.algorithm = RLOO(0.5)
    assert float(expected_gradient(trainer, trainer.problems).abs().max()) < 1e-12, "k1 in the reward rests here"
    assert float(residual.norm()) == pytest.approx(0.2722287022, abs=1e-9)


# -- runs and expectations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [SparseOPD(), LightningOPD(), GKD("jsd", 0.3, 1.0, support=2), OPD(reward_weight=0.3)], ids=str
)
def test_a_run_with_a_cached_teacher_equals_the_run_with_the_online_one_bit_for_bit(made, tmp_path):
    rows, runs = [], []
    for cached in (False, True):
        kept = []
        trainer = tabular(made, policy="tree", positions=3, candidates=3, group_size=3, problems=3)
        trainer = replace(trainer, options=replace(trainer.options, steps=8), report=kept.append)
        if cached:
            around = Surroundings(trainer.policy, {"teacher": trainer.teacher.policy}, tmp_path)
            trainer.teacher = Cached().build(around)
        trainer.run()
        rows.append(kept)
        runs.append(torch.cat([p.flatten() for p in trainer.parameters]))
    assert torch.equal(*runs) and rows[0] == rows[1]


@pytest.mark.parametrize("config", [Factored(), Tree(), Tree(memory=2), Tree(temperature=0.6)], ids=str)
def test_expectations_by_dynamic_programming_equal_plain_enumeration(config):
    """Entropy and KL per token, over all completions of problems of one to four steps and three candidates."""
    rng = np.random.default_rng(0)
    words = ("a", "b", "c")
    posed = [Problem(f"p{n}", "", "", candidates=words, features=rng.normal(size=(n, 3, 2))) for n in (4, 1, 3, 2)]
    policy, other = (config.build(posed, {}, False) for _ in range(2))
    nudge(policy, 1.0, 1)
    nudge(other, 1.0, 2)
    found = policy.expectations(posed, {"other": other})
    for place, problem in enumerate(posed):
        rows = completions(policy, problem)
        chances, steps = rows.logprobs.sum(1).exp(), len(problem.features)
        log_ratio = rows.logprobs - other.score(rows, rows.mask).logprobs.detach()
        assert float(found.entropy[place]) == pytest.approx(float(-(chances @ rows.logprobs.sum(1)) / steps), abs=1e-12)
        assert float(found.kl["other"][place]) == pytest.approx(float(chances @ log_ratio.sum(1) / steps), abs=1e-12)
        assert float(found.entropy[place]) == pytest.approx(float(chances @ rows.entropy.sum(1) / steps), abs=1e-12)
