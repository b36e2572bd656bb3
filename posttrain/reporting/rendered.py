"""A Markdown text as it is read: without emphasis, tags and entities, in letters and spaces of one kind.

The claim gate looks at this, so that a word or a number is the same however it is marked up. Code spans stay as they
are. Every character keeps the place in the Markdown that it came from.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# Letters of other scripts that look like Latin ones.
_ALIKE = str.maketrans(
    "аеорсухіјѕһԁԛԝАВЕКМНОРСТУХІЈЅοΟΑΒΕΖΗΙΚΜΝΡΤΥΧ‐‑", "aeopcyxijshdqwABEKMHOPCTYXIJSoOABEZHIKMNPTYX--"
)
_UNSEEN = "\u00ad\u200b\u200c\u200d\u2060\ufeff"  # soft hyphen, spaces and joiners of no width, byte order mark
_TEX = {
    r"\le": "<=", r"\leq": "<=", r"\lt": "<", r"\ge": ">=", r"\geq": ">=", r"\gt": ">", r"\approx": "≈", r"\sim": "≈",
    r"\times": "×", r"\cdot": "×", r"\%": "%", r"\,": " ", r"\ ": " ", r"\pm": "±",
}  # fmt: skip
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_PARTS = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|(?P<entity>&(?:#\d+|#x[0-9a-fA-F]+|[A-Za-z]\w*);)"
    r"|(?P<tag></?(?:a|abbr|b|br|code|del|details|div|em|h\d|i|img|ins|kbd|li|mark|ol|p|picture|pre|s|small|source|span"
    r"|strong|sub|summary|sup|table|tbody|td|th|thead|tr|u|ul)(?:\s[^<>\n]*)?/?>)"
    r"|(?P<tex>\\(?:[A-Za-z]+|[%, ]))"
    r"|(?P<mark>\*+|_+|~~|\$+)"
    r"|(?P<power>(?<=\d)[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    r"|(?P<line>[^\S\n]*\n[^\S\n]*)"
    r"|(?P<blank>[^\S\n]+(?=[^\S\n]|\S))"
    r"|(?P<plain>[^`&<\\*_~$\u0080-\U0010ffff\s]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_BREAK = re.compile(r"</?(?:br|p|div|li|ul|ol|td|th|tr|table|h\d)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Rendered:
    """What is read, and for each of its characters the place in the Markdown."""

    text: str
    places: Sequence[int]

    def place(self, position: int) -> int:
        """The place in the Markdown of a position in the text."""
        return self.places[position] if position < len(self.places) else (self.places[-1] + 1 if self.places else 0)


def rendered(markdown: str) -> Rendered:
    """The text that a reader of the Markdown sees; line breaks stay."""
    shown: list[str] = []
    places: list[int] = []
    for match in _PARTS.finditer(markdown):
        kind, found = match.lastgroup, match[0]
        if kind in ("plain", "code"):
            shown.append(found)
            places.extend(range(match.start(), match.end()))
            continue
        text = _read(kind, match, markdown)
        shown.append(text)
        places.extend([match.start()] * len(text))
    return Rendered("".join(shown), places)


def _read(kind: str | None, match: re.Match[str], markdown: str) -> str:
    found = match[0]
    if kind in ("line", "blank"):
        return "\n" if kind == "line" else " "
    if kind == "entity":
        return _letters(html.unescape(found))
    if kind == "tag":
        return " " if _BREAK.match(found) else ""
    if kind == "tex":
        return _TEX.get(found, found)
    if kind == "power":
        return "^" + found.translate(_SUPERSCRIPT)
    if kind == "mark":
        return "" if _is_markup(match, markdown) else found
    return _letters(found)


def _letters(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(_ALIKE).translate(dict.fromkeys(map(ord, _UNSEEN)))


def _is_markup(match: re.Match[str], markdown: str) -> bool:
    """Whether a mark is emphasis or the edge of a formula: a product, a bullet and an underscore in a name are not."""
    before, after = markdown[match.start() - 1 : match.start()], markdown[match.end() : match.end() + 1]
    if match[0][0] == "$":
        return True
    if match[0][0] == "_":
        return not (before.isalnum() and after.isalnum())
    return not (before.isdigit() and after.isdigit()) and not (before.strip() == "" and after.strip() == "")
