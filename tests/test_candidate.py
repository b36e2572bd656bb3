"""Candidate policies: what is drawn, what it is said to cost, and what depends on what."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from posttrain.batch import Problem
from posttrain.data.decisions import Decisions
from posttrain.policies.base import Divergence
from posttrain.policies.candidate import Bandit, Factored, Tree, _inverse_cdf
from posttrain.registry import ConfigError
from posttrain.testing import completions
from posttrain.testing.bench import nudge
from posttrain.testing.edits import take


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def problem(features, name="p"):
    """A problem with the given features [T, V, F] (nested lists or an array)."""
    features = np.asarray(features, dtype=np.float64)
    words = tuple(map(str, range(features.shape[1])))
    return Problem(name, "", "", candidates=words, features=features)


def normal_problems(number=3, steps=4, candidates=4, columns=3, seed=0, shortest=None):
    rng = np.random.default_rng(seed)
    lengths = [steps if shortest is None else int(rng.integers(shortest, steps + 1)) for _ in range(number)]
    lengths[0] = steps
    return [problem(rng.normal(size=(n, candidates, columns)), f"p{i}") for i, n in enumerate(lengths)]


def made(config, problems, seed=0, scale=1.0, critic=False):
    """A policy with random weights."""
    policy = config.build(problems, {}, critic)
    nudge(policy, scale, seed)
    return policy


def drawn(policy, problems, group_size=4, seed=0):
    return policy.sample(problems, group_size, np.random.default_rng(seed), 0, 0)


CONFIGS = [
    Bandit(),
    Factored(),
    Tree(),
    Tree(memory=2),
    Tree(temperature=0.7),
    Factored(log_floor=1e-3),
    Tree(dtype="float32"),
]


def for_config(config, **options):
    steps = 1 if isinstance(config, Bandit) else 4
    return normal_problems(steps=steps, **options)


# -- drawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "steps"), [(Bandit(), 1), (Factored(), 2), (Tree(), 2), (Tree(temperature=0.5), 2)])
def test_completions_come_up_as_often_as_their_probability_says(config, steps):
    """Chi-square over all completions, 20000 draws: below the 99.9 % point of its distribution."""
    problems = normal_problems(1, steps, 3, seed=5)
    policy = made(config, problems, scale=0.5)
    listed = completions(policy, problems[0])
    chances = listed.logprobs.sum(1).exp()
    rollouts = drawn(policy, problems, 20_000)
    place = (rollouts.completion_ids * 3 ** torch.arange(steps - 1, -1, -1)).sum(1)
    seen = torch.bincount(place, minlength=len(chances))
    chi_square = ((seen - 20_000 * chances) ** 2 / (20_000 * chances)).sum()
    assert chances.sum() == pytest.approx(1.0)
    assert chi_square < {3: 13.8, 9: 26.1}[len(chances)]


def test_the_first_id_whose_cumulative_probability_exceeds_the_uniform_is_drawn():
    chances = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0], dtype=torch.float64).expand(1, 4, 5)
    uniforms = torch.tensor([[0.0, 0.5 - 2**-54, 0.5, 1 - 2**-53]], dtype=torch.float64)
    assert _inverse_cdf(chances, uniforms).tolist() == [[1, 1, 3, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_id_of_probability_zero_is_never_drawn_not_by_the_smallest_nor_by_the_largest_uniform(dtype):
    chances = torch.tensor([[[0.0, 0.3, 0.7, 0.0]]], dtype=dtype)
    for uniform in (0.0, 1 - 2**-53):
        assert int(_inverse_cdf(chances, torch.tensor([[uniform]], dtype=torch.float64))) in (1, 2)


@pytest.mark.parametrize("total", [0.999, 1.001])
def test_probabilities_that_do_not_quite_add_up_to_one_are_scaled(total):
    chances = torch.tensor([[[0.25, 0.5, 0.25]]], dtype=torch.float64) * total
    for uniform, wanted in ((0.2499, 0), (0.2501, 1), (0.7499, 1), (0.7501, 2), (1 - 2**-53, 2)):
        assert int(_inverse_cdf(chances, torch.tensor([[uniform]], dtype=torch.float64))) == wanted


def test_a_group_without_replacement_has_distinct_members():
    problems = normal_problems(5, 1, 6)
    policy = made(Bandit(replacement=False), problems)
    groups = drawn(policy, problems, 4).completion_ids.view(5, 4).tolist()
    assert all(len(set(group)) == 4 for group in groups)
    everyone = drawn(policy, problems, 6).completion_ids.view(5, 6).sort(1).values
    assert everyone.tolist() == [list(range(6))] * 5, "with G = K every candidate comes up once, whatever the policy"


def test_drawing_without_replacement_is_refused_for_more_than_one_choice():
    with pytest.raises(ConfigError, match="replacement"):
        Tree(replacement=False).build(normal_problems(), {}, False)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_same_stream_draws_the_same_completions(config):
    problems = for_config(config)
    policy = made(config, problems)
    assert torch.equal(drawn(policy, problems).completion_ids, drawn(policy, problems).completion_ids)
    assert not torch.equal(drawn(policy, problems).completion_ids, drawn(policy, problems, seed=1).completion_ids)


def test_greedy_answers_take_the_lowest_id_on_a_tie():
    problems = normal_problems()
    assert not made(Tree(), problems, scale=0.0).greedy(problems).completion_ids.any()
    twice = problem([[[0.1, 2.0], [0.7, 0.3], [0.7, 0.3]]])
    policy = made(Bandit(), [twice])
    with torch.no_grad():
        policy.weight.copy_(torch.tensor([1.0, 0.1]))
    assert policy.greedy([twice]).completion_ids.tolist() == [[1]]


def test_greedy_answers_follow_their_own_prefix():
    problems = normal_problems(20)
    policy = made(Tree(), problems)
    found = policy.greedy(problems)
    for row in range(20):
        before = []
        for t in range(4):
            logits = policy.features[row, t] @ policy.weight + policy.transition[before[-1] if before else 4]
            before.append(int(logits.argmax()))
        assert found.completion_ids[row].tolist() == before


def test_short_problems_are_masked_beyond_their_last_decision():
    problems = normal_problems(8, 5, shortest=1)
    policy = made(Tree(), problems)
    rollouts = drawn(policy, problems, 3)
    lengths = torch.tensor([len(p.features) for p in problems]).repeat_interleave(3)
    assert torch.equal(rollouts.mask, torch.arange(5) < lengths[:, None]) and len(lengths.unique()) > 2
    for name in ("completion_ids", "logprobs", "entropy"):
        assert not getattr(rollouts, name)[~rollouts.mask].any()
    assert [len(text.split(" ")) for text in rollouts.texts] == lengths.tolist()


def test_data_rows_are_the_problems_responses_and_no_draws():
    problems = [replace(p, responses=("1 0 2 3", "3 3 0 0")) for p in normal_problems(2)]
    policy = made(Tree(), problems)
    rows = policy.respond(problems, 0, 0)
    assert rows.completion_ids.tolist() == [[1, 0, 2, 3], [3, 3, 0, 0]] * 2
    assert rows.group_size == 2 and not rows.logprobs.any() and (rows.source == 2).all()
    with pytest.raises(ConfigError, match="one fixed number"):
        policy.respond([problems[0], replace(problems[1], responses=())], 0, 0)


# -- pricing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sampling_scoring_and_a_snapshot_agree_bit_for_bit(config):
    """Otherwise exact ties break, and the ratio of the first update is not 1 (temperature included)."""
    problems = for_config(config, number=6)
    policy = made(config, problems)
    rollouts = drawn(policy, problems)
    for other in (policy, policy.snapshot()):
        scores = other.score(rollouts, rollouts.mask)
        assert torch.equal(scores.logprobs, rollouts.logprobs) and torch.equal(scores.entropy, rollouts.entropy)
        assert torch.equal(other.targets(rollouts, rollouts.mask).logprobs, rollouts.logprobs)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_row_costs_the_same_in_any_company_bit_for_bit(config):
    problems = for_config(config, number=6)
    policy = made(config, problems)
    rollouts = drawn(policy, problems)
    whole = policy.score(rollouts, rollouts.mask).logprobs
    for rows in (slice(0, 4), slice(8, 24)):
        part = rollouts.rows(rows)
        assert torch.equal(policy.score(part, part.mask).logprobs, whole[rows])


def test_log_probs_are_those_of_the_formula_at_any_temperature():
    problems = normal_problems(2, 3)
    for temperature in (0.7, 1.0, 2.0):
        policy = made(Tree(temperature=temperature), problems)
        rollouts = drawn(policy, problems)
        for row, ids in enumerate(rollouts.completion_ids.tolist()):
            for t, chosen in enumerate(ids):
                logits = policy.features[row // 4, t] @ policy.weight + policy.transition[ids[t - 1] if t else 4]
                wanted = torch.log_softmax(logits / temperature, -1)[chosen]
                assert float(rollouts.logprobs[row, t]) == pytest.approx(float(wanted.detach()), abs=1e-12)


def test_equal_feature_rows_get_equal_logits_bit_for_bit():
    """records.md 1.4: a matrix product may round two equal rows apart, and an argmax then flips."""
    rng = np.random.default_rng(0)
    problems = []
    for i in range(200):
        features = rng.normal(size=(1, 6, 8))
        features[:, 5] = features[:, 2]
        problems.append(problem(features, f"p{i}"))
    policy = made(Bandit(), problems)
    every = torch.arange(6).view(1, 1, 6).expand(200, 1, 6)
    rollouts = policy.greedy(problems)
    log_probs = policy.score(rollouts, rollouts.mask, support_ids=every).support_logprobs
    assert torch.equal(log_probs[..., 2], log_probs[..., 5])
    assert not (rollouts.completion_ids == 5).any()


def test_the_log_floor_changes_values_and_no_gradient():
    problems = normal_problems(2)
    plain, floored = (made(Tree(log_floor=floor), problems) for floor in (0.0, 1e-2))
    rollouts = drawn(plain, problems)
    a, b = (p.score(rollouts, rollouts.mask) for p in (plain, floored))
    torch.testing.assert_close(b.logprobs, torch.log(a.logprobs.exp() + 1e-2))
    assert (b.logprobs > a.logprobs + 1e-3).any()
    for policy, scores in ((plain, a), (floored, b)):
        (scores.logprobs * torch.arange(4.0)).sum().backward()
        assert policy.weight.grad is not None
    assert torch.equal(plain.weight.grad, floored.weight.grad)
    assert torch.equal(plain.transition.grad, floored.transition.grad)


def test_a_tree_of_memory_two_sees_the_last_two_choices_and_nothing_before():
    problems = normal_problems(1, 5, 3)
    policy = made(Tree(memory=2), problems)
    rows = completions(policy, problems[0])
    for row in range(0, len(rows.texts), 7):
        ids = rows.completion_ids[row].tolist()
        seen = [3, 3, *ids]  # the start symbol stands before the first choice
        for t in range(5):
            logits = policy.features[0, t] @ policy.weight + policy.transition[seen[t] * 4 + seen[t + 1]]
            wanted = torch.log_softmax(logits, -1)[ids[t]].detach()
            assert float(rows.logprobs[row, t]) == pytest.approx(float(wanted), abs=1e-12)


def test_a_table_of_the_last_choice_alone_serves_a_tree_of_any_memory():
    problems = normal_problems(1, 4, 3)
    table = np.random.default_rng(1).normal(size=(4, 3))
    weights = {"weight": np.array([0.3, -0.2, 0.5]), "transition": table}
    rows = completions(Tree().build(problems, weights, False), problems[0])
    for memory in (2, 3):
        deeper = Tree(memory=memory).build(problems, weights, False)
        assert torch.equal(deeper.score(rows, rows.mask).logprobs.detach(), rows.logprobs)


@pytest.mark.parametrize("config", [Factored(), Tree(), Tree(memory=2)], ids=str)
def test_no_log_prob_depends_on_later_choices(config):
    problems = normal_problems(1, 4, 3)
    policy = made(config, problems)
    rows = completions(policy, problems[0])
    prefixes = {}
    for ids, logprobs in zip(rows.completion_ids.tolist(), rows.logprobs.tolist(), strict=True):
        for t in range(1, 5):
            assert prefixes.setdefault(tuple(ids[:t]), logprobs[:t]) == logprobs[:t]
    if isinstance(config, Factored):
        assert (
            len({(t, v, x) for p, found in prefixes.items() for t, (v, x) in enumerate(zip(p, found, strict=True))})
            == 12
        )


def test_the_critic_sees_the_prefix_and_nothing_after_it():
    problems = normal_problems(1, 4, 3)
    policy = made(Tree(), problems, critic=True)
    rows = completions(policy, problems[0])
    values = policy.score(rows, rows.mask, values=True).values.detach()
    prefixes = {}
    for ids, row in zip(rows.completion_ids.tolist(), values.tolist(), strict=True):
        for t in range(4):
            assert prefixes.setdefault(tuple(ids[:t]), row[t]) == pytest.approx(row[t], abs=1e-14)
    assert len(set(prefixes.values())) > 10, "and it does see the prefix"


@pytest.mark.parametrize("config", [Factored(), Tree()], ids=str)
def test_outside_where_scores_are_zero_and_send_no_gradient(config):
    problems = normal_problems(3)
    policy, teacher = (made(config, problems, seed, critic=True) for seed in (0, 1))
    rollouts = drawn(policy, problems)
    where = torch.rand(rollouts.mask.shape, generator=torch.Generator().manual_seed(0)) < 0.4

    def gradient(mask, weight):
        scores = policy.score(
            rollouts, mask, divergence=Divergence("jsd", 0.3), against=teacher.states(rollouts), values=True
        )
        parts = (scores.logprobs, scores.entropy, scores.divergence, scores.values)
        assert all(part[~mask].eq(0).all() and part[mask].ne(0).all() for part in parts)
        total = sum((part * weight).sum() for part in parts)
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(policy.parameters()))])

    everywhere = gradient(torch.ones_like(where), where.double())
    torch.testing.assert_close(gradient(where, torch.ones_like(rollouts.logprobs)), everywhere, rtol=1e-12, atol=1e-14)


def test_a_support_always_holds_the_sampled_token_and_no_token_twice():
    problems = normal_problems(3, candidates=5)
    policy, teacher = (made(Tree(), problems, seed) for seed in (0, 1))
    rollouts = drawn(policy, problems, 20)
    for k in (1, 2, 5, 9):
        targets = teacher.targets(rollouts, rollouts.mask, k)
        assert targets.support_ids.shape[-1] == min(k, 5)
        assert (targets.support_ids == rollouts.completion_ids[..., None]).any(-1).all()
        assert all(len(set(ids)) == len(ids) for row in targets.support_ids.tolist() for ids in row)
        again = teacher.score(rollouts, rollouts.mask, support_ids=targets.support_ids).support_logprobs
        assert torch.equal(again.detach(), targets.support_logprobs)


def test_half_of_the_top_tokens_stay_when_the_sampled_one_replaces_the_last():
    problems = [problem([[[2.0], [1.0], [0.0]]])]
    policy = made(Bandit(), problems, scale=0.0)
    with torch.no_grad():
        policy.weight.fill_(1.0)
    listed = completions(policy, problems[0])
    assert policy.targets(listed, listed.mask, 2).support_ids[:, 0].tolist() == [[0, 1], [0, 1], [0, 2]]


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl"])
def test_a_full_divergence_is_the_sum_over_the_vocabulary(kind):
    problems = normal_problems(2)
    policy, teacher = (made(Tree(), problems, seed) for seed in (0, 1))
    rollouts = drawn(policy, problems)
    found = policy.score(rollouts, rollouts.mask, divergence=Divergence(kind), against=teacher.states(rollouts))
    every = torch.arange(4).expand(*rollouts.mask.shape, 4)
    p, q = (m.score(rollouts, rollouts.mask, support_ids=every).support_logprobs for m in (policy, teacher))
    a, b = (p, q) if kind == "reverse_kl" else (q, p)
    torch.testing.assert_close(found.divergence, (a.exp() * (a - b)).sum(-1))


# -- copying and building -------------------------------------------------------------------------------------------


def test_a_snapshot_stays_when_the_policy_moves_and_has_no_gradient():
    problems = normal_problems()
    policy = made(Tree(), problems)
    rollouts = drawn(policy, problems)
    frozen = policy.snapshot()
    nudge(policy, 1.0, 9)
    assert torch.equal(frozen.score(rollouts, rollouts.mask).logprobs, rollouts.logprobs)
    assert not torch.equal(policy.score(rollouts, rollouts.mask).logprobs, rollouts.logprobs)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert frozen.features is policy.features


def test_training_a_policy_leaves_the_checkpoint_it_started_from_alone():
    problems = Decisions(train_examples=2, validation_examples=1, positions=3, prefix=0.5).build(0)
    before = {name: value.copy() for name, value in problems.checkpoints["teacher"].items()}
    policy = Tree().build(problems.train, problems.checkpoints["teacher"], False)
    nudge(policy, 1.0, 0)
    assert all(np.array_equal(before[name], value) for name, value in problems.checkpoints["teacher"].items())


def test_the_identity_names_everything_that_decides_a_log_prob():
    problems = normal_problems(2)
    known = made(Tree(), problems)
    same, other = known.snapshot().identity(), made(Tree(), problems, seed=1).identity()
    assert same == known.identity()
    assert other["weights"] != known.identity()["weights"] and other["vocabulary"] == known.identity()["vocabulary"]
    assert made(Tree(temperature=0.7), problems).identity()["settings"] != known.identity()["settings"]
    assert made(Tree(), normal_problems(2, seed=3)).identity()["vocabulary"] != known.identity()["vocabulary"]


def test_a_policy_that_does_not_fit_its_problems_is_refused_with_what_to_write():
    with pytest.raises(ConfigError, match="factored"):
        Bandit().build(normal_problems(), {}, False)
    with pytest.raises(ConfigError, match=r"policy\.name=tree"):
        Factored().build(normal_problems(), {"transition": np.zeros((5, 4))}, False)
    with pytest.raises(ConfigError, match="same candidates"):
        Tree().build([*normal_problems(1), *normal_problems(1, candidates=3)], {}, False)
    with pytest.raises(ConfigError, match="candidates and features"):
        Tree().build([Problem("p", "", "")], {}, False)


def test_rows_of_enumerated_completions_are_every_completion_once():
    problems = normal_problems(1, 3, 3)
    rows = completions(made(Tree(), problems), problems[0])
    assert rows.completion_ids.tolist() == [list(ids) for ids in product(range(3), repeat=3)]
    assert take(rows, [2, 2]).texts == ("0 0 2", "0 0 2")
