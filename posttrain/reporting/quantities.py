"""Numbers at the claim gate: results, counts of seeds and claims, bounds on p."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from operator import ge, gt, le, lt

from posttrain.reporting.findings import OTHER, Finding
from posttrain.reporting.formatting import number
from posttrain.reporting.gate import Found, Gate, compared_with_none, inside, listed, speaks_of
from posttrain.reporting.licence import rounds_to
from posttrain.reporting.outcomes import SIGNATURE

_DECIMAL = r"(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:e[-+]?\d+)?"
_POWER = r"(?:\d+(?:\.\d+)?\s*[×x]\s*)?10\s*\^\s*\{?\s*[-−]\s*\d+\s*\}?"
_NUMBER = re.compile(
    rf"(?<![\w.,/])(?<![^\W\d]-)(?P<sign>[-+−±]?)(?P<value>{_DECIMAL})"
    r"(?P<unit>\s?%|\s?(?:per\s?cent(?:age points?)?|x|×|fold|-fold|times|points?|pp)\b)?(?![\w]|[.,]\d)",
    re.IGNORECASE,
)
PERCENT = ("%", "percent", "per cent", "percentage points", "percentage point", "points", "point", "pp")

_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_WHOLE = rf"(?:\d+|{'|'.join(_WORDS)})"
_SEEDS = r"(?:(?:paired|training|evaluation)\s+)?(?:seeds?|runs?|trainings?|pairs?)\b"
_COUNT = re.compile(
    rf"\b({_WHOLE})\s*(?:of|out\s+of|/)\s*(?:(?:the|all|its|our|these)\s+)*({_WHOLE})\s+{_SEEDS}"
    r"|(?<=\|)\s*(\d+)\s+of\s+(\d+)\s*(?=\|)",
    re.IGNORECASE,
)
_EVERY = re.compile(
    rf"\b(?:all|every|each)(?:\s+of)?(?:\s+(?:the|its|our))?(?:\s+({_WHOLE}))?\s+{_SEEDS}", re.IGNORECASE
)
_HAPPENED = {  # to seeds
    name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for name, words in {
        "higher": r"rose|risen?|rises|increas\w+|improv\w+|gain\w*|higher|grew|grows|climb\w*",
        "lower": r"fell|fallen|falls|decreas\w+|drop\w*|lower\w*|declin\w+|shr[au]nk|reduc\w+",
        "won": r"wins?|won|better|ahead|beats?",
        "lost": r"loses?|lost|worse|behind",
    }.items()
}

_P = re.compile(
    r"(?<!min )(?<![\w`-])p(?:[-\s]values?)?(?![\w`-])(?:\s*\([^)\n]*\))?\s*(?:(?:is|are|was|were|of|:)\s*)?"
    r"(?P<how><=|>=|[<>≤≥=≈~]|below|under|above|at\s+most|(?:less|smaller|lower|greater|larger)\s+than)?\s*"
    rf"(?P<bound>{_POWER}|{_DECIMAL})",
    re.IGNORECASE,
)
_BOUNDS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "<": lt, "below": lt, "under": lt, "less than": lt, "smaller than": lt, "lower than": lt, "<=": le, "≤": le,
    "at most": le, ">": gt, "above": gt, "greater than": gt, "larger than": gt, ">=": ge, "≥": ge,
}  # fmt: skip
SUMS = re.compile(
    r"\b(\d+)\s+(?:claims?\s+)?(?:(?:is|are|was|were)\s+)?(confirmed|refuted|inconclusive)\b", re.IGNORECASE
)


def counts(gate: Gate) -> Found:
    """Seeds of seeds: as many, in the metric and the direction that the clause names."""
    for match in _COUNT.finditer(gate.text):
        some, every = (_whole(word) for word in match.groups() if word)
        if not _counted(gate, match.start(), some, every):
            yield match.start(), f"{match[0].strip()!r} stands in no artifact; {gate.needed(match.start())}"
    for match in _EVERY.finditer(gate.text):
        every = _whole(match[1]) if match[1] else None
        happened = _happened(gate, match.start())
        if happened and gate.concerns(match.start()) and not _counted(gate, match.start(), every, every):
            said = f"{match[0]!r}: no artifact says so of all its seeds"
            yield match.start(), f"{said}; {gate.needed(match.start())}"


def _counted(gate: Gate, place: int, some: int | None, every: int | None) -> bool:
    metrics, happened, subjects = gate.metrics(place), _happened(gate, place), gate.subjects(place)
    scope = gate.rivals(place)
    rivals = {outcome.about for outcome in scope.outcomes} if scope.named else set()
    for count in gate.licence.counts:
        if (subjects and count.page not in subjects) or (rivals and count.rival and count.rival not in rivals):
            continue
        if not ((count.some, count.all) == (some, every) or (every is None and count.some == count.all)):
            continue
        if (not metrics or count.of in {*metrics, OTHER}) and (not happened or happened & count.says):
            return True
    return False


def _happened(gate: Gate, place: int) -> frozenset[str]:
    """What the clause says that seeds did; a row of a table says it in its columns."""
    clause = gate.reader.span(place)
    if "|" in gate.text[clause[0] : clause[1]]:
        return frozenset()
    return frozenset(name for name, pattern in _HAPPENED.items() if pattern.search(gate.text, *clause))


def sums(gate: Gate) -> Found:
    """So many claims with one outcome."""
    for match in SUMS.finditer(gate.text):
        scope = gate.claims(match.start())
        found = sum(match[2].lower() in outcome.says for outcome in scope.outcomes if outcome.about != SIGNATURE)
        if found != int(match[1]):
            yield match.start(), f"{match[0]!r}: of the published claims here {found} are {match[2].lower()}"


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
    tier, the plan and the seed that the clause names.
    """
    taken = [match.span() for match in _P.finditer(gate.text) if gate.concerns(match.start())]
    for match in _NUMBER.finditer(gate.text):
        value, unit = _plain(match["value"]), " ".join((match["unit"] or "").lower().split())
        if inside(match.start(), taken) or (not unit and value.isdigit()):
            continue  # a whole number without a unit is a count or a name, not a result
        place, percent = match.start(), unit in PERCENT
        if not gate.written[place]:
            if not (gate.licence.holds(value, percent) or (percent and gate.licence.holds(value))):
                yield place, f"the number {match[0].strip()!r} stands in no artifact; {gate.needed(place)}"
            continue
        multiple = bool(unit) and not percent
        if not (multiple or gate.concerns(place) or gate.metrics(place)):
            continue
        problem = _unfound(gate, place, value, percent)
        if problem:
            yield place, f"the number {match[0].strip()!r} {problem}; {gate.needed(place)}"


def _unfound(gate: Gate, place: int, value: str, percent: bool) -> str | None:
    """Why no finding gives the number, or None."""
    subjects, metrics = gate.subjects(place), gate.metrics(place)
    if not subjects:
        return "names no method or track whose result it is"
    found = list(_in_scope(gate, place, gate.licence.findings))
    found = [finding for finding in found if finding.page in subjects and (not metrics or finding.of in metrics)]
    if any(rounds_to(100 * finding.value if percent else finding.value, value) for finding in found):
        return None
    what = " or ".join(sorted(metrics)).replace("_", " ") or "result"
    return f"is no {what} of {' or '.join(sorted(subjects))} that is published"


def _in_scope(gate: Gate, place: int, findings: Iterable[Finding]) -> Iterable[Finding]:
    """What tier, plan and seed of a clause leave: without a seed, what is said of all seeds."""
    clause = gate.reader.at(place)
    plans, tiers = clause.below({finding.plan for finding in findings}), clause.tiers
    seeds = {int(match[1]) for match in re.finditer(r"\bseed\s+(\d+)\b", clause.text, re.IGNORECASE)}
    for finding in findings:
        of_seed = finding.seed in seeds if seeds else finding.seed is None
        if of_seed and (not plans or finding.plan in plans) and (not tiers or finding.tier in tiers):
            yield finding


def _plain(written: str) -> str:
    """A number as Decimal reads it: a decimal comma is a point, and nothing before it a zero."""
    text = written.lower().replace(",", ".")
    return f"0{text}" if text.startswith(".") else text


def _whole(word: str) -> int:
    return int(word) if word.isdigit() else _WORDS.index(word.lower())


def _holds(how: str, written: str, values: Iterable[Decimal]) -> bool:
    bound = _bound(written)
    if how not in _BOUNDS:  # "is", "about"
        return any(rounds_to(value, bound) for value in values)
    return all(_BOUNDS[how](value, Decimal(bound)) for value in values)


def _bound(written: str) -> str:
    """`2 × 10^{-5}` as `2e-5`."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)[×x])?10\^\{?[-−](\d+)\}?", re.sub(r"\s", "", written), re.IGNORECASE)
    return f"{found[1] or 1}e-{found[2]}" if found else _plain(written)
