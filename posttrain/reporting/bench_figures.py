"""Figures of bench artifacts: what each seed says, and what the sweeps chose from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.artifacts import statistics
from posttrain.reporting.figures import COLOURS, DASHES, GREY, MARKERS, PAINTERS, Figure, canvas

ARMS = ("baseline", "idea")
LINEAR = 10.0  # per cent of the baseline's mean: where every effect is smaller the axis stays linear


def track(artifact: Mapping[str, Any], metric: str) -> Figure:
    """Differences per seed with their 95 % interval, and both sweeps; `metric` says what is measured, with its unit."""
    protocol, found = artifact.get("protocol", {}), artifact["comparison"]
    interval = statistics.interval(found["per_seed_diffs"])
    described = None if interval is None else [interval.low, interval.high]
    best = {"baseline": artifact["baseline"]["best_cfg"], "idea": artifact["idea"].get("best_cfg")}
    sweeps = {"baseline": artifact["baseline"]["sweep"], "idea": protocol.get("idea_sweep", [])}
    return Figure(
        "bench track",
        {
            "metric": metric,
            "direction": artifact["metric_direction"],
            "seeds": list(protocol.get("eval_seeds", range(artifact["n_seeds"]))),
            "differences": list(found["per_seed_diffs"]),
            "mean": found["delta_mean"],
            "ci95": found.get("ci95", described),
            "sesoi": found.get("sesoi"),
            "sweeps": {
                arm: [
                    {
                        "words": _words(cell["cfg"], cells),
                        "mean": cell["mean"],
                        "seeds": list(cell.get("per_seed", [])),
                        "chosen": cell["cfg"] == best[arm],
                    }
                    for cell in cells
                ]
                for arm, cells in sweeps.items()
                if cells
            },
        },
    )


def family(artifacts: Sequence[Mapping[str, Any]], intervals: Sequence[Sequence[float] | None]) -> Figure:
    """Several tracks on one scale: differences in per cent of the baseline's mean, positive where the idea is better.

    `intervals` are the 95 % intervals in metric units. Tracks whose baseline is 0 have no such scale and are left out.
    """
    rows = []
    for i, (artifact, interval) in enumerate(zip(artifacts, intervals, strict=True), start=1):
        sign = 1 if artifact["metric_direction"] == "higher is better" else -1
        centre = abs(artifact["baseline"]["full"]["mean"])
        if centre:
            scale, found = sign * 100 / centre, artifact["comparison"]
            rows.append(
                {
                    "name": f"{i} {artifact['track']}",
                    "differences": [scale * d for d in found["per_seed_diffs"]],
                    "mean": scale * found["delta_mean"],
                    "ci95": None if interval is None else sorted(scale * end for end in interval),
                }
            )
    return Figure("bench family", {"rows": rows})


def _words(cfg: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    """The settings in which a cell differs from others of its sweep."""
    varied = [key for key in cfg if any(cell["cfg"].get(key) != cfg[key] for cell in cells)]
    return " ".join(f"{key}={cfg[key]}" for key in varied) or "the only cell"


def _track(data: Mapping[str, Any]) -> Any:
    longest = max(len(data["seeds"]) + 1, sum(len(cells) for cells in data["sweeps"].values()))
    made, (left, right) = canvas(9.6, 2.2 + 0.24 * longest, 2)
    _seeds(left, data)
    _sweeps(right, data["sweeps"])
    metric = textwrap.fill(data["metric"], 40)
    left.set(xlabel="difference, idea − baseline:\n" + metric, title=f"differences by seed ({data['direction']})")
    right.set(xlabel=metric, title="sweeps, means (chosen: filled)")
    _legend(made, left, right)
    return made


def _seeds(axis: Any, data: Mapping[str, Any]) -> None:
    seeds = data["seeds"]
    rows = range(len(seeds), 0, -1)
    axis.axvline(0, color=GREY, linewidth=1, linestyle=DASHES[1])
    if data["sesoi"]:
        label = "smallest effect of interest"
        axis.axvspan(-data["sesoi"], data["sesoi"], color=GREY, alpha=0.15, linewidth=0, label=label)
    axis.plot(data["differences"], list(rows), linestyle="", marker=MARKERS[0], color=COLOURS[0], label="one seed")
    if data["ci95"] is not None:
        axis.plot(data["ci95"], [0, 0], color=COLOURS[1], linewidth=2.2, label="95 % interval of the mean")
    axis.plot([data["mean"]], [0], linestyle="", marker=MARKERS[3], color=COLOURS[1], label="mean")
    axis.set_yticks([*rows, 0], [*(f"seed {seed}" for seed in seeds), "mean"])
    axis.grid(visible=False, axis="y")


def _sweeps(axis: Any, sweeps: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    rows = [(arm, cell) for arm in ARMS for cell in sweeps.get(arm, [])]
    seen: set[str] = set()
    for i, (arm, cell) in enumerate(rows):
        place, which = len(rows) - 1 - i, ARMS.index(arm)
        colour, marker = COLOURS[which], MARKERS[which]
        axis.plot(
            cell["seeds"], [place] * len(cell["seeds"]), linestyle="", marker="|", markersize=7, color=colour, alpha=0.8
        )
        face = colour if cell["chosen"] else "none"
        label = None if arm in seen else arm
        axis.plot([cell["mean"]], [place], linestyle="", marker=marker, color=colour, markerfacecolor=face, label=label)
        seen.add(arm)
    axis.set_yticks(range(len(rows)), [cell["words"] for _, cell in reversed(rows)])
    axis.grid(visible=False, axis="y")


def _family(data: Mapping[str, Any]) -> Any:
    rows = data["rows"]
    made, (axis,) = canvas(8.6, 1.7 + 0.5 * max(1, len(rows)), 1)
    axis.axvline(0, color=GREY, linewidth=1, linestyle=DASHES[1])
    for i, row in enumerate(rows):
        place, colour = len(rows) - 1 - i, COLOURS[i % len(COLOURS)]
        seeds, label = row["differences"], i == 0
        axis.plot(
            seeds,
            [place + 0.2] * len(seeds),
            linestyle="",
            marker="|",
            markersize=7,
            color=colour,
            label="one seed" if label else None,
        )
        if row["ci95"] is not None:
            line = None if any(above["ci95"] is not None for above in rows[:i]) else "95 % interval of the mean"
            axis.plot(row["ci95"], [place, place], color=colour, linewidth=2.2, label=line)
        marker = MARKERS[i % len(MARKERS)]
        axis.plot([row["mean"]], [place], linestyle="", marker=marker, color=colour, label="mean" if label else None)
    axis.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    axis.set_ylim(-0.6, len(rows) - 0.3)
    words = "gain of the idea (% of the baseline's mean"
    if any(abs(end) > LINEAR for row in rows for end in [*row["differences"], *(row["ci95"] or ())]):
        axis.set_xscale("symlog", linthresh=LINEAR)  # effects of tracks lie orders of magnitude apart
        words += f", linear up to {LINEAR:g}"
    axis.set(xlabel=words + ")")
    axis.grid(visible=False, axis="y")
    _legend(made, axis)
    return made


def _legend(made: Any, *axes: Any) -> None:
    """One legend for all, below, where it hides nothing."""
    handles = [handle for axis in axes for handle in axis.get_legend_handles_labels()[0]]
    if handles:
        made.legend(handles=handles, loc="outside lower center", ncols=3)


PAINTERS |= {"bench track": _track, "bench family": _family}
