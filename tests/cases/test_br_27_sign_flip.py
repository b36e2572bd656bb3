"""Case BR-27: a permutation p-value of zero, ties left out, and a level that cannot be reached."""

from fractions import Fraction
from itertools import product

import pytest

from posttrain.artifacts import statistics
from posttrain.artifacts.statistics import min_attainable_p, sign_flip
from posttrain.artifacts.verdicts import compare


def enumerated(differences) -> Fraction:
    """All 2^n sign flips in exact arithmetic: the share with |T| at least |T observed|."""
    exact = [Fraction(str(d)) for d in differences]
    observed = abs(sum(exact))
    signs = product((1, -1), repeat=len(exact))
    flips = [abs(sum(s * d for s, d in zip(pattern, exact, strict=True))) for pattern in signs]
    return Fraction(sum(flip >= observed for flip in flips), len(flips))


def judged(differences):
    """The comparison as an artifact records it."""
    arms = dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)
    return compare(*arms, metric="accuracy", direction="higher is better")


def test_br_27_a_none_as_extreme_among_99_resamples_is_one_in_a_hundred(monkeypatch):
    """BR-27 (a): (0 + 1) / (99 + 1) = 0.01, never 0."""
    monkeypatch.setattr(statistics, "MONTE_CARLO_DRAWS", 99)
    found = sign_flip([float(d) for d in range(1, 31)])
    assert (found.count, found.total, found.method) == (0, 99, "mc_signflip")
    assert found.p_value == 0.01


@pytest.mark.parametrize(
    ("differences", "count", "total", "p"),
    [
        ([1, 2, 3, 4, 5], 2, 32, 0.0625),
        (list(range(1, 11)), 2, 1024, 0.001953125),
        ([0.1, 0.2, 0.3, -0.4, 0.7, 0.1], 24, 64, 0.375),
        ([0.0] * 7, 128, 128, 1.0),
    ],
    ids=["b", "c", "d", "e"],
)
def test_br_27_exact_values_with_ties_counted(differences, count, total, p):
    """BR-27 (b-e): 2/32, 2/1024, 3/8 (a plain float >= gives 0.34375, > gives 0.25) and 1, as by enumeration."""
    found = sign_flip([float(d) for d in differences])
    assert (found.count, found.total, found.p_value) == (count, total, p)
    assert Fraction(found.count, found.total) == enumerated(differences)
    assert found.method == "exact_signflip"  # the name that the artifact prints


def test_br_27_b_five_pairs_cannot_reach_the_level_and_no_verdict_pretends_so():
    """BR-27 (b): the smallest p of n = 5 is 0.0625, which the verdict says."""
    assert min_attainable_p(5) == 0.0625
    found = judged([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.verdict == "insufficient seeds (min p = 0.0625)"
    assert not found.system_worked
    assert judged([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).verdict == "idea better (significant)"


def test_br_27_e_equal_arms_have_p_one_and_no_effect():
    """BR-27 (e)."""
    found = judged([0.0] * 8)
    assert (found.p_value, found.degenerate, found.system_worked) == (1.0, "identical", False)


def test_br_27_f_one_pair_and_none_give_no_verdict_and_a_reason():
    """BR-27 (f)."""
    one = judged([0.5])
    assert one.verdict == "insufficient seeds (min p = 1.0)"
    assert one.ci95 is None
    none = judged([])
    assert none.verdict == "invalid: no seeds"
    assert none.p_value is None
    with pytest.raises(ValueError, match="must not be empty"):
        sign_flip([])


@pytest.mark.parametrize("n", [1, 5, 16])
def test_br_27_whatever_can_be_enumerated_within_the_resamples_is(n):
    """BR-27: 2^n at most the number of resamples is counted exactly, and says so."""
    assert 2**n <= statistics.MONTE_CARLO_DRAWS
    found = sign_flip([float(d) for d in range(1, n + 1)])
    assert (found.method, found.total, found.standard_error) == ("exact_signflip", 2**n, None)
