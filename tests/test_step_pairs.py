"""`step-pairs`: one slip, plausible, and nothing else between chosen and rejected."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from posttrain.batch import Problem
from posttrain.data.step_pairs import StepPairs, _paired
from posttrain.data.steps import Steps
from posttrain.registry import ConfigError

PAIRS = StepPairs(train_examples=300, validation_examples=60).build(3)


def lines(written: str) -> list[str]:
    """The equations of a worked answer."""
    return written.split(";")[:-1]


def wrong(equation: str) -> int:
    """How much too large a result is, modulo ten."""
    left, result = equation.split("=")
    return (int(result) - exact(left)) % 10


def exact(left: str) -> int:
    a, sign, b = int(left[0]), left[1], int(left[2])
    return {"+": a + b, "-": a - b, "*": a * b}[sign] % 10


def test_the_pairs_are_about_the_problems_of_steps_and_chosen_is_the_worked_answer():
    plain = Steps(train_examples=300, validation_examples=60).build(3)
    for some, others in ((PAIRS.train, plain.train), (PAIRS.validation, plain.validation)):
        for pair, problem in zip(some, others, strict=True):
            assert (pair.prompt, pair.answer, pair.id) == (problem.prompt, problem.answer, problem.id)
            assert pair.responses[:1] == problem.responses
            assert len(pair.responses) == 2


def test_a_rejected_answer_has_one_slip_goes_on_from_it_and_ends_at_a_wrong_number():
    for pair in (*PAIRS.train, *PAIRS.validation):
        chosen, rejected = pair.responses
        assert len(chosen) == len(rejected)
        slips = [place for place, line in enumerate(lines(rejected)) if wrong(line)]
        assert slips == [pair.drawn["slip"][0]]
        assert wrong(lines(rejected)[slips[0]]) == pair.drawn["slip"][1]
        assert lines(chosen)[: slips[0]] == lines(rejected)[: slips[0]]
        for before, after in pairwise(lines(rejected)):
            assert before[-1] == after[0]
        assert rejected[-1] == lines(rejected)[-1][-1] != pair.answer


def test_slips_are_those_that_a_small_model_makes_wherever_there_is_such_a_one():
    plausible = 0
    for pair in PAIRS.train:
        place, by = pair.drawn["slip"]
        likely = lines(pair.responses[1])[place][1] != "*" and by % 2 == 0
        others = [step for step, sign in enumerate(pair.drawn["operations"]) if sign != 2]
        plausible += likely
        assert likely or not others or "0" in pair.prompt or "5" in pair.prompt
    assert plausible > 250


def test_a_product_that_forgives_every_likely_slip_gets_another():
    """(7 - 2) * 5 is 5 whatever even number the difference is off by: the slip is in the product."""
    problem = Problem(
        "p", "7-2*5=", "5", responses=("7-2=5;5*5=5;5",), drawn={"digits": [7, 2, 5], "operations": [1, 2]}
    )
    for seed in range(20):
        made = _paired(np.random.default_rng(seed), problem)
        place, by = made.drawn["slip"]
        assert place == 1 or by % 2 == 1
        assert made.responses[1][-1] != "5"


def test_options_of_step_pairs_are_those_of_steps():
    with pytest.raises(ConfigError, match=r"dataset\.shortest: found 0"):
        StepPairs(shortest=0)
    assert [f.name for f in fields(StepPairs)] == [f.name for f in fields(Steps)]
