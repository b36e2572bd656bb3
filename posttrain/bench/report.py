"""`posttrain bench report`: artifacts again, several of them as one family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from posttrain.artifacts.bench_verify import BENCH_HISTORICAL
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.documents import read, write_atomically
from posttrain.artifacts.schema import violations
from posttrain.artifacts.verdicts import Comparison, adjust
from posttrain.bench.display import comparison, figure, sentence, show, table_of
from posttrain.bench.track import tracks
from posttrain.registry import ConfigError
from posttrain.reporting import bench_figures
from posttrain.reporting.figures import NO_FIGURE, Figure, FigureError, draw


def report(paths: Sequence[Path], output: Path | None = None) -> None:
    """Each artifact again, or several side by side with Holm over those given; the drawing goes to `output`."""
    found = [_read(path) for path in paths]
    digests = [file_digest(_file(path)) for path in paths]
    if len(set(digests)) < len(digests):
        raise ConfigError(
            "report: an artifact is given twice, which would count it twice in the family. Give each once."
        )
    if len(found) == 1:
        show(found[0], _file(paths[0]), _draw(bench_figures.track(found[0], _metric(paths[0], found[0])), output))
        return
    table, compared = family(found)
    console = Console(highlight=False, soft_wrap=False)
    for i, (artifact, c) in enumerate(zip(found, compared, strict=True), start=1):
        console.print(f"{i} {artifact['track']}", markup=False)
        for line in figure(c):
            console.print(line, markup=False)
    console.print(table)
    for i, (artifact, c) in enumerate(zip(found, compared, strict=True), start=1):
        console.print(f"{i} {sentence(artifact, c)}", soft_wrap=True, markup=False)
    old = [artifact["track"] for artifact, digest in zip(found, digests, strict=True) if digest in BENCH_HISTORICAL]
    if old:
        console.print(f"historical, not verified: {', '.join(old)}", soft_wrap=True, markup=False)
    said = f"Holm over a family of {compared[0].family_size}; seeds are paired within an artifact, never across."
    console.print(said, soft_wrap=True)
    print(_draw(bench_figures.family(found, [c.ci95 for c in compared]), output))


def _draw(drawing: Figure, output: Path | None) -> Path | str:
    """Where the drawing lies now, or why there is none."""
    path = output or Path("runs") / f"bench-report-{drawing.digest.removeprefix('sha256:')[:8]}.svg"
    try:
        data = draw(drawing)
    except FigureError:
        return NO_FIGURE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def _metric(path: Path, artifact: Mapping[str, Any]) -> str:
    """What the numbers mean: as the plan beside the artifact says, else as the track of this name does."""
    plan = _file(path).with_name("plan.json")
    if plan.is_file() and not violations(found := read(plan), "plan-v1"):
        return str(found["plan"]["common_config"].get("metric", "the metric"))
    return tracks.get(artifact["track"]).metric if artifact["track"] in tracks else "the metric"


def family(artifacts: Sequence[Mapping[str, Any]]) -> tuple[Table, tuple[Comparison, ...]]:
    """The table of several artifacts; Holm over all of them, or over the largest family that one of them declares."""
    declared = [artifact.get("protocol", {}).get("family_size", 1) for artifact in artifacts]
    single = [comparison(artifact, family_size=max(len(artifacts), *declared)) for artifact in artifacts]
    compared = adjust(single)
    table = table_of("", "baseline", "idea", "difference", "95 % interval", "p", "p (Holm)")
    for i, (artifact, c) in enumerate(zip(artifacts, compared, strict=True), start=1):
        ends = "–" if c.ci95 is None else f"\\[{c.ci95[0]:+.2g}, {c.ci95[1]:+.2g}]"
        p, held = ("–" if v is None else f"{v:.3g}" for v in (c.p_value, c.p_adjusted))
        means = (f"{artifact['baseline']['full']['mean']:.4g}", f"{artifact['idea']['mean']:.4g}")
        delta = "–" if c.delta_mean is None else f"{c.delta_mean:+.2g}"
        table.add_row(str(i), *means, delta, ends, p, held)
    return table, compared


def _file(path: Path) -> Path:
    return path / "artifact.json" if path.is_dir() else path


def _read(path: Path) -> Mapping[str, Any]:
    """An artifact file or the run folder that holds one."""
    try:
        value = read(_file(path))
    except FileNotFoundError:
        incomplete = f"{path} is incomplete: there is no artifact.json" if path.is_dir() else f"there is no {path}"
        raise ConfigError(f"report: {incomplete}. Give finished runs of posttrain bench run.") from None
    except ValueError as error:
        raise ConfigError(f"report: {error}") from error
    broken = violations(value, "bench-v1")
    if broken:
        raise ConfigError(f"report: {_file(path)} is no bench artifact: {'; '.join(map(str, broken[:3]))}")
    return value
