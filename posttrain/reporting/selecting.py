"""Which published runs `docs build --rerun` means."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.reporting.facts import Method
from posttrain.reporting.reading import TIERS, Entry, Suite, SuiteError

SHORT = {tier.split("_")[0]: tier for tier in TIERS}  # l1 -> l1_mechanism


def selected(suite: Suite, what: str, methods: Sequence[Method]) -> list[Entry]:
    """Main artifacts of the tiers, methods or tracks named in `what`, in the order of their paths."""
    words = [word for word in what.split(",") if word]
    entries = [entry for entry in suite.entries if not entry.historical and not entry.is_arm]
    tracks = {entry.method for entry in entries if entry.bench}
    known = {*SHORT, "bench", *tracks, *(method.name for method in methods)}
    strangers = [word for word in words if word not in known]
    if strangers or not words:
        raise SuiteError(f"--rerun: found {what!r}; write names among {', '.join(sorted(known))}, with commas")
    chosen = [entry for entry in entries if any(_means(word, entry) for word in words)]
    if not chosen:
        raise SuiteError(f"--rerun: nothing published belongs to {what!r}; publish a run first")
    return chosen


def _means(word: str, entry: Entry) -> bool:
    if entry.bench:
        return word in ("bench", entry.method)
    return word == entry.page or SHORT.get(word) == entry.tier
