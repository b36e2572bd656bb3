"""The claim gate: every result number and claim word in a text needs a licence.

A word needs the outcome that says it, of what its clause names: "better than PPO" that against PPO, "S1 is confirmed"
that of S1. A clause that names no rival, or no claim, speaks of all that its page and its headings leave; one that
denies a word needs that no outcome says it. Bounds on p are read the same way. A number that was written by hand is one
of the metric, the tier and the seed that its clause names; of one that a template wrote, an artifact holds it.

Names, ids, dates, years, code and quotations from plans are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from posttrain.reporting.clauses import Reader
from posttrain.reporting.counting import counts, sums
from posttrain.reporting.gate import Gate
from posttrain.reporting.licence import Licence
from posttrain.reporting.quantities import bounds, numbers
from posttrain.reporting.rendered import rendered
from posttrain.reporting.scope import plain_names
from posttrain.reporting.wording import words

_PARTS = (counts, sums, bounds, numbers, words)
_FENCES = re.compile(r"^(?P<fence>`{3,}|~{3,})[^`\n]*\n(?:.*?^(?P=fence)[`~]*[ \t]*$|.*\Z)", re.MULTILINE | re.DOTALL)
_ASIDE = re.compile(  # comments, targets of links and images; in code they are what they look like
    r"(?P<code>`[^`\n]+`)|<!--.*?-->|\]\([^()\s]*(?:\s+\"[^\"\n]*\")?\)|<(?:img|a|source)\s[^<>]*>|https?://\S+",
    re.DOTALL,
)
_LIST = re.compile(r"(?<=\d\.\d),(?=\d)|(?<=\d\.\d\d),(?=\d)|(?<=\d\.\d{3}),(?=\d)|(?<=\d\.\d{4}),(?=\d)")  # 0.1,0.2
_QUOTED = re.compile(r"(?:[\"“«]|^> ?)\Z", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_NAMES = (
    re.compile(r"\b(?:arxiv[: ]*)?\d{4}\.\d{4,5}(?:v\d+)?\b", re.IGNORECASE),  # arXiv ids
    re.compile(r"\b\d{4}-\d{2}-\d{2}(?:T[\d:.]+Z)?\b"),  # dates
    re.compile(r"\b(?:19|20)\d{2}\b(?!\.\d|\s?%)"),  # years
    re.compile(r"\bv?\d+(?:\.\d+){2,}\b|\bv\d+(?:\.\d+)*\b|(?<=version )\d{1,2}(?:\.\d{1,3})*\b"),  # versions
    re.compile(
        r"\b(?:sections?|eqs?\.?|equations?|tables?|figures?|figs?\.?|chapters?|§)\s*"
        r"\(?[1-9]\d?(?:\.\d{1,2}){0,2}(?![\d.])\)?",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b9[05] %(?= (?:t |BCa )?(?:confidence )?(?:intervals?|half-width)\b)|\b80 %(?= of cases| power)"
    ),  # how results are given
)


@dataclass(frozen=True)
class Problem:
    """Something that a page may not say."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check_text(
    path: str,
    text: str,
    licence: Licence,
    names: Iterable[str] = (),
    method: str | None = None,
    methods: Iterable[str] = (),
    written: tuple[int, int] | None = None,
) -> list[Problem]:
    """Everything in a Markdown text that has no licence.

    `names` are titles and the like, which may stand anywhere; `method` is the page's own method or track, `methods` are
    all that are registered, so that a rival nobody was compared with is known as one; `written` is where a person
    wrote, by default everywhere.
    """
    start, end = written or (0, len(text))
    open_text = _blanked(_without_quotes(text, names), (_FENCES,))
    open_text = _without_quotes(open_text, licence.quotes, (start, end))
    open_text = _ASIDE.sub(lambda match: match[0] if match["code"] else _blank(match), open_text)
    shown = rendered(_LIST.sub(" ", open_text))
    plain = plain_names(licence.outcomes, methods)
    arms = frozenset(outcome.about for outcome in licence.outcomes if outcome.kind == "rival") - plain
    reader = Reader(_CODE.sub(_name_or_blank, shown.text), plain, arms)
    by_hand = [start <= place < end for place in shown.places]
    gate = Gate(_blanked(shown.text, (_CODE, *_NAMES)), reader, licence, method, by_hand)
    found = {problem for part in _PARTS for problem in part(gate)}
    places = sorted((shown.place(place), message) for place, message in found)
    return [Problem(path, text.count("\n", 0, place) + 1, message) for place, message in places]


def _without_quotes(text: str, quotes: Iterable[str], written: tuple[int, int] = (0, 0)) -> str:
    """The text without quotations: where a person wrote, only those in quotation marks, or after `>`, are such."""

    def blank(match: re.Match[str]) -> str:
        by_hand = written[0] <= match.start() < written[1]
        before = text[max(0, match.start() - 3) : match.start()]
        return match[0] if by_hand and not _QUOTED.search(before) else _blank(match)

    for quote in sorted(set(quotes), key=lambda quote: (-len(quote), quote)):
        if quote.strip():
            # Tables put a quotation on one line and escape its bars.
            words = [re.escape(word).replace(r"\|", r"\\?\|").replace("<", "(?:<|&lt;)") for word in quote.split()]
            text = re.sub(r"(?<!\w)" + r"\s+".join(words) + r"(?!\w)", blank, text)
    return text


def _blanked(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    """The text with what matches replaced by spaces, every line in its place."""
    for pattern in patterns:
        text = pattern.sub(_blank, text)
    return text


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _name_or_blank(code: re.Match[str]) -> str:
    """In backticks a single word may be a name; settings and commands name nobody."""
    return code[0] if re.fullmatch(r"`[\w.-]+`", code[0]) else _blank(code)
