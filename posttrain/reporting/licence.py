"""What the published artifacts license: the numbers that a page may print, and the outcomes behind its words.

A result needs an artifact that holds it, to as many places as are printed (docs/adr/0007).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from posttrain.artifacts import statistics
from posttrain.reporting.findings import Count, Finding, counts_of, decimal, findings_of, leaves
from posttrain.reporting.outcomes import Outcome, outcomes_of
from posttrain.reporting.reading import Entry
from posttrain.reporting.summary import completed

_BULK = {"history", "last_diagnostics", "packages", "splits", "outputs", "inputs", "kernel", "python", "libc"}


@dataclass(frozen=True)
class Licence:
    """Everything that some artifacts license."""

    numbers: frozenset[Decimal] = frozenset()
    outcomes: tuple[Outcome, ...] = ()
    tiers: frozenset[str] = frozenset()  # at which runs are published
    quotes: tuple[str, ...] = ()  # text written before the run, which may be quoted word for word
    counts: frozenset[Count] = frozenset()  # "so many of so many seeds"
    findings: tuple[Finding, ...] = ()  # the numbers that a hand-written sentence may repeat, with what they are of

    def holds(self, printed: str, percent: bool = False) -> bool:
        """Whether a licensed number rounds to the printed one at its own places."""
        return any(rounds_to(100 * value if percent else value, printed) for value in self.numbers)


def rounds_to(value: Decimal, printed: str) -> bool:
    """Whether a value is the printed one at its own places; sizes count: a table prints +0.1 for "by 0.1"."""
    wanted = Decimal(printed)
    exponent = wanted.as_tuple().exponent
    assert isinstance(exponent, int)
    unit = Decimal(1).scaleb(exponent)
    if abs(abs(value) - abs(wanted)) > unit:
        return False
    return abs(value).quantize(unit, rounding=ROUND_HALF_EVEN) == abs(wanted)


def licence_of(entries: Iterable[Entry], extra: Iterable[Any] = ()) -> Licence:
    """The licence that entries give together; `extra` holds further plain data, such as a method's defaults."""
    listed = list(entries)
    numbers = {number for entry in listed for number in _numbers_of(entry)}
    numbers |= {decimal(leaf) for part in extra for leaf in leaves(part)}
    tiers = {entry.tier for entry in listed if not entry.bench and not entry.historical}
    quotes = [text for entry in listed for text in _quotes(entry)]
    # The longest first, so that one quotation inside another is found too.
    return Licence(
        frozenset(numbers),
        tuple(outcome for entry in listed for outcome in outcomes_of(entry)),
        frozenset(tiers),
        tuple(sorted(set(quotes), key=lambda text: (-len(text), text))),
        frozenset(count for entry in listed for count in counts_of(entry)),
        tuple(finding for entry in listed for finding in findings_of(entry)),
    )


def _numbers_of(entry: Entry) -> Iterator[Decimal]:
    """Every number of the artifact and its manifest but the bulk, and what a page derives from them."""
    for file in entry.files:
        yield from map(decimal, leaves(file.value, _BULK))
    yield from (finding.value for finding in findings_of(entry))
    if entry.bench:
        return
    runs = entry.value["runs"]
    for name in sorted({name for run in runs for name in run["training"]["last_diagnostics"]}):
        yield decimal(statistics.mean([run["training"]["last_diagnostics"].get(name, 0.0) for run in runs]))
    if runs:
        yield decimal(statistics.min_attainable_p(len(runs)))
    yield from map(Decimal, (len(runs), len(completed(runs))))


def _quotes(entry: Entry) -> Iterator[str]:
    """What the plan wrote down, and the artifact's own notes and verdicts."""
    body = {} if entry.plan is None else entry.plan.value["plan"]
    claims: Sequence[Mapping[str, Any]] = [
        *body.get("claims", []),
        *entry.value.get("mechanism", {}).get("claims", []),
    ]
    for claim in claims:
        yield from (str(claim[key]) for key in ("claim", "prediction", "metric", "rule"))
    yield from (str(note) for note in entry.value.get("notes", []))
    if entry.historical and entry.bench:
        yield str(entry.value["comparison"]["verdict"])
