"""Figures as SVG: the same bytes for the same numbers, readable on light and dark ground and without colour vision.

Text stays text, in a grey that stands out from both grounds; arms differ in colour, marker and dash. The first line
after the XML declaration names the digest of what was drawn and the matplotlib that drew it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from posttrain.artifacts.digests import content_digest
from posttrain.reporting.summary import METRICS, across, completed, curve

STYLE_VERSION = 1  # raise it when the drawing changes
GREY = "#7d7d7d"
COLOURS = ("#1F83CC", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito, the blue a little lighter
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
MISSING = "figures need matplotlib: pip install 'posttrain[docs]'"
NO_FIGURE = f"note: no figure: {MISSING}"
_STAMP = re.compile(rb"<!-- posttrain figure (sha256:[0-9a-f]{64}), matplotlib (\S+) -->")


class FigureError(RuntimeError):
    """Figures cannot be drawn here."""


@dataclass(frozen=True)
class Figure:
    """What is to be drawn: the data alone decide the picture."""

    kind: str
    data: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Digest of the data and of the way they are drawn."""
        return content_digest({"kind": self.kind, "data": self.data, "style": STYLE_VERSION})


def curves(runs: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Figure:
    """Each metric against the step: thin lines per seed, their mean, and the 95 % interval of the mean."""
    done = completed(runs)
    names = [name for name in metrics if done and all(run["baseline"].get(name) is not None for run in done)]
    panels = [
        {
            "name": METRICS[name][0],
            "unit": METRICS[name][1],
            "seeds": {str(run.get("seed", i)): [list(p) for p in curve(run, name)] for i, run in enumerate(done)},
            "mean": [list(point) for point in across([curve(run, name) for run in done])],
        }
        for name in names
    ]
    return Figure("curves", {"panels": panels})


def series(name: str, unit: str, rows: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """One quantity of every step, by seed: the same drawing as `curves`."""
    panel = {"name": name, "unit": unit, "seeds": {seed: [list(p) for p in points] for seed, points in rows.items()}}
    return Figure("curves", {"panels": [{**panel, "mean": [list(point) for point in across(list(rows.values()))]}]})


def differences(entries: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """Per-seed differences from each rival with mean and 95 % interval, around zero."""
    rows = [
        {
            "rival": entry["against"]["method"],
            "differences": list(entry["per_seed_diffs"]),
            "mean": entry["delta_mean"],
            "ci95": entry["ci95"],
            "mde": entry["mde_80"],
        }
        for entry in entries
        if entry["delta_mean"] is not None
    ]
    return Figure("differences", {"metric": metric, "rows": rows})


def stamp(svg: bytes) -> tuple[str, str] | None:
    """Digest of the data and version of matplotlib that a drawn figure names; None where it names none."""
    found = _STAMP.search(svg[:2000])
    return (found[1].decode(), found[2].decode()) if found else None


def available() -> str | None:
    """The version of matplotlib here, None without one."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib

    return matplotlib.__version__


def draw(figure: Figure) -> bytes:
    """The SVG; FigureError without matplotlib."""
    version = available()
    if version is None:
        raise FigureError(MISSING)
    return _draw(figure.kind, json.dumps(figure.data), figure.digest, version)


@cache
def _draw(kind: str, data: str, digest: str, version: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with mpl.rc_context(cast(Any, _style(digest))):
        made = PAINTERS[kind](json.loads(data))
        buffer = io.BytesIO()
        FigureCanvasSVG(made).print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    head, _, body = buffer.getvalue().partition(b"<svg ")
    comment = f"<!-- posttrain figure {digest}, matplotlib {version} -->\n".encode()
    return head + comment + b"<svg " + b"\n".join(line.rstrip() for line in body.split(b"\n"))


def _style(salt: str) -> dict[str, Any]:
    """Settings of matplotlib; nothing of the user's own settings stays."""
    import matplotlib as mpl

    fixed: dict[str, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    fixed |= {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "axes.unicode_minus": False,
        "axes.formatter.use_locale": False,
    }
    greys = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return fixed | dict.fromkeys((*greys, "grid.color"), GREY)


def canvas(width: float, height: float, columns: int, **more: Any) -> tuple[Any, list[Any]]:
    """A transparent figure, in inches, and its axes side by side."""
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(width, height), layout="constrained")
    made.patch.set_visible(False)
    axes = made.subplots(1, columns, squeeze=False, **more)[0].tolist()
    for axis in axes:
        axis.patch.set_visible(False)
    return made, axes


def _curves(data: Mapping[str, Any]) -> Any:
    panels = data["panels"]
    made, axes = canvas(3.6 * max(1, len(panels)), 3.0, max(1, len(panels)))
    for axis, panel, colour in zip(axes, panels, COLOURS, strict=False):
        name, unit = panel["name"], panel["unit"]
        for i, (seed, points) in enumerate(panel["seeds"].items()):
            steps, values = zip(*points, strict=True)
            label = "one seed each" if i == 0 else None
            (line,) = axis.plot(steps, values, color=colour, alpha=0.55, linewidth=0.7, label=label)
            line.set_gid(f"seed-{seed}")
        if panel["mean"]:
            steps, means, low, high = zip(*panel["mean"], strict=True)
            axis.plot(steps, means, color=colour, linewidth=2.2, label="mean")
            if len(panel["seeds"]) > 1:
                axis.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0, label="95 % interval")
        axis.set(xlabel="step (updates)", ylabel=f"{name}{' ' if len(name + unit) < 26 else chr(10)}({unit})")
    if panels:
        axes[0].legend(loc="best")
    return made


def _differences(data: Mapping[str, Any]) -> Any:
    rows = data["rows"]
    made, (axis,) = canvas(7.2, 1.1 + 0.55 * max(1, len(rows)), 1)
    for i, row in enumerate(rows):
        place, colour = len(rows) - 1 - i, COLOURS[i % len(COLOURS)]
        seeds = row["differences"]
        axis.plot(seeds, [place + 0.22] * len(seeds), linestyle="", marker="|", markersize=7, color=colour, alpha=0.8)
        if row["ci95"] is not None:
            axis.plot(row["ci95"], [place, place], color=colour, linewidth=2.2)
        axis.plot([row["mean"]], [place], marker=MARKERS[i % len(MARKERS)], color=colour, markersize=7)
    axis.axvline(0, color=GREY, linewidth=1, linestyle=DASHES[1])
    axis.set_yticks(range(len(rows)), [row["rival"] for row in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.3)
    name, unit = METRICS.get(data["metric"], (data["metric"], "its unit"))
    axis.set(xlabel=f"difference in {name} ({unit})", title="bars: seeds · line: 95 % interval · symbol: mean")
    axis.grid(visible=False, axis="y")
    return made


PAINTERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {"curves": _curves, "differences": _differences}
