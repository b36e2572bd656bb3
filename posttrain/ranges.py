"""Ranges of options, checked where they are declared: one error for all, with field, value and what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.registry import ConfigError


@dataclass(frozen=True)
class Range:
    """A test and its words."""

    words: str
    holds: Callable[[Any], bool]


POSITIVE = Range("a number above 0", lambda value: 0 < value < float("inf"))
NOT_NEGATIVE = Range("0 or more", lambda value: 0 <= value < float("inf"))
OPEN_UNIT = Range("a number between 0 and 1", lambda value: 0 < value < 1)
UNIT = Range("a number from 0 to 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Range("a number from 0 to below 1", lambda value: 0 <= value < 1)
SHARE = Range("a number above 0 and at most 1", lambda value: 0 < value <= 1)


def at_least(low: int) -> Range:
    """Whole numbers from `low` up."""
    return Range(f"at least {low}", lambda value: value >= low)


def or_null(range_: Range) -> Range:
    """The range, or nothing."""
    return Range(f"{range_.words}, or null", lambda value: value is None or range_.holds(value))


def check(part: str, options: object, **ranges: Range) -> None:
    """Raises ConfigError for the first option outside its range; `part` is the option's place, such as `algorithm`."""
    for name, range_ in ranges.items():
        value = getattr(options, name)
        if not range_.holds(value):
            field = f"{part}.{name}" if part else name
            raise ConfigError(f"{field}: found {value}, expected {range_.words}")
