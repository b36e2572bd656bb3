"""`posttrain bench ...`. Every verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.verbs import add_group, add_plugin, add_verb

EPILOG = """\
examples:
  posttrain bench list
  posttrain bench explain sequence                what it measures, does and predicts; runs nothing
  posttrain bench run sequence                    sweep, eight paired seeds, verdict
  posttrain bench run sequence --idea mine.py     an idea of your own against the tuned baseline
  posttrain bench run my_track.py evaluation_seeds=0-11
  posttrain bench new idea mine
  posttrain bench report runs/*/artifact.json     several, with Holm over all of them
"""

SETTINGS = "Settings are written key=value: evaluation_seeds=0-11, protocol=recorded, settings.epochs=4, ..."


def add_verbs(verbs: Any) -> None:
    """Adds `bench` with its own verbs to the command line's."""
    text = "an idea against a tuned baseline on a tiny model, in minutes"
    own = add_group(verbs, "bench", text, epilog=EPILOG)
    added = add_verb(own, "list", _list, "the tracks")
    add_plugin(added, "what registers further tracks")
    added = add_verb(
        own,
        "run",
        _run,
        "run a track, or go on with a run that was killed",
        settings=True,
        epilog=SETTINGS,
    )
    _add_bench(added)
    added.add_argument("--output", type=Path, metavar="DIR", help="the run folder (default: one under runs/)")
    added.add_argument("--jobs", type=int, default=1, metavar="N", help="processes; changes no number")
    text = "what a track measures, does and predicts, and how to try an idea; runs nothing"
    _add_bench(add_verb(own, "explain", _explain, text, settings=True, epilog=SETTINGS))
    added = add_verb(own, "new", _new, "write a running starting point")
    added.add_argument("what", choices=["idea", "track"])
    added.add_argument("name", metavar="NAME")
    added.add_argument("--directory", type=Path, default=Path(), metavar="DIR")
    added = add_verb(own, "report", _report, "table and figure again; several with Holm")
    added.add_argument("paths", metavar="ARTIFACT", nargs="+", type=Path)
    added.add_argument("--output", type=Path, metavar="FILE.svg", help="the figure (default: a file under runs/)")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    """What names a track, an idea and their settings."""
    parser.add_argument("track", metavar="TRACK|FILE.py")
    parser.add_argument("--idea", metavar="FILE.py", help="a file that defines `idea`; without it the track's own")
    parser.add_argument("--config", metavar="FILE", help="settings in YAML")
    parser.add_argument("--traceback", action="store_true", help="where code of yours raises, show the calls to it")
    add_plugin(parser, "what registers further tracks")


def _list(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.bench.track import tracks
    from posttrain.registry import load_plugins

    load_plugins(options.plugin)
    for name in tracks.names():
        track = tracks.get(name)
        print(f"{name}  ({track.model})")
        print(f"    {track.rationale}")
        print(f"    {track.metric}, {track.direction}; idea: {track.idea.name}")
    return 0


def _run(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.bench import display
    from posttrain.bench.conduct import FIGURE, conduct
    from posttrain.bench.options import load
    from posttrain.evaluation.conduct import command_line
    from posttrain.evaluation.display import progress
    from posttrain.registry import ConfigError
    from posttrain.reporting.figures import NO_FIGURE

    if options.jobs < 1:
        raise ConfigError(f"--jobs: found {options.jobs}, expected at least 1")
    bench = load(options.track, options.idea, words, options.config, options.plugin)

    def run() -> int:
        with progress(True) as watch:
            finished = conduct(bench, options.output, jobs=options.jobs, watch=watch, argv=command_line())
        drawn = finished.folder / FIGURE
        display.show(finished.artifact, finished.path, drawn if drawn.is_file() else NO_FIGURE)
        return 0

    return _told(run, options.traceback)


def _explain(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.bench.explain import explain
    from posttrain.bench.options import load
    from posttrain.bench.rehearsal import rehearse

    bench = load(options.track, options.idea, words, options.config, options.plugin)

    def run() -> int:
        rehearse(bench)
        print(explain(bench))
        return 0

    return _told(run, options.traceback)


def _told(work: Callable[[], int], shown: bool) -> int:
    """Does the work; what code from outside raises is said in a paragraph, behind the calls to it where asked for."""
    from posttrain.bench.foreign import OutsideError, kept_calls
    from posttrain.registry import ConfigError

    try:
        return work()
    except (ConfigError, OutsideError) as error:
        calls = kept_calls(error)
        if calls is None:
            raise
        more = "" if shown else " --traceback shows the calls that led there."
        print(f"{calls if shown else ''}posttrain: {error}{more}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _new(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.bench.scaffold import write

    for line in write(options.what, options.name, options.directory):
        print(line)
    return 0


def _report(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.bench.report import report

    report(options.paths, options.output)
    return 0
