r"""Final answers of completions as text and as exact numbers. Pure functions on strings; nothing is evaluated.

Where the answer stands: in the last `\boxed{}`, else after the last `####`, else after the last 'answer is' (its first
number), else it is the last number. A number is read whole or not at all: `1:00`, `4\sqrt{2}`, `4 10/3` or `3x` are
never taken for one of their pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

Percent = Literal["unit", "fraction"]

MAX_CHARACTERS = 1000  # of a number as written
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 5_000
MAX_BITS = 200_000  # of a power

_PLAIN = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_TERM = rf"{_PLAIN}(?:[eE][-+]?\d+|\*10\^[-+]?\d+|\^[-+]?\d+|!)?"
_NUMBER = re.compile(
    rf"(?P<sign>[-+])?\s?[$€£¥]?\s?(?P<inner>-)?"
    rf"(?:(?P<whole>\d+) (?P<top>\d+)/(?P<bottom>\d+)|(?P<n>{_TERM})(?: ?/ ?(?P<d>{_TERM}))?)(?P<rest>[^\d]*)"
)
_PARTS = re.compile(rf"({_PLAIN})(?:([eE]|\*10\^|\^)([-+]?\d+)|(!))?")
_WHOLE = re.compile(r"[-+]?\$?\d+")
_PERCENT = re.compile(r"%|percent")
_FRACTION = re.compile(r"[-+]?\d+/\d+")
_UNIT = re.compile(r"[A-Za-z°µΩ€£$][A-Za-z°µΩ€£$./²³-]*")
_ATTACHED_UNIT = re.compile(r"[A-Za-z°µΩ]{2,4}(?:/[a-z]+)?")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Words after a number that make it another number, so that it is not read at all.
_FACTOR = (
    r"π|pi|half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|"
    r"thousandths?|dozens?|squared|cubed|sqrt.*|[\\√].*"
)
_FACTORS = re.compile(_FACTOR, re.IGNORECASE)
_NOT_UNITS = re.compile(_FACTOR + r"|times|over|plus|minus|or|and|to|log|ln|exp|sin|cos|tan", re.IGNORECASE)
_SINGLE_UNITS = set("mgshlL$€£°Ω")

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_HASHES = re.compile(r"####\s*(.*)")
_PHRASE = re.compile(r"\banswer(?:\*\*)? {0,2}(?:is|:|=)(?:\*\*)?[ :]{0,3}(.*)", re.IGNORECASE)
# Bounded, so that a completion of nothing but opening marks takes no time.
_MATHS = re.compile(r"\$\$(.{1,999}?)\$\$|\$([^$\n]{1,999})\$|\\\((.{1,999}?)\\\)|\\\[(.{1,999}?)\\\]", re.DOTALL)

# `(B) because x` and `B, because x` name a choice; `(A) + 1` and `A, B` do not.
_CHOICE = re.compile(
    r"\s*(?:\((?P<in>[A-Z])\)|(?P<bare>[A-Z]))(?=,?\s+[a-z]{2,})(?!,?\s+(?:and|or|times|plus|minus|over)\b)"
)

_STEPS = re.compile(r"(?<!\\);(?=\S)")  # between steps that are written without a space; `\;` is one of LaTeX's
_SENTENCE = re.compile(r"(?:^|\s)(?!(?:or|and|in|pi|sqrt|ln|log|sin|cos|tan)\b)[A-Za-z]{2,}(?=[\s,;:]|$)")

_REPLACEMENTS = (
    (re.compile(r"[\u2212\ufe63\uff0d]"), "-"),
    (re.compile(r"[\u2044\u2215]"), "/"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|\u202f|\u2009)(?=\d{3})"), ","),
    (re.compile(r"[\s~]+"), " "),
    (re.compile(r"\\[()\[\]]|\\left\b|\\right\b|\\!|`|\*\*"), ""),
    (re.compile(r"\\[,;: ]|\\q?quad\b"), " "),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit) ?\{([^{}]*)\}"), r" \1"),
    (re.compile(r"\\([%$#&])"), r"\1"),
    (re.compile(r"\^ ?\{? ?\\circ ?\}?|°"), " degrees"),
    (re.compile(r"(?<=\d) ?\\[dt]?frac ?\{ ?(\d+) ?\} ?\{ ?(\d+) ?\}"), r" \1/\2"),
    (re.compile(r"\\[dt]?frac ?\{([^{}]*)\} ?\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\[dt]?frac ?(\d) ?(\d)(?!\d)"), r"\1/\2"),
    (re.compile(r"\^ ?\{ ?([-+]? ?\d+) ?\}"), r"^\1"),
    (re.compile(r" ?(?:\\times|\\cdot|[×·*x]) ?10 ?\^ ?"), "*10^"),
    (re.compile(r" +"), " "),
    (re.compile(r"(?<![\d.,/^])[1-9]\d{0,2}(?: \d{3})+(?![\d/])"), lambda found: found[0].replace(" ", "")),
)


@dataclass(frozen=True)
class Answer:
    """A final answer as it stands in a completion, and its value where it reads as one number."""

    text: str
    value: Fraction | None


def tidy(text: str) -> str:
    """One way to write signs, spaces, fractions, powers of ten and units."""
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.strip()


@lru_cache(maxsize=4096)
def read_number(text: str, percent: Percent = "unit") -> Fraction | None:
    r"""The exact value of a text that is one number, with a unit or currency at most; None for anything else.

    Reads `1,234`, `-5`, `3/4`, `2 2/3`, `2\frac{2}{3}`, `1.5e3`, `1.5\times 10^3`, `2^98`, `5!`, `$29.00`, `12 cm`,
    `3 million`. A percent sign is a unit (`50%` is 50), or with `percent="fraction"` a hundredth (`50%` is 1/2).
    """
    found = _NUMBER.fullmatch(_stripped(tidy(text))) if len(text) <= MAX_CHARACTERS else None
    scale = None if found is None else _scale(found["rest"], percent)
    if found is None or scale is None:
        return None
    if found["whole"]:
        whole, top, bottom = (int(found[name]) for name in ("whole", "top", "bottom"))
        value = whole + Fraction(top, bottom) if top < bottom else None  # `4 10/3` is no mixed number
    else:
        value = _ratio(found["n"], found["d"])
    if value is None:
        return None
    negative = (found["sign"] == "-") != bool(found["inner"])
    return (-value if negative else value) * scale


def final_answer(completion: str, percent: Percent = "unit") -> Answer | None:
    """The final answer of a completion; None where it gives none. One that is no number has the value None."""
    whole = read_number(completion, percent)
    if whole is not None:
        return Answer(completion.strip(), whole)
    boxed = _last_boxed(completion)
    if boxed is not None:
        return Answer(boxed, read_number(boxed, percent)) if boxed.strip() else None
    hashes = _HASHES.findall(completion)
    if hashes:
        value = read_number(hashes[-1], percent)
        return Answer(hashes[-1].strip(), value) if value is not None else _numbers(hashes[-1], percent, last=True)
    for phrase in reversed(_PHRASE.findall(completion)):
        named = _numbers(phrase, percent, last=False)
        if named is not None:
            return named
    return _numbers(completion, percent, last=True)


def final_expression(completion: str, percent: Percent = "unit") -> Answer | None:
    """The final answer where it may be any expression: as `final_answer`, but a formula counts before loose numbers."""
    marked = _last_boxed(completion)
    for pattern in (_HASHES, _PHRASE):
        found = pattern.findall(completion) if marked is None else []
        marked = found[-1] if found else marked
    if marked is None:
        formulas = [next(filter(None, groups)) for groups in _MATHS.findall(completion)]
        marked = formulas[-1] if formulas else completion if "\n" not in completion.strip() else None
    if marked is None:
        return final_answer(completion, percent)
    choice = _CHOICE.match(marked)
    if choice is not None:
        return Answer(choice["in"] or choice["bare"], None)
    inner = [next(filter(None, groups)) for groups in _MATHS.findall(marked)]
    expression = _stripped((inner[-1] if inner else re.split(r"\.\s", marked)[0]).strip())
    if not expression:
        return None
    value = read_number(expression, percent)
    if value is None and not inner and _SENTENCE.search(expression):  # its number, if it has one
        found = final_answer(completion, percent)
        return found if found is not None and found.value is not None else Answer(expression, None)
    return Answer(expression, value)


def close(a: Fraction, b: Fraction, tolerance: float = 0.0) -> bool:
    """|a - b| <= tolerance * max(|a|, |b|), in exact arithmetic; symmetric, and equality for tolerance 0."""
    return abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b))


# -- numbers in a text ----------------------------------------------------------------------------------------


def _numbers(text: str, percent: Percent, last: bool) -> Answer | None:
    """The last (or first) number of a text. A word with digits that reads as no number is an answer without value."""
    words = tidy(_STEPS.sub("; ", text)).split()
    for i in reversed(range(len(words))) if last else range(len(words)):
        core = _core(words[i])
        if not any(letter.isdecimal() for letter in core) or core[0].isalpha() or re.fullmatch(r"\d+[a-z]{2}", core):
            continue  # no number: `so`, `x2`, `3rd`
        joined = " ".join(_joined(words, i, core, last))
        return Answer(joined, read_number(joined, percent))
    return None


def _core(word: str) -> str:
    """A word without the punctuation around it and what it is said to equal."""
    core = word.strip("\"'([{*_").rstrip("\"')]}*_.,;:!?$") if not word.startswith("\\") else word
    left, mark, right = core.rpartition("=")
    if not mark:
        left, mark, right = core.rpartition(":")
        mark = mark if left.isalpha() else ""
    return (right if mark else core) or "-"


def _joined(words: list[str], i: int, core: str, last: bool) -> Iterator[str]:
    """The word at `i` with what belongs to its number: a whole part before a fraction, a scale or `%` behind."""
    if last and i and _FRACTION.fullmatch(core) and _WHOLE.fullmatch(words[i - 1]):
        yield words[i - 1]
    yield core
    behind = words[i + 1] if i + 1 < len(words) and words[i][-1] not in ",;:!?" else ""
    mixed = not last and _WHOLE.fullmatch(core) and _FRACTION.fullmatch(_core(behind))
    if mixed or _core(behind).lower() in _SCALES or _PERCENT.match(behind) or _FACTORS.fullmatch(behind):
        yield _core(behind)


def _stripped(text: str) -> str:
    text = text.strip().strip("\"'")
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    return text.rstrip(" .,;:?").strip()


def _scale(rest: str, percent: Percent) -> Fraction | None:
    """What the words behind a number multiply it by; None where they are no unit."""
    if _ATTACHED_UNIT.fullmatch(rest) and not _NOT_UNITS.fullmatch(rest):
        return Fraction(1)
    if rest and not rest[0].isspace() and not rest.startswith("%"):
        return None
    scale = Fraction(1)
    for word in rest.replace("%", " % ").split():
        word = word.strip("().,")
        if word.lower() in ("%", "percent"):
            scale /= 100 if percent == "fraction" else 1
        elif word.lower() in _SCALES:
            scale *= 10 ** _SCALES[word.lower()]
        elif not _UNIT.fullmatch(word) or _NOT_UNITS.fullmatch(word) or (len(word) == 1 and word not in _SINGLE_UNITS):
            return None
    return scale


def _ratio(top: str, bottom: str | None) -> Fraction | None:
    above, below = _term(top), Fraction(1) if bottom is None else _term(bottom)
    return None if above is None or not below else above / below


def _term(text: str) -> Fraction | None:
    """A decimal, a power, a factorial or a number times a power of ten; None where it is too large to hold."""
    found = _PARTS.fullmatch(text)
    assert found is not None
    value = Fraction(found[1].replace(",", "").rstrip("."))
    if found[4]:
        small = value.denominator == 1 and value <= MAX_FACTORIAL
        return Fraction(math.factorial(int(value))) if small else None
    if found[3] is None:
        return value
    exponent = int(found[3])
    if abs(exponent) > MAX_EXPONENT:
        return None
    if found[2] != "^":
        return value * Fraction(10) ** exponent
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    return value**exponent if bits * abs(exponent) <= MAX_BITS and (value or exponent > 0) else None


def _last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces inside it matched; None where there is none that is closed."""
    starts = {found.end() for found in _BOXED.finditer(text)}
    opened: list[int] = []
    last = None
    for brace in _BRACE.finditer(text) if starts else ():
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            start = opened.pop()
            if start in starts and (last is None or start > last[0]):
                last = (start, brace.start())
    return None if last is None else text[slice(*last)]
