"""The plain sentences that an artifact licenses. Nothing here may say more than the tier and the seeds allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.artifacts import statistics
from posttrain.artifacts.gap import Gap, gap_closed

WHERE = {
    "l0_smoke": "as a smoke test",
    "l1_mechanism": "on a candidate policy",
    "l2_tiny_lm": "on a language model of 0.1 million parameters",
    "l3_real_model": "on the named checkpoint",
}


def sentences(artifact: Mapping[str, Any]) -> list[str]:
    """What may be said of the artifact, and what would be needed to say more."""
    if artifact["evaluation_protocol"]["tier"] == "l0_smoke":
        return [f"{artifact['method']} is implemented and runs; a smoke test says nothing about performance."]
    said = [_before_and_after(artifact)]
    gap = gap_closed(artifact)
    if gap is not None:
        said.append(_gap(gap))
    verdicts: dict[str, list[str]] = {}
    for entry in artifact.get("comparison", ()):
        name = entry["against"]["method"].removeprefix(f"{artifact['method']}.")
        verdicts.setdefault(entry["verdict"], []).append(name)
    said += [f"Against {', '.join(names)}: {verdict}." for verdict, names in verdicts.items()]
    if "mechanism" in artifact:
        said.append(_claims(artifact["mechanism"]["claims"]))
    return said


def _before_and_after(artifact: Mapping[str, Any]) -> str:
    runs = artifact["runs"]
    gains = [run["final"]["accuracy"] - run["baseline"]["accuracy"] for run in runs]
    before, after = (statistics.mean([run[point]["accuracy"] for run in runs]) for point in ("baseline", "final"))
    rose, where = sum(gain > 0 for gain in gains), WHERE[artifact["evaluation_protocol"]["tier"]]
    said = (
        f"Accuracy rose in {rose} of {len(runs)} seeds, from {before:.3f} to {after:.3f} on average, "
        f"on {runs[0]['dataset']} {where}."
    )
    smallest = statistics.min_attainable_p(len(runs))
    if smallest > artifact["evaluation_protocol"]["alpha"]:
        needed = statistics.seeds_needed(artifact["evaluation_protocol"]["alpha"], 1)
        said += (
            f" This describes {len(runs)} seed{'s' if len(runs) > 1 else ''} and licenses no claim of a difference: "
            f"the smallest p they can reach is {smallest:.3g}; {needed} seeds are the least."
        )
    return said


def _gap(gap: Gap) -> str:
    count = len(gap.shares)
    if gap.mean is None:
        return (
            f"The share of the gap to the teacher that was closed is undefined: in {len(gap.missing)} of {count} seeds "
            "the teacher is not more accurate than the start."
        )
    ends = "" if gap.ci95 is None else f" (95 % t interval [{gap.ci95[0]:.3f}, {gap.ci95[1]:.3f}])"
    return f"Of the gap to the teacher's accuracy, {gap.mean:.3f} was closed on average over {count} seeds{ends}."


def _claims(claims: list[Mapping[str, Any]]) -> str:
    groups = {outcome: [c["id"] for c in claims if c["outcome"] == outcome] for outcome in _OUTCOMES}
    said = "; ".join(f"{outcome}: {', '.join(ids)}" for outcome, ids in groups.items() if ids)
    return f"Claims {said}." if len(claims) > 1 else f"Claim {said}."


_OUTCOMES = ("confirmed", "refuted", "inconclusive")
