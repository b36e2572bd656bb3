"""The claim gate: every result number and claim word in a text needs a licence.

A word needs the outcome that says it, of what its clause names: "better than PPO" that against PPO, "S1 is confirmed"
that of S1. A clause that names no rival, or no claim, speaks of all that its page and its headings leave. Bounds on p
are read the same way. Of other numbers only their existence is known, not what they are said to be.

Names, ids, dates, years, code and quotations from plans are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import ge, gt, le, lt

from posttrain.reporting.clauses import Reader
from posttrain.reporting.formatting import number
from posttrain.reporting.licence import Licence, rounds_to
from posttrain.reporting.outcomes import SIGNATURE
from posttrain.reporting.scope import Scope, of_claims, of_rivals, plain_names
from posttrain.reporting.vocabulary import WORDS, Word

_BLOCKS = (
    re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"\]\([^)\n]*\)"),
    re.compile(r"<(?:img|a|source)\b[^>]*>"),
    re.compile(r"https?://\S+"),
)
_CODE = re.compile(r"`[^`\n]+`")
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


_P = re.compile(
    r"(?<!min )\bp\b(?:[- ]values?\b)?(?:\s*\([^)\n]*\))?\s*(?:is |are |was |were )?"
    r"(?P<how><=|>=|[<>≤≥=]|below|under|above|at most)\s*(?P<bound>\d+(?:\.\d+)?(?:e[-+]?\d+)?)",
    re.IGNORECASE,
)
_BOUNDS: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "<": lt, "below": lt, "under": lt, "<=": le, "≤": le, "at most": le, ">": gt, "above": gt, ">=": ge, "≥": ge
}  # fmt: skip
_SUMS = re.compile(r"\b(\d+) (?:claims? )?(?:(?:is|are|was|were) )?(confirmed|refuted|inconclusive)\b", re.IGNORECASE)
_SHOWN = 3  # outcomes of one message


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
) -> list[Problem]:
    """Everything in a Markdown text that has no licence.

    `names` are titles and the like, which may stand anywhere; `method` is the page's own method or track, `methods` are
    all that are registered, so that a rival nobody was compared with is known as one.
    """
    open_text = _blanked(_without_quotes(text, (*licence.quotes, *names)), _BLOCKS)
    plain = plain_names(licence.outcomes, methods)
    arms = frozenset(outcome.about for outcome in licence.outcomes if outcome.kind == "rival") - plain
    reader = Reader(_CODE.sub(_name_or_blank, open_text), plain, arms)
    gate = _Gate(_blanked(open_text, (_CODE, *_NAMES)), reader, licence, method)
    found = [*gate.counts(), *gate.sums(), *gate.bounds(), *gate.numbers(), *gate.words()]
    return [Problem(path, text.count("\n", 0, place) + 1, message) for place, message in sorted(set(found))]


def _without_quotes(text: str, quotes: Iterable[str]) -> str:
    for quote in sorted(set(quotes), key=lambda quote: (-len(quote), quote)):
        if quote.strip():
            # Tables put a quotation on one line and escape its bars.
            words = [re.escape(word).replace(r"\|", r"\\?\|").replace("<", "(?:<|&lt;)") for word in quote.split()]
            text = re.sub(r"(?<!\w)" + r"\s+".join(words) + r"(?!\w)", _blank, text)
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


_Found = Iterator[tuple[int, str]]  # place and message


@dataclass(frozen=True)
class _Gate:
    """One text at the gate."""

    text: str  # what is looked at; the rest are spaces
    reader: Reader
    licence: Licence
    method: str | None  # of the page

    @property
    def _name(self) -> str:
        return self.method or "ALGO"

    @property
    def _needed(self) -> str:
        run = f"posttrain train {self._name} (reproduce, compare), then posttrain publish"
        return f"it would take a run that gives it: {run}"

    def counts(self) -> _Found:
        """Seeds of seeds."""
        for match in _COUNT.finditer(self.text):
            if (int(match[1]), int(match[2])) not in self.licence.counts:
                yield match.start(), f"{match[0]!r} stands in no artifact; {self._needed}"

    def sums(self) -> _Found:
        """So many claims with one outcome."""
        for match in _SUMS.finditer(self.text):
            scope = self._claims(match.start())
            found = sum(match[2].lower() in outcome.says for outcome in scope.outcomes if outcome.about != SIGNATURE)
            if found != int(match[1]):
                yield match.start(), f"{match[0]!r}: of the published claims here {found} are {match[2].lower()}"

    def bounds(self) -> _Found:
        """Bounds on p, and its value: of every comparison that the clause speaks of."""
        for match in _P.finditer(self.text):
            scope = self._rivals(match.start())
            values = [outcome.p for outcome in scope.outcomes if outcome.p is not None]
            if scope.missing or not values:
                yield match.start(), f"{match[0]!r} has no licence: {_compared_with_none(scope)}; {self._needed}"
            elif not _holds(match["how"].lower(), match["bound"], values):
                found = _listed([number(float(p)) for p in values])
                yield match.start(), f"{match[0]!r} has no licence: {_speaks_of(scope)}p is {found}"

    def numbers(self) -> _Found:
        """Results: numbers with a fraction, an exponent or a unit."""
        bounds = [match.span() for match in _P.finditer(self.text)]
        for match in _NUMBER.finditer(self.text):
            value, unit = match["value"].lower(), (match["unit"] or "").strip().lower()
            if _inside(match.start(), bounds) or (not unit and "." not in value and "e" not in value):
                continue  # a whole number without a unit is a count or a name, not a result
            percent = unit in ("%", "points", "point", "pp")
            if not (self.licence.holds(value, percent) or (percent and self.licence.holds(value))):
                yield match.start(), f"the number {match[0].strip()!r} stands in no artifact; {self._needed}"

    def words(self) -> _Found:
        """Claim words, each of the first family that takes it."""
        taken = [match.span() for match in _SUMS.finditer(self.text)]
        for word in WORDS:
            for match in re.finditer(rf"\b(?:{word.pattern})\b", self.text, re.IGNORECASE):
                if _inside(match.start(), taken):
                    continue
                taken.append(match.span())
                why = self._unlicensed(word, match.start())
                if why:
                    yield match.start(), f"{match[0]!r} has no licence: {why}. It would take {self._run(word)}"

    def _run(self, word: Word) -> str:
        on_track = any(outcome.tier == "bench" and outcome.method == self.method for outcome in self.licence.outcomes)
        return (
            f"posttrain bench run {self.method}, then posttrain publish"
            if on_track
            else word.run.format(method=self._name)
        )

    def _unlicensed(self, word: Word, place: int) -> str | None:
        """Why a word at a place has no licence, or None."""
        if word.of == "nothing":
            return "no outcome says so"
        if word.of == "tier":
            return None if self.licence.language_models else "no published run trained one"
        scope = self._claims(place) if word.of == "claim" else self._rivals(place)
        if scope.missing or not scope.outcomes:
            return _compared_with_none(scope) if word.of == "rival" else "no published claim has an outcome"
        other = [outcome for outcome in scope.outcomes if not word.says & outcome.says]
        if not other:
            return None
        listed = _listed([f"{outcome.about} ({outcome.plan}): {outcome.verdict}" for outcome in other])
        return f"{_speaks_of(scope)}no published outcome says so of {listed}"

    def _claims(self, place: int) -> Scope:
        return of_claims(self.licence.outcomes, self.reader.at(place), self.method)

    def _rivals(self, place: int) -> Scope:
        return of_rivals(self.licence.outcomes, self.reader.at(place), self.method)


def _inside(place: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(start <= place < end for start, end in spans)


def _compared_with_none(scope: Scope) -> str:
    if scope.missing:
        return f"no published run compares {scope.subject} with {' or '.join(scope.missing)}"
    return f"no published outcome compares {scope.subject or 'what it speaks of'} with anything"


def _speaks_of(scope: Scope) -> str:
    if scope.named or len(scope.outcomes) < 2:
        return ""
    kind = scope.outcomes[0].kind
    return f"it names no {kind} (such as `{scope.outcomes[0].about}`), so it speaks of all, and "


def _holds(how: str, bound: str, values: Iterable[Decimal]) -> bool:
    if how == "=":
        return any(rounds_to(value, bound) for value in values)
    return all(_BOUNDS[how](value, Decimal(bound)) for value in values)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
