"""Laws of `posttrain.artifacts.item_statistics`: what the items of a benchmark can say."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from posttrain.artifacts.item_statistics import (
    clustered_standard_error,
    clustered_wilson,
    mcnemar,
    newcombe,
    pass_at_k,
    wilson,
)
from posttrain.artifacts.statistics import sample_sd

ORACLES = json.loads((Path(__file__).parent / "oracles" / "statistics_oracles.json").read_text())
tables = st.tuples(*[st.integers(0, 40)] * 4).filter(any)


def close(value, rel=1e-12):
    return pytest.approx(value, rel=rel, abs=1e-15)


@pytest.mark.parametrize(("share", "expected"), ORACLES["wilson95"].items())
def test_wilson_follows_the_table(share, expected):
    found = wilson(*map(int, share.split("/")))
    assert [found.low, found.high] == close(expected)


@given(st.integers(1, 300), st.data())
def test_wilson_agrees_with_scipy_and_stays_within_zero_and_one(n, data):
    successes = data.draw(st.integers(0, n))
    found = wilson(successes, n)
    expected = scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], rel=1e-9, abs=1e-12)
    assert 0 <= found.low <= successes / n <= found.high <= 1


@pytest.mark.parametrize(("key", "p"), ORACLES["mcnemar_exact"].items())
def test_mcnemar_follows_the_table(key, p):
    b, c = (int(part.split("=")[1]) for part in key.split(","))
    assert mcnemar(b, c) == mcnemar(c, b) == close(p)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_binomial_tail_doubled(b, c):
    tail = Fraction(sum(math.comb(b + c, i) for i in range(min(b, c) + 1)), 2 ** (b + c))
    assert mcnemar(b, c) == close(float(min(Fraction(1), 2 * tail)))


def test_clustered_error_uses_the_small_sample_factor():
    scores = [1, 1, 0, 0, 1, 0]
    assert clustered_standard_error(scores, "aabbcc") == close(math.sqrt(2) / 6 * math.sqrt(3 / 2))
    assert clustered_standard_error(scores, "aabbcc") == pytest.approx(0.288675, abs=5e-7)


def test_clustered_error_of_single_items_is_the_usual_one():
    scores = [1, 1, 0, 0, 1, 0]
    assert clustered_standard_error(scores, range(6)) == close(sample_sd(scores) / math.sqrt(6))
    assert clustered_standard_error(scores, range(6)) == pytest.approx(0.223607, abs=5e-7)


@pytest.mark.parametrize(("k", "expected"), [(1, 0.3), (2, 0.5333333333333333), (5, 0.9166666666666666), (8, 1.0)])
def test_pass_at_k_follows_the_table(k, expected):
    assert pass_at_k(10, 3, k) == close(expected)


def test_counts_that_cannot_be_are_refused():
    for successes, n in ((-1, 4), (5, 4), (0, 0)):
        with pytest.raises(ValueError, match="0 <= successes <= n"):
            wilson(successes, n)
    with pytest.raises(ValueError, match="must not be negative"):
        mcnemar(-1, 3)
    for n, c, k in ((10, 11, 1), (10, -1, 1), (10, 3, 0), (10, 3, 11)):
        with pytest.raises(ValueError, match="1 <= k <= n"):
            pass_at_k(n, c, k)
    with pytest.raises(ValueError, match="at least 2 clusters, found 1"):
        clustered_standard_error([1, 0], "aa")
    with pytest.raises(ValueError, match="zip"):
        clustered_standard_error([1, 0], "abc")


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    """Of all subsets of 3 of 6 samples, 2 of them right: 1 - (4 choose 3) / (6 choose 3) = 1 - 4/20."""
    assert pass_at_k(6, 2, 3) == 0.8


@given(st.integers(1, 2000), st.data())
def test_pass_at_k_loses_no_digit_at_any_size_and_agrees_with_the_product(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - math.prod((Fraction(i - k, i) for i in range(n - c + 1, n + 1)), start=Fraction(1))
    exact = exact if n - c >= k else Fraction(1)
    assert pass_at_k(n, c, k) == float(exact)


@given(st.integers(1, 300))
def test_wilson_of_none_and_of_all_is_never_a_point(n):
    none, every = wilson(0, n), wilson(n, n)
    assert none.low == 0 < none.high
    assert every.low < 1 == every.high
    assert every.low == close(1 - none.high, rel=1e-9)


def test_newcombe_gives_the_published_example():
    """Newcombe 1998, table II: 36 both, 12 first, 2 second, 0 neither: 0.0569 to 0.3404."""
    found = newcombe(36, 12, 2, 0)
    assert [found.low, found.high] == pytest.approx([0.0569, 0.3404], abs=5e-5)


@given(tables)
def test_newcombe_holds_the_difference_turns_with_the_roles_and_is_never_a_point(table):
    both, first, second, neither = table
    found, turned = newcombe(*table), newcombe(both, second, first, neither)
    assert -1 <= found.low <= (first - second) / sum(table) <= found.high <= 1
    assert found.low < found.high
    assert [turned.low, turned.high] == pytest.approx([-found.high, -found.low], abs=1e-12)


def test_a_share_without_clusters_has_nearly_wilsons_interval():
    """Single items: the error is that of a proportion with n - 1, and Student's quantile is near the normal one."""
    share, n = 0.3, 2000
    found = clustered_wilson(share, math.sqrt(share * (1 - share) / (n - 1)), n)
    expected = wilson(600, n)
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=1e-4)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=60))
def test_the_clustered_interval_holds_the_share_within_zero_and_one_and_is_never_a_point(right):
    rates = [c / 8 for c in right]
    share = math.fsum(rates) / len(rates)
    found = clustered_wilson(share, clustered_standard_error(rates, range(len(rates))), len(rates))
    assert 0 <= found.low <= share <= found.high <= 1
    assert found.low < found.high


def test_the_clustered_interval_covers_where_a_normal_one_does_not():
    """30 prompts of 8 samples, of which most are never solved: 95 % is meant, a t interval holds 79 %."""
    generator, hits, normal = np.random.default_rng(0), 0, 0
    quantile = scipy.stats.t.ppf(0.975, 29)
    for _ in range(400):
        rates = generator.binomial(8, generator.beta(0.05, 5, 30)) / 8
        share, error = float(rates.mean()), float(rates.std(ddof=1) / math.sqrt(30))
        found = clustered_wilson(share, error, 30)
        hits += found.low <= 0.05 / 5.05 <= found.high
        normal += abs(share - 0.05 / 5.05) <= quantile * error
    assert normal / 400 < 0.85
    assert hits / 400 > 0.93


def test_an_interval_of_clusters_needs_a_share_an_error_and_two_clusters():
    for bad in ((1.1, 0.1, 5), (0.5, -0.1, 5), (0.5, 0.1, 1)):
        with pytest.raises(ValueError, match="at least 2 clusters"):
            clustered_wilson(*bad)
    with pytest.raises(ValueError, match="must not be negative"):
        newcombe(1, -1, 0, 0)


def test_with_few_clusters_the_quantile_is_students_and_not_the_normal_one():
    """Share 1/2, error 1/4, 3 clusters: n = (1/4) / (1/16) = 4 and t = 4.302653 for 2 degrees of freedom.

    z2 = 18.512821; half width = sqrt(z2 (1/16 + z2/64)) / (1 + z2/4) = 2.551887 / 5.628205 = 0.453411. The normal
    quantile would give 0.349959.
    """
    found = clustered_wilson(0.5, 0.25, 3)
    assert [found.low, found.high] == pytest.approx([0.5 - 0.453411, 0.5 + 0.453411], abs=1e-5)
    normal = wilson(2, 4)
    assert [normal.low, normal.high] == pytest.approx([0.5 - 0.349959, 0.5 + 0.349959], abs=1e-4)


@given(st.integers(2, 12), st.floats(0.05, 0.95))
def test_fewer_clusters_make_a_wider_interval_of_the_same_share_and_error(clusters, share):
    error = math.sqrt(share * (1 - share) / 20)
    few, more = (clustered_wilson(share, error, number) for number in (clusters, clusters + 1))
    assert few.low < more.low
    assert more.high < few.high
