"""One self-contained HTML file of a run: inline SVG, CSS and script, no network, opens in any browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.documents import DocumentError, parse, read
from posttrain.artifacts.report import Report
from posttrain.reporting import figures, sentences
from posttrain.reporting.figures import Figure
from posttrain.reporting.formatting import MISSING, declared, interval, number, plural, seeds
from posttrain.reporting.page import command
from posttrain.reporting.results import CHANGES, change_rows, measured
from posttrain.reporting.samples import sample_blocks
from posttrain.reporting.summary import METRICS, changes

# Quantities of metrics.jsonl: heading, and name and unit by key.
STEPS: dict[str, dict[str, tuple[str, str]]] = {
    "KL and entropy at every step": {
        "kl_to_teacher_sampled": ("KL to the teacher, sampled", "nats per token"),
        "kl_to_reference_sampled": ("KL to the reference, sampled", "nats per token"),
        "policy_entropy": ("entropy of what was sampled", "nats per token"),
    },
    "Selected positions": {
        "supervision_fraction": ("supervised share", "of sampled tokens"),
        "supervised_place": ("place of supervised tokens", "0 start, 1 end"),
        "advantage_share": ("share of all credit that is supervised", "of its absolute sum"),
        "selected_discrepancy": ("gap to the teacher when supervised", "nats"),
    },
    "Loss, gradient and reward": {
        "loss": ("loss", "its unit"),
        "gradient_norm": ("gradient norm", "before clipping"),
        "reward": ("reward", "mean of the step"),
    },
}


class ReportError(ValueError):
    """A run folder that cannot be reported."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    artifact: Mapping[str, Any]
    plan: Mapping[str, Any]
    execution: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    digest: str


def read_run(folder: Path) -> Run:
    """Everything a report needs; ReportError names what is missing or broken."""
    try:
        artifact, plan, execution = (read(folder / f"{name}.json") for name in ("artifact", "plan", "execution"))
        metrics, samples = (_lines(folder / f"{name}.jsonl") for name in ("metrics", "samples"))
        digest = file_digest(folder / "artifact.json")
        return Run(artifact, plan["plan"], execution["execution"], metrics, samples, digest)
    except FileNotFoundError as error:
        raise ReportError(f"{folder} is incomplete: there is no {Path(error.filename).name}") from None
    except DocumentError as error:
        raise ReportError(str(error)) from None


def _lines(path: Path) -> list[Mapping[str, Any]]:
    found = []
    for i, line in enumerate(path.read_bytes().splitlines(), start=1):
        value = parse(line, f"{path.name}:{i}")
        if not isinstance(value, Mapping):
            raise ReportError(f"{path.name}:{i} is no object")
        found.append(value)
    return found


def render(run: Run, checked: Report) -> str:
    """The whole page."""
    files = resources.files("posttrain.reporting")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    artifact = run.artifact
    title = f"{artifact['method']} on {artifact['runs'][0]['dataset']}"
    body = "\n".join([_head(run, title), *_verdict(run, checked), *_curves(run), *_steps(run), _costs(run)])
    body += "\n" + sample_blocks(run.samples) + "\n" + _sources(run)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty icon keeps the browser from asking for one.
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n{body}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """A table whose cells are text."""
    right = set(numeric)

    def line(tag: str, cells: Sequence[str]) -> str:
        made = [f"<{tag}{' class=n' if i in right else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells)]
        return f"<tr>{''.join(made)}</tr>"

    return "<table>\n" + "\n".join([line("th", head), *(line("td", row) for row in rows)]) + "\n</table>"


def _head(run: Run, title: str) -> str:
    artifact = run.artifact
    steps = sorted({r["training"]["steps"] for r in artifact["runs"]})
    said = (
        f"{artifact['evaluation_protocol']['tier']}, {plural(len(artifact['seeds']), 'seed')} "
        f"({seeds(artifact['seeds'])}), {' or '.join(map(str, steps))} steps, policy {_part(run, 'policy')}, "
        f"teacher {_part(run, 'teacher')}"
    )
    return f"<h1>{escape(title)}</h1>\n<p class=muted>{escape(said)}</p>"


def _part(run: Run, name: str) -> str:
    return (run.execution["config"].get(name) or {}).get("name", "none")


def _verdict(run: Run, checked: Report) -> Iterator[str]:
    artifact = run.artifact
    levels = ", ".join(checked.passed_levels) or "no level"
    failed = [f"{check.name}: {check.message}" for check in checked.checks if check.status == "failed"]
    why = failed or list(checked.unverifiable)
    state = f"Checked at {levels}." if not why else f"Not verified: {'; '.join(why)}."
    paragraphs = "".join(f"<p>{escape(text.replace('`', ''))}</p>" for text in [*sentences.said(artifact), state])
    yield f"<h2>Verdict and reasons</h2>\n<div class=verdict>{paragraphs}</div>"
    if artifact.get("comparison"):
        yield _comparisons(artifact)
    claims = artifact.get("mechanism", {}).get("claims", [])
    if claims:
        rows = [
            (c["id"], c["claim"], c["prediction"], f"{c['metric']}: {measured(c['measured']).replace('<br>', '; ')}",
             c["rule"].replace("threshold", declared(c["threshold"])), c["outcome"])
            for c in claims
        ]  # fmt: skip
        yield "<h2>Claims, written down before the run</h2>"
        yield table(("id", "claim", "predicted", "measured", "rule", "outcome"), rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in artifact.get("notes", []))
    yield f"<h2>Notes</h2>{notes}" if notes else ""


def _comparisons(artifact: Mapping[str, Any]) -> str:
    rows = [
        (
            entry["against"]["method"],
            number(entry["delta_mean"], signed=True),
            interval(entry["ci95"]),
            number(entry["p_value"]),
            number(entry["p_adjusted"]),
            number(entry["mde_80"]),
            str(entry["verdict"]),
        )
        for entry in artifact["comparison"]
    ]
    head = ("rival", "difference", "95 % interval", "p", "p (Holm)", "MDE (80 % power)", "verdict")
    metric = artifact["evaluation_protocol"]["primary_metric"].rpartition("/")[2]
    drawn = _figure(figures.differences(artifact["comparison"], metric), "Per-seed differences from each rival.")
    return f"{table(head, rows, range(1, 6))}\n{drawn}"


def _figure(figure: Figure, caption: str) -> str:
    svg = figures.draw(figure).decode()
    # Ids are shared by all figures of one file: matplotlib's own would meet.
    mark = figure.digest[7:15]
    svg = re.sub(r'(id="|url\(#|href="#)(?!seed-)', rf"\g<1>{mark}-", svg[svg.index("<svg ") :])
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return f"<figure>{svg.replace('<svg ', '<svg role=img ', 1)}<figcaption>{escape(caption)}</figcaption></figure>"


def _curves(run: Run) -> Iterator[str]:
    runs = run.artifact["runs"]
    yield '<h2>Held-out measurements</h2>\n<p><button id="lines" aria-pressed="false">hide single seeds</button></p>'
    yield table(CHANGES, change_rows(run.artifact), range(1, 5))
    drawn = [_figure(figures.curves(runs, [change.metric]), METRICS[change.metric][0]) for change in changes(runs)]
    yield f"<div class=grid>{''.join(drawn)}</div>"


def _steps(run: Run) -> Iterator[str]:
    for heading, names in STEPS.items():
        drawn = []
        for key, (name, unit) in names.items():
            rows: dict[str, list[tuple[float, float]]] = {}
            for row in run.metrics:
                if row.get(key) is not None:
                    rows.setdefault(str(row["seed"]), []).append((row["step"], row[key]))
            if rows:
                drawn.append(_figure(figures.series(name, unit, rows), f"{name} ({unit}), {plural(len(rows), 'seed')}"))
        if drawn:
            yield f"<h2>{heading}</h2>\n<div class=grid>{''.join(drawn)}</div>"


def _costs(run: Run) -> str:
    phases: Mapping[str, float] = run.execution.get("phases", {})
    tokens, peaks = (run.execution.get(f"phase_{kind}", {}) for kind in ("tokens", "peak_bytes"))
    longest = max(phases.values(), default=0.0) or 1.0
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{number(value, 3)}</td><td class=n>{number(tokens.get(name))}</td>"
        f"<td class=n>{_mebibytes(peaks.get(name))}</td>"
        f'<td style="width:40%"><div class=bar style="width:{100 * value / longest:.1f}%"></div></td></tr>'
        for name, value in phases.items()
    )
    head = "".join(f"<th class=n>{name}</th>" for name in ("seconds, all seeds", "tokens, all seeds", "peak memory"))
    counters = [(name.replace("_", " "), number(value)) for name, value in run.execution.get("counters", {}).items()]
    return f"<h2>Cost</h2>\n<table><tr><th>phase</th>{head}<th></th></tr>{rows}</table>\n" + table(
        ("counter", "over all seeds"), counters, (1,)
    )


def _mebibytes(count: int | None) -> str:
    return MISSING if count is None else f"{number(count / 2**20, 3)} MiB"


def _sources(run: Run) -> str:
    config = json.dumps(run.execution["config"], indent=2, ensure_ascii=False)
    rows = [("artifact.json", run.digest), ("plan", run.artifact["evaluation_protocol"].get("plan_sha256", "none"))]
    return (
        f"<h2>Where this comes from</h2>\n{table(('what', 'SHA-256'), rows)}\n"
        f"<pre>{escape(command(run.execution))}</pre>\n"
        f"<details><summary>configuration, every default spelled out</summary><pre>{escape(config)}</pre></details>"
    )
