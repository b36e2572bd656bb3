"""`posttrain bench explain TRACK`: what a track measures, what a run would do and decide, and how to try an idea."""

from __future__ import annotations

import inspect
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import posttrain
from posttrain.artifacts.statistics import min_attainable_p, seeds_needed
from posttrain.bench import planning
from posttrain.bench.display import listed
from posttrain.bench.foreign import HOOKS
from posttrain.bench.options import Bench
from posttrain.bench.track import Settings
from posttrain.bench.trained import Trained
from posttrain.evaluation.study import Claim
from posttrain.reporting.formatting import plural

WIDTH = 118  # characters of a line of prose
PACKAGE = Path(posttrain.__file__).parent


def explain(bench: Bench) -> str:
    """Every part of a bench in words, from the track as it would run; nothing is trained."""
    track = bench.track
    parts = [
        (track.name, [track.rationale]),
        ("what is measured", [f"{track.metric}; {track.direction}. One number per seed and arm, model {track.model}."]),
        ("dataset", [*_dataset(bench)]),
        ("budget, the same for both arms", [_words(track.budget)]),
        ("arms", [*_arms(bench)]),
        ("seeds", [*_seeds(bench)]),
        ("what counts", [*_counts(bench)]),
        ("what is predicted", [*_predictions(bench)]),
        ("source", [*_source(bench)]),
        ("how to run it", [*_commands(bench)]),
    ]
    return "\n\n".join(f"# {title}\n" + "\n".join(map(_filled, lines)) for title, lines in parts)


def _filled(line: str) -> str:
    """A line of prose within the width; what continues a line is indented."""
    bare = line.lstrip()
    indent = " " * (len(line) - len(bare))
    return textwrap.fill(bare, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _words(settings: Settings) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "the defaults"


def _dataset(bench: Bench) -> Iterator[str]:
    track = bench.track
    about = _about(getattr(track.task, "data", None))
    if about:
        yield f"drawn anew for each seed: {about}"
    drawn = track.task.drawn(bench.evaluation_seeds[0], track.data)
    yield "a seed has " + ", ".join(f"{len(rows)} examples in {split}" for split, rows in drawn.items())
    yield f"settings, written data.KEY=VALUE: {_words(track.data)}"


def _about(function: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    text = inspect.getdoc(function) if callable(function) or inspect.ismodule(function) else None
    return " ".join(text.split("\n\n")[0].split()) if text else ""


def _arms(bench: Bench) -> Iterator[str]:
    track, idea = bench.track, bench.idea
    yield f"both start from {_words(track.base)}; written settings.KEY=VALUE"
    yield f"baseline, tuned over {plural(len(track.sweep), 'cell')}:"
    yield from (f"  {_words(cell)}" for cell in track.sweep)
    hooks = [name for name in HOOKS if getattr(idea, name) is not None]
    changed = [f"replaces {', '.join(hooks)}"] if hooks else []
    changed += [f"sets {_words(idea.settings)}"] if idea.settings else []
    cells = "these cells:" if idea.sweep else "the same cells"
    yield f"idea `{idea.name}`: {' and '.join(changed) or 'changes what its cells say'}; tuned over {cells}"
    for name in hooks:
        about = _about(getattr(idea, name))
        if about:
            yield f"  idea.{name}: {about}"
    yield from (f"  {_words(cell)}" for cell in idea.sweep)


def _seeds(bench: Bench) -> Iterator[str]:
    yield f"tuning on {listed(bench.tuning_seeds)}; the best mean is chosen in each arm (protocol={bench.protocol})"
    yield f"comparison on {listed(bench.evaluation_seeds)}: same data, initial weights and order in both arms, paired"
    tuned = 2 * len(bench.track.sweep) * len(bench.tuning_seeds)
    yield f"{tuned} trainings to tune, {2 * len(bench.evaluation_seeds)} to compare"


def _counts(bench: Bench) -> Iterator[str]:
    count, needed = len(bench.evaluation_seeds), seeds_needed(bench.alpha, bench.family_size)
    yield (
        f"smallest effect of interest: {bench.track.sesoi_rel_pct:g} % of the baseline's absolute mean "
        "(sesoi_rel_pct=VALUE)"
    )
    reach = f"the smallest p that {plural(count, 'seed')} can reach is {min_attainable_p(count):.4g}"
    enough = "" if count >= needed else f": no effect can be significant; it takes {needed} seeds"
    yield f"exact two-sided sign-flip test at alpha {bench.alpha:g}, family of {bench.family_size}; {reach}{enough}"


def _predictions(bench: Bench) -> Iterator[str]:
    if not bench.idea.claims:
        yield "nothing: the idea writes no prediction down. Add claims=(Claim(...),) to it before the run."
    yield from map(_prediction, bench.idea.claims)


def _prediction(claim: Claim) -> str:
    rule = claim.rule.replace("threshold", f"{claim.threshold:g}")
    return f"{claim.id}: {claim.claim}. Predicted: {claim.prediction}. Measured: {claim.metric}. Holds where: {rule}."


def _source(bench: Bench) -> Iterator[str]:
    custom = {source.kind: source for source in bench.sources}
    if "track" in custom:
        yield f"track: {custom['track'].file} ({custom['track'].sha256[:15]})"
    else:
        module = sys.modules.get(f"posttrain.bench.tracks.{bench.track.name}")
        if module is None:
            yield f"track: registered by {' or '.join(plugin.name for plugin in bench.plugins)}"
        else:
            yield f"track: {Path(str(module.__file__)).relative_to(PACKAGE.parent).as_posix()}: {_about(module)}"
    if "idea" in custom:
        yield f"idea: {custom['idea'].file} ({custom['idea'].sha256[:15]})"


def _commands(bench: Bench) -> Iterator[str]:
    name, idea, _, config, plugins = bench.request
    options = [*(["--config", config] if config else []), *(word for p in plugins for word in ("--plugin", p))]
    given = ["--idea", idea] if idea else []
    yield f"  {shlex.join(['posttrain', 'bench', 'run', name, *given, *options, *bench.overrides])}"
    yield f"  plan and results would lie in a folder under runs/ called bench-{planning.plan_name(bench)}-..."
    if idea:
        return
    if isinstance(bench.track.task, Trained):
        yield "an idea of yours is a file with settings of `posttrain train`, an algorithm of your own among them:"
    else:
        hooks = ", ".join(f"{hook}({', '.join(given)})" for hook, given in HOOKS.items())
        yield f"an idea of yours is a file with settings and hooks: {hooks}:"
    yield "  posttrain bench new idea mine"
    yield f"  {shlex.join(['posttrain', 'bench', 'run', name, '--idea', 'mine.py', *options])}"
