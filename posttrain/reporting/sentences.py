"""Sentences from the closed vocabulary of each tier; nothing says more than tier, seeds and test allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.artifacts import statistics
from posttrain.artifacts.gap import gap_closed
from posttrain.artifacts.verdicts import BETTER, NO_EFFECT, NO_WIN, WORSE
from posttrain.reporting.formatting import interval, number, plural
from posttrain.reporting.summary import changes, completed

OUTCOMES = ("confirmed", "refuted", "inconclusive")
_WHERE = {
    "l1_mechanism": "candidate policies on {dataset}",
    "l2_tiny_lm": "a tiny language model trained on {dataset}",
    "l3_real_model": "real checkpoints on {dataset}",
}


def where(artifact: Mapping[str, Any]) -> str:
    """What the numbers are about."""
    return _WHERE[artifact["evaluation_protocol"]["tier"]].format(dataset=artifact["runs"][0]["dataset"])


def said(artifact: Mapping[str, Any]) -> list[str]:
    """Everything that may be said of an artifact: of its runs, of each comparison, of its claims."""
    claims = artifact.get("mechanism", {}).get("claims", [])
    return [
        *described(artifact),
        *(compared(artifact, entry) for entry in artifact.get("comparison", [])),
        *([_claims(claims)] if claims else []),
    ]


def label(policy: str, formal: bool, count: int, compares: bool) -> str:
    """A claim policy as tables and titles show it: of one seed it is not several, without a rival no comparison."""
    if formal and not compares:
        return f"descriptive, {plural(count, 'seed')} of one method without a rival"
    return policy.replace("multi-seed", "single-seed") if count == 1 else policy


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """Every claim under its outcome, by id."""
    groups = {outcome: [claim["id"] for claim in claims if claim["outcome"] == outcome] for outcome in OUTCOMES}
    listed = "; ".join(f"{outcome}: {', '.join(ids)}" for outcome, ids in groups.items() if ids)
    return f"Claims {listed}."


def described(artifact: Mapping[str, Any]) -> Iterator[str]:
    """What the runs alone license."""
    if artifact["evaluation_protocol"]["tier"] == "l0_smoke":
        yield "Implemented; checks pass. A smoke test says nothing about performance."
        return
    runs = artifact["runs"]
    done = completed(runs)
    if len(done) < len(runs):
        yield f"{plural(len(runs) - len(done), 'seed')} of {len(runs)} did not complete; they stay in the record."
    found = next((change for change in changes(runs) if change.metric == "accuracy"), None)
    if found is None:
        return
    moves = [run["final"]["accuracy"] - run["baseline"]["accuracy"] for run in done]
    fell = found.after < found.before
    moved = sum(move < 0 if fell else move > 0 for move in moves)
    if not any(moves):
        count = f"{len(done)} of {plural(len(done), 'seed')}"
        yield f"Accuracy stayed as it was in {count}, {number(found.after)} on average, for {where(artifact)}."
    else:
        yield (
            f"Accuracy {'fell' if fell else 'rose'} in {moved} of {plural(len(done), 'seed')}, "
            f"from {number(found.before)} to {number(found.after)} on average, for {where(artifact)}."
        )
    gap = gap_closed(artifact)
    if gap is not None and gap.mean is None:
        yield (
            f"The share of the gap to the teacher that was closed is undefined: in {len(gap.missing)} of "
            f"{plural(len(gap.shares), 'seed')} the teacher is not more accurate than the start."
        )
    elif gap is not None:
        ends = "" if gap.ci95 is None else f" (95 % t interval {interval(gap.ci95, signed=False)})"
        yield f"Of the gap to the teacher's accuracy, {number(gap.mean)} was closed on average{ends}."
    smallest, alpha = statistics.min_attainable_p(len(runs)), artifact["evaluation_protocol"].get("alpha", 0.05)
    if smallest > alpha:
        yield (
            f"This describes {plural(len(runs), 'seed')} and licenses no statement of a difference: the smallest p "
            f"that {len(runs)} can reach is {number(smallest)}; {statistics.seeds_needed(alpha, 1)} are the least."
        )


def compared(artifact: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """One comparison in words, by its verdict."""
    rival, verdict, method = entry["against"]["method"], entry["verdict"] or "", artifact["method"]
    # JSON has no tuple: the interval is a list of two, or nothing.
    numbers = (
        f"difference {number(entry['delta_mean'], signed=True)}, 95 % interval {interval(entry['ci95'])}, "
        f"p (Holm) {number(entry['p_adjusted'])}, {plural(entry['n_pairs'], 'paired seed')}"
    )
    sesoi = f"the smallest effect of interest, {number(entry['sesoi'])}"
    small = f" The difference is below {sesoi}." if abs(entry["delta_mean"] or 0.0) < (entry["sesoi"] or 0.0) else ""
    if verdict.startswith(BETTER):
        return f"`{method}` exceeds `{rival}` for {where(artifact)}: {numbers}.{small}"
    if verdict == WORSE:
        return f"`{method}` is worse than `{rival}` for {where(artifact)}: {numbers}.{small}"
    if verdict == NO_EFFECT:
        why = "All differences are 0" if entry["degenerate"] == "identical" else f"The interval lies within {sesoi}"
        return f"No measurable difference between `{method}` and `{rival}` for {where(artifact)}: {numbers}. {why}."
    if verdict == NO_WIN:
        seen = (
            f"; an effect of {number(entry['mde_80'])} would have been seen in 80 % of cases" if entry["mde_80"] else ""
        )
        return f"No significant difference between `{method}` and `{rival}`: {numbers}{seen}. This is not equality."
    return f"Against `{rival}`: {verdict}."
