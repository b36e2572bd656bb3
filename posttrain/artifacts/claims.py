"""Mechanism claims: the rules, written before the run, that turn what was measured into an outcome.

`measured` maps names to numbers or to intervals [low, high]; the threshold is in the unit of what the rule looks at.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Outcome = Literal["confirmed", "refuted", "inconclusive"]
Test = Callable[[float, float, float], bool]  # low, high, threshold

# rule: (what it looks at, confirmed if so everywhere, refuted if so anywhere); a value is an interval of no width
_RULES: dict[str, tuple[str, Test, Test]] = {
    "value at least threshold": ("value", lambda low, high, t: low >= t, lambda low, high, t: high < t),
    "value at most threshold": ("value", lambda low, high, t: high <= t, lambda low, high, t: low > t),
    "interval at least threshold": ("ci95", lambda low, high, t: low >= t, lambda low, high, t: high < t),
    "interval at most threshold": ("ci95", lambda low, high, t: high <= t, lambda low, high, t: low > t),
    "interval above threshold": ("ci95", lambda low, high, t: low > t, lambda low, high, t: high < t),
    "every interval above threshold": ("*", lambda low, high, t: low > t, lambda low, high, t: high < t),
}
RULES = tuple(_RULES)


def judge(rule: str, threshold: float | None, measured: Mapping[str, Any] | None) -> Outcome | None:
    """The outcome a rule of the closed list gives; None for a rule in free words, which a program cannot apply.

    Inconclusive where nothing was measured or the rule's quantity is missing.
    """
    if measured is None:
        return "inconclusive"
    if rule not in _RULES or threshold is None:
        return None
    key, confirmed, refuted = _RULES[rule]
    intervals = [_interval(value) for name, value in measured.items() if _looks_at(key, name, value)]
    ranges = [interval for interval in intervals if interval is not None]
    if not ranges or len(ranges) < len(intervals):
        return "inconclusive"
    if all(confirmed(low, high, threshold) for low, high in ranges):
        return "confirmed"
    return "refuted" if any(refuted(low, high, threshold) for low, high in ranges) else "inconclusive"


def _looks_at(key: str, name: str, value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 if key == "*" else name == key


def _interval(value: Any) -> tuple[float, float] | None:
    """Low and high end of an interval or of a single number; None where one is missing."""
    ends = list(value) if isinstance(value, Sequence) else [value, value]
    return (ends[0], ends[1]) if len(ends) == 2 and None not in ends else None
