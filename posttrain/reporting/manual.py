"""Hand-written text in a generated page: it lives between two markers and survives every rebuild."""

from __future__ import annotations

import re

from posttrain.reporting.reading import SuiteError

BEGIN, END = "<!-- manual:begin -->", "<!-- manual:end -->"
_MARKER = re.compile(r"<!--\s*manual\s*:\s*(\w*)\s*-->")
EMPTY = "\n"


def text_of(page: str | None, path: str) -> str:
    """The hand-written text of a page, empty where there is no page yet; SuiteError where its markers are broken."""
    if page is None:
        return EMPTY
    found = [(match.start(), match[0]) for match in _MARKER.finditer(page)]
    if [marker for _, marker in found] != [BEGIN, END]:
        line = page.count("\n", 0, found[-1][0]) + 1 if found else 1
        shown = ", ".join(marker for _, marker in found) or "none"
        raise SuiteError(
            f"{path}:{line}: the markers of hand-written text are broken: found {shown}; "
            f"write {BEGIN} once and {END} once after it. Nothing was overwritten"
        )
    return page[found[0][0] + len(BEGIN) : found[1][0]]


def span(page: str) -> tuple[int, int]:
    """Where the hand-written text of a page with sound markers begins and ends."""
    return page.index(BEGIN) + len(BEGIN), page.index(END)


def block(text: str) -> str:
    """The markers around a hand-written text."""
    return f"{BEGIN}{text}{END}"
