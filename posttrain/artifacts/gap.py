"""How much of the gap between the student at its start and its teacher was closed.

share = (final - baseline) / (teacher - baseline), in accuracy on the held-out problems, seed by seed. Where the teacher
is not above the start there is no gap, and the share is undefined: a quotient by nothing or by less would be a number
that means nothing. The mean needs a share in every seed, since leaving out those without one would choose the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.artifacts import statistics

TEACHER = "teacher accuracy"  # in a run's `measures`
LABEL = "gap to teacher closed"
TIERS = ("l2_tiny_lm", "l3_real_model")  # whose results are shown with it


@dataclass(frozen=True)
class Gap:
    """The share of each seed and over all of them; None is undefined."""

    shares: Mapping[int, float | None]  # by seed
    mean: float | None
    ci95: tuple[float, float] | None  # t interval over seeds; None at one seed

    @property
    def missing(self) -> list[int]:
        """Seeds whose teacher is not above the start."""
        return [seed for seed, share in self.shares.items() if share is None]


def gap_closed(artifact: Mapping[str, Any]) -> Gap | None:
    """The gap of an artifact's completed runs; None at another tier, or where some run measured no teacher."""
    done = [run for run in artifact["runs"] if run.get("status", "completed") == "completed" and run["final"]]
    if artifact["evaluation_protocol"]["tier"] not in TIERS or not done:
        return None
    if any(TEACHER not in run.get("measures", {}) for run in done):
        return None
    shares = {run["seed"]: share(run) for run in done}
    found = [value for value in shares.values() if value is not None]
    if len(found) < len(shares):
        return Gap(shares, None, None)
    ends = statistics.t_interval(found) if len(found) > 1 else None
    return Gap(shares, statistics.mean(found), None if ends is None else (ends.low, ends.high))


def share(run: Mapping[str, Any]) -> float | None:
    """The closed share of one run."""
    return share_closed(run["baseline"]["accuracy"], run["final"]["accuracy"], run["measures"][TEACHER])


def share_closed(start: float, end: float, teacher: float) -> float | None:
    """1 is the teacher's accuracy, below 0 is a loss; None where the start left no gap to close."""
    return (end - start) / (teacher - start) if teacher > start else None
