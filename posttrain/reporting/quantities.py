"""Numbers at the claim gate: results, and bounds on p."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from operator import ge, gt, le, lt

from posttrain.reporting.findings import SETTING, Finding
from posttrain.reporting.formatting import number
from posttrain.reporting.gate import Found, Gate, compared_with_none, inside, listed, speaks_of
from posttrain.reporting.licence import rounds_to

_DECIMAL = r"(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:e[-+]?\d+)?"
_POWER = r"(?:\d+(?:\.\d+)?\s*[×x]\s*)?10\s*\^\s*\{?\s*[-−]\s*\d+\s*\}?"
_UNITS = {"percent": 100, "basis": 10_000, "multiple": 1}  # what a share is multiplied by
_NUMBER = re.compile(
    rf"(?<![\w.,/])(?<![^\W\d]-)(?P<sign>[-+−±]?)(?P<value>{_DECIMAL})"
    r"(?:(?P<percent>\s?%|\s?(?:per\s?cent(?:age\s+points?)?|pct|points?|pp)\b)|(?P<basis>\s?(?:basis\s+points?|bp)\b)"
    r"|(?P<multiple>\s?(?:x|×|fold|-fold|times)(?!\w)))?(?!\w|[.,]\d)",
    re.IGNORECASE,
)
_MOVED = {  # the sign of a change
    sign: re.compile(rf"\b(?:{words})\s+(?:by|another)\s+$", re.IGNORECASE)
    for sign, words in {
        1: "rose|risen|rises|increased|grew|gained|climbed|improved",
        -1: "fell|fallen|falls|decreased|dropped|declined|shrank|lost",
    }.items()
}

_P = re.compile(
    r"(?<!min )(?<![\w`-])p(?:[-\s]values?)?(?![\w`-])(?:\s*\([^)\n]*\))?\s*(?:(?:is|are|was|were|of|:)\s*)?"
    r"(?:(?:all|each|both|well|far|clearly|always|even|everywhere)\s+)*"
    r"(?P<how><=|>=|[<>≤≥=≈~]|below|under|above|at\s+most|(?:less|smaller|lower|greater|larger)\s+than)?\s*"
    rf"(?P<bound>{_POWER}|{_DECIMAL})",
    re.IGNORECASE,
)
_BOUNDS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "<": lt, "below": lt, "under": lt, "less than": lt, "smaller than": lt, "lower than": lt, "<=": le, "≤": le,
    "at most": le, ">": gt, "above": gt, "greater than": gt, "larger than": gt, ">=": ge, "≥": ge,
}  # fmt: skip


def bound_spans(gate: Gate) -> list[tuple[int, int]]:
    """Where a bound on p stands."""
    return [match.span() for match in _P.finditer(gate.text) if gate.concerns(match.start())]


def bounds(gate: Gate) -> Found:
    """Bounds on p, and its value: of every comparison that the clause speaks of."""
    for match in _P.finditer(gate.text):
        place = match.start()
        if not gate.concerns(place):
            continue
        scope = gate.rivals(place)
        values = [outcome.p for outcome in scope.outcomes if outcome.p is not None]
        if scope.missing or not values:
            yield place, f"{match[0]!r} has no licence: {compared_with_none(scope)}; {gate.needed(place)}"
        elif not _holds(" ".join((match["how"] or "=").lower().split()), match["bound"], values):
            found = listed([number(float(p)) for p in values])
            yield place, f"{match[0]!r} has no licence: {speaks_of(scope)}p is {found}"


def numbers(gate: Gate) -> Found:
    """Results: numbers with a fraction, an exponent or a unit.

    What a template wrote needs an artifact that holds the number; what a person wrote, a finding of the metric, the
    tier, the plan and the seed that the clause names, and of the sign that it gives.
    """
    taken = bound_spans(gate)
    for match in _NUMBER.finditer(gate.text):
        value, place = _plain(match["value"]), match.start()
        unit = next((name for name in _UNITS if match[name]), None)
        if inside(place, taken) or (unit is None and value.isdigit()):
            continue  # a whole number without a unit is a count or a name, not a result
        if not gate.written[place]:
            if not (gate.licence.holds(value, unit == "percent") or (unit == "percent" and gate.licence.holds(value))):
                yield place, f"the number {match[0].strip()!r} stands in no artifact; {gate.needed(place)}"
        elif unit == "multiple" or gate.concerns(place) or gate.metrics(place):
            problem = _unfound(gate, match, value, unit)
            if problem:
                yield place, f"the number {match[0].strip()!r} {problem}; {gate.needed(place)}"


def _unfound(gate: Gate, match: re.Match[str], value: str, unit: str | None) -> str | None:
    """Why no finding gives the number, or None."""
    place = match.start()
    subjects, metrics = gate.subjects(place), gate.metric(place)
    if not subjects:
        return "names no method or track whose result it is"
    found = [finding for finding in _of_seeds(gate, place) if not metrics or finding.of in metrics]
    if unit == "multiple":
        found = [finding for finding in found if finding.of != SETTING]
    sign, scale = _sign(gate, match), _UNITS.get(unit or "", 1)
    found = [finding for finding in found if not sign or sign * finding.value >= 0]
    if any(rounds_to(scale * finding.value, value) for finding in found):
        return None
    what = " or ".join(sorted(metrics)).replace("_", " ") or "result"
    more = {1: " above 0", -1: " below 0"}.get(sign, "")
    return f"is no {what} of {' or '.join(sorted(subjects))} that is published{more}"


def _sign(gate: Gate, match: re.Match[str]) -> int:
    """The sign that a number has, by itself or by the word before it; 0 where there is none."""
    written = {"+": 1, "-": -1, "−": -1}.get(match["sign"], 0)
    before = gate.flat[max(0, match.start() - 32) : match.start()]
    return written or next((sign for sign, pattern in _MOVED.items() if pattern.search(before)), 0)


def _of_seeds(gate: Gate, place: int) -> Iterable[Finding]:
    """Of the seeds that a clause names; without one, what is said of all seeds."""
    clause = gate.reader.at(place)
    seeds = {int(match[1]) for match in re.finditer(r"\bseed\s+(\d+)\b", clause.text, re.IGNORECASE)}
    for finding in gate.spoken_of(place, gate.licence.findings):
        if finding.seed in seeds if seeds else finding.seed is None:
            yield finding


def _plain(written: str) -> str:
    """A number as Decimal reads it: a decimal comma is a point, and nothing before it a zero."""
    text = written.lower().replace(",", ".")
    return f"0{text}" if text.startswith(".") else text


def _holds(how: str, written: str, values: Iterable[Decimal]) -> bool:
    bound = _bound(written)
    if how not in _BOUNDS:  # "is", "about"
        return any(rounds_to(value, bound) for value in values)
    return all(_BOUNDS[how](value, Decimal(bound)) for value in values)


def _bound(written: str) -> str:
    """`2 × 10^{-5}` as `2e-5`."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)[×x])?10\^\{?[-−](\d+)\}?", re.sub(r"\s", "", written), re.IGNORECASE)
    return f"{found[1] or 1}e-{found[2]}" if found else _plain(written)
