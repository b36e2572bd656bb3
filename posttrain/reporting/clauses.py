"""Clauses of a Markdown text: what a claim word stands in, whom it names, and under which headings.

A clause is a sentence, a part of one up to a semicolon, or a row of a table. Methods are named by their plain names;
arms of a study bear ordinary words ("first", "dense"), so they are names in backticks or after their method only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

_END = re.compile(r"(?<!\bvs)(?<!\bDr)(?<!\bcf)(?<!\be\.g)(?<!\bi\.e)[.!?](?=\s)|;|\n[ \t]*(?=\n|[|#>*+-]|\d+\.\s)")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_HEADING = re.compile(r"^(#{1,6}) (.*)$", re.MULTILINE)
_OBJECT = re.compile(
    r"\b(?:than|against|over|versus|vs\.?|to|from|beside|by|with|on|of|between|unlike)\s+(?:the\s+)?[`*]*$",
    re.IGNORECASE,
)
_AND = re.compile(r"[`*]*\s*(?:,|and|or|,\s*and)\s+(?:the\s+)?[`*]*", re.IGNORECASE)
SIDES = ("idea", "baseline")  # how verdicts call the two arms of a comparison: words of daily use
_TIERS = {
    "l1_mechanism": re.compile(r"\b(?:tier|at|under|on|in) L1\b|^L1, |candidate polic", re.IGNORECASE),
    "l2_tiny_lm": re.compile(r"\b(?:tier|at|under|on|in) L2\b|^L2, |tiny language model|tiny LM\b", re.IGNORECASE),
    "l3_real_model": re.compile(r"\b(?:tier|at|under|on|in) L3\b|^L3, |real checkpoint", re.IGNORECASE),
}


@dataclass(frozen=True)
class Mention:
    """A name in a clause."""

    name: str  # as the registry or the artifact has it; an arm without its method
    is_object: bool  # what is compared with: it follows the claim word or a preposition


@dataclass(frozen=True)
class Clause:
    """One clause with what it names, in order."""

    text: str
    mentions: tuple[Mention, ...]
    headings: tuple[str, ...]  # above it, the outermost first

    @property
    def tiers(self) -> frozenset[str]:
        """The tiers that it, or a heading above it, speaks of; empty for all."""
        for text in (self.text, *reversed(self.headings)):
            found = frozenset(tier for tier, pattern in _TIERS.items() if pattern.search(text))
            if found:
                return found
        return frozenset()

    def names(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some names (ids of claims, of plans) that stand in it as whole words."""
        return frozenset(name for name in names if re.search(_whole(re.escape(name)), self.text))

    def below(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some names that stand in it or in a heading above it."""
        places = (self.text, *self.headings)
        return frozenset(name for name in names if any(re.search(_whole(re.escape(name)), text) for text in places))


@dataclass(frozen=True)
class Reader:
    """Reads one text, in which quotations, blocks of code and the targets of links are blanked: they name nobody."""

    text: str
    methods: frozenset[str]  # plain names of methods and tracks
    arms: frozenset[str]  # names of rivals without their method

    @cached_property
    def _ends(self) -> Sequence[int]:
        return [0, *(match.end() for match in _END.finditer(self.text)), len(self.text)]

    @cached_property
    def _paragraphs(self) -> Sequence[int]:
        """Where each paragraph begins, and the end."""
        return [0, *(match.end() for match in _PARAGRAPH.finditer(self.text)), len(self.text)]

    @cached_property
    def _titles(self) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Where each heading stands, and the headings from there on, the outermost first."""
        found: dict[int, str] = {}
        titles: list[tuple[int, tuple[str, ...]]] = [(0, ())]
        for match in _HEADING.finditer(self.text):
            level = len(match[1])
            found = {known: text for known, text in found.items() if known < level} | {level: match[2]}
            titles.append((match.end(), tuple(found[known] for known in sorted(found))))
        return titles

    @cached_property
    def _naming(self) -> dict[int, bool]:
        """For each paragraph that was asked about, whether it names a method or a track."""
        return {}

    @cached_property
    def _names(self) -> re.Pattern[str]:
        options = [rf"(?:{_any(self.methods)})\.(?P<dotted>[\w-]+)", rf"(?P<plain>{_any(self.methods)})"]
        if self.arms:
            options.insert(1, rf"(?<=`)(?P<coded>{_any(self.arms)})(?=`)")
        return re.compile(_whole("(?:" + "|".join(options) + ")"), re.IGNORECASE)

    def span(self, place: int) -> tuple[int, int]:
        """Where the clause around a place begins and ends."""
        after = bisect_right(self._ends, place)
        return self._ends[after - 1], self._ends[min(after, len(self._ends) - 1)]

    def names_results(self, place: int) -> bool:
        """Whether the paragraph of a place, or a heading above it, names a method or a track."""
        after = min(bisect_right(self._paragraphs, place), len(self._paragraphs) - 1)
        if after not in self._naming:
            found = self._names.finditer(self.text, self._paragraphs[after - 1], self._paragraphs[after])
            headings = [self._names.search(heading) for heading in self._headings(place)]
            self._naming[after] = any(
                match is not None and match.lastgroup != "coded" and match[0].lower() not in SIDES
                for match in [*found, *headings]
            )
        return self._naming[after]

    def at(self, place: int) -> Clause:
        """The clause around a claim word at a place of the text."""
        start, end = self.span(place)
        return Clause(self.text[start:end], tuple(self._mentions(start, place, end)), self._headings(place))

    def _mentions(self, start: int, place: int, end: int) -> Iterator[Mention]:
        last, is_object = start, False
        for match in self._names.finditer(self.text, start, end):
            before = self.text[last : match.start()]
            is_object = (
                match.start() > place or bool(_OBJECT.search(before)) or (is_object and bool(_AND.fullmatch(before)))
            )
            last = match.end()
            written = match["dotted"] or match[0]
            known = (
                self.arms | self.methods
                if match["dotted"]
                else self.arms
                if match.lastgroup == "coded"
                else self.methods
            )
            yield Mention(next((name for name in known if _joined(name) == _joined(written)), written), is_object)

    def _headings(self, place: int) -> tuple[str, ...]:
        return self._titles[bisect_right(self._titles, place, key=itemgetter(0)) - 1][1]


def _any(names: Iterable[str]) -> str:
    """A pattern for any of some names, however their parts are joined; the longest first."""
    ordered = sorted(names, key=lambda name: (-len(name), name))
    return "|".join(r"[-_. ]{1,2}".join(map(re.escape, re.split(r"[-_.]", name))) for name in ordered)


def _joined(name: str) -> str:
    return re.sub(r"[-_. ]+", "-", name.lower())


def _whole(pattern: str) -> str:
    return rf"(?<![\w.-]){pattern}(?!\w|-(?!like\b|style\b|type\b|based\b)|\.\w)"
