"""What a person sees of a bench: tables, a figure in the terminal, the predictions and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from posttrain.artifacts.bench_statistics import judge
from posttrain.artifacts.statistics import count_wins, min_attainable_p, seeds_needed
from posttrain.artifacts.verdicts import WORSE, Comparison
from posttrain.reporting.bench_page import failures
from posttrain.reporting.formatting import plural

WIDTH = 41  # columns of the figure
MEANING = {
    "idea better (significant)": "the idea is better, by a difference that chance would rarely give",
    "idea worse (significant)": "the idea is worse, by a difference that chance would rarely give",
    "no measurable effect": "the difference is smaller than the smallest effect of interest",
    "no significant win": "undecided: this is no evidence that the two are equal",
}


def show(artifact: Mapping[str, Any], path: Path, drawn: Path | str | None = None) -> None:
    """Tables, figure and sentence of one artifact; where its drawing lies or why there is none; last, its path."""
    console = Console(highlight=False, soft_wrap=False)
    compared = comparison(artifact)
    seeds = artifact.get("protocol", {}).get("sweep_seeds")
    console.print(f"tuning: mean of each cell{f' over {listed(seeds)}' if seeds else ''}, * chosen", markup=False)
    console.print(_sweeps(artifact))
    console.print(f"{artifact['track']}: per seed, {artifact['metric_direction']}", markup=False, soft_wrap=True)
    console.print(_seeds(artifact))
    for line in figure(compared):
        console.print(line, markup=False)
    for line in numbers(artifact, compared):
        console.print(line, markup=False, soft_wrap=True)
    for line in predictions(artifact):
        console.print(line, markup=False, soft_wrap=True)
    console.print(sentence(artifact, compared), markup=False, soft_wrap=True)
    if drawn is not None:
        print(drawn)
    print(path)


def comparison(artifact: Mapping[str, Any], family_size: int | None = None) -> Comparison:
    """The comparison worked out from the per-seed values; `family_size` replaces the declared one."""
    protocol = artifact.get("protocol", {})
    seeds = protocol.get("eval_seeds", list(range(artifact["n_seeds"])))
    return judge(
        artifact["baseline"]["full"]["per_seed"],
        artifact["idea"]["per_seed"],
        direction=artifact["metric_direction"],
        seeds=seeds,
        alpha=protocol.get("alpha", 0.05),
        family_size=family_size or protocol.get("family_size", 1),
        sesoi_rel_pct=protocol.get("sesoi_rel_pct", 5.0),
        seed=f"{protocol.get('plan_sha256', '')}\nidea\n/per_seed".encode(),
    )


def table_of(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _sweeps(artifact: Mapping[str, Any]) -> Table:
    """Both sweeps side by side, the chosen cells marked; beside the idea's value, the settings in which it differs."""
    ideas = artifact.get("protocol", {}).get("idea_sweep", [])
    best = (artifact["baseline"]["best_cfg"], artifact["idea"].get("best_cfg"))
    table = table_of("cell", "baseline", "idea", "idea's settings")
    for i, cell in enumerate(artifact["baseline"]["sweep"]):
        words = " ".join(f"{key}={value}" for key, value in cell["cfg"].items())
        row = [words, f"{cell['mean']:.4g}{'*' if cell['cfg'] == best[0] else ' '}", "–", ""]
        if i < len(ideas):
            own = {key: value for key, value in ideas[i]["cfg"].items() if cell["cfg"].get(key) != value}
            row[2] = f"{ideas[i]['mean']:.4g}{'*' if ideas[i]['cfg'] == best[1] else ' '}"
            row[3] = " ".join(f"{key}={value}" for key, value in own.items())
        table.add_row(*row)
    return table


def _seeds(artifact: Mapping[str, Any]) -> Table:
    seeds = artifact.get("protocol", {}).get("eval_seeds", range(artifact["n_seeds"]))
    table = table_of("seed", "baseline", "idea", "difference")
    values = zip(seeds, artifact["baseline"]["full"]["per_seed"], artifact["idea"]["per_seed"], strict=True)
    for seed, a, b in values:
        table.add_row(str(seed), f"{a:.4g}", f"{b:.4g}", f"{b - a:+.3g}", end_section=seed == seeds[-1])
    means = artifact["baseline"]["full"]["mean"], artifact["idea"]["mean"]
    table.add_row("mean", *(f"{mean:.4g}" for mean in means), f"{artifact['comparison']['delta_mean']:+.3g}")
    return table


def figure(c: Comparison) -> list[str]:
    """Differences per seed as points, the 95 % interval and the smallest effect of interest on one scale."""
    if not c.per_seed_diffs or c.sesoi is None:
        return []
    ends = [*c.per_seed_diffs, 0.0, c.sesoi, -c.sesoi, *(c.ci95 or ())]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def column(value: float) -> int:
        return round((value - low) / span * (WIDTH - 1))

    def line(marks: Sequence[tuple[float, str]], between: tuple[float, float] | None = None) -> str:
        cells = [" "] * WIDTH
        cells[column(0.0)] = "|"
        if between is not None:
            for i in range(column(between[0]), column(between[1]) + 1):
                cells[i] = "-"
        for value, mark in marks:
            cells[column(value)] = mark
        return "".join(cells)

    lines = [f"idea - baseline, from {low:+.3g} to {high:+.3g}; | is no difference"]
    lines += [f"  {line([(d, 'o')])}  seed {s}" for s, d in zip(c.seeds, c.per_seed_diffs, strict=True)]
    if c.ci95 is not None and c.delta_mean is not None:
        lines.append(
            f"  {line([(c.ci95[0], '['), (c.ci95[1], ']'), (c.delta_mean, 'x')], c.ci95)}  mean, 95 % interval"
        )
    lines.append(f"  {line([(-c.sesoi, '('), (c.sesoi, ')')])}  smallest effect of interest")
    return lines


def numbers(artifact: Mapping[str, Any], c: Comparison) -> list[str]:
    """Test, interval and what could have been seen at all."""
    if c.p_value is None or c.delta_mean is None:
        return [str(c.verdict)]
    exact = f"exact p = {c.p_count}/{c.p_total} = {c.p_value:.4g}"
    test = exact if c.p_method == "exact_signflip" else f"p = {c.p_value:.4g}"
    ends = "no interval" if c.ci95 is None else f"95 % interval [{c.ci95[0]:+.3g}, {c.ci95[1]:+.3g}]"
    recorded = artifact["comparison"]["p_value"]
    lines = [f"difference {c.delta_mean:+.4g}, {ends}, {test}; {visible(c)}"]
    lines += [failures(artifact)] if failures(artifact) else []
    if "protocol" not in artifact:
        lines.append(f"historical: the recorded p is {recorded}, by Monte Carlo; tuned on evaluation seeds")
    elif artifact["protocol"]["name"] == "recorded":
        lines.append(f"protocol: {artifact['protocol']['note']}")
    return lines


def visible(c: Comparison) -> str:
    """The smallest effect that so many seeds show, or why they show none."""
    needed = seeds_needed(c.alpha, c.family_size)
    if c.n_pairs < needed:
        family = f" and a family of {c.family_size}" if c.family_size > 1 else ""
        seeds = "one seed" if c.n_pairs == 1 else f"{c.n_pairs} seeds"
        return f"{seeds} can show no effect, however large: at alpha {c.alpha:g}{family} it takes {needed}"
    if c.mde_80 is None:
        return "the differences do not vary, so no smallest visible effect follows from them"
    return f"an effect of {c.mde_80:.3g} would be seen with 80 % power"


def predictions(artifact: Mapping[str, Any]) -> list[str]:
    """The signature: what was predicted, what was measured and how it came out; failures as plainly as the rest."""
    inner = artifact["mechanism_signature"].get("mechanism_signature", {})
    lines = []
    for claim in inner.get("claims", []):
        measured = claim["measured"] or {}
        what = measured.get("value", measured.get("ci95"))
        shown = (
            "nothing" if what is None else ", ".join(f"{v:.4g}" for v in (what if isinstance(what, list) else [what]))
        )
        rule = claim["rule"].replace("threshold", f"{claim['threshold']:g}")
        lines.append(f"prediction {claim['id']} {claim['outcome']}: {claim['prediction']} ({rule}; measured {shown})")
    if "claims" in inner and not inner["claims"]:
        lines.append("no prediction was written down for this idea")
    if "claims" not in inner and inner.get("confirmed") is not None:
        lines.append(f"signature: {'confirmed' if inner['confirmed'] else 'not confirmed'}")
    return lines


def sentence(artifact: Mapping[str, Any], c: Comparison) -> str:
    """The verdict, from a closed list of words, and what it means."""
    verdict = str(c.verdict)
    name = f"{artifact['track']} ({artifact['model']}), {plural(c.n_pairs or artifact['n_seeds'], 'paired seed')}"
    if c.degenerate == "identical":
        return f"{name}: {verdict}; all differences are 0, so the arms may share their code."
    if verdict.startswith("insufficient"):
        wins, needed = count_wins(c.per_seed_diffs, c.direction), seeds_needed(c.alpha, c.family_size)
        return (
            f"{name}: {verdict}: {_unattainable(c)}; {needed} seeds are the least. The idea won {wins} of {c.n_pairs}."
        )
    plain = verdict.removesuffix(", below smallest effect of interest")
    meaning = MEANING.get(plain, "no verdict")
    below = plain != verdict or (verdict == WORSE and abs(c.delta_mean or 0.0) < (c.sesoi or 0.0))
    small = ", but by less than the smallest effect of interest" if below else ""
    return f"{name}: {verdict}: {meaning}{small}."


def _unattainable(c: Comparison) -> str:
    """Why no outcome of so few seeds could be significant."""
    smallest = min_attainable_p(c.n_pairs)
    if c.family_size == 1:
        return f"even if all seeds agreed, p would be above {c.alpha:g}"
    adjusted = min(1.0, smallest * c.family_size)
    return f"even if all seeds agreed, Holm over a family of {c.family_size} makes it {adjusted:.3g}, above {c.alpha:g}"


def listed(seeds: Sequence[int]) -> str:
    """`seed 3`, `seeds 0-7` or `seeds 1, 4`."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    run = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {f'{seeds[0]}-{seeds[-1]}' if run else ', '.join(map(str, seeds))}"
