"""The claim gate: what has no licence fails with its line, and the message says what would license it."""

from decimal import Decimal

import pytest

from posttrain.reporting.claims import check_text
from posttrain.reporting.licence import Licence, licence_of, marks_of
from posttrain.reporting.reading import read_suite

NUMBERS = frozenset(map(Decimal, ("0.609375", "0.0004883", "0.1171875", "-0.25", "12")))


def said(text, marks=(), counts=(), quotes=(), names=()):
    licence = Licence(NUMBERS, frozenset(marks), tuple(quotes), frozenset(counts))
    return [(problem.line, problem.message) for problem in check_text("page.md", text, licence, names, "grpo")]


@pytest.mark.parametrize(
    "text",
    [
        "Accuracy is 0.609.", "Accuracy is 0.61, or 61 %.", "It fell by 0.25.", "p = 4.883e-4", "up 11.72 points",
        "Two tokens of 64, with 12 seeds.", "See arXiv 2609.04565, section 3.6 and eq. 4.1, of 2026-09-03.",
        "In 2024 and 2025.", "Version 1.2.3 and v2.0.", "`0.777` and ``` are code", "```\n0.777 outperforms\n```",
        "[a link](https://example.org/0.777)", "<!-- 0.777 -->", "the 95 % interval; 80 % power", "seeds 42-53",
        "sha256:0.777e5a is not looked at in `sha256:0777e5a`", "No claim here at all.",
    ],
)  # fmt: skip
def test_licensed_numbers_names_dates_and_code_pass(text):
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Accuracy is 0.777.", "0.777"), ("up 77 %", "77 %"), ("3.7x faster", "3.7x"), ("5 times as fast", "5 times"),
        ("p = 4.8e-4", "4.8e-4"), ("**0.62**", "0.62"), ("| 0.62 |", "0.62"), ("(0.62)", "0.62"), ("−0.62", "0.62"),
        ("up 12.5 points", "12.5 points"), ("it rose in 3 of 3 seeds", "3 of 3 seeds"), ("0.6093", "0.6093"),
    ],
)  # fmt: skip
def test_a_number_that_no_artifact_holds_fails(text, found):
    problems = said("# title\n\n" + text)
    assert [line for line, _ in problems] == [3]
    assert found in problems[0][1]
    assert "posttrain train grpo" in problems[0][1]


@pytest.mark.parametrize(
    ("word", "mark"),
    [
        ("outperforms", "l3 better"), ("SOTA", "l3 better"), ("state-of-the-art", "l3 better"),
        ("a significant gain", "better"), ("significantly worse", "worse"), ("no significant difference", "tested"),
        ("exceeds", "better"), ("beats", "worked"), ("is better than", "worked"), ("improves on", "worked"),
        ("is worse than", "worse"), ("matches", "equal"), ("is on par", "equal"), ("confirms", "claim confirmed"),
        ("refuted", "claim refuted"), ("inconclusive", "claim inconclusive"), ("LLMs", "language model"),
        ("language models", "language model"),
    ],
)  # fmt: skip
def test_a_claim_word_needs_the_outcome_that_says_it(word, mark):
    problems = said(f"grpo {word} rloo")
    assert len(problems) == (2 if word == "significantly worse" else 1) or mark == "worse"
    assert "has no licence" in problems[0][1]
    assert said(f"grpo {word} rloo", marks=[mark, "worse"] if mark == "worse" else [mark]) == []


def test_no_run_of_a_mechanism_tier_licenses_the_words_of_a_ranking():
    everything = {"better", "worked", "worse", "equal", "tested", "claim confirmed", "language model"}
    assert [line for line, _ in said("It outperforms all.\nIt is SOTA.", marks=everything)] == [1, 2]


def test_a_significant_word_is_not_licensed_by_a_test_that_found_nothing():
    assert said("a significant gain", marks=["tested"]) != []
    assert said("no significant gain", marks=["tested"]) == []


def test_a_difference_below_the_smallest_effect_of_interest_licenses_no_win():
    def marks(verdict):
        entry = {"verdict": verdict}
        return set(marks_of({"evaluation_protocol": {"tier": "l1_mechanism"}, "comparison": [entry]}))

    assert marks("idea better (significant)") == {"tested", "better", "worked"}
    assert marks("idea better (significant), below smallest effect of interest") == {"tested", "better"}
    assert marks("no significant win") == {"tested"}
    assert marks("no measurable effect") == {"equal"}
    assert marks("insufficient seeds (min p = 0.25)") == set()


def test_the_message_says_which_run_would_license_the_word():
    assert "posttrain compare grpo RIVAL --seeds 12" in said("grpo beats rloo")[0][1]
    assert "posttrain reproduce grpo" in said("the claim is confirmed")[0][1]
    assert "L3" in said("it outperforms")[0][1]


def test_what_the_plan_wrote_may_be_quoted_and_nothing_like_it():
    claim = "extremes beat two random tokens by 0.02"
    assert said(f"| S2 | {claim} |", quotes=[claim]) == []
    assert said("| S2 | extremes beat two random tokens by 0.03 |", quotes=[claim]) != []


def test_lines_are_counted_through_code_comments_and_quotations():
    text = "```\na\nb\n```\n<!--\n\n-->\none\nquotation\nit beats all"
    assert [line for line, _ in said(text, quotes=["one quotation"])] == [10]


def test_a_title_is_a_name():
    title = "Your Language Model Beats 0.777"
    assert said(f"*{title}*", names=[title]) == []


def test_counts_of_seeds_are_licensed_as_pairs():
    assert said("rose in 5 of 6 seeds", counts=[(5, 6)]) == []
    assert said("rose in 6 of 6 seeds", counts=[(5, 6)]) != []


def test_artifacts_license_what_they_say(published):
    suite = read_suite(published)
    controlled = next(entry for entry in suite.entries if entry.value.get("comparison") and not entry.bench)
    verdicts = {entry["verdict"] for entry in controlled.value["comparison"]}
    marks = set(marks_of(controlled.value))
    assert ("better" in marks) == any(verdict.startswith("idea better") for verdict in verdicts)
    assert "l3 better" not in marks and "language model" not in marks
    accuracy = controlled.value["runs"][0]["final"]["accuracy"]
    licence = licence_of([controlled])
    assert licence.holds(f"{accuracy:.3f}")
    assert licence.holds(f"{100 * accuracy:.1f}", percent=True)
    assert not licence.holds("0.123456789")


def test_a_historical_artifact_licenses_numbers_and_no_words(published):
    historical = [entry for entry in read_suite(published).entries if entry.historical]
    assert len(historical) == 2
    assert licence_of(historical).marks == frozenset()
