"""The claim gate: every result number and claim word in a text needs a licence.

Names, ids, dates, years, code and quotations from plans are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from posttrain.reporting.licence import WORDS, Licence

_CODE = (
    re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"`[^`\n]+`"),
    re.compile(r"\]\([^)\n]*\)"),
    re.compile(r"<(?:img|a|source)\b[^>]*>"),
    re.compile(r"https?://\S+"),
)
_NAMES = (
    re.compile(r"\b(?:arxiv[: ]*)?\d{4}\.\d{4,5}(?:v\d+)?\b", re.IGNORECASE),  # arXiv ids
    re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T[\d:.]+Z)?\b"),  # dates
    re.compile(r"\b(?:19|20)\d{2}\b(?![.%])"),  # years
    re.compile(r"\bv?\d+(?:\.\d+){2,}\b|\bv\d+(?:\.\d+)*\b|(?<=version )\d+(?:\.\d+)*"),  # versions
    re.compile(r"\b(?:sections?|eqs?\.?|equations?|tables?|figures?|figs?\.?|chapters?|§)\s*\(?\d+(?:\.\d+)*\)?", re.I),
    re.compile(
        r"\b9[05] %(?= (?:t |BCa )?(?:confidence )?(?:intervals?|half-width)\b)|\b80 %(?= of cases| power)"
    ),  # how results are given
)
_NUMBER = re.compile(
    r"(?<![\w.,/-])(?P<sign>[-+−±]?)(?P<value>\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?P<unit>\s?%|\s?(?:x|×|fold|-fold|times|points?|pp)\b)?"
    r"(?![\w]|\.\d)",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\b(\d+) of (?:the |all )?(\d+) (?:paired |training )?(?:seeds?|runs?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Problem:
    """Something that a page may not say."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check_text(
    path: str, text: str, licence: Licence, names: Iterable[str] = (), method: str = "ALGO"
) -> list[Problem]:
    """Everything in a Markdown text that has no licence; `names` are titles and the like, which may stand anywhere."""
    hidden = _mask(text, licence.quotes, names)
    found = [*_counts(hidden, licence, method), *_numbers(hidden, licence, method), *_words(hidden, licence, method)]
    return [Problem(path, hidden.count("\n", 0, place) + 1, message) for place, message in sorted(set(found))]


def _mask(text: str, quotes: Iterable[str], names: Iterable[str]) -> str:
    """The text with what is not looked at replaced by spaces, every line in its place."""
    for quote in sorted({*quotes, *names}, key=lambda quote: (-len(quote), quote)):
        if quote.strip():
            # Tables put a quotation on one line and escape its bars.
            words = [re.escape(word).replace(r"\|", r"\\?\|").replace("<", "(?:<|&lt;)") for word in quote.split()]
            text = re.sub(r"(?<!\w)" + r"\s+".join(words) + r"(?!\w)", _blank, text)
    for pattern in (*_CODE, *_NAMES):
        text = pattern.sub(_blank, text)
    return text


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _counts(text: str, licence: Licence, method: str) -> Iterator[tuple[int, str]]:
    for match in _COUNT.finditer(text):
        count = (int(match[1]), int(match[2]))
        if count not in licence.counts:
            yield match.start(), f"{match[0]!r} stands in no artifact; {_needed(method)}"


def _numbers(text: str, licence: Licence, method: str) -> Iterator[tuple[int, str]]:
    for match in _NUMBER.finditer(text):
        value, unit = match["value"].lower(), (match["unit"] or "").strip().lower()
        if not unit and "." not in value and "e" not in value:
            continue  # a whole number without a unit is a count or a name, not a result
        percent = unit in ("%", "points", "point", "pp")
        if not (licence.holds(value, percent) or (percent and licence.holds(value))):
            yield match.start(), f"the number {match[0].strip()!r} stands in no artifact; {_needed(method)}"


def _needed(method: str) -> str:
    return f"it would take a run that gives it: posttrain train {method} (reproduce, compare), then posttrain publish"


def _words(text: str, licence: Licence, method: str) -> Iterator[tuple[int, str]]:
    taken: list[tuple[int, int]] = []
    for word in WORDS:
        for match in re.finditer(rf"\b(?:{word.pattern})\b", text, re.IGNORECASE):
            if any(start <= match.start() < end for start, end in taken):
                continue
            taken.append(match.span())
            if not word.needs & licence.marks:
                needed = word.run.format(method=method)
                yield (
                    match.start(),
                    f"{match[0]!r} has no licence: no published outcome says so. It would take {needed}",
                )
