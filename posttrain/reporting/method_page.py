"""The page of one method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from posttrain.reporting import figures, history, results
from posttrain.reporting.facts import Method
from posttrain.reporting.figures import Figure
from posttrain.reporting.formatting import number, option, plural, seeds, table
from posttrain.reporting.licence import licence_of
from posttrain.reporting.page import TIER_NAMES, Page, commands, relative
from posttrain.reporting.reading import POST_TRAINING, TIERS, Entry, Suite
from posttrain.reporting.summary import changes

NEEDS = {
    "rewards": "a reward for each completion",
    "teacher": "a teacher's log-probabilities of the sampled tokens",
    "reference": "log-probabilities under a frozen reference policy",
    "student": "the student's own scores at the start of each step",
    "support": "a teacher's log-probabilities of its top tokens",
    "divergence": "a teacher's full distributions",
    "values": "a critic",
    "pairs": "preference pairs, or labelled completions",
}


def method_page(method: Method, suite: Suite) -> Page:
    """The page of a registered method, whatever is published of it."""
    path = f"{POST_TRAINING}/{method.folder}/README.md"
    entries = sorted(suite.of(method.name), key=lambda entry: (_rank(entry), entry.artifact.path))
    current = [entry for entry in entries if not entry.historical]
    # A method that was published as another's rival is shown on its own page too.
    main = [entry for entry in current if not entry.is_arm or entry.method == method.name]
    others = tuple(other for entry in main for other in suite.comparing(entry))
    drawn = dict(_figures(method, main))
    body = [
        _head(method),
        _objective(method),
        _supervision(method, current),
        results.claims(method, main),
        *_tiers(method, main, drawn, suite),
        _history([entry for entry in entries if entry.historical], suite, path.rpartition("/")[0]),
        _pitfalls(method),
        _commands(method, current),
    ]
    texts = (method.title, method.summary, method.description, *method.pitfalls)
    return Page(
        path,
        method.name,
        [part for part in body if part],
        tuple(file for entry in [*entries, *others] for file in entry.files),
        licence_of([*entries, *others], (method.defaults,)),
        texts,
        drawn,
        method.name,
    )


def _rank(entry: Entry) -> int:
    return -1 if entry.historical else TIERS.index(entry.tier)


def _head(method: Method) -> str:
    paper = f" ([arXiv {method.paper}](https://arxiv.org/abs/{method.paper}))" if method.paper else ""
    title = f"*{method.title}*{paper}" if method.title else paper.strip(" ()")
    return f"{method.summary}\n\n{title}".strip()


def _objective(method: Method) -> str:
    rows = [(f"`algorithm.{name}`", f"`{option(value)}`") for name, value in method.defaults.items()]
    parts = ["## Objective", method.description]
    if method.objective:
        parts.append(
            "`prepare` gives each token its weight and signal, `loss` its price, and the trainer divides once, over "
            "all micro-batches and ranks: `sum(weight * loss) / sum(normaliser)`. The code is the formula:"
        )
        parts.append(f"```python\n{method.objective}\n```")
    parts.append(table(("option", "default"), rows) if rows else "It has no options.")
    return "\n\n".join(part for part in parts if part)


def _supervision(method: Method, entries: Sequence[Entry]) -> str:
    needs = "\n".join(f"- {NEEDS.get(need, need)}" for need in method.needs) or "- nothing beyond completions"
    rows = [_cost(entry) for entry in entries if not entry.is_arm]
    costs = "No run is published, so its cost is not known."
    if rows:
        head = ("run", "supervised share", "online teacher calls", "prefill calls", "critic updates", "seconds a seed")
        costs = (
            table(head, rows, right=range(1, 6)) + "\n\nCounts are over all seeds; seconds are of the recorded machine."
        )
    return f"## Supervision and cost\n\nUnder its defaults it needs:\n\n{needs}\n\n{costs}"


def _cost(entry: Entry) -> tuple[str, ...]:
    runs = entry.value["runs"]
    shares = [run["training"]["last_diagnostics"].get("supervision_fraction") for run in runs]
    share = None if None in shares else sum(shares) / len(shares)
    phases = {} if entry.execution is None else entry.execution.value["execution"].get("phases", {})
    counters = ("online_teacher_calls", "teacher_prefill_calls", "critic_updates")
    counts = (number(sum(run["training"].get(name, 0) for run in runs)) for name in counters)
    spent = number(sum(phases.values()) / len(runs), 3) if phases else "–"
    return f"{results.label(entry)}", number(share), *counts, spent


def _figures(method: Method, entries: Sequence[Entry]) -> Iterator[tuple[str, Figure]]:
    for entry in entries:
        if entry.tier == "l0_smoke":
            continue
        stem = f"{POST_TRAINING}/{method.folder}/figures/{entry.artifact.path.rpartition('/')[2].removesuffix('.json')}"
        metrics = ("accuracy", "kl_from_teacher", "kl_from_reference", "entropy")
        present = {change.metric for change in changes(entry.value["runs"])}
        yield f"{stem}-curves.svg", figures.curves(entry.value["runs"], [m for m in metrics if m in present][:3])
        if entry.value.get("comparison"):
            metric = entry.value["evaluation_protocol"]["primary_metric"].rpartition("/")[2]
            yield f"{stem}-differences.svg", figures.differences(entry.value["comparison"], metric)


def _tiers(method: Method, entries: Sequence[Entry], drawn: Mapping[str, Figure], suite: Suite) -> Iterator[str]:
    yield "## Results"
    for tier in TIERS:
        some = [entry for entry in entries if entry.tier == tier]
        if not some:
            yield f"### {TIER_NAMES[tier]}\n\nNothing is published."
            continue
        yield f"### {TIER_NAMES[tier]}"
        for entry in some:
            yield results.section(entry, drawn, f"{POST_TRAINING}/{method.folder}", suite)


def _history(entries: Sequence[Entry], suite: Suite, folder: str) -> str:
    if not entries:
        return ""
    rows = []
    for entry in entries:
        mark, again = history.standing(entry, suite.of(entry.page))
        found = {change.metric: change for change in changes(entry.value["runs"])}["accuracy"]
        link = f"[{entry.artifact.path.rpartition('/')[2]}]({relative(folder, entry.artifact.path)})"
        by = "" if again is None else f", by {results.label(again)}"
        rows.append((link, seeds(entry.value["seeds"]), number(found.before), number(found.after), f"**{mark}**{by}"))
    head = ("record", "seeds", "accuracy before", "after", "standing")
    parts = ["## Records from before this project", "They serve no comparison.", table(head, rows, right=(2, 3))]
    return "\n\n".join([*parts, history.mended(entries)]).rstrip()


def _pitfalls(method: Method) -> str:
    listed = "\n".join(f"- {pitfall}" for pitfall in method.pitfalls) or "None is recorded for its defaults."
    return f"## Known pitfalls\n\n{listed}"


def _commands(method: Method, entries: Sequence[Entry]) -> str:
    lines = commands(entries) or [f"posttrain train {method.name}"]
    if method.claims and f"posttrain reproduce {method.name}" not in lines:
        lines.append(f"posttrain reproduce {method.name}    # would decide {plural(len(method.claims), 'claim')}")
    text = "\n".join([f"posttrain explain {method.name}", *lines])
    checked = "\n".join(f"posttrain verify {entry.artifact.path}" for entry in entries if not entry.is_arm)
    return f"## Commands\n\n```\n{text}\n{checked}".rstrip() + "\n```"
