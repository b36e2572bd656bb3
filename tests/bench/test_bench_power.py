"""How often a planted effect is found, and its absence is not: a seeded simulation against the power table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posttrain.artifacts.bench_statistics import judge
from posttrain.artifacts.statistics import sign_flip
from posttrain.bench.conduct import conduct

# evidence.md 3.4: power of the sign-flip test at a true d_z of 1, two-sided alpha .05.
POWER = {6: 0.36, 8: 0.65, 10: 0.80, 12: 0.89}
REPLICATES = 2000


def rejections(n: int, dz: float, replicates: int, seed: int) -> float:
    """Share of replicates with p <= .05 among normal differences with this effect."""
    rng = np.random.default_rng(seed)
    return sum(sign_flip(rng.normal(dz, 1.0, n)).p_value <= 0.05 for _ in range(replicates)) / replicates


@pytest.mark.parametrize(("n", "power"), POWER.items())
def test_an_effect_of_one_deviation_is_found_as_often_as_the_table_says(n: int, power: float) -> None:
    """Four binomial standard errors, and half a unit of the table's last digit."""
    slack = 4 * (power * (1 - power) / REPLICATES) ** 0.5 + 0.005
    assert rejections(n, 1.0, REPLICATES, seed=n) == pytest.approx(power, abs=slack)


@pytest.mark.parametrize("n", POWER)
def test_an_absent_effect_is_found_no_more_often_than_alpha(n: int) -> None:
    attainable = np.floor(0.05 * 2**n / 2) * 2 / 2**n
    slack = 4 * (attainable * (1 - attainable) / REPLICATES) ** 0.5
    assert rejections(n, 0.0, REPLICATES, seed=100 + n) == pytest.approx(attainable, abs=slack)


def test_five_seeds_find_nothing_however_large_the_effect() -> None:
    assert rejections(5, 50.0, 20, seed=0) == 0


def test_the_judged_comparison_finds_and_misses_at_the_same_rates() -> None:
    """Whole arms through the rules that an artifact is judged by: 200 benches with an effect, 200 without."""
    rng = np.random.default_rng(7)
    found = {0.0: 0, 1.0: 0}
    for dz in found:
        for _ in range(200):
            level, noise = rng.normal(10, 5, 8), rng.normal(0, 1, 8)
            c = judge(list(level), list(level - dz + noise), direction="lower is better", sesoi_rel_pct=0.0)
            found[dz] += c.verdict == "idea better (significant)"
    # one-sided share of the attainable .046875, and the table's .65; four standard errors
    assert found[0.0] / 200 == pytest.approx(0.0234, abs=4 * (0.0234 * 0.9766 / 200) ** 0.5)
    assert found[1.0] / 200 == pytest.approx(POWER[8], abs=4 * (0.65 * 0.35 / 200) ** 0.5 + 0.005)


@pytest.mark.slow
def test_whole_runs_find_and_miss_at_the_same_rates(planted: Callable[..., Any], tmp_path: Path) -> None:
    """The planted track from plan to artifact: difference noise of both arms has deviation sqrt(2) * 0.1."""
    found = {0.0: 0, 1.0: 0}
    for dz in found:
        for i in range(60):
            seeds = f"evaluation_seeds={1000 + 8 * i}-{1007 + 8 * i}"
            bench = planted([seeds, "sesoi_rel_pct=0"], effect=dz * 0.1 * 2**0.5, salt=1)
            verdict = conduct(bench, tmp_path / f"{dz}-{i}").artifact["comparison"]["verdict"]
            found[dz] += verdict == "idea better (significant)"
    assert found[0.0] / 60 <= 0.0234 + 4 * (0.0234 * 0.9766 / 60) ** 0.5
    assert found[1.0] / 60 == pytest.approx(POWER[8], abs=4 * (0.65 * 0.35 / 60) ** 0.5 + 0.005)
