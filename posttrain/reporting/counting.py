"""Counts at the claim gate: seeds of seeds, and claims by their outcome."""

from __future__ import annotations

import re

from posttrain.reporting.findings import OTHER
from posttrain.reporting.gate import Found, Gate
from posttrain.reporting.outcomes import SIGNATURE

_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_WHOLE = rf"(?:\d+|{'|'.join(_WORDS)})"
_SEEDS = r"(?:[a-z-]+\s+)?(?:seeds?|runs?|trainings?|pairs?)\b"
_COUNT = re.compile(
    rf"\b(?P<some>{_WHOLE})\s*(?:of|out\s+of|/)\s*(?:(?:the|all|its|our|these)\s+)*(?P<all>{_WHOLE})\s+{_SEEDS}"
    r"|(?<=\|)\s*(?P<cell>\d+)\s+of\s+(?P<cells>\d+)\s*(?=\|)",
    re.IGNORECASE,
)
_BARE = re.compile(r"(?<![\w./])(?P<some>\d+)\s*(?:/|of)\s*(?P<all>\d+)(?![\w/]|\.\d)")  # where a result is spoken of
_EVERY = re.compile(
    rf"\b(?P<how>all|every|each|both|no)(?:\s+of)?(?:\s+(?:the|its|our|single))?(?:\s+(?P<all>{_WHOLE}))?\s+{_SEEDS}",
    re.IGNORECASE,
)
_HAPPENED = {  # to seeds
    name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for name, words in {
        "higher": r"rose|risen?|rises|increas\w+|improv\w+|gain\w*|higher|grew|grows|climb\w*",
        "lower": r"fell|fallen|falls|decreas\w+|drop\w*|lower\w*|declin\w+|shr[au]nk|reduc\w+",
        "won": r"wins?|won|better|ahead|beats?|exceeds?",
        "lost": r"loses?|lost|worse|behind",
    }.items()
}
SUMS = re.compile(
    r"\b(\d+)\s+(?:claims?\s+)?(?:(?:is|are|was|were)\s+)?(confirmed|refuted|inconclusive)\b", re.IGNORECASE
)


def counts(gate: Gate) -> Found:
    """Seeds of seeds: as many, in the metric and the direction that are spoken of."""
    taken = []
    for match in _COUNT.finditer(gate.text):
        taken.append(match.span())
        some, every = (_whole(word) for word in match.groups() if word)
        if not _counted(gate, match.start(), some, every):
            yield match.start(), f"{match[0].strip()!r} stands in no artifact; {gate.needed(match.start())}"
    for match in _BARE.finditer(gate.text):
        place = match.start()
        spoken = (gate.metrics(place) or _happened(gate, place)) and gate.concerns(place)
        if any(start <= place < end for start, end in taken) or not spoken or gate.in_row(place):
            continue
        if not _counted(gate, place, int(match["some"]), int(match["all"])):
            yield place, f"{match[0]!r} stands in no artifact; {gate.needed(place)}"
    for match in _EVERY.finditer(gate.text):
        every = 2 if match["how"].lower() == "both" else _whole(match["all"]) if match["all"] else None
        some = 0 if match["how"].lower() == "no" else every
        if not (_happened(gate, match.start()) and gate.concerns(match.start())):
            continue
        if not _counted(gate, match.start(), some, every):
            said = f"{match[0]!r}: no artifact says so of {'none' if some == 0 else 'all'} of its seeds"
            yield match.start(), f"{said}; {gate.needed(match.start())}"


def _counted(gate: Gate, place: int, some: int | None, every: int | None) -> bool:
    """Whether there is such a count; None for `every` is whatever number of seeds, for `some` all of them."""
    metrics, happened = gate.metrics(place), _happened(gate, place)
    scope = gate.rivals(place)
    rivals = {outcome.about for outcome in scope.outcomes} if scope.named else set()
    for count in gate.spoken_of(place, gate.licence.counts):
        if rivals and count.rival and count.rival not in rivals:
            continue
        if count.all != (count.all if every is None else every) or count.some != (count.all if some is None else some):
            continue
        if (not metrics or count.of in {*metrics, OTHER}) and (not happened or happened & count.says):
            return True
    return False


def _happened(gate: Gate, place: int) -> frozenset[str]:
    """What is said that seeds did; a row of a table says it in its columns."""
    if gate.in_row(place):
        return frozenset()
    part = gate.part(place)
    return frozenset(name for name, pattern in _HAPPENED.items() if pattern.search(gate.text, *part))


def sums(gate: Gate) -> Found:
    """So many claims with one outcome."""
    for match in SUMS.finditer(gate.text):
        scope = gate.claims(match.start())
        found = sum(match[2].lower() in outcome.says for outcome in scope.outcomes if outcome.about != SIGNATURE)
        if found != int(match[1]):
            yield match.start(), f"{match[0]!r}: of the published claims here {found} are {match[2].lower()}"


def _whole(word: str) -> int:
    return int(word) if word.isdigit() else _WORDS.index(word.lower())
