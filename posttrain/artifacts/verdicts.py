"""Verdicts: one idea against one rival over paired training seeds, judged by a closed list of sentences.

The test decides, the interval describes. "No significant win" is not evidence of equality; only "no measurable effect"
is, and it is earned by an interval inside the smallest effect of interest (SESOI) or by differences that are all 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from posttrain.artifacts.statistics import (
    Direction,
    Effect,
    count_wins,
    effect,
    gain,
    holm,
    interval,
    mde_80,
    mean,
    min_attainable_p,
    sample_sd,
    sign_flip,
    t_interval,
)

BETTER = "idea better (significant)"
BELOW_SESOI = ", below smallest effect of interest"
WORSE = "idea worse (significant)"
NO_EFFECT = "no measurable effect"
NO_WIN = "no significant win"
DEFAULT_SESOI_SHARE = 0.05  # of the absolute rival mean

Degenerate = Literal["none", "zero_variance", "identical"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One idea against one rival on one metric; differences are idea − rival, in metric units, in seed order.

    An invalid comparison holds no number about the effect: those fields are None. In a family of several, p_adjusted
    and the verdict are None until `adjust` has seen the family.
    """

    metric: str
    direction: Direction
    seeds: tuple[int, ...]  # ascending; of either arm if the arms are unpaired
    per_seed_diffs: tuple[float, ...] = ()
    n_pairs: int = 0
    delta_mean: float | None = None
    wins: int | None = None
    ties: int | None = None
    p_value: float | None = None  # two-sided
    p_count: int | None = None
    p_total: int | None = None
    p_method: Literal["exact_signflip", "mc_signflip"] | None = None
    p_adjusted: float | None = None
    adjustment: Literal["holm"] = "holm"
    ci95: tuple[float, float] | None = None
    ci_method: Literal["t", "bca", "wilson"] | None = None
    effect: Effect | None = None
    mde_80: float | None = None
    min_attainable_p: float | None = None  # of the exact test
    n_failed: int = 0  # seeds at which either arm is not finite
    degenerate: Degenerate = "none"
    verdict: str | None = None
    system_worked: bool = False
    family_size: int = 1
    alpha: float = 0.05
    sesoi: float | None = None  # metric units

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values, keys in declaration order."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def compare(
    idea: Mapping[int, float],
    rival: Mapping[int, float],
    *,
    metric: str,
    direction: Direction,
    alpha: float = 0.05,
    family_size: int = 1,
    sesoi: float | None = None,
    failure_value: float | None = None,
    seed: bytes = b"",
) -> Comparison:
    """Compare two arms whose values (metric units) are keyed by training seed, and judge them.

    `sesoi` defaults to 5 % of the absolute rival mean; `failure_value` stands for each value that is not finite;
    `seed` (plan digest followed by comparison id) feeds Monte Carlo signs and bootstrap. Unpaired or non-finite arms
    give an `invalid: …` verdict; ValueError is raised for a plan that cannot be meant.
    """
    _check_plan(direction=direction, alpha=alpha, family_size=family_size, sesoi=sesoi, failure_value=failure_value)
    seeds = tuple(sorted(idea.keys() | rival.keys()))
    blank = Comparison(
        metric=metric, direction=direction, seeds=seeds, family_size=family_size, alpha=alpha, sesoi=sesoi
    )
    if not seeds or idea.keys() != rival.keys():
        return replace(blank, verdict=f"invalid: {_unpaired(idea, rival)}")
    failed = [s for s in seeds if not (math.isfinite(idea[s]) and math.isfinite(rival[s]))]
    if failed and failure_value is None:
        return replace(blank, n_failed=len(failed), verdict=f"invalid: non-finite in seeds {failed}")

    def value(arm: Mapping[int, float], s: int) -> float:
        return float(arm[s]) if failure_value is None or math.isfinite(arm[s]) else failure_value

    if sesoi is None:
        sesoi = DEFAULT_SESOI_SHARE * abs(mean([value(rival, s) for s in seeds]))
    differences = tuple(value(idea, s) - value(rival, s) for s in seeds)
    return _judge(_measure(replace(blank, sesoi=sesoi, n_failed=len(failed)), differences, seed))


def adjust(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Holm's adjustment over one declared family, verdicts derived anew; members invalid or not given count as p = 1.

    Raises ValueError if the comparisons declare different families or alphas, or are more than the family declares.
    """
    declared = {(c.family_size, c.alpha) for c in comparisons}
    if len(declared) > 1:
        raise ValueError(f"one family has one size and one alpha, found {sorted(declared)}")
    missing = max((c.family_size for c in comparisons), default=0) - len(comparisons)
    if missing < 0:
        raise ValueError(f"the family declares {comparisons[0].family_size} members, found {len(comparisons)}")
    known = [1.0 if c.p_value is None else c.p_value for c in comparisons]
    adjusted = holm(known + [1.0] * missing)[: len(known)]
    return tuple(
        c if c.p_value is None else _judge(replace(c, p_adjusted=p)) for c, p in zip(comparisons, adjusted, strict=True)
    )


def _check_plan(
    *, direction: Direction, alpha: float, family_size: int, sesoi: float | None, failure_value: float | None
) -> None:
    """ValueError on a direction, alpha, family size, SESOI or failure value that cannot be meant."""
    gain(0.0, direction)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, found {alpha}")
    if family_size < 1:
        raise ValueError(f"family_size must be at least 1, found {family_size}")
    if sesoi is not None and not 0 <= sesoi < math.inf:
        raise ValueError(f"sesoi must be finite and not negative, found {sesoi}")
    if failure_value is not None and not math.isfinite(failure_value):
        raise ValueError(f"failure_value must be finite, found {failure_value}")


def _unpaired(idea: Mapping[int, float], rival: Mapping[int, float]) -> str:
    """What keeps the two arms from being paired, in words."""
    alone = [(sorted(idea.keys() - rival.keys()), "idea"), (sorted(rival.keys() - idea.keys()), "rival")]
    return ", ".join(f"seeds {seeds} only in {arm}" for seeds, arm in alone if seeds) or "no seeds"


def _measure(blank: Comparison, differences: tuple[float, ...], seed: bytes) -> Comparison:
    """The comparison with every number its differences support, not yet judged."""
    n, k = len(differences), blank.family_size
    test = sign_flip(differences, alpha=blank.alpha / k, seed=seed)
    ci = interval(differences, seed=seed)
    return replace(
        blank,
        per_seed_diffs=differences,
        n_pairs=n,
        delta_mean=mean(differences),
        wins=count_wins(differences, blank.direction),
        ties=differences.count(0.0),
        p_value=test.p_value,
        p_count=test.count,
        p_total=test.total,
        p_method=test.method,
        p_adjusted=test.p_value if k == 1 else None,
        ci95=None if ci is None else (ci.low, ci.high),
        ci_method=None if ci is None else ci.method,
        effect=effect(differences, blank.direction),
        mde_80=mde_80(differences),
        min_attainable_p=min_attainable_p(n),
        degenerate=_degenerate(differences),
    )


def _degenerate(differences: tuple[float, ...]) -> Degenerate:
    """Whether the differences are all 0 (the arms may share code) or, at two seeds or more, all the same."""
    if not any(differences):
        return "identical"
    return "zero_variance" if len(differences) > 1 and sample_sd(differences) == 0.0 else "none"


def _judge(c: Comparison) -> Comparison:
    """The comparison with its verdict: the rules in order, the first match wins."""
    assert c.delta_mean is not None
    assert c.sesoi is not None
    smallest_p = min_attainable_p(c.n_pairs)
    if c.family_size * smallest_p > c.alpha:
        return replace(c, verdict=f"insufficient seeds (min p = {smallest_p!r})", system_worked=False)
    if c.degenerate == "identical":
        return replace(c, verdict=NO_EFFECT, system_worked=False)
    if c.p_adjusted is None:
        return replace(c, verdict=None, system_worked=False)
    if c.p_adjusted <= c.alpha and gain(c.delta_mean, c.direction) > 0:
        small = abs(c.delta_mean) < c.sesoi
        return replace(c, verdict=BETTER + BELOW_SESOI if small else BETTER, system_worked=not small)
    if c.p_adjusted <= c.alpha:
        return replace(c, verdict=WORSE, system_worked=False)
    describing = t_interval(c.per_seed_diffs)
    inside = -c.sesoi < describing.low and describing.high < c.sesoi
    return replace(c, verdict=NO_EFFECT if inside else NO_WIN, system_worked=False)
