"""Tasks of reasoning-gym: a seed makes them, held-out items are others, and a scorer is tried before it is trusted."""

import pytest

from posttrain.batch import Failure, Problem
from posttrain.data.reasoning_gym import SHUFFLED, ReasoningGym
from posttrain.evaluation.records import dataset_fingerprint, drawn_splits
from posttrain.registry import ConfigError
from posttrain.rewards.base import Verdict
from posttrain.rewards.reasoning_gym import ReasoningGymScore

pytest.importorskip("reasoning_gym")

SMALL = {"train_examples": 12, "validation_examples": 6}


def build(task="chain_sum", seed=0, **options):
    return ReasoningGym(task=task, **{**SMALL, **options}).build(seed)


def test_a_seed_makes_the_same_items_again_and_another_seed_others_even_the_next_one():
    first, again, other = build(), build(), build(seed=1)
    assert [p.drawn for p in first.train] == [p.drawn for p in again.train]
    assert not {p.prompt for p in first.train} & {p.prompt for p in other.train}


@pytest.mark.parametrize("task", ["chain_sum", "coin_flip", "tower_of_hanoi"])
def test_held_out_items_ask_nothing_that_is_trained_on(task):
    made = build(task, train_examples=40)
    assert not {p.prompt for p in made.train} & {p.prompt for p in made.validation}
    assert (len(made.train), len({p.prompt for p in made.validation})) == (40, 6)


def test_more_training_items_begin_with_the_same_ones():
    assert [p.drawn for p in build(train_examples=20).train[:12]] == [p.drawn for p in build().train]


def test_options_reach_the_task_and_unknown_ones_are_answered_with_the_nearest():
    made = build(options={"min_terms": 2, "max_terms": 2, "max_digits": 1})
    assert all(problem.meta["num_terms"] == 2 for problem in made.train)
    with pytest.raises(ConfigError, match=r"dataset\.options\.min_term: .*Did you mean `min_terms`"):
        build(options={"min_term": 2})
    with pytest.raises(ConfigError, match=r"dataset\.options: `chain_sum` refuses them: max_terms must be"):
        build(options={"min_terms": 3, "max_terms": 2})
    with pytest.raises(ConfigError, match=r"dataset\.options\.seed"):
        build(options={"seed": 2})


def test_a_task_with_too_few_questions_for_two_splits_says_so():
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ConfigError, match=r"dataset\.validation_examples: `chain_sum` has only \d+ questions"):
        build(options=small, train_examples=400, validation_examples=200)


@pytest.mark.parametrize("task", ["graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic"])
def test_a_scorer_that_gives_its_own_answers_nothing_is_refused_with_the_figures(task):
    with pytest.raises(ConfigError, match=rf"scorer of `{task}` cannot be trusted: on 12 items .* answers 0\.00"):
        build(task, allow_eval=True)


def test_a_scorer_that_gives_garbage_everything_is_refused_with_the_figures():
    with pytest.raises(
        ConfigError, match=r"`game_of_life_halting` cannot be trusted: .*'garbage' 1\.00 \(expected 0\)"
    ):
        build("game_of_life_halting")


def test_a_scorer_that_runs_what_the_model_wrote_is_refused_unless_allowed():
    with pytest.raises(ConfigError, match=r"scorer of `spiral_matrix` runs Python's eval .*dataset\.allow_eval=true"):
        build("spiral_matrix")
    assert len(build("spiral_matrix", allow_eval=True).train) == 12


def test_items_that_follow_pythons_hash_seed_are_refused_unless_it_is_fixed(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ConfigError, match=r"`ransom_note` change with Python's hash seed.*PYTHONHASHSEED=0"):
        build("ransom_note")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert len(build("ransom_note").train) == 12


def test_unknown_tasks_are_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"dataset\.task: found 'chain_sums'.*Did you mean `chain_sum`"):
        build("chain_sums")


def test_a_plan_pins_the_items():
    options = {"task": "chain_sum", **SMALL, "options": {"min_terms": 2}}
    found = {dataset_fingerprint(drawn_splits("reasoning_gym", options, [seed])) for seed in (0, 0, 1)}
    assert len(found) == 2


# -- reward -----------------------------------------------------------------------------------------------------------


def test_the_reward_is_the_tasks_own_score():
    for problem in build("leg_counting").train:
        assert ReasoningGymScore()(problem, f" {problem.answer}\n") == 1.0
        assert ReasoningGymScore()(problem, "-1") < 0.1


def test_the_answer_may_stand_in_a_tag_and_a_completion_without_it_is_wrong():
    problem, reward = build().train[0], ReasoningGymScore(tag="answer")
    assert reward(problem, f"<answer>0.5</answer> no: <answer>\n{problem.answer} </answer>") == 1.0
    assert reward(problem, problem.answer) == Verdict(0.0, answered=False)


@pytest.mark.parametrize("raised", [ValueError, KeyError, ZeroDivisionError, RecursionError, SyntaxError])
def test_what_a_scorer_cannot_read_is_a_missing_answer(raised):
    def score(answer):
        raise raised("no")

    assert ReasoningGymScore()(Problem("p", "", "", meta={"score": score}), "1") == Verdict(0.0, answered=False)


@pytest.mark.parametrize("raised", [ImportError, OSError, MemoryError])
def test_a_machine_at_fault_is_a_failure_and_not_a_zero(raised):
    def score(answer):
        raise raised("no")

    found = ReasoningGymScore()(Problem("p", "", "", meta={"score": score}), "1")
    assert found == Failure(f"the scorer raised {raised.__name__}", "error")


def test_a_scorer_that_leaves_the_range_is_a_failure_and_not_a_zero():
    def problem(value):
        return Problem("p", "", "", meta={"score": lambda answer: float(value)})

    assert ReasoningGymScore()(problem(7), "1") == Failure("the scorer gave 7.0", "error")
    assert ReasoningGymScore()(problem(0.25), "1") == 0.25


def test_a_completion_that_a_scorer_cannot_read_leaves_the_run_alone():
    """`prime_factorization` turns what it is given into whole numbers: words make it raise."""
    problems = build(task="prime_factorization").train[:4]
    outcomes = [ReasoningGymScore()(problem, "I do not know.") for problem in problems]
    assert outcomes == [Verdict(0.0, answered=False)] * 4


def test_the_reward_needs_its_dataset_and_says_so():
    with pytest.raises(ConfigError, match=r"dataset=reasoning_gym alone"):
        ReasoningGymScore()(Problem("p", "", ""), "1")


# -- the whole package ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file.*arcagi:ResourceWarning")  # left open by what reasoning-gym reads
def test_every_task_is_accepted_with_a_right_scorer_or_refused_with_a_reason(monkeypatch):
    """99 of 105 tasks of 0.1.25 have a scorer that knows their own answers from garbage."""
    from reasoning_gym.factory import DATASETS

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    refused = set()
    for task in sorted(set(DATASETS) - {"composite"}):
        try:
            made = build(task, train_examples=4, validation_examples=1, allow_eval=True)
        except ConfigError as error:
            assert "cannot be trusted" in str(error)  # noqa: PT017
            refused.add(task)
            continue
        assert all(p.meta["score"](p.answer) >= 0.99 for p in made.train)
    assert refused == {
        "boxnet", "game_of_life_halting", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour",
    }  # fmt: skip


@pytest.mark.slow
def test_the_tasks_named_as_shuffled_are_all_that_change_with_the_hash_seed(tmp_path):
    import json
    import os
    import subprocess
    import sys

    code = (
        "import contextlib, io, json, warnings; warnings.simplefilter('ignore')\n"
        "import reasoning_gym; from reasoning_gym.factory import DATASETS\n"
        "found = {}\n"
        "for task in sorted(set(DATASETS) - {'composite'}):\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        made = reasoning_gym.create_dataset(task, size=100, seed=7)\n"
        "        found[task] = [[made[i]['question'], str(made[i]['answer'])] for i in range(4)]\n"
        "print(json.dumps(found))"
    )
    runs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert {task for task in runs[0] if runs[0][task] != runs[1][task]} <= set(SHUFFLED)
