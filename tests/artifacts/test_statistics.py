"""Laws of `posttrain.artifacts.statistics` and `posttrain.artifacts.verdicts`."""

import dataclasses
import json
import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.artifacts import statistics, verdicts
from posttrain.artifacts.statistics import (
    bca_interval,
    benjamini_hochberg,
    count_wins,
    effect,
    gain,
    generator_from,
    hodges_lehmann,
    holm,
    interval,
    mde_80,
    mde_multiplier,
    mean,
    min_attainable_p,
    sample_sd,
    seeds_needed,
    sign_flip,
    t_interval,
)
from posttrain.artifacts.verdicts import Comparison, adjust, compare

ORACLES = json.loads((Path(__file__).parent / "oracles" / "statistics_oracles.json").read_text())
WORKED = ORACLES["worked"]
BENCH = ORACLES["historical_bench"]
HIGHER, LOWER = "higher is better", "lower is better"

# Per-seed values of the three recorded bench artifacts, seeds 0 to 7, as (baseline, idea).
RECORDED = {
    "semantic_pushforward_classification": (
        [
            *(0.2824999988079071, 0.32499998807907104, 0.32999998331069946, 0.17499999701976776),
            *(0.2800000011920929, 0.2750000059604645, 0.26749998331069946, 0.29249998927116394),
        ],
        [
            *(0.2800000011920929, 0.32249999046325684, 0.3349999785423279, 0.17249999940395355),
            *(0.2775000035762787, 0.27250000834465027, 0.26999998092651367, 0.29749998450279236),
        ],
    ),
    "multiscale_diffusion_pde": (
        [
            *(0.0005983817973174155, 0.0007256286917254329, 0.0006302266265265644, 0.00048197503201663494),
            *(0.0006429867353290319, 0.00040344681474380195, 0.000893245916813612, 0.0006197866168804467),
        ],
        [
            *(0.048095669597387314, 0.06269505620002747, 0.060969557613134384, 0.0601036362349987),
            *(0.04443567618727684, 0.06491053104400635, 0.06635342538356781, 0.06359688937664032),
        ],
    ),
    "sequence": (
        [
            *(0.5299221873283386, 0.45885390043258667, 0.5064432621002197, 0.5547861456871033),
            *(0.5245285630226135, 0.5539869070053101, 0.6065487861633301, 0.5218554735183716),
        ],
        [
            *(0.6348236799240112, 0.39886191487312317, 0.5056540369987488, 0.5536980628967285),
            *(0.5338740348815918, 0.5505685210227966, 0.602857768535614, 0.5354554057121277),
        ],
    ),
}


def close(value, rel=1e-12):
    return pytest.approx(value, rel=rel, abs=1e-15)


def by_seed(values):
    return dict(enumerate(values))


def judged(differences, *, direction=HIGHER, sesoi=0.05, **plan) -> Comparison:
    """Compare arms with exactly these differences: the rival is 0 at every seed."""
    zeros = [0.0] * len(differences)
    return compare(
        by_seed(differences), by_seed(zeros), metric="/final/accuracy", direction=direction, sesoi=sesoi, **plan
    )


def bench(track, **plan) -> Comparison:
    baseline, idea = RECORDED[track]
    return compare(by_seed(idea), by_seed(baseline), metric="error", direction=LOWER, **plan)


def brute_force(differences, fold=abs) -> Fraction:
    """Every sign pattern, each sum by fsum, with the tie tolerance."""
    tau = 1e-12 * math.fsum(map(abs, differences))
    limit = fold(math.fsum(differences)) - tau
    patterns = list(product((1, -1), repeat=len(differences)))
    sums = (math.fsum(s * d for s, d in zip(signs, differences, strict=True)) for signs in patterns)
    return Fraction(sum(fold(total) >= limit for total in sums), len(patterns))


moderate = st.floats(-1e3, 1e3).map(lambda x: round(x, 9))
grid = st.integers(-8, 8).map(lambda i: i / 10)  # decimals whose sums tie up to rounding
samples = st.one_of(st.lists(moderate, min_size=1, max_size=10), st.lists(grid, min_size=1, max_size=10))
p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=12)


class TestSignFlip:
    @pytest.mark.parametrize("case", WORKED.values(), ids=WORKED)
    def test_every_worked_example_has_its_exact_count_and_p(self, case):
        result = sign_flip(case["d"])
        assert f"{result.count}/{result.total}" == case["count"]
        assert result.p_value == case["exact_two_sided"]
        assert (result.method, result.standard_error) == ("exact_signflip", None)
        assert sign_flip(case["d"], alternative="greater").p_value == case["exact_greater"]
        assert sign_flip(case["d"], alternative="less").p_value == case["exact_less"]

    @pytest.mark.parametrize("track", BENCH)
    def test_recorded_bench_artifacts_have_their_exact_count(self, track):
        baseline, idea = RECORDED[track]
        result = sign_flip([b - a for a, b in zip(baseline, idea, strict=True)])
        assert f"{result.count}/{result.total}" == BENCH[track]["count"]

    def test_sums_that_tie_up_to_rounding_are_counted_as_ties(self):
        case = WORKED["G_mixed8"]
        assert sign_flip(case["d"]).p_value == 0.046875 != case["naive_no_tolerance_two_sided"]

    def test_zeros_stay_in_and_double_both_counts(self):
        with_zero, without = sign_flip([0.3, 0.0, 0.5, -0.1]), sign_flip([0.3, 0.5, -0.1])
        assert (with_zero.count, with_zero.total) == (2 * without.count, 2 * without.total)

    @pytest.mark.parametrize("n", range(1, 17))
    def test_equal_signs_reach_the_smallest_attainable_p(self, n):
        row = ORACLES["min_p_signflip"][str(n)]
        d = [1.0 + i / 7 for i in range(n)]
        assert sign_flip(d).p_value == min_attainable_p(n) == row["two_sided"]
        assert sign_flip(d, alternative="greater").p_value == row["one_sided"]

    @pytest.mark.parametrize("n", range(1, 17))
    def test_largest_attainable_p_below_five_per_cent_is_a_multiple_of_the_smallest(self, n):
        largest = ORACLES["min_p_signflip"][str(n)]["largest_p_le_0.05"]
        steps = math.floor(0.05 / min_attainable_p(n))
        assert largest == (steps * min_attainable_p(n) if steps else None)

    def test_twenty_seeds_are_exact_and_twenty_one_are_monte_carlo(self):
        d = [0.1 * (-1) ** i + 0.03 * i for i in range(21)]
        assert sign_flip(d[:20]).total == 2**20
        assert sign_flip(d).method == "mc_signflip"

    @pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
    def test_monte_carlo_agrees_with_the_exact_test_within_its_standard_error(self, monkeypatch, alternative):
        d = list(np.random.default_rng(5).normal(0.3, 1.0, size=18))
        exact = sign_flip(d, alternative=alternative)
        monkeypatch.setattr(statistics, "EXACT_UP_TO", 17)
        drawn = sign_flip(d, alternative=alternative)
        assert (exact.method, drawn.method) == ("exact_signflip", "mc_signflip")
        assert drawn.p_value == pytest.approx(exact.p_value, abs=4 * drawn.standard_error)

    def test_monte_carlo_adds_one_to_both_counts_and_states_its_error(self):
        result = sign_flip([1.0] * 30)
        assert (result.count, result.total) == (0, 99_999)
        assert result.p_value == 1 / 100_000
        assert result.standard_error == close(math.sqrt(1e-5 * (1 - 1e-5) / 99_999))

    def test_monte_carlo_repeats_for_a_seed_and_differs_between_seeds(self):
        d = list(np.random.default_rng(1).normal(0.2, 1.0, size=24))
        assert sign_flip(d, seed=b"plan/one") == sign_flip(d, seed=b"plan/one")
        assert sign_flip(d, seed=b"plan/one") != sign_flip(d, seed=b"plan/two")

    def test_monte_carlo_draws_tenfold_where_alpha_is_within_three_errors(self):
        d = list(np.random.default_rng(1).normal(0.2, 1.0, size=24))
        far = sign_flip(d, alpha=0.5)
        assert far.total == 99_999
        near = sign_flip(d, alpha=far.p_value + 2.9 * far.standard_error)
        assert near.total == 999_990
        assert sign_flip(d, alpha=far.p_value + 3.1 * far.standard_error) == far
        assert near.p_value == pytest.approx(far.p_value, abs=4 * far.standard_error)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_non_finite_input_is_refused_by_name_and_position(self, bad):
        for function in (sign_flip, t_interval, interval, hodges_lehmann, mde_80, mean, sample_sd):
            with pytest.raises(ValueError, match=rf"found {bad} at position 2"):
                function([1.0, 2.0, bad])
        with pytest.raises(ValueError, match="at position 2"):
            effect([1.0, 2.0, bad], HIGHER)

    def test_empty_input_is_refused(self):
        for function in (sign_flip, t_interval, interval, hodges_lehmann, mde_80, mean, sample_sd):
            with pytest.raises(ValueError, match="found none"):
                function([])

    def test_an_unknown_alternative_is_refused(self):
        with pytest.raises(ValueError, match="found 'bigger'"):
            sign_flip([1.0], alternative="bigger")

    @given(samples)
    def test_p_does_not_depend_on_the_sign_of_all_differences(self, d):
        assert sign_flip(d) == sign_flip([-x for x in d])

    @given(samples, st.randoms())
    def test_p_does_not_depend_on_the_order_of_the_seeds(self, d, random):
        shuffled = random.sample(d, len(d))
        assert sign_flip(d) == sign_flip(shuffled)

    @given(samples)
    def test_p_is_never_below_the_smallest_attainable(self, d):
        assert sign_flip(d).p_value >= min_attainable_p(len(d))

    @settings(max_examples=60, deadline=None)
    @given(samples)
    def test_exact_p_equals_the_enumeration_of_all_signs(self, d):
        result = sign_flip(d)
        assert Fraction(result.count, result.total) == brute_force(d)

    @settings(max_examples=60, deadline=None)
    @given(samples)
    def test_one_sided_p_equals_its_enumeration_and_mirrors(self, d):
        greater = sign_flip(d, alternative="greater")
        assert Fraction(greater.count, greater.total) == brute_force(d, fold=lambda x: x)
        assert greater == sign_flip([-x for x in d], alternative="less")


class TestSeedCounts:
    @pytest.mark.parametrize(("key", "n"), ORACLES["n_needed_two_sided"].items())
    def test_seeds_needed_follow_the_table(self, key, n):
        alpha, k = (part.split("=")[1] for part in key.split(","))
        assert seeds_needed(float(alpha), int(k)) == n

    @given(st.floats(1e-4, 0.5), st.integers(1, 200))
    def test_seeds_needed_is_the_first_count_that_can_pass_holms_first_step(self, alpha, k):
        n = seeds_needed(alpha, k)
        assert k * min_attainable_p(n) <= alpha
        assert n == 1 or k * min_attainable_p(n - 1) > alpha

    def test_impossible_plans_are_refused(self):
        with pytest.raises(ValueError, match="found 0"):
            min_attainable_p(0)
        for alpha, k in ((0.0, 1), (1.0, 1), (math.nan, 1), (0.05, 0)):
            with pytest.raises(ValueError, match="needs 0 < alpha < 1"):
                seeds_needed(alpha, k)


class TestIntervals:
    @pytest.mark.parametrize("case", [c for c in WORKED.values() if c["n"] > 1])
    def test_every_worked_example_has_its_t_interval(self, case):
        found = t_interval(case["d"])
        assert [found.low, found.high] == close(case["t_ci95"])
        assert found.method == "t"

    @pytest.mark.parametrize("n", [3, 5, 8, 10, 12, 20])
    def test_half_width_is_its_multiplier_times_the_sd(self, n):
        d = [math.sin(i) for i in range(n)]
        found = t_interval(d)
        multiplier = ORACLES["mde80_multiplier_of_sd_diff"][str(n)]["ci_halfwidth_t975/sqrt n"]
        assert (found.high - found.low) / 2 == close(multiplier * sample_sd(d))

    @given(st.lists(moderate, min_size=2, max_size=30), st.floats(0.5, 0.99))
    def test_t_interval_agrees_with_scipy(self, d, level):
        found = t_interval(d, level)
        if sample_sd(d) > 0:
            low, high = scipy.stats.t.interval(level, len(d) - 1, loc=np.mean(d), scale=scipy.stats.sem(d))
            assert [found.low, found.high] == pytest.approx([low, high], rel=1e-9, abs=1e-9 * max(map(abs, d)))
        else:
            assert found.low == found.high == mean(d)

    @pytest.mark.parametrize("track", BENCH)
    def test_bca_reproduces_the_recorded_bootstrap(self, track):
        baseline, idea = RECORDED[track]
        d = [b - a for a, b in zip(baseline, idea, strict=True)]
        found = bca_interval(d, generator=np.random.default_rng(0))
        assert [found.low, found.high] == close(BENCH[track]["bca95_seed0_9999"])

    def test_t_is_used_below_twenty_seeds_and_bca_from_twenty(self):
        d = list(np.random.default_rng(2).exponential(size=20))
        assert interval(d[:19]) == t_interval(d[:19])
        assert interval(d) == bca_interval(d, generator=generator_from(b""))
        assert interval(d).method == "bca"

    def test_twenty_equal_differences_have_a_zero_width_t_interval(self):
        found = interval([0.1] * 20)
        assert (found.low, found.high, found.method) == (mean([0.1] * 20), mean([0.1] * 20), "t")
        with pytest.raises(ValueError, match="20 equal differences"):
            bca_interval([0.1] * 20, generator=generator_from(b""))

    def test_bootstrap_repeats_for_a_seed_and_differs_between_seeds(self):
        d = list(np.random.default_rng(2).exponential(size=25))
        assert interval(d, seed=b"a") == interval(d, seed=b"a") != interval(d, seed=b"b")

    def test_one_seed_has_no_interval(self):
        assert interval([0.4]) is None
        with pytest.raises(ValueError, match="at least 2 differences, found 1"):
            t_interval([0.4])

    def test_a_level_that_is_no_probability_is_refused(self):
        for level in (0.0, 1.0, 95.0, math.nan):
            with pytest.raises(ValueError, match="level must lie between 0 and 1"):
                t_interval([1.0, 2.0], level)


class TestEffects:
    @pytest.mark.parametrize("case", WORKED.values(), ids=WORKED)
    def test_every_worked_example_has_its_effect_sizes(self, case):
        found = effect(case["d"], HIGHER)
        assert found.dz == (None if case["dz"] is None else close(case["dz"]))
        assert found.g_z == (None if case["g_z"] is None else close(case["g_z"]))
        assert found.prob_superiority == case["prob_positive_half_ties"]
        assert mean(case["d"]) == close(case["mean"])
        if case["n"] > 1:
            assert sample_sd(case["d"]) == close(case["sd_ddof1"])

    def test_direction_turns_superiority_but_not_the_sign_of_dz(self):
        d = WORKED["K_n12"]["d"]
        assert effect(d, LOWER).dz == effect(d, HIGHER).dz
        assert effect(d, LOWER).prob_superiority == close(1 - effect(d, HIGHER).prob_superiority)
        assert (count_wins(d, HIGHER), count_wins(d, LOWER), d.count(0.0)) == (9, 2, 1)

    def test_an_unknown_direction_is_refused(self):
        with pytest.raises(ValueError, match="found 'up'"):
            gain(1.0, "up")

    def test_differences_equal_up_to_rounding_have_no_spread(self):
        d = [0.9 - 0.8, 0.8 - 0.7, 0.7 - 0.6, 0.4 - 0.3]
        assert len(set(d)) > 1
        assert sample_sd(d) == 0.0
        assert effect(d, HIGHER).dz is None

    @given(st.lists(grid, min_size=1, max_size=9))
    def test_hodges_lehmann_is_the_median_of_pairwise_means(self, d):
        pairs = [(d[i] + d[j]) / 2 for i in range(len(d)) for j in range(i, len(d))]
        assert hodges_lehmann(d) == close(float(np.median(pairs)))

    def test_hodges_lehmann_resists_one_wild_seed(self):
        assert hodges_lehmann([1.0, 2.0, 3.0]) == 2.0
        assert hodges_lehmann([1.0, 2.0, 3.0, 4.0, 1000.0]) == 3.0

    def test_before_and_after_gains_of_sparse_opd_are_as_recorded(self):
        case = ORACLES["sparse_opd_before_after"]
        d, found = case["d"], t_interval(case["d"])
        assert (sign_flip(d).p_value, mean(d)) == (0.25, close(case["mean"]))
        assert sample_sd(d) == close(case["sd_ddof1"])
        assert [found.low, found.high] == close(case["t_ci95"])
        assert (effect(d, HIGHER).dz, effect(d, HIGHER).g_z) == (close(case["dz"]), close(case["g_z"]))
        assert judged(d).verdict == "insufficient seeds (min p = 0.25)"


class TestDetectableEffect:
    @pytest.mark.parametrize(("n", "row"), ORACLES["mde80_multiplier_of_sd_diff"].items())
    def test_multipliers_follow_the_table(self, n, row):
        assert mde_multiplier(int(n), 0.05, 0.80) == close(row["t_noncentral"], rel=1e-10)
        assert mde_multiplier(int(n), 0.01, 0.80) == close(row["t_alpha.01"], rel=1e-10)

    @given(st.integers(4, 60), st.floats(0.01, 0.2), st.floats(0.3, 0.95))
    @settings(max_examples=30, deadline=None)
    def test_the_t_test_has_the_stated_power_at_the_multiplier(self, n, alpha, power):
        shift = mde_multiplier(n, alpha, power) * math.sqrt(n)
        critical = scipy.stats.t.ppf(1 - alpha / 2, n - 1)
        reached = scipy.stats.nct.sf(critical, n - 1, shift) + scipy.stats.nct.cdf(-critical, n - 1, shift)
        assert reached == pytest.approx(power, abs=1e-7)

    def test_impossible_plans_are_refused(self):
        for n, alpha, power in ((1, 0.05, 0.8), (8, 0.0, 0.8), (8, 0.8, 0.8), (8, 0.05, 1.0), (8, math.nan, 0.8)):
            with pytest.raises(ValueError, match="needs n >= 2 and 0 < alpha < power < 1"):
                mde_multiplier(n, alpha, power)

    @pytest.mark.parametrize("case", WORKED.values(), ids=WORKED)
    def test_mde_80_is_none_below_six_seeds_and_without_spread(self, case):
        undefined = case["n"] < 6 or case["sd_ddof1"] == 0
        assert mde_80(case["d"]) == (None if undefined else close(case["mde80"], rel=1e-10))


class TestMultiplicity:
    def test_oracle_families_are_reproduced(self):
        oracle = ORACLES["multiplicity"]
        assert holm(oracle["p"]) == close(tuple(oracle["holm"]))
        assert benjamini_hochberg(oracle["p"]) == close(tuple(oracle["fdr_bh"]))
        assert holm(oracle["p8"]) == tuple(oracle["holm_p8"])

    @given(p_lists)
    def test_holm_keeps_the_order_of_p_and_lies_between_raw_and_bonferroni(self, p):
        adjusted = holm(p)
        assert all(raw <= a <= min(1.0, len(p) * raw) for raw, a in zip(p, adjusted, strict=True))
        pairs = sorted(zip(p, adjusted, strict=True))
        assert [a for _, a in pairs] == sorted(adjusted)

    @given(p_lists)
    def test_benjamini_hochberg_agrees_with_scipy_and_never_exceeds_holm(self, p):
        adjusted = benjamini_hochberg(p)
        assert adjusted == pytest.approx(tuple(scipy.stats.false_discovery_control(p)), rel=1e-12, abs=1e-300)
        assert all(a <= h * (1 + 1e-12) for a, h in zip(adjusted, holm(p), strict=True))

    def test_a_number_that_is_no_probability_is_refused(self):
        for adjustment in (holm, benjamini_hochberg):
            for bad in (math.nan, -0.1, 1.1):
                with pytest.raises(ValueError, match=r"p-values must lie in \[0, 1\]"):
                    adjustment([0.5, bad])

    def test_an_empty_family_has_no_adjusted_values(self):
        assert holm([]) == benjamini_hochberg([]) == adjust([]) == ()


class TestVerdicts:
    @pytest.mark.parametrize(
        ("case", "verdict"),
        [
            ("H_n1", "insufficient seeds (min p = 1.0)"),
            ("I_n2", "insufficient seeds (min p = 0.5)"),
            ("A_n3_allpos", "insufficient seeds (min p = 0.25)"),
            ("D_float_tie", "insufficient seeds (min p = 0.25)"),
            ("C_zeros_ties", "insufficient seeds (min p = 0.125)"),
            ("J_n5_allpos", "insufficient seeds (min p = 0.0625)"),
            ("B_n6_allpos", "idea better (significant)"),
            ("E_all_zero", "no measurable effect"),
            ("F_constant", "idea better (significant)"),
            ("G_mixed8", "idea better (significant)"),
            ("K_n12", "idea better (significant)"),
        ],
    )
    def test_small_samples_get_the_verdict_of_the_table(self, case, verdict):
        found = judged(WORKED[case]["d"], sesoi=0.005)
        assert found.verdict == verdict
        assert found.system_worked == (verdict == "idea better (significant)")
        assert f"{found.p_count}/{found.p_total}" == WORKED[case]["count"]
        assert found.p_adjusted == found.p_value == WORKED[case]["exact_two_sided"]
        assert found.ci95 == (close(tuple(WORKED[case]["t_ci95"])) if found.n_pairs > 1 else None)
        assert (found.wins, found.ties) == (WORKED[case]["pos"], WORKED[case]["zero"])

    @pytest.mark.parametrize(
        ("differences", "state"),
        [
            ([0.0], "identical"),
            ([0.4], "none"),
            ([-0.0, 0.0] * 4, "identical"),
            ([0.1] * 8, "zero_variance"),
            ([0.1] * 7 + [0.2], "none"),
        ],
    )
    def test_degenerate_differences_are_flagged(self, differences, state):
        found = judged(differences)
        assert found.degenerate == state
        assert state == "none" or (found.effect.dz, found.effect.g_z, found.mde_80) == (None, None, None)

    @pytest.mark.parametrize(
        ("track", "verdict"),
        [
            ("semantic_pushforward_classification", "no measurable effect"),
            ("multiscale_diffusion_pde", "idea worse (significant)"),
            ("sequence", "no significant win"),
        ],
    )
    def test_recorded_bench_artifacts_get_their_recorded_verdict(self, track, verdict):
        found, oracle = bench(track), BENCH[track]
        assert (found.verdict, found.system_worked) == (verdict, False)
        assert found.delta_mean == close(oracle["mean"])
        assert found.p_value == oracle["exact_two_sided"]
        assert found.ci95 == close(tuple(oracle["t_ci95"]))
        assert (found.effect.dz, found.effect.g_z) == (close(oracle["dz"]), close(oracle["g_z"]))
        assert found.mde_80 == close(oracle["mde80_paired_t"], rel=1e-10)
        assert found.wins == oracle["neg"]  # lower is better
        assert found.sesoi == close(0.05 * mean(RECORDED[track][0]))

    def test_holm_over_the_three_recorded_tracks_keeps_their_verdicts(self):
        found = adjust([bench(track, family_size=3) for track in BENCH])
        assert [c.p_adjusted for c in found] == [BENCH[track]["holm_if_3_tracks"] for track in BENCH]
        assert [c.verdict for c in found] == [bench(track).verdict for track in BENCH]

    @pytest.mark.parametrize(
        ("idea", "rival", "reason"),
        [
            ({1: 0.1, 2: 0.2}, {1: 0.1}, "seeds [2] only in idea"),
            ({1: 0.1}, {1: 0.1, 2: 0.2, 3: 0.3}, "seeds [2, 3] only in rival"),
            ({1: 0.1, 2: 0.2}, {2: 0.1, 3: math.nan}, "seeds [1] only in idea, seeds [3] only in rival"),
            ({}, {}, "no seeds"),
        ],
    )
    def test_unpaired_arms_are_invalid_even_with_a_failure_value(self, idea, rival, reason):
        found = compare(idea, rival, metric="m", direction=HIGHER, failure_value=0.0)
        assert found.verdict == f"invalid: {reason}"
        assert_no_number(found)
        assert found.seeds == tuple(sorted({*idea, *rival}))

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_values_that_are_not_finite_are_invalid_without_a_failure_value(self, bad):
        idea, rival = by_seed([0.5] * 8), by_seed([0.4] * 8)
        found = compare({**idea, 5: bad}, {**rival, 2: bad, 5: bad}, metric="m", direction=HIGHER)
        assert (found.verdict, found.n_failed) == ("invalid: non-finite in seeds [2, 5]", 2)
        assert_no_number(found)

    def test_a_declared_failure_value_stands_for_failed_seeds_and_is_counted(self):
        idea, rival = {**by_seed([0.5] * 8), 5: math.nan}, {**by_seed([0.4] * 8), 2: math.inf, 5: math.nan}
        found = compare(idea, rival, metric="m", direction=HIGHER, failure_value=0.0)
        assert found.per_seed_diffs == tuple(close(d) for d in (0.1, 0.1, 0.5, 0.1, 0.1, 0.0, 0.1, 0.1))
        assert (found.n_failed, found.ties, found.wins) == (2, 1, 7)
        assert found.sesoi == close(0.05 * 0.4 * 6 / 8)

    def test_pairing_is_by_seed_and_not_by_position(self):
        found = compare({64: 4.0, 3: 1.0, 100: 9.0}, {100: 2.0, 64: 1.0, 3: 0.5}, metric="m", direction=HIGHER)
        assert (found.seeds, found.per_seed_diffs) == ((3, 64, 100), (0.5, 3.0, 7.0))

    def test_swapping_the_direction_swaps_better_and_worse(self):
        d = WORKED["B_n6_allpos"]["d"]
        assert judged(d, direction=LOWER).verdict == "idea worse (significant)"
        assert judged([-x for x in d], direction=LOWER).verdict == "idea better (significant)"

    @pytest.mark.parametrize(("k", "verdict"), [(1, "idea better (significant)"), (2, "insufficient")])
    def test_a_larger_family_needs_more_seeds(self, k, verdict):
        assert judged(WORKED["B_n6_allpos"]["d"], family_size=k).verdict.startswith(verdict)

    def test_a_smallest_p_of_exactly_alpha_is_sufficient(self):
        d = WORKED["B_n6_allpos"]["d"]
        assert judged(d, alpha=0.03125).verdict == "idea better (significant)"
        assert judged(d, alpha=0.0312499).verdict == "insufficient seeds (min p = 0.03125)"
        assert judged(d[:5], alpha=0.0625).verdict == "idea better (significant)"

    def test_few_seeds_outrank_identical_arms(self):
        assert judged([0.0] * 5).verdict == "insufficient seeds (min p = 0.0625)"
        assert judged([0.0] * 6).verdict == "no measurable effect"

    def test_identical_arms_need_neither_a_margin_nor_the_rest_of_the_family(self):
        assert judged([0.0] * 8, sesoi=0.0).verdict == "no measurable effect"
        assert judged([0.0] * 8, family_size=2).verdict == "no measurable effect"

    def test_a_significant_gain_below_the_smallest_effect_of_interest_is_no_success(self):
        d = [0.5] * 8
        small = judged(d, sesoi=math.nextafter(0.5, 1))
        assert small.verdict == "idea better (significant), below smallest effect of interest"
        assert small.system_worked is False
        at_limit = judged(d, sesoi=0.5)
        assert (at_limit.verdict, at_limit.system_worked) == ("idea better (significant)", True)

    def test_equality_is_earned_only_by_an_interval_strictly_inside_the_margin(self):
        d = [0.3, -0.1, -0.2, 0.1, 0.2, -0.25]
        found = t_interval(d)
        edge = max(-found.low, found.high)
        assert judged(d, sesoi=edge).verdict == "no significant win"
        assert judged(d, sesoi=math.nextafter(edge, 1)).verdict == "no measurable effect"

    def test_a_margin_of_zero_never_earns_equality(self):
        d = [0.3, -0.1, -0.2, 0.1, 0.2, -0.25]
        found = compare(by_seed(d), by_seed([0.0] * 6), metric="m", direction=HIGHER)
        assert (found.sesoi, found.verdict) == (0.0, "no significant win")

    def test_equality_is_judged_by_the_t_interval_also_where_bca_is_reported(self):
        d = list(np.random.default_rng(3).exponential(size=24) - 1.0)
        t, reported = t_interval(d), judged(d)
        assert reported.ci_method == "bca"
        edge = max(-t.low, t.high)
        assert reported.ci95 != (t.low, t.high)
        assert judged(d, sesoi=edge).verdict == "no significant win"
        assert judged(d, sesoi=math.nextafter(edge, 1)).verdict == "no measurable effect"

    @pytest.mark.parametrize("differences", [[0.03] * 5 + [-0.01] * 3, [-0.2, 0.1, 0.4, -0.3, 0.2, 0.1, -0.1]])
    def test_every_verdict_is_on_the_closed_list(self, differences):
        closed = {
            verdicts.BETTER,
            verdicts.BETTER + verdicts.BELOW_SESOI,
            verdicts.WORSE,
            verdicts.NO_EFFECT,
            verdicts.NO_WIN,
        }
        for direction, sesoi in product((HIGHER, LOWER), (0.0, 0.02, 10.0)):
            found = judged(differences, direction=direction, sesoi=sesoi)
            assert found.verdict in closed
            assert found.system_worked == (found.verdict == verdicts.BETTER)

    @pytest.mark.parametrize(
        "plan",
        [
            {"direction": "up"},
            {"alpha": 0.0},
            {"alpha": math.nan},
            {"family_size": 0},
            {"sesoi": -0.1},
            {"sesoi": math.nan},
            {"sesoi": math.inf},
            {"failure_value": math.nan},
        ],
    )
    def test_a_plan_that_cannot_be_meant_is_refused(self, plan):
        with pytest.raises(ValueError, match=next(iter(plan))):
            compare({1: 0.5}, {1: 0.4}, **({"metric": "m", "direction": HIGHER} | plan))

    def test_the_declared_seed_feeds_signs_and_bootstrap(self):
        d = list(np.random.default_rng(1).normal(0.2, 1.0, size=24))
        one, two = judged(d, seed=b"one"), judged(d, seed=b"two")
        assert one == judged(d, seed=b"one")
        assert (one.p_method, one.ci_method) == ("mc_signflip", "bca")
        assert one.p_count != two.p_count
        assert one.ci95 != two.ci95


class TestFamily:
    def test_a_family_of_several_has_no_verdict_before_adjustment(self):
        found = judged(WORKED["K_n12"]["d"], family_size=10)
        assert (found.p_adjusted, found.verdict, found.system_worked) == (None, None, False)

    def test_members_not_given_count_as_p_equal_to_one(self):
        (found,) = adjust([judged(WORKED["K_n12"]["d"], sesoi=0.005, family_size=10)])
        assert found.p_adjusted == 10 * 0.0146484375
        assert found.verdict == "no significant win"

    def test_adjustment_derives_verdicts_anew_and_is_idempotent(self):
        strong = judged([0.1 * i for i in range(1, 13)], family_size=3)
        weak = judged(WORKED["K_n12"]["d"], sesoi=0.005, family_size=3)
        null = judged([0.3, -0.3] * 6, family_size=3)
        adjusted = adjust([weak, strong, null])
        assert [c.p_adjusted for c in adjusted] == list(holm([weak.p_value, strong.p_value, null.p_value]))
        assert [c.verdict for c in adjusted] == [verdicts.BETTER, verdicts.BETTER, verdicts.NO_WIN]
        assert adjusted[0].system_worked is True
        assert adjust(adjusted) == adjusted

    def test_a_family_of_one_is_adjusted_already(self):
        found = judged(WORKED["G_mixed8"]["d"])
        assert adjust([found]) == (found,)

    def test_invalid_members_stay_invalid_and_still_count(self):
        strong = judged([0.1 * i for i in range(1, 13)], family_size=2)
        broken = judged([math.nan] * 12, family_size=2)
        adjusted = adjust([broken, strong])
        assert adjusted[0] == broken
        assert adjusted[1].p_adjusted == 2 * strong.p_value

    def test_families_that_disagree_with_their_declaration_are_refused(self):
        d = WORKED["K_n12"]["d"]
        with pytest.raises(ValueError, match="one family has one size and one alpha"):
            adjust([judged(d, family_size=2), judged(d, family_size=3)])
        with pytest.raises(ValueError, match="one family has one size and one alpha"):
            adjust([judged(d, family_size=2), judged(d, family_size=2, alpha=0.01)])
        with pytest.raises(ValueError, match="declares 1 members, found 2"):
            adjust([judged(d), judged(d)])


class TestRecord:
    KEYS = (
        *("metric", "direction", "seeds", "per_seed_diffs", "n_pairs", "delta_mean", "wins", "ties", "p_value"),
        *("p_count", "p_total", "p_method", "p_adjusted", "adjustment", "ci95"),
        *("ci_method", "effect", "mde_80", "min_attainable_p", "n_failed", "degenerate"),
        *("verdict", "system_worked", "family_size", "alpha", "sesoi"),
    )

    def test_the_record_has_the_documented_keys_in_order_and_survives_json(self):
        record = judged(WORKED["G_mixed8"]["d"]).as_json()
        assert tuple(record) == self.KEYS
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert (record["p_method"], record["adjustment"], record["ci_method"]) == ("exact_signflip", "holm", "t")
        assert list(record["effect"]) == ["dz", "g_z", "prob_superiority"]

    @pytest.mark.parametrize("differences", [[0.4], [math.nan] * 6, [0.0] * 8, [0.1] * 8, [0.1, 0.3] * 15])
    def test_the_record_of_every_degenerate_case_survives_strict_json(self, differences):
        record = judged(differences).as_json()
        assert json.loads(json.dumps(record, allow_nan=False)) == record

    def test_a_comparison_cannot_be_edited(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            judged([0.1]).verdict = verdicts.BETTER


def assert_no_number(found: Comparison):
    """An invalid comparison says nothing about the effect."""
    assert found.system_worked is False
    assert (found.per_seed_diffs, found.n_pairs) == ((), 0)
    assert (found.delta_mean, found.wins, found.ties, found.effect, found.mde_80) == (None,) * 5
    assert (found.p_value, found.p_count, found.p_total, found.p_method, found.p_adjusted) == (None,) * 5
    assert (found.ci95, found.ci_method, found.min_attainable_p) == (None,) * 3
