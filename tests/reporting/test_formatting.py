"""The one number formatter, and tables."""

import math

import pytest

from posttrain.reporting.formatting import cell, declared, interval, number, option, seeds, table
from posttrain.reporting.page import command


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (-0.0, "0"), (3, "3"), (True, "true"), (0.5, "0.5000"), (0.609375, "0.6094"),
        (0.00048828125, "0.0004883"), (0.000048828125, "4.883e-5"), (-0.0002848307, "-0.0002848"), (12345.678, "12350"),
        (1234567.0, "1.235e6"), (1e-9, "1.000e-9"), (0.99999, "1.000"), (9.9999e-5, "0.0001000"), (1.5, "1.500"),
    ],
)  # fmt: skip
def test_a_number_has_four_significant_digits_and_an_exponent_only_where_it_helps(value, text):
    assert number(value) == text


def test_halves_go_to_even_in_decimal_not_in_binary():
    assert number(0.12345) == "0.1234"
    assert number(0.12355) == "0.1236"
    assert number(2.5, 1) == "2"
    assert number(3.5, 1) == "4"


def test_signs_are_shown_where_a_difference_is_meant():
    assert number(0.25, signed=True) == "+0.2500"
    assert number(0.0, signed=True) == "0"
    assert interval([-0.1, 0.2]) == "[-0.1000, +0.2000]"
    assert interval(None) == "–"


def test_every_printed_number_reads_back_within_its_last_digit():
    for exponent in range(-12, 12):
        for mantissa in (1.0, 1.2344999, 5.0, 9.9995, 9.99949):
            value = mantissa * 10.0**exponent
            assert math.isclose(float(number(value)), value, rel_tol=5.1e-4)


def test_declared_numbers_keep_the_digits_that_were_written():
    assert [declared(value) for value in (0.95, 1.0, 1e-9, -0.02)] == ["0.95", "1", "1e-09", "-0.02"]


def test_seeds_are_a_range_where_they_are_one():
    assert seeds([42, 43, 44]) == "42-44"
    assert seeds([42]) == "42"
    assert seeds([3, 1]) == "3, 1"


def test_a_cell_cannot_break_its_table():
    assert cell("KL(p || q)\nof <script>") == "KL(p \\|\\| q) of &lt;script>"
    assert table(("a", "b"), [("1", "x|y")], right=[0]) == "| a | b |\n| ---: | --- |\n| 1 | x\\|y |"


def test_options_read_as_on_the_command_line():
    assert option({"rule": "extremes", "k": 2, "on": True, "x": None, "r": [0.1]}) == (
        "{rule: extremes, k: 2, on: true, x: null, r: [0.1]}"
    )


def test_a_command_is_shown_without_what_belongs_to_one_go_of_it():
    """The command on a page makes the same numbers anywhere: a resumed run is no other run."""
    words = ["posttrain", "train", "grpo", "--output", "runs/a", "--resume", "auto", "--jobs=2", "--save-steps", "5"]
    assert command({"argv": [*words, "--resume=auto", "seeds=1-3", "note=a b"]}) == (
        "posttrain train grpo seeds=1-3 'note=a b'"
    )
