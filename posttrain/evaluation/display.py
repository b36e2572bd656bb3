"""What a person sees of a run: progress, a table per seed and overall, the licensed sentence, the path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from posttrain.artifacts import statistics
from posttrain.artifacts.gap import LABEL, Gap, gap_closed
from posttrain.evaluation.conduct import MEASURING, Watch
from posttrain.evaluation.experiment import Experiment
from posttrain.evaluation.folders import Finished
from posttrain.reporting.formatting import plural
from posttrain.reporting.sentences import said

CLAIMS = "claims, written down before the run"
METRICS = {
    "accuracy": "accuracy",
    "mean_reward": "reward",
    "entropy": "entropy, nats",
    "kl_from_reference": "KL to reference",
    "kl_from_teacher": "KL to teacher",
}


@contextmanager
def progress(shown: bool) -> Iterator[Watch]:
    """A bar on the error stream, so that the output stays clean; where that is no terminal, nothing."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bars = Progress(*columns, console=console, disable=not (shown and console.is_terminal), transient=True)
    bar = _Bar(bars)
    try:
        yield Watch(bar.start, bar.step, bar.unit, bar.stage)
    finally:
        if bar.tasks:
            bars.stop()


@dataclass
class _Bar:
    """Two rows: updates and seeds; one before they are known. Work in other processes reports whole seeds only."""

    bars: Progress
    tasks: list[TaskID] = field(default_factory=list)
    per_unit: float = 0.0
    stepped: bool = False
    tokens: float = 0.0
    began: float = 0.0
    left: int = 0  # units

    def stage(self, text: str) -> None:
        if not self.tasks:
            self.bars.start()
            self.tasks = [self.bars.add_task(text, total=None)]
        self.bars.update(self.tasks[0], description=text, refresh=True)

    def start(self, units: int, steps: int) -> None:
        for task in self.tasks:
            self.bars.remove_task(task)
        self.bars.start()
        self.tasks = [self.bars.add_task("updates", total=steps), self.bars.add_task("seeds", total=units)]
        self.per_unit, self.began, self.tokens = steps / max(1, units), time.monotonic(), 0.0
        self.left = units

    def step(self, row: Mapping[str, Any]) -> None:
        self.stepped = True
        self.tokens += row.get("sampled_positions", 0.0)
        rate = self.tokens / (time.monotonic() - self.began)
        self.bars.update(self.tasks[0], advance=1, description=f"updates, {rate:,.0f} tokens/s")

    def unit(self, _: int) -> None:
        self.bars.advance(self.tasks[1])
        self.left -= 1
        if not self.stepped:
            self.bars.advance(self.tasks[0], self.per_unit)
        elif self.left:
            self.stage(MEASURING)  # of the next one


def show(experiment: Experiment, finished: Finished) -> None:
    """Prints tables, claims, verdicts and the sentence; the last line is the artifact's path."""
    console = Console(highlight=False, soft_wrap=False)
    artifact = finished.artifact
    print_title(console, experiment, artifact)
    gap = gap_closed(artifact)
    console.print(_seeds(artifact["runs"]))
    if gap is not None:
        console.print(gap_words(gap), soft_wrap=True, markup=False)
    console.print(_overall(artifact["runs"], gap))
    if artifact.get("comparison"):
        console.print(_comparisons(artifact, finished.arms))
    if "mechanism" in artifact:
        console.print(_claims(artifact["mechanism"]["claims"]))
    for note in artifact.get("notes", ()):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    for line in said(artifact):
        console.print(line, soft_wrap=True, markup=False)
    # Plain and last, so that scripts can read it.
    print(finished.path)


def print_title(console: Console, experiment: Experiment, artifact: Mapping[str, Any]) -> None:
    """One line that says what ran."""
    config = experiment.main.config
    tier = artifact["evaluation_protocol"]["tier"]
    console.print(
        f"{experiment.verb} {experiment.main.name} · {config.data} · policy {config.names['policy']} · "
        f"tier {tier} · {plural(len(config.seeds), 'seed')} · {plural(config.steps, 'step')}",
        soft_wrap=True,
        markup=False,
    )


def _present(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in METRICS if all(run["baseline"].get(name) is not None for run in runs)]


def _seeds(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="per seed: before→after", title_justify="left", title_style="")
    table.add_column("seed", justify="right")
    names = _present(runs)
    for name in names:
        table.add_column(METRICS[name], justify="right")
    for run in runs:
        cells = [f"{run['baseline'][name]:.3f}→{run['final'][name]:.3f}" for name in names]
        table.add_row(str(run["seed"]), *cells)
    return table


def gap_words(gap: Gap) -> str:
    """The share of each seed on a line of its own, since the table fills a terminal; a word where there is no gap."""
    shares = [f"{seed}: {'undefined' if share is None else f'{share:.3f}'}" for seed, share in gap.shares.items()]
    return f"{LABEL}, by seed  {', '.join(shares)}"


def _overall(runs: Sequence[Mapping[str, Any]], gap: Gap | None) -> Table:
    title = f"overall: mean of {plural(len(runs), 'seed')}, 95 % t interval of the change"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    for column in ("", "before", "after", "change", "interval"):
        table.add_column(column, justify="right" if column else "left")
    for name in _present(runs):
        before, after = ([run[point][name] for run in runs] for point in ("baseline", "final"))
        change = [b - a for a, b in zip(before, after, strict=True)]
        found = statistics.t_interval(change) if len(change) > 1 else None
        shown = _change_interval((found.low, found.high) if found else None)
        means = [statistics.mean(values) for values in (before, after, change)]
        table.add_row(METRICS[name], f"{means[0]:.4f}", f"{means[1]:.4f}", f"{means[2]:+.4f}", shown)
    if gap is not None and gap.mean is None:
        table.add_row(LABEL, "–", "undefined", "–", "–")
    elif gap is not None:
        table.add_row(LABEL, f"{0:.4f}", f"{gap.mean:.4f}", f"{gap.mean:+.4f}", _change_interval(gap.ci95))
    return table


def _change_interval(ends: tuple[float, float] | None) -> str:
    return "needs two seeds" if ends is None else f"\\[{ends[0]:+.4f}, {ends[1]:+.4f}]"


def _comparisons(artifact: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]) -> Table:
    protocol = artifact["evaluation_protocol"]
    metric = protocol["primary_metric"].removeprefix("/final/")
    title = f"{artifact['method']} minus each rival: {metric} after training, paired by seed"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    for column in ("rival", "its mean", "difference", "95 % interval", "p (Holm)", "MDE"):
        # A name is cut over two lines rather than shortened: it is what the numbers are about.
        table.add_column(
            column, justify="left" if column == "rival" else "right", no_wrap=column != "rival", overflow="fold"
        )
    for entry in artifact["comparison"]:
        name = entry["against"]["method"]
        rival = statistics.mean([run["final"][metric] for run in arms[name]["runs"]])
        mde = "–" if entry["mde_80"] is None else f"{entry['mde_80']:.4f}"
        cells = (f"{rival:.3f}", f"{entry['delta_mean']:+.3f}", interval_words(entry["ci95"]))
        table.add_row(short_name(name, artifact["method"]), *cells, f"{entry['p_adjusted']:.2g}", mde)
    return table


def short_name(arm: str, method: str) -> str:
    """An arm's name without the method's in front."""
    return arm.removeprefix(f"{method}.")


def interval_words(ends: Sequence[float] | None, style: str = "f") -> str:
    """An interval to three places (`f`) or digits (`g`), with its bracket escaped for rich."""
    return "–" if ends is None else f"\\[{ends[0]:+.3{style}}, {ends[1]:+.3{style}}]"


def _claims(claims: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=CLAIMS, title_justify="left", title_style="")
    for column in ("id", "claim and measurement", "outcome"):
        table.add_column(column)
    for claim in claims:
        rule = claim["rule"].replace("threshold", f"{claim['threshold']:g}")
        text = f"{claim['claim']}\n{claim['metric']}; {rule}\n{measured_words(claim['measured'])}"
        table.add_row(claim["id"], text, claim["outcome"], end_section=True)
    return table


def measured_words(measured: Mapping[str, Any] | None) -> str:
    """What a claim measured, in few words."""
    if measured is None:
        return "measured: not a number in some seed"
    if "value" in measured:
        return f"measured: {measured['value']:.3g}"
    if "ci95" in measured:
        return f"measured: {measured['mean']:.3g} {interval_words(measured['ci95'], 'g')}"
    names = [name for name in measured if f"{name} mean" in measured]
    return "\n".join(f"{name}: {measured[f'{name} mean']:.3g} {interval_words(measured[name], 'g')}" for name in names)
