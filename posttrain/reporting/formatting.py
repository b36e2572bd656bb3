"""How numbers and tables are written: one formatter for every page, table and report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

MISSING = "–"
DIGITS = 4  # significant digits of a result
_FROM, _BELOW = Decimal("1e-4"), Decimal("1e6")  # outside, numbers are written with an exponent


def number(value: float | None, digits: int = DIGITS, *, signed: bool = False) -> str:
    """A number to so many significant digits, halves to even; counts whole; an exponent below 1e-4 and from 1e6.

    Neither locale nor platform changes a character. None is a dash, a negative zero is 0.
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if exact == 0:
        return "0"
    plus = "+" if signed and exact > 0 else ""
    if isinstance(value, int):
        return plus + str(value)
    rounded = exact.normalize(Context(prec=digits, rounding=ROUND_HALF_EVEN))
    if _FROM <= abs(rounded) < _BELOW:
        places = max(0, digits - 1 - rounded.adjusted())
        return plus + f"{rounded:.{places}f}"
    mantissa = rounded.scaleb(-rounded.adjusted())
    return plus + f"{mantissa:.{digits - 1}f}e{rounded.adjusted()}"


def declared(value: float) -> str:
    """A number that somebody wrote down, such as a threshold, in as many digits as were written."""
    return str(int(value)) if value == int(value) else repr(value)


def interval(ends: Sequence[float] | None, *, signed: bool = True) -> str:
    """An interval in square brackets; a dash where there is none."""
    return MISSING if ends is None else f"[{number(ends[0], signed=signed)}, {number(ends[1], signed=signed)}]"


def seeds(values: Sequence[int]) -> str:
    """`42-44` for a range of at least two, else the seeds themselves."""
    if len(values) > 1 and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values))


def plural(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def cell(text: str) -> str:
    """Text for one cell of a Markdown table: on one line, bars and angle brackets escaped."""
    flat = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"<(?!br>)", "&lt;", flat.replace("|", "\\|"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table; `right` names the columns that are aligned to the right."""
    aligned = set(right)
    rule = ["---:" if i in aligned else "---" for i in range(len(head))]
    lines = [head, rule, *([cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def option(value: Any) -> str:
    """A setting's value as it is written on the command line or in YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {option(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(option, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if isinstance(value, float) else str(value)
