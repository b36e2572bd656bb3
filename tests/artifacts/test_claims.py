"""Laws of claims: a rule and a measurement give one outcome, and nothing measured confirms nothing."""

import pytest

from posttrain.artifacts.claims import RULES, judge


@pytest.mark.parametrize(
    ("rule", "threshold", "measured", "outcome"),
    [
        ("value at least threshold", 0.95, {"value": 0.95}, "confirmed"),
        ("value at least threshold", 0.95, {"value": 0.94}, "refuted"),
        ("value at most threshold", 2, {"value": 2}, "confirmed"),
        ("value at most threshold", 2, {"value": 2.1}, "refuted"),
        ("interval at least threshold", 0.95, {"ci95": [0.95, 1.2]}, "confirmed"),
        ("interval at least threshold", 0.95, {"ci95": [0.90, 0.94]}, "refuted"),
        ("interval at least threshold", 0.95, {"ci95": [0.90, 0.95]}, "inconclusive"),
        ("interval at most threshold", 0.1, {"ci95": [-0.2, 0.1]}, "confirmed"),
        ("interval at most threshold", 0.1, {"ci95": [0.11, 0.2]}, "refuted"),
        ("interval above threshold", 0, {"ci95": [0.0, 0.1]}, "inconclusive"),
        ("interval above threshold", 0, {"ci95": [0.01, 0.1]}, "confirmed"),
        ("interval above threshold", 0, {"ci95": [-0.2, -0.1]}, "refuted"),
        ("every interval above threshold", 0, {"accuracy": [0.1, 0.2], "kl": [0.1, 0.3], "n": 8}, "confirmed"),
        ("every interval above threshold", 0, {"accuracy": [0.1, 0.2], "kl": [-0.1, 0.3]}, "inconclusive"),
        ("every interval above threshold", 0, {"accuracy": [0.1, 0.2], "kl": [-0.2, -0.1]}, "refuted"),
        ("every interval above threshold", 0, {"accuracy": [0.1, 0.2], "kl": [None, 1.0]}, "inconclusive"),
        ("every interval above threshold", 0, {"accuracy": [-0.2, -0.1], "kl": [0.1, None]}, "inconclusive"),
        ("every interval above threshold", 0, {"n": 8}, "inconclusive"),
        ("accuracy falls while entropy rises", 0, {"value": 1}, None),
        ("value at least threshold", None, {"value": 1}, None),
    ],
)
def test_a_rule_of_the_closed_list_gives_its_outcome_and_free_words_give_none(rule, threshold, measured, outcome):
    assert judge(rule, threshold, measured) == outcome


@pytest.mark.parametrize("rule", [*RULES, "free words"])
def test_nothing_measured_is_inconclusive(rule):
    assert judge(rule, 0.5, None) == "inconclusive"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("measured", [{}, {"value": None}, {"ci95": None}, {"ci95": [None, 1.0]}, {"ci95": [1.0]}])
def test_a_missing_quantity_is_inconclusive(rule, measured):
    assert judge(rule, 0.5, measured) == "inconclusive"
