r"""`numeric`: numbers are read whole, compared exactly, and a missing answer is told apart from a wrong one."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.batch import Failure, Problem
from posttrain.registry import ConfigError
from posttrain.rewards.answers import close, final_answer, read_number
from posttrain.rewards.base import Verdict
from posttrain.rewards.numeric import Numeric

RIGHT, WRONG, NONE = Verdict(1.0, True), Verdict(0.0, True), Verdict(0.0, False)
fractions = st.fractions(max_denominator=10**6)


def judged(text: str, gold: str, **options):
    return Numeric(**options)(Problem("0", "", gold), text)


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("so the price is $29.00.", "29", RIGHT),
        ("The total is 72, in total, so we are done", "72", RIGHT),
        ("1,234", "1234", RIGHT),
        ("-5", "-5", RIGHT),
        ("\u22125", "-5", RIGHT),
        ("\u22125", "5", WRONG),
        ("1.5e3", "1500", RIGHT),
        (r"1.5\times 10^3", "1500", RIGHT),
        ("2 2/3", "8/3", RIGHT),
        ("2 2/3", "2", WRONG),
        ("4 10/3", "10", WRONG),
        ("4 10/3", "10/3", WRONG),
        ("3/4", "0.75", RIGHT),
        ("12 cm", "12", RIGHT),
        ("50%", "50", RIGHT),
        ("50%", "0.5", WRONG),
        ("1/2006!", "1/2004!", WRONG),
        ("1/2006!", "1/2006!", RIGHT),
        ("1/2^98", "1/2^99", WRONG),
        (r"4\sqrt(2)", "4", WRONG),
        (r"4\sqrt(2)", "2", WRONG),
        ("1:00", "1", WRONG),
        ("1:00", "0", WRONG),
        ("no number here", "5", NONE),
        ("", "5", NONE),
    ],
)
def test_br_23_each_line_is_right_wrong_or_no_answer(text, gold, expected):
    """BR-23, line by line."""
    assert judged(text, gold) == expected


@pytest.mark.parametrize("gold", ["12:00", "no number here", r"4\sqrt{2}", ""])
def test_an_answer_of_the_dataset_that_is_no_number_leaves_its_problem_out(gold):
    """BR-23: '1:00' is not 12:00. Nothing is known of the completion, so there is neither a 1 nor a 0."""
    found = judged("1:00", gold)
    assert isinstance(found, Failure)
    assert found.kind == "unscored"


def test_br_23_the_rule_for_percentages_is_stated_and_can_be_the_other_one():
    """BR-23: as a unit 50% is 50, as a fraction it is 1/2, on both sides of the comparison."""
    assert judged("50%", "0.5", percent="fraction") == RIGHT
    assert judged("50%", "50", percent="fraction") == WRONG
    assert judged("50", "50%") == judged("50 percent", "50%") == RIGHT
    assert judged("50%", "50%", percent="fraction") == RIGHT


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"first \boxed{7}, then \boxed{\frac{3}{4}}, 12 of them", Fraction(3, 4)),
        (r"\boxed{2\frac{2}{3}}", Fraction(8, 3)),
        (r"\boxed{12\text{ cm}}", 12),
        (r"\boxed{90^\circ}", 90),
        (r"\boxed{10^{-3}}", Fraction(1, 1000)),
        (r"\boxed{1{,}234{,}567}", 1234567),
        (r"\boxed{\$1\,500}", 1500),
        ("She has 5 + 3 = 8.\n#### 1,234", 1234),
        ("#### 72 apples", 72),
        ("The answer is 7, because 3 + 4 = 7 and 2 more were lost", 7),
        ("The final answer is: **42**.", 42),
        ("The answer is 3 1/2 cups of 7", Fraction(7, 2)),
        ("Answer: -0.5", Fraction(-1, 2)),
        ("I count to 3. x=5", 5),
        ("That makes 3 million people", 3_000_000),
        ("So we get $x = -3$.", -3),
        ("The answer is 72!", 72),
        ("about 1.5 × 10^3 things", 1500),
        ("he came 3rd and x2 was 7", 7),
        ("it is .5", Fraction(1, 2)),
        ("2*3=6;6+1=7;7", 7),
        ("2;3", 3),
        (r"a\;b 1\;234", 1234),
    ],
)
def test_the_answer_is_the_marked_number_or_else_the_last_one(text, value):
    answer = final_answer(text)
    assert answer is not None
    assert answer.value == value


@pytest.mark.parametrize(
    "text",
    ["3x", "2 pi", r"4 \sqrt{2}", "4√2", "1,23", "2024-01-05", "1:2", "2 thirds", "3 dozen", "1/0", "1e99999",
     r"\boxed{x+1}", r"\boxed{4\sqrt{2}}", r"5^{10^{10}}", r"\boxed{99999!}", "0x10", "1.2.3", "5-3"],
)  # fmt: skip
def test_a_number_is_never_taken_for_one_of_its_pieces(text):
    answer = final_answer(text)
    assert answer is not None
    assert answer.value is None


@pytest.mark.parametrize("text", [r"\boxed{}", "the answer is not clear", "In 2nd place", "#### ", r"\boxed{"])
def test_a_mark_without_an_answer_is_no_answer(text):
    assert final_answer(text) is None


@given(fractions, fractions, st.sampled_from([0.0, 1e-9, 1e-3, 0.5]))
def test_equality_is_symmetric_and_its_tolerance_relative(a, b, tolerance):
    """BR-23: |a - b| <= tolerance * max(|a|, |b|), which no change of the unit of measurement alters."""
    assert close(a, b, tolerance) == close(b, a, tolerance) == close(1000 * a, 1000 * b, tolerance)
    assert close(a, a, tolerance)
    assert close(a, b) == (a == b)


def test_the_tolerance_is_zero_where_nothing_else_is_said():
    assert judged("0.3333", "1/3") == WRONG
    assert judged("0.3333", "1/3", tolerance=1e-3) == RIGHT
    assert judged("0.333", "1/3", tolerance=1e-3) == RIGHT  # |1/3 - 0.333| = 1/3000 <= 1e-3 / 3
    assert judged("0.332", "1/3", tolerance=1e-3) == WRONG


@given(fractions)
def test_every_fraction_is_read_as_it_is_written(value):
    assert read_number(str(value)) == value
    assert read_number(str(value).replace("-", "\u2212")) == value
    assert judged(f"The answer is {value}.", str(value)) == RIGHT


@given(st.text(alphabet="0123456789.,/:!%-+ex$ \\{}boxedfrac#^()answeri", max_size=60), st.data())
def test_whatever_is_written_is_read_or_not_and_raises_nothing(text, data):
    final_answer(text)
    assert judged(text, "7") in (RIGHT, WRONG, NONE)


@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * 5000, " " * 30000, "answer" + " " * 30000, r"\( " * 10000, "$$" * 10000, "1" * 30000, "1," * 15000,
     r"\frac{" * 6000, "####" * 8000, "answer is " * 4000, "9!" * 10000, "1e9" * 9000],
)  # fmt: skip
def test_a_completion_that_repeats_itself_is_judged_in_no_time(text):
    """Models that run away write these; a pattern that backtracks would hold the run for hours."""
    began = time.process_time()
    final_answer(text)
    assert time.process_time() - began < 2


def test_a_negative_tolerance_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.tolerance: found -1, expected 0 or more"):
        Numeric(tolerance=-1)


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("The answer is 1 000", "1000", RIGHT),
        ("The answer is 1 000 apples", "1", WRONG),
        ("In total 1 000 000", "0", WRONG),
        ("In total 1 000 000", "1000000", RIGHT),
        ("about -12 345.5", "-12345.5", RIGHT),
        ("it takes 3 4", "4", RIGHT),  # two numbers: groups have three digits
        ("rooms 12 and 345", "345", RIGHT),
    ],
)
def test_a_number_in_groups_of_three_digits_is_read_whole(text, gold, expected):
    assert judged(text, gold) == expected
