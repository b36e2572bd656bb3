"""What a person sees of an evaluation: a bar while it works, tables, what may be said of it, the path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from posttrain.evaluation.benchmark_conduct import Evaluated, EvalWatch
from posttrain.reporting.formatting import interval, number, plural

FEW = 300  # items; with fewer, an interval of differences that rests on the normal distribution is rough
DIGITS = 12  # of a digest in a sentence
WHERE = {"l2_tiny_lm": "of a tiny language model", "l3_real_model": "of the named model"}


@contextmanager
def progress(shown: bool = True) -> Iterator[EvalWatch]:
    """A bar on the error stream with tokens per second and the time left; it appears when work starts."""
    columns = (TextColumn("completions"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    speed = TextColumn("{task.fields[speed]} tokens/s")
    console = Console(stderr=True)
    bars = Progress(*columns, speed, TimeRemainingColumn(), console=console, disable=not shown, transient=True)
    drawn = 0

    def start(completions: int) -> None:
        bars.start()
        bars.add_task("", total=completions, speed="–")

    def step(completions: int, tokens: int) -> None:
        nonlocal drawn
        drawn += tokens
        task = bars.tasks[0]
        bars.update(task.id, advance=completions, speed=f"{drawn / task.elapsed:.0f}" if task.elapsed else "–")

    try:
        yield EvalWatch(start, step)
    finally:
        if bars.tasks:
            bars.stop()


def show(finished: Evaluated, path: Path | None = None) -> None:
    """Prints the tables and the sentences; the last line is the artifact's path, or `path` where it lies elsewhere."""
    console, artifact = Console(highlight=False, soft_wrap=False), finished.artifact
    asked = artifact["benchmark"]
    items = sum(entry["n_items"] for entry in artifact["evaluations"])
    console.print(
        f"eval {artifact['name']} · {asked['dataset']}, {asked['split']} · {plural(items, 'item')} · "
        f"tier {artifact['evaluation_protocol']['tier']} · seeds {', '.join(map(str, artifact['seeds']))}",
        soft_wrap=True,
        markup=False,
    )
    for entry in artifact["evaluations"]:
        console.print(_results(entry))
    for entry in artifact.get("comparison", ()):
        console.print(_comparison(artifact["name"], entry))
    for line in (*sentences(artifact), *notes(artifact)):
        console.print(line, soft_wrap=True, markup=False)
    # Plain and last, so that scripts can read it.
    print(path or finished.path)


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _results(entry: Mapping[str, Any]) -> Table:
    greedy = entry["greedy"]
    table = _table(f"seed {entry['seed']}: {plural(entry['n_items'], 'item')}", "", "value", "95 % interval")
    _row(table, "greedy accuracy", number(greedy["accuracy"]), greedy["ci95"])
    if greedy["mean_score"] not in (None, greedy["accuracy"]):
        _row(table, "  mean score", number(greedy["mean_score"]))
    _ends(table, greedy, entry["n_items"])
    samples = entry.get("samples")
    if samples:
        for rate in samples["pass_at_k"]:
            _row(table, f"pass@{rate['k']} of {samples['per_item']}", number(rate["value"]), rate["ci95"])
        _ends(table, samples, samples["per_item"] * entry["n_items"])
    return table


def _row(table: Table, name: str, value: str, ends: Any = None) -> None:
    table.add_row(name, value, interval(ends, signed=False).replace("[", "\\[") if ends else "")


def _ends(table: Table, found: Mapping[str, Any], total: int) -> None:
    """Length, truncated and unscored completions of one kind."""
    _row(table, "  mean length, tokens", number(found["mean_length"]))
    _row(table, "  truncated", f"{number(found['truncated_share'])} ({found['truncated']} of {total})")
    _row(table, "  unscored", f"{found['unscored']} of {total}")


def _comparison(name: str, entry: Mapping[str, Any]) -> Table:
    greedy, rival = entry["greedy"], entry["against"]["name"]
    title = f"seed {entry['seed']}: {name} minus {rival}, {plural(entry['n_pairs'], 'item')} paired by id"
    table = _table(title, "", "this", "rival", "difference", "95 % interval")
    ends = interval(greedy["ci95"]).replace("[", "\\[")
    shares = (number(greedy[key]) for key in ("accuracy", "rival_accuracy"))
    table.add_row("greedy accuracy", *shares, number(greedy["difference"], signed=True), ends)
    table.add_row("  only one right", str(greedy["only_this_right"]), str(greedy["only_rival_right"]), "", "")
    if "pass_at_1" in entry:
        found = entry["pass_at_1"]
        ends = interval(found["ci95"]).replace("[", "\\[")
        shares = (number(found[key]) for key in ("value", "rival_value"))
        table.add_row("pass@1", *shares, number(found["difference"], signed=True), ends)
    return table


# -- words ----------------------------------------------------------------------------------------------------


def sentences(artifact: Mapping[str, Any]) -> list[str]:
    """What may be said: of checkpoints on these items, never of a method."""
    asked = artifact["benchmark"]
    revision = artifact["provenance"]["dataset_fingerprint"].removeprefix("sha256:")[:DIGITS]
    where = f"benchmark {asked['dataset']} ({asked['split']}), revision {revision}"
    said = [_described(artifact, where)] if "comparison" not in artifact else []
    said += [_decided(artifact, entry, where) for entry in artifact.get("comparison", ())]
    tier = artifact["evaluation_protocol"]["tier"]
    said.append(
        f"This is about checkpoints {WHERE[tier]} on these items; a claim about a method needs at least 3 independent "
        "trainings of each (posttrain compare)."
    )
    return said


def _checkpoint(name: str, weights: str) -> str:
    return f"checkpoint {name} (weights {weights.removeprefix('sha256:')[:DIGITS]})"


def _described(artifact: Mapping[str, Any], where: str) -> str:
    whole = artifact.get("overall")
    if whole is not None:
        ends = f", 95 % t interval {interval(whole['ci95'], signed=False)}" if whole["ci95"] else ""
        return (
            f"{plural(whole['n_trainings'], 'checkpoint')} of {artifact['name']} answer "
            f"{number(whole['mean_accuracy'])} of {where} rightly on average over trainings{ends}."
        )
    parts = []
    for entry in artifact["evaluations"]:
        greedy = entry["greedy"]
        ends = interval(greedy["ci95"], signed=False)
        parts.append(
            f"{_checkpoint(artifact['name'], entry['model']['weights'])} answers {greedy['right']} of "
            f"{plural(entry['n_items'], 'item')} rightly, {number(greedy['accuracy'])}, 95 % interval {ends}"
        )
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}, on {where}."


def _decided(artifact: Mapping[str, Any], entry: Mapping[str, Any], where: str) -> str:
    greedy, against = entry["greedy"], entry["against"]
    weights = next(e["model"]["weights"] for e in artifact["evaluations"] if e["seed"] == entry["seed"])
    ours, theirs = _checkpoint(artifact["name"], weights), _checkpoint(against["name"], against["weights"])
    numbers = (
        f"greedy accuracy {number(greedy['accuracy'])} against {number(greedy['rival_accuracy'])}, difference "
        f"{number(greedy['difference'], signed=True)}, 95 % interval {interval(greedy['ci95'])}, exact McNemar "
        f"p {number(greedy['p_adjusted'])}, {plural(entry['n_pairs'], 'paired item')}"
    )
    if artifact["evaluation_protocol"]["family_size"] > 1:
        numbers = numbers.replace("McNemar p ", "McNemar p (Holm) ")
    words = {
        "higher (significant)": f"{ours} exceeds {theirs} on {where}: {numbers}.",
        "lower (significant)": f"{ours} is below {theirs} on {where}: {numbers}.",
        "no significant difference": f"No significant difference between {ours} and {theirs} on {where}: {numbers}. "
        "This is not equality.",
        "too few differing items": f"{ours} and {theirs} differ on too few items of {where} for any test (smallest p "
        f"{number(greedy['min_attainable_p'])}): {numbers}.",
        "identical outcomes": f"{ours} and {theirs} are right and wrong on the same items of {where}: {numbers}.",
    }
    said = words[greedy["verdict"]]
    return said[0].upper() + said[1:]


def notes(artifact: Mapping[str, Any]) -> list[str]:
    """What a reader of the numbers has to know."""
    found = []
    kinds = [kind for entry in artifact["evaluations"] for kind in (entry["greedy"], entry.get("samples")) if kind]
    if any(kind["unscored"] for kind in kinds):
        found.append("note: unscored completions count as not right; nobody could judge them.")
    few = any(entry["n_items"] < FEW for entry in artifact["evaluations"])
    if few and any("pass_at_1" in entry for entry in artifact.get("comparison", ())):
        found.append(f"note: with fewer than {FEW} items the t interval of the pass@1 difference is rough.")
    others = sorted({key for entry in artifact.get("comparison", ()) for key in entry["other_settings"]})
    if others:
        found.append(f"note: the other evaluation was made under other settings: {', '.join(others)}.")
    return found
