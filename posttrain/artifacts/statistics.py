"""Statistics of paired training seeds: tests, intervals, effect sizes and multiplicity.

A difference is idea − rival at one training seed, in metric units; the seed is the unit of inference. What items of an
evaluation can say stands in `item_statistics`. Sums are `math.fsum`; standard deviations have ddof = 1; generators are
explicit.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

Alternative = Literal["two-sided", "greater", "less"]
Direction = Literal["higher is better", "lower is better"]

TIE_TOLERANCE = 1e-12  # of Σ|d|: sums and spreads closer than this differ by rounding only
EXACT_UP_TO = 20  # seeds; 2^20 sign patterns are counted in well under a second
MONTE_CARLO_DRAWS = 99_999
BCA_FROM = 20  # seeds; below, bootstrap intervals cover far less than their level
BCA_DRAWS = 9_999
_ROWS = 4096  # sign patterns drawn at a time
_EXTREMENESS = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}


@dataclass(frozen=True)
class SignFlip:
    """Result of a sign-flip test; p_value is count/total if exact, (count + 1)/(total + 1) if Monte Carlo."""

    p_value: float
    count: int  # sign patterns at least as extreme as the data
    total: int  # sign patterns examined
    method: Literal["exact_signflip", "mc_signflip"]
    standard_error: float | None  # of p_value; None if exact


@dataclass(frozen=True)
class Interval:
    """Confidence interval for a mean difference (metric units) or, of items, for a share or a difference of shares."""

    low: float
    high: float
    method: Literal["t", "bca", "wilson", "clustered_wilson", "newcombe"]


@dataclass(frozen=True)
class Effect:
    """Unitless effect sizes; None where undefined: dz and g_z without spread, dz below 2 seeds, g_z below 3."""

    dz: float | None
    g_z: float | None
    prob_superiority: float


def _finite(values: Sequence[float]) -> list[float]:
    """The values as floats; ValueError if there are none or one is NaN or infinite."""
    checked = [float(value) for value in values]
    bad = [f"{value} at position {i}" for i, value in enumerate(checked) if not math.isfinite(value)]
    if bad:
        raise ValueError(f"values must be finite, found {', '.join(bad)}")
    if not checked:
        raise ValueError("values must not be empty, found none")
    return checked


def mean(differences: Sequence[float]) -> float:
    """Mean difference in metric units; ValueError on empty or non-finite input."""
    d = _finite(differences)
    return math.fsum(d) / len(d)


def sample_sd(differences: Sequence[float]) -> float:
    """Standard deviation of the differences (ddof = 1, metric units), 0.0 if they agree within the tie tolerance.

    Raises ValueError on fewer than 2 values or non-finite ones.
    """
    d = _finite(differences)
    if len(d) < 2:
        raise ValueError("a standard deviation needs at least 2 differences, found 1")
    if max(d) - min(d) <= TIE_TOLERANCE * math.fsum(map(abs, d)):
        return 0.0
    centre = mean(d)
    return math.hypot(*(x - centre for x in d)) / math.sqrt(len(d) - 1)


def generator_from(seed: bytes) -> np.random.Generator:
    """PCG64 generator seeded from the SHA-256 of `seed` (plan digest followed by comparison id)."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(seed).digest(), "big")))


def sign_flip(
    differences: Sequence[float], *, alternative: Alternative = "two-sided", alpha: float = 0.05, seed: bytes = b""
) -> SignFlip:
    """Sign-flip test that every difference is symmetric about 0, on the statistic Σd (Fisher 1935).

    Exact up to 20 seeds, the observed signs and zeros counted. Beyond, random signs drawn from `seed` with the +1
    estimator (Phipson & Smyth 2010), tenfold as many if p lies within 3 standard errors of `alpha`.
    Raises ValueError on empty or non-finite input and on an unknown alternative.
    """
    d = _finite(differences)
    if alternative not in _EXTREMENESS:
        raise ValueError(f"alternative must be one of {', '.join(_EXTREMENESS)}, found {alternative!r}")
    extremeness = _EXTREMENESS[alternative]
    limit = float(extremeness(math.fsum(d))) - TIE_TOLERANCE * math.fsum(map(abs, d))
    if len(d) <= EXACT_UP_TO:
        half = len(d) // 2
        sums = np.add.outer(_signed_sums(d[:half]), _signed_sums(d[half:]))
        count, total = int(np.count_nonzero(extremeness(sums) >= limit)), sums.size
        return SignFlip(count / total, count, total, "exact_signflip", None)

    def monte_carlo(total: int) -> SignFlip:
        generator, count = generator_from(seed), 0
        for start in range(0, total, _ROWS):
            rows = min(_ROWS, total - start)
            signs = 2 * generator.integers(0, 2, size=(rows, len(d)), dtype=np.int8) - 1
            count += int(np.count_nonzero(extremeness(signs @ np.asarray(d)) >= limit))
        p = (count + 1) / (total + 1)
        return SignFlip(p, count, total, "mc_signflip", math.sqrt(p * (1 - p) / total))

    result = monte_carlo(MONTE_CARLO_DRAWS)
    near = abs(result.p_value - alpha) < 3 * (result.standard_error or 0.0)
    return monte_carlo(10 * MONTE_CARLO_DRAWS) if near else result


def _signed_sums(values: list[float]) -> np.ndarray:
    """Σ s·v for every pattern s of signs, each sum correctly rounded."""
    patterns = product((1.0, -1.0), repeat=len(values))
    return np.array([math.fsum(s * v for s, v in zip(signs, values, strict=True)) for signs in patterns])


def min_attainable_p(n: int) -> float:
    """Smallest two-sided p the exact sign-flip test can give at n seeds, 2^(1−n); ValueError if n < 1."""
    if n < 1:
        raise ValueError(f"n must be at least 1, found {n}")
    return 2.0 ** (1 - n)


def seeds_needed(alpha: float, family_size: int) -> int:
    """Fewest seeds at which the two-sided sign-flip test can pass Holm's first step in a family of this size.

    Raises ValueError unless 0 < alpha < 1 and family_size >= 1.
    """
    if not 0 < alpha < 1 or family_size < 1:
        raise ValueError(f"needs 0 < alpha < 1 and family_size >= 1, found {alpha} and {family_size}")
    n = 1
    while family_size * min_attainable_p(n) > alpha:
        n += 1
    return n


def upper_tail(level: float) -> float:
    """Cumulative probability at the upper end of a two-sided interval; ValueError unless 0 < level < 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, found {level}")
    return (1 + level) / 2


def t_interval(differences: Sequence[float], level: float = 0.95) -> Interval:
    """Student t interval for the mean difference (metric units); ValueError on fewer than 2 or non-finite values."""
    from scipy.special import stdtrit

    centre, sd, n = mean(differences), sample_sd(differences), len(differences)
    half_width = float(stdtrit(n - 1, upper_tail(level))) * sd / math.sqrt(n)
    return Interval(centre - half_width, centre + half_width, "t")


def bca_interval(differences: Sequence[float], *, generator: np.random.Generator, level: float = 0.95) -> Interval:
    """Bias-corrected accelerated bootstrap interval for the mean difference, metric units (Efron 1987).

    Raises ValueError on fewer than 2 or non-finite values, and where they have no spread.
    """
    from scipy.special import ndtr, ndtri

    d, centre, sd = np.asarray(_finite(differences)), mean(differences), sample_sd(differences)
    if sd == 0.0:
        raise ValueError(f"BCa is undefined without spread, found {len(d)} equal differences")
    means = d[generator.integers(0, len(d), size=(BCA_DRAWS, len(d)))].mean(axis=1)
    bias = ndtri(((means < centre).mean() + (means <= centre).mean()) / 2)
    acceleration = math.fsum(((d - centre) / sd) ** 3) / (6 * (len(d) - 1) ** 1.5)
    shifted = bias + ndtri(np.array([1 - upper_tail(level), upper_tail(level)]))
    low, high = np.quantile(means, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return Interval(float(low), float(high), "bca")


def interval(differences: Sequence[float], *, level: float = 0.95, seed: bytes = b"") -> Interval | None:
    """Interval for the mean difference (metric units): t below 20 seeds or without spread, else BCa; None at 1 seed.

    `seed` feeds the bootstrap. Raises ValueError on empty or non-finite input.
    """
    d = _finite(differences)
    if len(d) == 1:
        return None
    if len(d) < BCA_FROM or sample_sd(d) == 0.0:
        return t_interval(d, level)
    return bca_interval(d, generator=generator_from(seed), level=level)


def gain(difference: float, direction: Direction) -> float:
    """The difference turned so that positive is better, metric units; ValueError on an unknown direction."""
    if direction not in ("higher is better", "lower is better"):
        raise ValueError(f"direction must be 'higher is better' or 'lower is better', found {direction!r}")
    return difference if direction == "higher is better" else -difference


def count_wins(differences: Sequence[float], direction: Direction) -> int:
    """Number of seeds at which the idea is strictly better; ties are not wins. ValueError on an unknown direction."""
    return sum(gain(d, direction) > 0 for d in differences)


def effect(differences: Sequence[float], direction: Direction) -> Effect:
    """Effect sizes: d_z = mean/sd, its small-sample correction g_z (Hedges 1981), and (wins + ties/2)/n.

    d_z and g_z keep the sign of idea − rival; only the probability of superiority follows `direction`.
    Raises ValueError on empty or non-finite input and on an unknown direction.
    """
    d = _finite(differences)
    superiority = (count_wins(d, direction) + d.count(0.0) / 2) / len(d)
    if len(d) < 2 or sample_sd(d) == 0.0:
        return Effect(None, None, superiority)
    dz, nu = mean(d) / sample_sd(d), len(d) - 1
    if nu < 2:
        return Effect(dz, None, superiority)
    correction = math.exp(math.lgamma(nu / 2) - math.lgamma((nu - 1) / 2)) / math.sqrt(nu / 2)
    return Effect(dz, correction * dz, superiority)


def hodges_lehmann(differences: Sequence[float]) -> float:
    """Median of all pairwise means, a robust centre in metric units (Hodges & Lehmann 1963).

    Raises ValueError on empty or non-finite input.
    """
    d = np.asarray(_finite(differences))
    i, j = np.triu_indices(len(d))
    return float(np.median((d[i] + d[j]) / 2))


def mde_multiplier(n: int, alpha: float, power: float) -> float:
    """Mean difference, in sd of differences, at which the two-sided paired t test has this power at n seeds.

    The non-central t probability is integrated over the sample sd s (`scipy.stats.nct` is NaN at small n).
    Raises ValueError unless n >= 2 and 0 < alpha < power < 1.
    """
    from scipy.integrate import quad
    from scipy.optimize import root_scalar
    from scipy.special import gammaincinv, ndtr, ndtri, stdtrit

    if n < 2 or not 0 < alpha < power < 1:
        raise ValueError(f"needs n >= 2 and 0 < alpha < power < 1, found {n}, {alpha} and {power}")
    nu = n - 1
    critical = float(stdtrit(nu, 1 - alpha / 2))
    log_scale = math.log(2) + nu / 2 * math.log(nu / 2) - math.lgamma(nu / 2)
    reach = 12 / math.sqrt(2 * nu)  # twelve standard deviations of s about 1

    def power_missing(shift: float) -> float:
        def accepted(s: float) -> float:
            density = math.exp(log_scale + (nu - 1) * math.log(s) - nu * s * s / 2)
            return density * float(ndtr(critical * s - shift) - ndtr(-critical * s - shift))

        return quad(accepted, max(0.0, 1 - reach), 1 + reach, epsabs=1e-13, epsrel=1e-12, limit=200)[0] - (1 - power)

    # At this shift s and the normal part each miss with probability (1 − power)/2 at most.
    enough = critical * math.sqrt(2 * gammaincinv(nu / 2, (1 + power) / 2) / nu) + float(ndtri((1 + power) / 2))
    return float(root_scalar(power_missing, bracket=(0.0, enough), xtol=1e-13).root) / math.sqrt(n)


def mde_80(differences: Sequence[float]) -> float | None:
    """Minimum detectable effect at 80 % power and two-sided alpha .05, metric units.

    None below 6 seeds, where no effect can reach .05, and without spread. ValueError on empty or non-finite input.
    """
    d = _finite(differences)
    if min_attainable_p(len(d)) > 0.05 or sample_sd(d) == 0.0:
        return None
    return mde_multiplier(len(d), 0.05, 0.80) * sample_sd(d)


def _ascending(p_values: Sequence[float]) -> list[int]:
    """Positions of the p-values from smallest to largest; ValueError if one is no probability."""
    bad = [p for p in p_values if not 0 <= p <= 1]
    if bad:
        raise ValueError(f"p-values must lie in [0, 1], found {bad}")
    return sorted(range(len(p_values)), key=lambda i: p_values[i])


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values (Holm 1979), in the given order; ValueError outside [0, 1]."""
    adjusted, floor = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(_ascending(p_values)):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = floor
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """False-discovery-rate adjusted p-values (Benjamini & Hochberg 1995), for exploratory screens only.

    In the given order; ValueError outside [0, 1].
    """
    adjusted, ceiling = [0.0] * len(p_values), 1.0
    for rank, i in reversed(list(enumerate(_ascending(p_values), start=1))):
        ceiling = min(ceiling, len(p_values) * p_values[i] / rank)
        adjusted[i] = ceiling
    return tuple(adjusted)
