"""The results of one artifact as Markdown: sentences, tables, figures, claims and controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from posttrain.artifacts.gap import LABEL, gap_closed
from posttrain.reporting import sentences
from posttrain.reporting.facts import Method
from posttrain.reporting.figures import Figure
from posttrain.reporting.findings import plan_of
from posttrain.reporting.formatting import MISSING, declared, interval, number, option, plural, seeds, table
from posttrain.reporting.page import outside, relative
from posttrain.reporting.reading import Entry, Suite
from posttrain.reporting.summary import METRICS, changes


def label(entry: Entry) -> str:
    """An artifact's short name: its file without the ending, and whose arm it is."""
    return entry.artifact.path.rpartition("/")[2].removesuffix(".json")


def decided(entries: Sequence[Entry]) -> list[tuple[Entry, Mapping[str, Any]]]:
    """Every claim that some published study decided, in the order of methods and ids."""
    found = [(entry, claim) for entry in entries for claim in entry.value.get("mechanism", {}).get("claims", [])]
    return sorted(found, key=lambda pair: (pair[0].page, pair[1]["id"], pair[0].artifact.path))


def counted(claims: Iterable[Mapping[str, Any]]) -> str:
    """How many ended how: `5 confirmed, 1 refuted`."""
    counts = Counter(claim["outcome"] for claim in claims)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in sentences.OUTCOMES if counts[outcome])


def claims(method: Method, entries: Sequence[Entry]) -> str:
    """Every decided claim with what was predicted and measured; all outcomes look alike."""
    found = decided(entries)
    if not found:
        planned = f"It has {plural(len(method.claims), 'claim')} to decide: {', '.join(method.claims)}." * bool(
            method.claims
        )
        return f"## Mechanism claims\n\nNone is decided yet. {planned}".rstrip()
    said = counted(claim for _, claim in found)
    head = ("id", "claim", "predicted", "measured", "threshold", "outcome")
    several = len({entry.artifact.path for entry, _ in found}) > 1  # studies, which may have decided otherwise
    rows = [
        (
            f"{claim['id']}, {plan_of(entry)}" if several else claim["id"],
            claim["claim"],
            claim["prediction"],
            f"{claim['metric']}:<br>{measured(claim['measured'])}",
            rule(claim),
            f"**{claim['outcome']}**",
        )
        for entry, claim in found
    ]
    return (
        f"## Mechanism claims\n\n{said[:1].upper()}{said[1:]}. Prediction, rule and threshold were written into the "
        f"plan before the runs.\n\n{table(head, rows)}"
    )


def rule(claim: Mapping[str, Any]) -> str:
    """What the measurement had to satisfy, with the threshold in its place."""
    if claim["threshold"] is None:
        return claim["rule"]
    return claim["rule"].replace("threshold", declared(claim["threshold"]))


def measured(found: Mapping[str, Any] | None) -> str:
    """What a claim measured."""
    if found is None:
        return "not a number in some seed"
    if "value" in found:
        return number(found["value"])
    if "ci95" in found:
        return f"{number(found['mean'])}, 95 % interval {interval(found['ci95'])}"
    names = [name for name in found if f"{name} mean" in found]
    return "<br>".join(f"{name}: {number(found[f'{name} mean'])}, {interval(found[name])}" for name in names)


def section(entry: Entry, drawn: Mapping[str, Figure], folder: str, suite: Suite) -> str:
    """Sentences, tables and figures of one artifact."""
    assert entry.plan is not None
    runs = entry.value["runs"]
    link = f"[{label(entry)}]({relative(folder, entry.artifact.path)})"
    steps, protocol = sorted({run["training"]["steps"] for run in runs}), entry.value["evaluation_protocol"]
    compares = bool(entry.value.get("comparison")) or "mechanism" in entry.value
    said = sentences.label(protocol["claim_policy"], protocol["formal_comparison"], len(runs), compares)
    parts = [
        f"#### {label(entry)}",
        f"{link}: {runs[0]['dataset']}, {plural(len(runs), 'seed')} ({seeds(entry.value['seeds'])}), "
        f"{' or '.join(map(str, steps))} steps; {said}.",
        outside(entry, folder),
        " ".join(sentences.described(entry.value)),
    ]
    if entry.tier == "l0_smoke":
        names = [check["name"] for check in entry.value.get("checks", [])]
        parts += ["Checks: " + "; ".join(names) + "."] if names else []
        return "\n\n".join(part for part in parts if part)
    parts += [
        _changes(entry.value),
        _figure(entry, drawn, folder, "curves", "per seed, mean and interval against the step"),
    ]
    if entry.value.get("comparison"):
        parts += _compared(entry, drawn, folder, suite)
    parts += [_as_rival(entry, other, folder) for other in suite.comparing(entry)]
    parts += [f"> {note}" for note in entry.value.get("notes", [])]
    return "\n\n".join(part for part in parts if part)


CHANGES = ("metric", "before", "after", "change", "95 % interval of the change")


def change_rows(artifact: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Cells under `CHANGES`: each metric, and at language models the share of the gap to the teacher."""
    rows = [
        (
            ", ".join(METRICS[found.metric]),
            number(found.before),
            number(found.after),
            number(found.change, signed=True),
            interval(found.ci95),
        )
        for found in changes(artifact["runs"])
    ]
    gap = gap_closed(artifact)
    if gap is not None and gap.mean is None:
        rows.append((LABEL, MISSING, "undefined", MISSING, MISSING))
    elif gap is not None:
        rows.append((LABEL, number(0), number(gap.mean), number(gap.mean, signed=True), interval(gap.ci95)))
    return rows


def _changes(artifact: Mapping[str, Any]) -> str:
    return table(CHANGES, change_rows(artifact), right=range(1, 5))


def _figure(entry: Entry, drawn: Mapping[str, Figure], folder: str, kind: str, text: str) -> str:
    path = next((path for path in drawn if path.endswith(f"/{label(entry)}-{kind}.svg")), None)
    return "" if path is None else f"![{label(entry)}: {text}]({relative(folder, path)})"


RIVALS = (
    *("rival", "what differs", "difference", "95 % interval", "wins", "p (Holm)", "MDE (80 % power)"),
    *("smallest effect of interest", "verdict"),
)


def _compared(entry: Entry, drawn: Mapping[str, Figure], folder: str, suite: Suite) -> Iterator[str]:
    protocol = entry.value["evaluation_protocol"]
    metric = METRICS.get(protocol["primary_metric"].rpartition("/")[2], (protocol["primary_metric"], ""))[0]
    yield (
        f"**Controls and rivals.** {metric.capitalize()} after training minus each rival's, paired by seed; "
        f"{protocol['direction']}; Holm over a family of {protocol['family_size']} at {declared(protocol['alpha'])}."
    )
    yield table(
        RIVALS,
        [_row(entry, comparison, suite) for comparison in entry.value["comparison"]],
        right=range(2, 8),
    )
    yield _figure(entry, drawn, folder, "differences", "per-seed differences from each rival")
    yield "\n".join(f"- {sentences.compared(entry.value, comparison)}" for comparison in entry.value["comparison"])


def _as_rival(entry: Entry, other: Entry, folder: str) -> str:
    """What the artifact of another method says of the comparison with this one."""
    link = f"[{other.method}, {label(other)}]({relative(folder, other.artifact.path)})"
    said = [
        sentences.compared(other.value, comparison)
        for comparison in other.value["comparison"]
        if comparison["against"]["artifact_sha256"] == entry.artifact.digest
    ]
    return f"It is a rival in {link}:\n\n" + "\n".join(f"- {sentence}" for sentence in said)


def _row(entry: Entry, comparison: Mapping[str, Any], suite: Suite) -> tuple[str, ...]:
    assert entry.plan is not None
    name = comparison["against"]["method"]
    arm = entry.plan.value["plan"].get("arms", {}).get(name, {})
    changed = ", ".join(f"{key}={option(value)}" for key, value in arm.get("overrides", {}).items())
    differs = changed or (f"algorithm {arm['algorithm']}" if arm else MISSING)
    rival = suite.with_digest(comparison["against"]["artifact_sha256"])
    wins = MISSING if comparison["wins"] is None else f"{comparison['wins']} of {comparison['n_pairs']}"
    return (
        f"`{name}`" + ("" if rival is not None else " (not published)"),
        f"`{differs}`" if differs != MISSING else MISSING,
        number(comparison["delta_mean"], signed=True),
        interval(comparison["ci95"]),
        wins,
        number(comparison["p_adjusted"]),
        number(comparison["mde_80"]),
        number(comparison["sesoi"]),
        f"**{comparison['verdict']}**",
    )
