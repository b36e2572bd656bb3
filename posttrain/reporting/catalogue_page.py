"""The catalogue: every registered method, what is published of it and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from posttrain.artifacts.digests import content_digest
from posttrain.reporting.facts import Dataset, Method
from posttrain.reporting.findings import plan_of
from posttrain.reporting.formatting import MISSING, number, plural, table
from posttrain.reporting.licence import licence_of
from posttrain.reporting.page import Page, relative
from posttrain.reporting.reading import POST_TRAINING, TIERS, Entry, Suite
from posttrain.reporting.results import counted, decided, measured, rule

TIMED = {"L1": "l1_mechanism", "L2": "l2_tiny_lm"}  # tiers whose cost stands in the catalogue


def catalogue_page(methods: Sequence[Method], suite: Suite, datasets: Sequence[Dataset] = ()) -> Page:
    """One row per registered method, and one per dataset, sorted by name."""
    entries = tuple(entry for entry in suite.entries if not entry.bench)
    listed = sorted(methods, key=lambda method: method.name)
    rows = [_row(method, suite) for method in listed]
    head = ("method", "needs", "L0", "L1", "L2", "L3", "claims", *(f"seconds a seed, {tier}" for tier in TIMED))
    digests = [[file.path, file.digest] for entry in entries for file in entry.files]
    body = [
        f"{plural(len(methods), 'registered method')}. A cell of a tier gives the largest number of published seeds; "
        "a dash is what is missing. Claims are mechanisms under their plan, on the data of the page.",
        table(head, rows, right=(2, 3, 4, 5, 7, 8)),
        "## What they do\n\n"
        + table(("method", "in one line"), [(_link(method), method.summary) for method in listed]),
        *_claims(entries),
        *(["## Data\n\n" + _data(datasets)] if datasets else []),
        f"Made from {plural(len(digests), 'file')} whose paths and digests have the digest "
        f"`{content_digest(digests)}`; each page lists its own.",
    ]
    names = tuple(text for method in methods for text in (method.title, method.summary))
    names += tuple(dataset.summary for dataset in datasets)
    return Page(f"{POST_TRAINING}/README.md", "Post-training methods", body, (), licence_of(entries), names)


def _claims(entries: Sequence[Entry]) -> list[str]:
    """Every decided claim in one table, the failed ones like the others."""
    found = decided(entries)
    if not found:
        return []
    again = Counter((entry.page, claim["id"]) for entry, claim in found)
    rows = [
        (
            f"{claim['id']}, {plan_of(entry)}" if again[entry.page, claim["id"]] > 1 else claim["id"],
            f"[`{entry.page}`]({relative(POST_TRAINING, entry.artifact.path)})",
            claim["claim"],
            measured(claim["measured"]),
            rule(claim),
            f"**{claim['outcome']}**",
        )
        for entry, claim in found
    ]
    head = ("id", "method", "claim", "measured", "threshold", "outcome")
    decisions = "decided" if len(again) == len(found) else f"decided {len(found)} times, in several studies"
    said = f"{plural(len(again), 'claim')} {decisions}: {counted(claim for _, claim in found)}."
    return [f"## Claims\n\n{said}\n\n{table(head, rows)}"]


def _data(datasets: Sequence[Dataset]) -> str:
    rows = [
        (f"`{dataset.name}`", dataset.summary, ", ".join(f"`{option}`" for option in dataset.defaults) or MISSING)
        for dataset in sorted(datasets, key=lambda dataset: dataset.name)
    ]
    return table(("dataset", "in one line", "options"), rows)


def _row(method: Method, suite: Suite) -> tuple[str, ...]:
    entries = [
        entry
        for entry in suite.of(method.name)
        if not entry.historical and (not entry.is_arm or entry.method == method.name)
    ]
    found = decided(entries)
    studies = len({entry.artifact.path for entry, _ in found})
    outcomes = counted(claim for _, claim in found) + (f" in {studies} studies" if studies > 1 else "")
    open_claims = f"{len(method.claims)} open" if method.claims else MISSING
    return (
        _link(method),
        ", ".join(method.needs) or MISSING,
        *(_seeds(entries, tier) for tier in TIERS),
        outcomes or open_claims,
        *(_seconds([entry for entry in entries if entry.tier == tier]) for tier in TIMED.values()),
    )


def _link(method: Method) -> str:
    return f"[`{method.name}`]({method.folder}/README.md)"


def _seeds(entries: Sequence[Entry], tier: str) -> str:
    counts = [len(entry.value["seeds"]) for entry in entries if entry.tier == tier]
    return number(max(counts)) if counts else MISSING


def _seconds(entries: Sequence[Entry]) -> str:
    """Of the published run of most seeds."""
    timed = [entry for entry in entries if entry.execution and entry.execution.value["execution"].get("phases")]
    if not timed:
        return MISSING
    chosen = max(timed, key=lambda entry: (len(entry.value["seeds"]), entry.artifact.path))
    assert chosen.execution is not None
    phases = chosen.execution.value["execution"]["phases"]
    return number(sum(phases.values()) / len(chosen.value["runs"]), 3)
