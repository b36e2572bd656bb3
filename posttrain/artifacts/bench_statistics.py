"""Statistics of bench artifacts: how the historical ones were worked out, and what new ones add.

`baseline` and `idea` are one metric value per seed, paired by position; differences are idea - baseline, in metric
units. What the records share with other artifacts (test, interval, verdict) comes from `statistics` and `verdicts`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posttrain.artifacts.statistics import Direction, count_wins
from posttrain.artifacts.verdicts import Comparison, adjust, compare

RECORDED_DRAWS = 20_000
RECORDED_SEED = 0
RECORDED_SLACK = 1e-12  # metric units
RECORDED_PLACES = 4
METRIC = "/per_seed"  # what is compared: the metric of one arm at one seed


def summary(values: Sequence[float]) -> dict[str, Any]:
    """`mean`, `std` (ddof 0, as recorded), `per_seed` and `n` of one arm; ValueError without values."""
    if not values:
        raise ValueError("an arm needs at least one seed, found none")
    a = np.asarray(values, dtype=np.float64)
    return {"mean": float(a.mean()), "std": float(a.std()), "per_seed": [float(v) for v in values], "n": len(values)}


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation of one arm with ddof 1, metric units; None at one seed."""
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1)) if len(values) > 1 else None


def half_width(differences: Sequence[float]) -> float | None:
    """The recorded `mde`: t(.975, n - 1) to three decimals times sd1 / sqrt(n), a 95 % half-width; None at one seed."""
    from scipy.special import stdtrit

    n = len(differences)
    if n < 2:
        return None
    quantile = round(float(stdtrit(n - 1, 0.975)), 3)
    return float(quantile * np.std(np.asarray(differences, dtype=np.float64), ddof=1) / math.sqrt(n))


def relative_percent(width: float | None, baseline: Sequence[float]) -> float | None:
    """The recorded `mde_rel_pct`: 100 times the half-width over the absolute baseline mean; None at a mean of 0."""
    centre = abs(float(np.mean(np.asarray(baseline, dtype=np.float64))))
    return None if width is None or centre == 0 else width / centre * 100


def recorded_p(differences: Sequence[float]) -> tuple[float, int]:
    """The recorded sign-flip p to 4 places and its count, over 20 000 draws of default_rng(0)."""
    d = np.asarray(differences, dtype=np.float64)
    signs = np.random.default_rng(RECORDED_SEED).choice([-1.0, 1.0], size=(RECORDED_DRAWS, len(d)))
    reached = np.abs((signs * d).mean(axis=1)) >= abs(d.mean()) - RECORDED_SLACK
    count = int(np.count_nonzero(reached))
    return round(count / RECORDED_DRAWS, RECORDED_PLACES), count


def recorded_comparison(baseline: Sequence[float], idea: Sequence[float], direction: Direction) -> dict[str, Any]:
    """The `comparison` block of a historical artifact, every field, with difference 0.0 from the three recorded."""
    differences = [b - a for a, b in zip(baseline, idea, strict=True)]
    width = half_width(differences)
    judged = judge(baseline, idea, direction=direction)
    return {
        "delta_mean": float(np.mean(np.asarray(differences))),
        "idea_wins": count_wins(differences, direction),
        "n_pairs": len(differences),
        "per_seed_diffs": differences,
        "p_value": recorded_p(differences)[0],
        "mde": width,
        "mde_rel_pct": relative_percent(width, baseline),
        "verdict": judged.verdict,
        "system_worked": judged.system_worked,
    }


def judge(
    baseline: Sequence[float],
    idea: Sequence[float],
    *,
    direction: Direction,
    seeds: Sequence[int] | None = None,
    alpha: float = 0.05,
    family_size: int = 1,
    sesoi_rel_pct: float = 5.0,
    failure_value: float | None = None,
    seed: bytes = b"",
) -> Comparison:
    """The comparison by the rules that every artifact is judged by; members of the family not at hand count as p = 1.

    ValueError where an arm has another number of values than there are seeds, or for a plan that cannot be meant.
    """
    seeds = range(len(baseline)) if seeds is None else seeds
    if not len(seeds) == len(set(seeds)) == len(baseline) == len(idea):
        raise ValueError(
            f"pairs need one value of each arm at each seed, found {len(baseline)} of the baseline and {len(idea)} of "
            f"the idea for the seeds {list(seeds)}; run both arms on the same distinct seeds"
        )
    known = [failure_value if failure_value is not None and not math.isfinite(v) else v for v in baseline]
    finite = [v for v in known if math.isfinite(v)]
    sesoi = sesoi_rel_pct / 100 * abs(math.fsum(finite) / len(finite)) if finite else None
    found = compare(
        dict(zip(seeds, idea, strict=True)),
        dict(zip(seeds, baseline, strict=True)),
        metric=METRIC,
        direction=direction,
        alpha=alpha,
        family_size=family_size,
        sesoi=sesoi,
        failure_value=failure_value,
        seed=seed,
    )
    return adjust([found])[0]


def comparison_block(
    baseline: Sequence[float],
    idea: Sequence[float],
    protocol: Mapping[str, Any],
    direction: Direction,
    failed_seeds: Sequence[int] = (),
) -> dict[str, Any]:
    """The `comparison` block of a new artifact: the recorded fields, the p exact, then what new artifacts add."""
    c = judge(
        baseline,
        idea,
        direction=direction,
        seeds=protocol["eval_seeds"],
        alpha=protocol["alpha"],
        family_size=protocol["family_size"],
        sesoi_rel_pct=protocol["sesoi_rel_pct"],
        seed=f"{protocol['plan_sha256']}\nidea\n{METRIC}".encode(),
    )
    in_order = [b - a for a, b in zip(baseline, idea, strict=True)]
    width = half_width(in_order)
    entry = c.as_json()
    copied = ("p_count", "p_total", "p_method", "p_adjusted", "adjustment", "family_size", "alpha", "min_attainable_p")
    copied += ("ties", "ci95", "ci_method", "effect", "mde_80", "degenerate", "sesoi")
    return {
        "delta_mean": c.delta_mean,
        "idea_wins": c.wins,
        "n_pairs": c.n_pairs,
        "per_seed_diffs": in_order,
        "p_value": c.p_value,
        "mde": width,
        "mde_rel_pct": relative_percent(width, baseline),
        "verdict": c.verdict,
        "system_worked": c.system_worked,
        **{key: entry[key] for key in copied},
        "sesoi_rel_pct": protocol["sesoi_rel_pct"],
        "failed_seeds": list(failed_seeds),
    }


def best_cell(means: Sequence[float], direction: Direction) -> int:
    """Place of the first cell with the best mean."""
    return list(means).index(min(means) if direction == "lower is better" else max(means))
