"""Pages of bench tracks, from bench artifacts alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.reporting import bench_figures, history
from posttrain.reporting.figures import Figure
from posttrain.reporting.formatting import MISSING, interval, number, option, plural, table
from posttrain.reporting.licence import licence_of
from posttrain.reporting.page import Page, commands, outside, relative
from posttrain.reporting.reading import BENCH, Entry, Suite

HEAD = (
    *("artifact", "aim", "baseline", "idea", "difference", "95 % half-width", "p", "pairs"),
    *("verdict", "standing"),
)


def bench_pages(suite: Suite) -> list[Page]:
    """A page per published track and one that lists all, the recorded artifacts included."""
    entries = [entry for entry in suite.entries if entry.bench]
    if not entries:
        return []
    tracks = sorted({entry.method for entry in entries if not entry.historical})
    pages = [_track_page(track, suite) for track in tracks]
    rows = [_row(entry, suite, BENCH) for entry in sorted(entries, key=lambda e: (e.method, e.artifact.path))]
    body = [
        "An idea against a tuned baseline on a tiny model. Differences are idea minus baseline, paired by seed.",
        table(HEAD, rows, right=range(2, 8)),
        history.mended(entries),
    ]
    sources = tuple(file for entry in entries for file in entry.files)
    return [*pages, Page(f"{BENCH}/README.md", "Bench tracks", body, sources, licence_of(entries))]


def _track_page(track: str, suite: Suite) -> Page:
    folder = f"{BENCH}/{track}"
    entries = sorted(suite.of(track, bench=True), key=lambda entry: entry.artifact.path)
    current = [entry for entry in entries if not entry.historical]
    drawn = {f"{folder}/figures/{_stem(entry)}.svg": _figure(entry) for entry in current}
    body = ["An idea against a tuned baseline on a tiny model.", *_measured(current), "## Results"]
    body += [table(HEAD, [_row(entry, suite, folder) for entry in entries], right=range(2, 8)), history.mended(entries)]
    body += [f"![{_stem(entry)}: differences by seed, and sweeps](figures/{_stem(entry)}.svg)" for entry in current]
    body += [_signature(entry, folder) for entry in current]
    lines = commands(current) + [f"posttrain verify {entry.artifact.path}" for entry in current]
    body.append("## Commands\n\n```\n" + "\n".join(lines) + "\n```")
    sources = tuple(file for entry in entries for file in entry.files)
    return Page(f"{folder}/README.md", track, body, sources, licence_of(entries), (), drawn, track)


def _measured(entries: Sequence[Entry]) -> list[str]:
    """What is measured, on which model, in the words of the plans: once where they agree."""
    said = []
    for entry in entries:
        assert entry.plan is not None
        common = entry.plan.value["plan"]["common_config"]
        said.append(f"Measured on `{common['model']}`: {common['metric']}; {entry.value['metric_direction']}.")
    return list(dict.fromkeys(said))


def _stem(entry: Entry) -> str:
    return entry.artifact.path.rpartition("/")[2].removesuffix(".json")


def _figure(entry: Entry) -> Figure:
    assert entry.plan is not None
    return bench_figures.track(entry.value, entry.plan.value["plan"]["common_config"]["metric"])


def _row(entry: Entry, suite: Suite, folder: str) -> tuple[str, ...]:
    value: Mapping[str, Any] = entry.value
    found = value["comparison"]
    standing = "published"
    if entry.historical:
        standing = f"**{history.standing(entry, suite.of(entry.method, bench=True))[0]}**"
    return (
        f"[{_stem(entry)}]({relative(folder, entry.artifact.path)})",
        value["metric_direction"].partition(" ")[0],
        number(value["baseline"]["full"]["mean"]),
        number(value["idea"]["mean"]),
        number(found["delta_mean"], signed=True),
        number(found["mde"]),
        number(found["p_value"]),
        number(found["n_pairs"]),
        f"**{found['verdict']}**",
        standing,
    )


def _arms(artifact: Mapping[str, Any]) -> str:
    """The chosen settings of both arms."""
    cfgs = artifact["baseline"].get("best_cfg"), artifact["idea"].get("best_cfg")
    shown = [", ".join(f"{key}={option(value)}" for key, value in (cfg or {}).items()) for cfg in cfgs]
    return f"Chosen settings: baseline `{shown[0]}`; idea `{shown[1]}`." if all(shown) else ""


def failures(artifact: Mapping[str, Any]) -> str:
    """At which seeds an arm left no number, and what stands in the table for it; nothing where every seed did."""
    failed = artifact["comparison"].get("failed_seeds")
    if not failed:
        return ""
    counted = number(artifact["protocol"]["failure_value"])
    return (
        f"At {plural(len(failed), 'seed')} ({', '.join(map(str, failed))}) the metric of an arm was not finite and "
        f"counts as {counted}, as declared before the run."
    )


def _signature(entry: Entry, folder: str) -> str:
    """The mechanism signature: claim, what was observed and whether it is confirmed, as it stands in the artifact."""
    found = entry.value["mechanism_signature"]
    inner = found.get("mechanism_signature", found)
    ci95 = entry.value["comparison"].get("ci95")
    parts = [
        f"### {_stem(entry)}",
        outside(entry, folder),
        _arms(entry.value),
        f"95 % interval of the difference: {interval(ci95)}." if ci95 else "",
        failures(entry.value),
    ]
    if isinstance(inner, Mapping) and not inner.get("claims", True):
        parts.append("No prediction was written down for this idea.")
    elif isinstance(inner, Mapping):
        text = json.dumps(inner, indent=2, ensure_ascii=False)
        outcome = inner.get("confirmed")
        said = MISSING if not isinstance(outcome, bool) else "confirmed" if outcome else "refuted"
        parts.append(f"Mechanism signature: **{said}**.\n\n```json\n{text}\n```")
    sweep: Sequence[Any] = entry.value["baseline"].get("sweep", [])
    parts.append(f"The baseline was tuned over {plural(len(sweep), 'setting')}." if sweep else "")
    return "\n\n".join(part for part in parts if part)
