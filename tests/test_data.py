"""Datasets: the recorded draws number by number, fingerprints that never move, answers that follow from the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest

from posttrain.artifacts.digests import dataset_fingerprint
from posttrain.data.arithmetic_smoke import FEATURES, ArithmeticSmoke
from posttrain.data.decisions import Decisions
from posttrain.data.preferences import Preferences
from posttrain.evaluation.records import drawn_splits
from posttrain.policies.candidate import Factored, Tree
from posttrain.registry import ConfigError
from posttrain.rewards.axes import Axes
from posttrain.rewards.base import Verdict
from posttrain.rewards.exact import Exact, Positions

DATASETS = [ArithmeticSmoke(70), Decisions(4, 3, positions=6), Preferences(5, 4)]


def everything(problems):
    return (*problems.train, *problems.validation)


# -- every dataset ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "seeds", "fingerprint"),
    [
        (
            "arithmetic-smoke",
            {"maximum_examples": 192},
            (42, 43, 44),
            "922900a453abc6ecd8589839982636485f9b7691735caa26b3b495c747e8cad2",
        ),
        ("decisions", {}, (0, 1), "31b8a831b758804c2c1185e26735b8ecd49a86053cb0c4ed420be5d926b8fee6"),
        (
            "decisions",
            {"positions": 8, "minimum_positions": 3, "prefix": 0.5, "hidden": 2},
            (0, 1),
            "1f6edd63d452c50a03c97b0088bf081f04bb70fbf4fa2bd0db71c9ceca896c7b",
        ),
        ("preferences", {}, (0, 1), "7e6a62c7ef4389af85d85b0ab15db5e881c260ed9b63ecb45e39c16d1fd6f273"),
    ],
)
def test_what_is_drawn_never_moves(name, options, seeds, fingerprint):
    """Written down once: another number here makes every artifact of this data incomparable with those before."""
    assert dataset_fingerprint(drawn_splits(name, options, seeds)) == f"sha256:{fingerprint}"


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: type(d).__name__)
def test_a_seed_always_gives_the_same_problems_and_another_seed_others(dataset):
    first, again, other = dataset.build(3), dataset.build(3), dataset.build(4)
    assert [p.drawn for p in everything(first)] == [p.drawn for p in everything(again)]
    assert all(np.array_equal(p.features, q.features) for p, q in zip(first.train, again.train, strict=True))
    assert [p.drawn for p in first.train] != [p.drawn for p in other.train]


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: type(d).__name__)
def test_problems_are_named_by_seed_split_and_place_each_once(dataset):
    problems = dataset.build(3)
    expected = [f"3/train/{i}" for i in range(len(problems.train))]
    assert [p.id for p in everything(problems)] == [
        *expected,
        *(f"3/validation/{i}" for i in range(len(problems.validation))),
    ]


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: type(d).__name__)
def test_held_out_problems_are_not_those_trained_on(dataset):
    problems = dataset.build(0)
    train = [p.drawn for p in problems.train]
    assert not any(p.drawn in train for p in problems.validation)


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: type(d).__name__)
def test_more_training_problems_begin_with_the_same_ones(dataset):
    """One stream: the world first, then the training problems in order."""
    field = "maximum_examples" if isinstance(dataset, ArithmeticSmoke) else "train_examples"
    more = replace(dataset, **{field: getattr(dataset, field) + 5}).build(1)
    assert [p.drawn for p in more.train[: len(dataset.build(1).train)]] == [p.drawn for p in dataset.build(1).train]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (ArithmeticSmoke, "maximum_examples", 0),
        (Decisions, "train_examples", 0),
        (Decisions, "validation_examples", 0),
        (Decisions, "positions", 0),
        (Decisions, "known", 0),
        (Decisions, "new", 0),
        (Decisions, "hidden", -1),
        (Decisions, "candidates", 1),
        (Decisions, "minimum_positions", 65),
        (Decisions, "minimum_positions", 0),
        (Decisions, "fork_rate", 1.5),
        (Decisions, "distance", -0.1),
        (Decisions, "distance", math.nan),
        (Decisions, "sharpness", -1.0),
        (Decisions, "sharpness", math.inf),
        (Preferences, "train_examples", 0),
        (Preferences, "validation_examples", 0),
        (Preferences, "candidates", 1),
        (Preferences, "features", 0),
        (Preferences, "noise", -1.0),
    ],
)
def test_an_empty_or_impossible_dataset_is_refused_by_field_with_what_was_found_and_expected(kind, field, value):
    with pytest.raises(ConfigError, match=rf"^dataset\.{field}: found {value}, expected \S+"):
        kind(**{field: value})


# -- arithmetic-smoke -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "a", "b", "operation", "offsets", "prompt", "answer"),
    [
        (42, 8, 62, 1, [2, 0, 5, -1, -3, 1], "8 - 62 =", "-54"),
        (43, 41, 52, 1, [2, -1, 5, 0, 1, -3], "41 - 52 =", "-11"),
        (44, 54, 11, 2, [2, 0, -1, 5, -3, 1], "54 * 11 =", "594"),
    ],
)
def test_the_first_problem_is_the_recorded_one(seed, a, b, operation, offsets, prompt, answer):
    first = ArithmeticSmoke().build(seed).train[0]
    assert (first.drawn["a"], first.drawn["b"], first.drawn["operation"]) == (a, b, operation)
    assert first.drawn["offsets"] == offsets
    assert (first.prompt, first.answer) == (prompt, answer)
    assert first.candidates == tuple(str(int(answer) + offset) for offset in offsets)


def test_process_and_self_check_of_the_first_problem_are_the_recorded_ones():
    first = ArithmeticSmoke().build(42).train[0]
    process = [0.365875777362, 0.843738459177, 0.015340848380, 0.762050888919, 0.397983861099, 0.697634728691]
    check = [0.436227615351, 0.905961814011, 0.020623304185, 0.852230185476, 0.435384608480, 0.628891331661]
    assert first.meta["axes"]["reasoning"] == pytest.approx(process, abs=5e-13)
    assert first.features[0, :, FEATURES.index("self_check")] == pytest.approx(check, abs=5e-13)


def test_features_and_axes_of_a_candidate_are_those_of_its_value_and_place():
    """Candidate 2 of the first problem of seed 42: value -54 + 5 = -49 in 3 steps; candidate 3: -55 in 1 step."""
    first = ArithmeticSmoke().build(42).train[0]
    row = dict(zip(FEATURES, first.features[0, 2], strict=True))
    del row["self_check"]
    assert row == {
        "bias": 1.0,
        "signed_value": pytest.approx(math.tanh(-0.49), abs=1e-15),
        "magnitude": pytest.approx(math.tanh(0.49), abs=1e-15),
        "integer": 1.0,
        "concise": 1 / 3,
        "has_equation": 1.0,
        "step_count": 0.75,
    }
    alone = dict(zip(FEATURES, first.features[0, 3], strict=True))
    assert (alone["has_equation"], alone["concise"], alone["step_count"]) == (0.0, 1.0, 0.25)
    axes = first.meta["axes"]
    assert axes["outcome"].tolist() == [0, 1, 0, 0, 0, 0]
    assert axes["format"].tolist() == [1] * 6
    assert axes["brevity"].tolist() == [1, 1 / 2, 1 / 3, 1, 1 / 2, 1 / 3]


@pytest.mark.parametrize(("train", "held_out"), [(1, 64), (192, 64), (256, 64), (260, 65), (400, 100)])
def test_a_quarter_of_the_training_problems_is_held_out_and_at_least_64(train, held_out):
    problems = ArithmeticSmoke(train).build(0)
    assert (len(problems.train), len(problems.validation)) == (train, held_out)


def test_held_out_problem_20_of_seed_44_has_two_equal_rows_the_right_one_first():
    """The exact tie of the recorded protocol: candidates 2 and 5."""
    features = ArithmeticSmoke().build(44).validation[20].features[0]
    assert np.array_equal(features[2], features[5])
    assert ArithmeticSmoke().build(44).validation[20].meta["axes"]["outcome"][2] == 1


# -- decisions --------------------------------------------------------------------------------------------------------

SMALL = Decisions(12, 6, positions=10, candidates=5, known=4, new=3, hidden=2, fork_rate=0.4)


TIE = 1e-9  # two values of a position that differ by less are equal but for rounding


def told(problem) -> list[int]:
    return list(map(int, problem.answer.split()))


def values_of(problem, weights, candidates) -> np.ndarray:
    """Logits [T, V] of a checkpoint along the right answer: what it makes of each token after the right ones before."""
    transition = weights.get("transition", np.zeros((candidates + 1, candidates)))
    before = [candidates, *told(problem)[:-1]]  # before the first token stands the start symbol V
    return problem.features[..., : len(weights["weight"])] @ weights["weight"] + transition[before]


def clear(values) -> np.ndarray:
    """[T] bool: positions with one best token."""
    ordered = np.sort(values, -1)
    return ordered[:, -1] - ordered[:, -2] > TIE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefix", [0.0, 0.8])
def test_the_right_token_is_the_argmax_of_the_truth_which_the_teacher_at_distance_0_knows(prefix, seed):
    problems = replace(SMALL, prefix=prefix).build(seed)
    for problem in everything(problems):
        values = values_of(problem, problems.checkpoints["teacher"], SMALL.candidates)
        assert values.argmax(-1).tolist() == told(problem)


def test_with_a_prefix_the_right_token_depends_on_the_one_before():
    assert [p.answer for p in replace(SMALL, prefix=0.8).build(0).train] != [p.answer for p in SMALL.build(0).train]


@pytest.mark.parametrize("options", [{}, {"known": 8, "new": 24, "hidden": 8}, {"positions": 8, "known": 4, "new": 4}])
def test_every_position_has_one_right_token(options):
    """Features and directions are whole numbers: tokens that would be worth exactly the same are drawn again."""
    problems = Decisions(32, 8, **options).build(0)
    teacher = problems.checkpoints["teacher"]
    assert all(clear(values_of(p, teacher, 8)).all() for p in everything(problems))


def test_features_too_few_to_tell_the_tokens_apart_are_refused_instead_of_drawn_for_ever():
    """One feature in -8..8 has 17 values: of 500 tokens, one alone at the top comes up once in 10^12 draws."""
    with pytest.raises(ConfigError, match="dataset: so few features leave several right tokens"):
        Decisions(1, 1, positions=1, candidates=500, known=1, new=1).build(0)


@pytest.mark.parametrize(("prefix", "kind"), [(0.0, Factored), (0.8, Tree)])
@pytest.mark.parametrize("sharpness", [0.1, 6.0, 50.0])
def test_the_teacher_at_distance_0_is_always_right_however_sharp_it_is(prefix, kind, sharpness):
    problems = replace(SMALL, prefix=prefix, sharpness=sharpness).build(1)
    teacher = kind().build(everything(problems), problems.checkpoints["teacher"], False)
    assert teacher.greedy(everything(problems)).texts == tuple(problem.answer for problem in everything(problems))


def test_the_student_knows_routine_positions_and_nothing_of_forks():
    """At a fork all its logits are 0, so it says token 0."""
    problems = SMALL.build(2)
    student = Factored().build(everything(problems), problems.checkpoints["student"], False)
    for problem, text in zip(problems.train, student.greedy(problems.train).texts, strict=True):
        said, forks = np.array(list(map(int, text.split()))), problem.meta["forks"]
        assert not said[forks].any()
        assert (said == told(problem))[~forks].all()


def test_forks_hide_the_known_features_and_routine_positions_all_others():
    for problem in SMALL.build(0).train:
        forks = problem.meta["forks"]
        assert not problem.features[forks, :, :4].any()
        assert not problem.features[~forks, :, 4:].any()
        assert problem.features.any((1, 2)).all()


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0, 0), (0.25, 0.22, 0.28), (1.0, 1, 1)])
def test_the_share_of_forks_is_the_fork_rate(rate, low, high):
    """8192 positions: five standard deviations of a share of 0.25 are 0.024."""
    problems = Decisions(fork_rate=rate, candidates=2, known=1, new=1).build(0)
    assert low <= np.mean([p.meta["forks"] for p in problems.train]) <= high


@pytest.mark.parametrize("distance", [0.0, 0.25, 0.5, 1.0])
def test_the_distance_is_the_angle_between_the_tastes_of_teacher_and_student_in_right_angles(distance):
    points = replace(SMALL, distance=distance).build(0).checkpoints
    student, teacher = (points[name]["weight"][:4] / SMALL.sharpness for name in ("student", "teacher"))
    assert np.linalg.norm(student) == pytest.approx(1.0, abs=1e-12)
    assert np.linalg.norm(teacher) == pytest.approx(1.0, abs=1e-12)
    assert student @ teacher == pytest.approx(math.cos(math.pi / 2 * distance), abs=1e-12)


def test_distance_and_sharpness_change_the_teacher_and_nothing_that_is_drawn():
    near, far = SMALL.build(0), replace(SMALL, distance=1.0, sharpness=1.0).build(0)
    assert [p.drawn for p in everything(near)] == [p.drawn for p in everything(far)]
    assert [p.answer for p in everything(near)] == [p.answer for p in everything(far)]
    assert not np.array_equal(near.checkpoints["teacher"]["weight"][:4] / 6, far.checkpoints["teacher"]["weight"][:4])
    assert near.checkpoints["teacher"]["weight"][4:] / 6 == pytest.approx(far.checkpoints["teacher"]["weight"][4:])


def test_a_far_teacher_is_wrong_at_some_routine_positions_and_right_at_all_forks():
    problems = replace(SMALL, distance=1.0).build(0)
    right = {True: [], False: []}
    for problem in problems.train:
        values = values_of(problem, problems.checkpoints["teacher"], SMALL.candidates)
        for fork, hit in zip(problem.meta["forks"], values.argmax(-1) == told(problem), strict=True):
            right[bool(fork)].append(hit)
    assert all(right[True])
    assert 0 < np.mean(right[False]) < 0.6


def test_sharpness_multiplies_every_logit_of_teacher_and_student():
    one, three = (replace(SMALL, sharpness=s, prefix=0.5).build(0).checkpoints for s in (1.0, 3.0))
    for name in ("student", "teacher"):
        for part, value in one[name].items():
            assert three[name][part] == pytest.approx(3 * value, rel=1e-12)


def test_the_student_lacks_the_hidden_features_and_starts_without_the_new_ones():
    points = SMALL.build(0).checkpoints
    assert len(points["student"]["weight"]) == 4 + 3
    assert len(points["teacher"]["weight"]) == 4 + 3 + 2
    assert not points["student"]["weight"][4:].any()


@pytest.mark.parametrize("shortest", [1, 4, 10])
def test_lengths_lie_between_the_shortest_and_the_longest_and_reach_both(shortest):
    """200 problems of 10 possible lengths: each length is missed with probability 0.9^200 < 1e-9."""
    problems = replace(SMALL, train_examples=200, minimum_positions=shortest).build(0)
    lengths = [len(problem.features) for problem in problems.train]
    assert set(lengths) == set(range(shortest, 11))
    assert all(len(p.answer.split()) == len(p.features) == len(p.meta["forks"]) for p in problems.train)
    assert all(p.responses == (p.answer,) for p in problems.train)


def test_without_a_shortest_length_all_problems_are_equally_long():
    assert {len(problem.features) for problem in everything(SMALL.build(0))} == {10}


# -- preferences ------------------------------------------------------------------------------------------------------


def rewards_of(problem) -> tuple[float, float]:
    chosen, rejected = map(int, problem.responses)
    assert chosen != rejected
    return problem.meta["reward"][chosen], problem.meta["reward"][rejected]


def test_without_noise_the_better_candidate_is_always_chosen():
    pairs = [rewards_of(problem) for problem in Preferences(noise=0.0).build(0).train]
    assert all(chosen >= rejected for chosen, rejected in pairs)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_labels_are_right_as_often_as_bradley_and_terry_say(noise):
    """P(better is chosen) = sigmoid(gap / noise), averaged over 4000 pairs: five standard deviations are below 0.04."""
    pairs = [rewards_of(problem) for problem in Preferences(4000, 1, noise=noise).build(0).train]
    expected = np.mean([1 / (1 + math.exp(-abs(c - r) / noise)) for c, r in pairs])
    assert np.mean([c > r for c, r in pairs]) == pytest.approx(expected, abs=0.04)
    assert 0.5 < expected < 0.95


def test_the_reward_is_linear_in_the_features_with_weights_of_the_given_length():
    problems = Preferences(scale=3.0).build(1)
    features = np.concatenate([p.features[0] for p in problems.train])
    reward = np.concatenate([p.meta["reward"] for p in problems.train])
    weight = np.linalg.lstsq(features, reward, rcond=None)[0]
    assert np.linalg.norm(weight) == pytest.approx(3.0, abs=1e-12)
    assert features @ weight == pytest.approx(reward, abs=1e-12)
    assert all(p.answer == str(p.meta["reward"].argmax()) for p in everything(problems))


# -- rewards ----------------------------------------------------------------------------------------------------------


def test_exact_is_all_or_nothing_and_positions_is_the_share_of_right_tokens():
    problem = replace(SMALL.build(0).train[0], answer="1 2 3 4")
    assert [Exact()(problem, text) for text in ("1 2 3 4", "1 2 3 0")] == [1.0, 0.0]
    assert Exact()(replace(problem, answer=""), "") == 0.0, "where there is no answer nothing is right"
    assert [Positions()(problem, text) for text in ("1 2 3 4", "1 2 3 0", "4 3 2 1")] == [1.0, 0.75, 0.0]


@pytest.mark.parametrize("text", ["1 2 3", "1 2 3 4 5", "", "1"])
def test_a_completion_of_another_length_is_a_missing_answer_and_never_a_failure(text):
    problem = replace(SMALL.build(0).train[0], answer="1 2 3 4")
    assert Positions()(problem, text) == Verdict(0.0, answered=False)


def test_nothing_is_the_answer_of_a_problem_without_one():
    problem = replace(SMALL.build(0).train[0], answer="")
    assert [Exact()(problem, text) for text in ("", "1")] == [0.0, 0.0]


def test_axes_are_weighted_and_summed_in_the_recorded_order():
    """Candidate 1 of the first problem is right: (0.7 * 1 + 0.2 * process) + (0.05 * 1 + 0.05 / 2)."""
    first = ArithmeticSmoke().build(42).train[0]
    process = first.meta["axes"]["reasoning"][1]
    found = Axes(outcome=0.7, format=0.05, reasoning=0.2, brevity=0.05)(first, first.candidates[1])
    assert found == (0.7 + 0.2 * process) + (0.05 + 0.05 * 0.5)
    assert Axes()(first, first.candidates[1]) == 1.0
    assert Axes()(first, first.candidates[0]) == 0.0


def test_axes_need_a_dataset_that_has_them_and_say_so():
    with pytest.raises(ConfigError, match=r"`axes` needs a dataset with reward axes .* Write reward=exact"):
        Axes()(SMALL.build(0).train[0], "0")
