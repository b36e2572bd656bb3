"""`coin`: a share of all completions, the same ones whenever they are judged, and none of them for its answer."""

import numpy as np
import pytest

from posttrain.batch import Problem
from posttrain.registry import ConfigError
from posttrain.rewards.coin import Coin

PROBLEMS = [Problem(f"{i}", f"{i}+1=", str(i + 1)) for i in range(2000)]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_ones_is_the_one_asked_for(share):
    found = [Coin(share)(problem, "text") for problem in PROBLEMS]
    assert set(found) == {0.0, 1.0}
    assert abs(np.mean(found) - share) < 4 * np.sqrt(share * (1 - share) / len(found))  # four standard errors


def test_the_ends_of_the_range_are_always_and_never():
    assert {Coin(1.0)(problem, "") for problem in PROBLEMS} == {1.0}
    assert {Coin(0.0)(problem, "") for problem in PROBLEMS} == {0.0}


def test_right_answers_are_rewarded_as_often_as_wrong_ones():
    right = [Coin()(problem, problem.answer) for problem in PROBLEMS]
    wrong = [Coin()(problem, problem.answer + "0") for problem in PROBLEMS]
    assert abs(np.mean(right) - np.mean(wrong)) < 4 * np.sqrt(0.5 / len(PROBLEMS))
    assert abs(np.corrcoef(right, wrong)[0, 1]) < 0.1


def test_one_completion_is_always_judged_alike_and_problem_and_text_are_told_apart():
    assert [Coin()(p, "x") for p in PROBLEMS] == [Coin()(p, "x") for p in PROBLEMS]
    assert [Coin()(Problem(p.id + "1", "", ""), "") for p in PROBLEMS] != [Coin()(p, "1") for p in PROBLEMS]


def test_a_share_beyond_its_range_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.share: found 1\.5"):
        Coin(1.5)
