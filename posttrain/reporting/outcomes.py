"""What published artifacts say of a method: against each rival, and of each of its claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from posttrain.artifacts.verdicts import BELOW_SESOI, BETTER, NO_EFFECT, NO_WIN, WORSE
from posttrain.reporting.reading import Entry

BASELINE, SIGNATURE = "baseline", "signature"  # the rival of every track, and its claims taken together
# A comparison read from the rival's side. "Worked" is not among them: the smallest effect was declared for the idea.
_MIRRORED = {
    "better": "worse", "worse": "better", "higher": "lower", "lower": "higher",
    "not-significant": "not-significant", "equal": "equal",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One comparison or one claim of one published artifact."""

    kind: Literal["rival", "claim"]
    method: str  # or the track
    about: str  # the rival without its method's name, or the claim's id
    says: frozenset[str]  # marks: see `vocabulary.WORDS`
    verdict: str  # in the artifact's words
    tier: str
    plan: str
    p: Decimal | None = None  # two-sided, adjusted for its family


def mirrored(outcome: Outcome) -> Outcome:
    """A comparison as it reads from the rival's side."""
    says = frozenset(_MIRRORED[mark] for mark in outcome.says & _MIRRORED.keys())
    return replace(outcome, method=outcome.about, about=outcome.method, says=says)


def outcomes_of(entry: Entry) -> Iterator[Outcome]:
    """Every outcome of a published artifact; a historical one serves no comparison."""
    if entry.historical:
        return
    value = entry.value
    tier = "bench" if entry.bench else entry.tier
    plan = value.get("manifest_ref", "").rpartition(":")[2]
    found = value.get("comparison", [])
    for compared in [found] if isinstance(found, Mapping) else found:
        rival = BASELINE if entry.bench else compared["against"]["method"].rpartition(".")[2]
        verdict, p = compared["verdict"] or "", compared["p_adjusted"]
        direction = value["metric_direction"] if entry.bench else compared["direction"]
        says = frozenset(_says(verdict, tier, direction.startswith("lower")))
        decimal = None if p is None else Decimal(repr(p))
        yield Outcome("rival", entry.method, rival, says, verdict, tier, plan, decimal)
    for name, outcome in _claims(value):
        yield Outcome("claim", entry.method, name, frozenset({outcome}), outcome, tier, plan)


def _says(verdict: str, tier: str, lower: bool) -> Iterator[str]:
    if verdict.startswith(BETTER):
        yield from ("better", "lower" if lower else "higher")
        if not verdict.endswith(BELOW_SESOI):
            yield "worked"
        if tier == "l3_real_model":
            yield "l3-better"
    if verdict == WORSE:
        yield from ("worse", "higher" if lower else "lower")
    if verdict in (NO_EFFECT, NO_WIN):
        yield "not-significant"
    if verdict == NO_EFFECT:
        yield "equal"


def _claims(artifact: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Ids and outcomes of the claims; those of a track lie in its signature, which has an outcome of its own."""
    for claim in artifact.get("mechanism", {}).get("claims", []):
        yield claim["id"], claim["outcome"]
    signature = artifact.get("mechanism_signature")
    inner = signature.get("mechanism_signature", signature) if isinstance(signature, Mapping) else None
    if not isinstance(inner, Mapping):
        return
    for claim in inner.get("claims", []):
        yield claim["id"], claim["outcome"]
    if isinstance(inner.get("confirmed"), bool):
        yield SIGNATURE, "confirmed" if inner["confirmed"] else "refuted"
