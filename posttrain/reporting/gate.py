"""One text at the claim gate: what is looked at, who it speaks of, and what would license more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from posttrain.reporting.clauses import Reader
from posttrain.reporting.findings import GAP, Count, Finding
from posttrain.reporting.licence import Licence
from posttrain.reporting.outcomes import BASELINE
from posttrain.reporting.scope import IDEA, Scope, of_claims, of_rivals

Found = Iterator[tuple[int, str]]  # place and message
Kind = TypeVar("Kind", Finding, Count)
_JOINT = re.compile(r"\b(?:while|whereas|although|though|but)\b", re.IGNORECASE)
_SHOWN = 3  # outcomes of one message
# How a sentence speaks of what was measured. "Reward" alone is a word of every page.
SPOKEN = {
    "accuracy": re.compile(r"\baccurac\w+(?! gap)|\bpass@1\b", re.IGNORECASE),
    "mean_reward": re.compile(r"\bmean reward\b", re.IGNORECASE),
    "entropy": re.compile(r"\bentrop\w+", re.IGNORECASE),
    "kl_from_reference": re.compile(r"\bKL\b(?! (?:\w+ ){0,2}(?:to|from) the teacher)"),
    "kl_from_teacher": re.compile(r"\bKL\b(?! (?:\w+ ){0,2}(?:to|from) the reference)"),
    GAP: re.compile(r"\bgap\b", re.IGNORECASE),
}


@dataclass(frozen=True)
class Gate:
    """One text at the gate."""

    text: str  # what is looked at; the rest are spaces
    reader: Reader
    licence: Licence
    method: str | None  # of the page; None where a text speaks of several
    written: Sequence[bool] = field(repr=False)  # whether the character at a place was written by hand

    @cached_property
    def flat(self) -> str:
        """The text on one line: a word may be wrapped anywhere."""
        return self.text.replace("\n", " ")

    def run_name(self, place: int) -> str:
        """The method that a message's command is about."""
        return self.method or self.rivals(place).subject or "ALGO"

    def needed(self, place: int) -> str:
        """What a number without a licence would take."""
        run = f"posttrain train {self.run_name(place)} (reproduce, compare), then posttrain publish"
        return f"it would take a run that gives it: {run}"

    def claims(self, place: int) -> Scope:
        """The claims that the clause at a place speaks of."""
        return of_claims(self.licence.outcomes, self.reader.at(place), self.method)

    def rivals(self, place: int) -> Scope:
        """The comparisons that the clause at a place speaks of."""
        return of_rivals(self.licence.outcomes, self.reader.at(place), self.method)

    def part(self, place: int) -> tuple[int, int]:
        """The part of a clause around a place that speaks of one thing: `A rose in 5 of 6 seeds while B fell`."""
        start, end = self.reader.span(place)
        joints = [match.span() for match in _JOINT.finditer(self.text, start, end)]
        start = max([start, *(joint[1] for joint in joints if joint[1] <= place)])
        return start, min([end, *(joint[0] for joint in joints if joint[0] >= place)])

    def metrics(self, place: int) -> frozenset[str]:
        """The metrics that are spoken of at a place: those of the part of the clause, or of all of it."""
        for span in (self.part(place), self.reader.span(place)):
            found = frozenset(name for name, pattern in SPOKEN.items() if pattern.search(self.text, *span))
            if found:
                return found
        return frozenset()

    def metric(self, place: int) -> frozenset[str]:
        """Those of which a number at a place is: the last ones named before it in its part, else the first after."""
        start, end = self.part(place)
        named = [
            (match.start(), name)
            for name, pattern in SPOKEN.items()
            for match in pattern.finditer(self.text, start, end)
        ]
        before, after = [at for at, _ in named if at < place], [at for at, _ in named if at >= place]
        near = max(before) if before else min(after) if after else None
        return frozenset(name for at, name in named if at == near) or self.metrics(place)

    def in_row(self, place: int) -> bool:
        """Whether a place lies in a row of a table."""
        start, end = self.reader.span(place)
        return "|" in self.text[start:end]

    def spoken_of(self, place: int, findings: Iterable[Kind]) -> Iterator[Kind]:
        """Findings of whom, of which tier, plan and arm the clause at a place speaks; arms have to be named."""
        clause, subjects = self.reader.at(place), self.subjects(place)
        known = list(findings)
        plans, tiers = clause.below({finding.source.plan for finding in known}), clause.tiers
        arms = {mention.name for mention in clause.mentions}
        for finding in known:
            source = finding.source
            if subjects and source.page not in subjects:
                continue
            if source.arm is not None and source.arm not in arms and self.written[place]:
                continue
            if (not plans or source.plan in plans) and (not tiers or source.tier in tiers):
                yield finding

    def subjects(self, place: int) -> frozenset[str]:
        """The methods and tracks whose results the clause at a place may repeat."""
        clause = self.reader.at(place)
        plain = self.reader.methods - {IDEA, BASELINE}
        named = frozenset({mention.name for mention in clause.mentions} & plain)
        return named | {self.method} if self.method is not None else named | clause.below(plain)

    def concerns(self, place: int) -> bool:
        """Whether words of daily use speak of results here: a page's do, another text's where it names whose."""
        return self.method is not None or self.reader.names_results(place)


def inside(place: int, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether a place lies in one of some spans."""
    return any(start <= place < end for start, end in spans)


def compared_with_none(scope: Scope) -> str:
    """Why a scope without comparisons licenses nothing."""
    if scope.missing:
        return f"no published run compares {scope.subject} with {' or '.join(scope.missing)}"
    return f"no published outcome compares {scope.subject or 'what it speaks of'} with anything"


def speaks_of(scope: Scope) -> str:
    """What a clause that names nobody was read as."""
    if scope.named or len(scope.outcomes) < 2:
        return ""
    kind = scope.outcomes[0].kind
    quoted = f"; `{scope.unquoted}` is a name in backticks only" if scope.unquoted else ""
    return f"it names no {kind} (such as `{scope.outcomes[0].about}`{quoted}), so it speaks of all, and "


def listed(texts: Sequence[str]) -> str:
    """The first few of some texts."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
