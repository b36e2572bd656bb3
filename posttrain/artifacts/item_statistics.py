"""Statistics of evaluation items: what the questions of a benchmark can say about one checkpoint or a pair of them.

The unit of inference is the item (the prompt): these functions never speak about a method, whose unit is the training
seed (`statistics`). No interval here has width zero unless nothing can be unknown: 0 of n right leaves room above 0.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from posttrain.artifacts.statistics import Interval, mean, upper_tail


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval for a proportion of n items (Wilson 1927); ValueError unless 0 <= successes <= n, n > 0."""
    from scipy.special import ndtri

    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"needs 0 <= successes <= n and n > 0, found {successes} of {n}")
    low, high = _score_interval(successes / n, n, float(ndtri(upper_tail(level))))
    return Interval(low, high, "wilson")


def _score_interval(share: float, n: float, quantile: float) -> tuple[float, float]:
    """Ends of the score interval of a share of n items, within 0 and 1 and with the share inside."""
    z2 = quantile**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half_width = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if share == 0 else min(share, max(0.0, centre - half_width))
    return low, 1.0 if share == 1 else max(share, min(1.0, centre + half_width))


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided McNemar p-value; b and c count items only one checkpoint got right (McNemar 1947).

    Raises ValueError on a negative count.
    """
    from scipy.special import bdtr

    if min(b, c) < 0:
        raise ValueError(f"counts must not be negative, found {b} and {c}")
    return min(1.0, 2 * float(bdtr(min(b, c), b + c, 0.5)))


def newcombe(both: int, first: int, second: int, neither: int, level: float = 0.95) -> Interval:
    """Interval for the difference of two paired proportions, first − second (Newcombe 1998, method 10).

    Items that both got right, only the first, only the second, neither. Wilson's intervals of the two shares, joined
    with the correlation of the table (continuity-corrected); never of width zero. ValueError as `wilson`.
    """
    if min(both, first, second, neither) < 0:
        raise ValueError(f"counts must not be negative, found {both}, {first}, {second}, {neither}")
    n = both + first + second + neither
    ours, theirs = wilson(both + first, n, level), wilson(both + second, n, level)
    share, other = (both + first) / n, (both + second) / n
    phi = _correlation(both, first, second, neither)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    difference = (first - second) / n
    low = difference - reach(share - ours.low, theirs.high - other)
    high = difference + reach(ours.high - share, other - theirs.low)
    return Interval(max(-1.0, low), min(1.0, high), "newcombe")


def _correlation(both: int, first: int, second: int, neither: int) -> float:
    """Phi of the paired table; a positive one is drawn towards 0 by half an item, an empty margin gives 0."""
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if margins == 0:
        return 0.0
    determinant = both * neither - first * second
    if determinant > 0:
        determinant = max(determinant - (both + first + second + neither) / 2, 0)
    return determinant / math.sqrt(margins)


def clustered_standard_error(scores: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Cluster-robust standard error of a mean score with the C/(C−1) factor, score units (Liang & Zeger 1986).

    `clusters[i]` names the prompt or passage of `scores[i]`. Raises ValueError on unequal lengths, non-finite scores
    or fewer than 2 clusters.
    """
    centre = mean(scores)
    residuals: dict[Hashable, list[float]] = defaultdict(list)
    for score, cluster in zip(scores, clusters, strict=True):
        residuals[cluster].append(score - centre)
    count = len(residuals)
    if count < 2:
        raise ValueError(f"needs at least 2 clusters, found {count}")
    between = math.fsum(math.fsum(cluster) ** 2 for cluster in residuals.values())
    return math.sqrt(count / (count - 1) * between) / len(scores)


def clustered_wilson(share: float, standard_error: float, clusters: int, level: float = 0.95) -> Interval:
    """Score interval for a mean share whose standard error is cluster-robust (Korn & Graubard 1998).

    Wilson's formula with as many independent items as the standard error amounts to, share (1 − share) / error², and
    Student's quantile with C − 1 degrees of freedom: near 0 and 1, and with few prompts, a normal interval is too
    short. Where no prompt differs from another, each counts as one item. ValueError on a share outside [0, 1], a
    negative error or fewer than 2 clusters.
    """
    from scipy.special import stdtrit

    if not 0 <= share <= 1 or standard_error < 0 or clusters < 2:
        raise ValueError(
            "needs a share from 0 to 1, an error from 0 up and at least 2 clusters, found "
            f"{share}, {standard_error} and {clusters}"
        )
    spread = share * (1 - share)
    n = clusters if standard_error == 0 or spread == 0 else spread / standard_error**2
    low, high = _score_interval(share, n, float(stdtrit(clusters - 1, upper_tail(level))))
    return Interval(low, high, "clustered_wilson")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, given c right among n drawn (Chen et al. 2021).

    Counted in whole numbers and divided once, so that no n loses a digit. ValueError unless 0 <= c <= n, 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"needs 0 <= c <= n and 1 <= k <= n, found n={n}, c={c}, k={k}")
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every
