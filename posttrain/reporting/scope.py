"""Which published outcomes a clause speaks of."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from posttrain.reporting.clauses import Clause
from posttrain.reporting.outcomes import BASELINE, Outcome, mirrored

IDEA = "idea"  # how a verdict calls the method or track of its page
# What looks like the id of a claim; tiers, levels of verification and laws do too.
_CLAIM = re.compile(r"(?<![\w.-])(?!L[0-3]\b|V[0-4]\b|R[0-9]\b|H\d)[A-Z]{1,2}\d{1,2}[a-z]?(?![\w.-])")


@dataclass(frozen=True)
class Scope:
    """The outcomes that one clause speaks of."""

    outcomes: tuple[Outcome, ...]
    subject: str | None = None  # whom it speaks of
    missing: tuple[str, ...] = ()  # rivals or claims that it names and that are not published of the subject
    named: bool = False  # whether it names a rival or a claim; else it speaks of all
    unquoted: str | None = None  # an arm whose name stands in it without backticks, so that it names nobody


def plain_names(outcomes: Iterable[Outcome], methods: Iterable[str]) -> frozenset[str]:
    """What is read as a name wherever it stands: registered methods, tracks, and the sides of a verdict."""
    rivals = [outcome for outcome in outcomes if outcome.kind == "rival"]
    sides = {outcome.about for outcome in rivals} & {BASELINE}
    return frozenset({*methods, *(outcome.method for outcome in rivals), *sides, IDEA})


def of_claims(outcomes: Iterable[Outcome], clause: Clause, method: str | None) -> Scope:
    """The claims that a clause speaks of: those it names by id, or all of the methods that it names."""
    found = _below([outcome for outcome in outcomes if outcome.kind == "claim"], clause)
    mentioned = {mention.name for mention in clause.mentions} & {outcome.method for outcome in found}
    found = _narrowed(found, lambda outcome: outcome.method, mentioned or ({method} if method else ()))
    ids = clause.names({outcome.about for outcome in found})
    other = tuple(dict.fromkeys(name for name in _CLAIM.findall(clause.text) if name not in ids))
    chosen = tuple(_narrowed(found, lambda outcome: outcome.about, ids))
    return Scope(chosen, method, other, named=bool(ids or other))


def of_rivals(outcomes: Iterable[Outcome], clause: Clause, method: str | None) -> Scope:
    """The comparisons that a clause speaks of, read from the side of its subject."""
    found = _below([outcome for outcome in outcomes if outcome.kind == "rival"], clause)
    subject, rivals = _sides(clause, method)
    if subject is not None:
        sides = [side for outcome in found for side in (outcome, mirrored(outcome))]
        found = [side for side in sides if side.method == subject]
    compared = {outcome.about for outcome in found}
    unquoted = next(iter(sorted(clause.names(compared - {BASELINE}))), None) if not rivals else None
    return Scope(
        tuple(_narrowed(found, lambda outcome: outcome.about, rivals)),
        subject,
        tuple(rival for rival in rivals if rival not in compared),
        bool(rivals),
        unquoted,
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
