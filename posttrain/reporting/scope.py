"""Which published outcomes a clause speaks of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from posttrain.reporting.clauses import Clause
from posttrain.reporting.outcomes import BASELINE, Outcome, mirrored

IDEA = "idea"  # how a verdict calls the method or track of its page


@dataclass(frozen=True)
class Scope:
    """The outcomes that one clause speaks of."""

    outcomes: tuple[Outcome, ...]
    subject: str | None = None  # whom it speaks of
    missing: tuple[str, ...] = ()  # rivals that it names and that the subject was not compared with
    named: bool = False  # whether it names a rival or a claim; else it speaks of all


def plain_names(outcomes: Iterable[Outcome], methods: Iterable[str]) -> frozenset[str]:
    """What is read as a name wherever it stands: registered methods, tracks, and the sides of a verdict."""
    rivals = [outcome for outcome in outcomes if outcome.kind == "rival"]
    sides = {outcome.about for outcome in rivals} & {BASELINE}
    return frozenset({*methods, *(outcome.method for outcome in rivals), *sides, IDEA})


def of_claims(outcomes: Iterable[Outcome], clause: Clause, method: str | None) -> Scope:
    """The claims that a clause speaks of: those it names by id, or all of the methods that it names."""
    found = _below([outcome for outcome in outcomes if outcome.kind == "claim"], clause)
    mentioned = {mention.name for mention in clause.mentions} & {outcome.method for outcome in found}
    found = _narrowed(found, lambda outcome: outcome.method, {method} if method else mentioned)
    ids = clause.names({outcome.about for outcome in found})
    return Scope(tuple(_narrowed(found, lambda outcome: outcome.about, ids)), method, named=bool(ids))


def of_rivals(outcomes: Iterable[Outcome], clause: Clause, method: str | None) -> Scope:
    """The comparisons that a clause speaks of, read from the side of its subject."""
    found = _below([outcome for outcome in outcomes if outcome.kind == "rival"], clause)
    subject, rivals = _sides(clause, method)
    if subject is not None:
        sides = [side for outcome in found for side in (outcome, mirrored(outcome))]
        found = [side for side in sides if side.method == subject]
    compared = {outcome.about for outcome in found}
    return Scope(
        tuple(_narrowed(found, lambda outcome: outcome.about, rivals)),
        subject,
        tuple(rival for rival in rivals if rival not in compared),
        bool(rivals),
    )


def _sides(clause: Clause, method: str | None) -> tuple[str | None, list[str]]:
    """Whom a clause speaks of and beside whom: its first name without a preposition, and all others."""
    names = list(dict.fromkeys(mention.name for mention in clause.mentions if mention.name != IDEA))
    free = [mention.name for mention in clause.mentions if not mention.is_object]
    subject = method if IDEA in free or not free else free[0]
    if subject is None and names:
        subject = names[0]
    return subject, [name for name in names if name != subject]


def _below(outcomes: Sequence[Outcome], clause: Clause) -> list[Outcome]:
    """What the plan and the tier that a clause or its headings name leave."""
    plans = clause.below({outcome.plan for outcome in outcomes})
    found = _narrowed(outcomes, lambda outcome: outcome.plan, plans)
    return _narrowed(found, lambda outcome: outcome.tier, clause.tiers)


def _narrowed(outcomes: Sequence[Outcome], key: Callable[[Outcome], str], wanted: Collection[str]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not wanted or key(outcome) in wanted]
