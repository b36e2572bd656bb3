"""The command line. Every verb imports what it needs when it runs, so that `--help` is instant."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from posttrain import __version__
from posttrain.bench.cli import add_verbs
from posttrain.evaluation.cli import add_verbs as add_eval
from posttrain.reporting.cli import add_verbs as add_reporting
from posttrain.teachers.cli import add_verbs as add_caches
from posttrain.verbs import Parser, Run, add_plugin, add_verb, refuse_misspelt_options

if TYPE_CHECKING:
    from posttrain.evaluation.experiment import Experiment

EPILOG = """\
examples:
  posttrain train sparse-opd                     the recorded protocol, in seconds
  posttrain train grpo seeds=42-53 learning_rate=0.02
  posttrain train sparse-opd --config l1-paper controls=dense,random
  posttrain reproduce sparse-opd                 the paper's claims, decided over 12 paired seeds
  posttrain compare grpo rloo --seeds 12
  posttrain explain sparse-opd                   everything a run would do; runs nothing
"""


SETTINGS = "Settings are written key=value; `posttrain explain ALGO` lists them with their defaults."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 failed, 2 wrong input, 3 not verifiable, 130 and 143 stopped."""
    parser = command_line()
    options, words = parser.parse_known_args(argv)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    if words and not options.settings:
        parser.error(f"{options.verb} takes no {' '.join(words)}")
    refuse_misspelt_options(options.parser, words)
    from posttrain.registry import ConfigError
    from posttrain.stopping import EXIT_CODE, Stopped

    try:
        return options.run(options, words)
    except ConfigError as error:
        print(f"posttrain: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ArithmeticError, RuntimeError, OSError) as error:
        print(f"posttrain: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"posttrain: stopped as asked; the state is saved. {stopped}", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt as interrupt:
        print(f"posttrain: interrupted. {interrupt}".rstrip(), file=sys.stderr)
        return 130


def process() -> NoReturn:
    """Runs one command as a process of its own, also as one of several that a launcher started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(main())
    from posttrain.ranks import end

    try:
        code = main()
    except Exception:  # a fault of the program: the others wait for this rank until it is gone
        traceback.print_exc()
        code = 1
    end(code)


def command_line() -> argparse.ArgumentParser:
    """The command line, verb by verb."""
    parser = Parser(
        prog="posttrain",
        description="Post-training research in which a claim cannot outrun its evidence.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"posttrain {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, run: Run, text: str, settings: bool = False) -> argparse.ArgumentParser:
        return add_verb(verbs, name, run, text, settings=settings, epilog=SETTINGS if settings else None)

    for name, run, text in (
        ("train", _train, "train one algorithm, measure it and write the artifact"),
        ("explain", _explain, "show the resolved configuration and what would happen; runs nothing"),
    ):
        added = verb(name, run, text, settings=True)
        added.add_argument("algorithm", metavar="ALGO")
        _add_source(added)
        _add_run(added)
        if name == "train":
            _add_only_seed(added)
            _add_resume(added)
    added = verb("reproduce", _reproduce, "decide an algorithm's claims over paired seeds", settings=True)
    added.add_argument("algorithm", metavar="ALGO")
    _add_run(added)
    _add_only_seed(added)
    _add_resume(added)
    added = verb(
        "compare",
        _compare,
        "run algorithms on the same problems and seeds, or compare finished artifacts",
        settings=True,
    )
    added.add_argument("algorithms", metavar="ALGO|ARTIFACT", nargs="+")
    added.add_argument("--seeds", type=int, metavar="N", help="number of paired seeds from 42 on (default: 12)")
    _add_source(added)
    _add_run(added)
    _add_only_seed(added)
    _add_resume(added)
    added = verb("verify", _verify, "check artifacts: structure, derived numbers, digests")
    added.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="artifact, run folder, or docs/ for the suite"
    )
    added.add_argument("--rerun", action="store_true", help="also train again, as far as the budget goes (V3)")
    added.add_argument(
        "--budget", type=float, metavar="S", help="seconds an artifact may take to run again (default: 60)"
    )
    added.add_argument("--json", action="store_true", help="machine-readable report")
    add_plugin(added, "where the dataset comes from")
    added = verb("list", _list, "algorithms, policies, teachers, datasets, rewards, studies and configurations")
    added.add_argument("--json", action="store_true")
    add_plugin(added)
    added = verb("new", _new, "write a running starting point")
    added.add_argument("what", choices=["algorithm"])
    added.add_argument("name", metavar="NAME")
    added.add_argument("--directory", type=Path, default=Path(), metavar="DIR")
    added = verb("env", _env, "versions and hardware, for bug reports")
    added.add_argument("--json", action="store_true")
    add_eval(verbs)
    add_verbs(verbs)
    add_reporting(verbs)
    add_caches(verbs)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    tiers = "l0 (smoke, laws), l1 (mechanism, the default), l2 (tiny LM), l3 (implied by policy.model=...)"
    parser.add_argument("--tier", metavar="TIER", help=tiers)
    parser.add_argument("--config", metavar="NAME|FILE", help="one of the algorithm's own configurations, or a file")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="DIR", help="the run folder (default: a new one under runs/)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes that share the seeds; changes no number")
    add_plugin(parser)


def _add_only_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-seed", type=int, metavar="N", help="run one seed of the plan; see posttrain merge")


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resume", choices=["auto"], help="go on with what lies in --output, or start where none does")
    parser.add_argument("--save-steps", type=int, metavar="N", help="updates between checkpoints (default: a minute)")


# -- verbs ----------------------------------------------------------------------------------------------------


def _train(options: argparse.Namespace, words: list[str]) -> int:
    return _conduct(options, words, lambda: _solo(options, words))


def _solo(options: argparse.Namespace, words: list[str]) -> Experiment:
    from posttrain import settings
    from posttrain.evaluation import experiment

    tier = settings.tier_of(options.tier, words)
    _refuse_track(options.algorithm)
    config = settings.load(options.algorithm, tier, options.config, words)
    return experiment.solo(config, settings.config_path(options.algorithm, tier, options.config), words)


def _refuse_track(name: str) -> None:
    """A bench track is no algorithm; its own verbs are near."""
    from posttrain.registry import ConfigError

    if (Path(__file__).parent / "bench" / "tracks" / f"{name}.py").is_file():
        raise ConfigError(
            f"`{name}` is a bench track. Write posttrain bench run {name} (bench explain {name} runs nothing)."
        )


def _reproduce(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation import experiment

    return _conduct(options, words, lambda: experiment.study(options.algorithm, words))


def _compare(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain import settings
    from posttrain.evaluation import experiment
    from posttrain.registry import ConfigError
    from posttrain.reporting.actions import compare_artifacts
    from posttrain.reporting.comparing import named_as_files

    if named_as_files(options.algorithms):
        return compare_artifacts([*options.algorithms, *words], options.output, options.plugin)
    named = [word for word in options.algorithms if "=" not in word]
    words = [word for word in options.algorithms if "=" in word] + words
    given = any(word.startswith("seeds=") for word in words)
    if len(named) < 2:
        raise ConfigError(f"compare: found {len(named)} algorithm, expected two or more: posttrain compare grpo rloo")
    if given and options.seeds is not None:
        raise ConfigError("seeds: given twice, as --seeds and as seeds=...")
    if options.seeds is not None and options.seeds < 1:
        raise ConfigError(f"--seeds: found {options.seeds}, expected at least 1")
    if not given:
        words.append(f"seeds=42-{41 + (options.seeds or 12)}")

    def build() -> Experiment:
        tier = settings.tier_of(options.tier, words)
        return experiment.versus([settings.load(name, tier, options.config, words) for name in named], words)

    return _conduct(options, words, build)


def _conduct(options: argparse.Namespace, words: list[str], build: Any) -> int:
    """Builds the experiment (every mistake surfaces here), runs it and prints what it found."""
    if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        print("preparing", end="\r", file=sys.stderr, flush=True)  # the imports take seconds; the bar takes its place
    from posttrain import ranks
    from posttrain.evaluation import display, parts
    from posttrain.evaluation.conduct import command_line, conduct
    from posttrain.overrides import code_named
    from posttrain.registry import ConfigError, load_plugins

    plugins = load_plugins([*options.plugin, *code_named(words)])
    whole = experiment = build()
    if options.only_seed is not None:
        experiment = parts.only(whole, options.only_seed)
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"--jobs: found {options.jobs}, expected at least 1")
    if options.save_steps is not None and options.save_steps < 1:
        raise ConfigError(f"--save-steps: found {options.save_steps}, expected at least 1")
    joined = ranks.join()
    units = sum(len(arm.config.seeds) for arm in experiment.arms)
    # Starting a process costs about as much as a few short seeds.
    jobs = options.jobs or (min(os.cpu_count() or 1, 8) if units >= 12 and joined.size == 1 else 1)
    with display.progress(joined.main) as watch:
        finished = conduct(
            experiment,
            options.output,
            ranks=joined,
            jobs=jobs,
            plugins=plugins,
            watch=watch,
            argv=command_line(),
            resume=options.resume is not None,
            save_steps=options.save_steps,
        )
    if options.only_seed is not None:
        seed = options.only_seed
        joined.alone("writing the part", lambda: parts.write_part(whole, seed, finished.folder, plugins))
    if joined.main:
        display.show(experiment, finished)
    # Not after an error: the other ranks would be waited for while they wait for this one's results.
    ranks.leave(joined)
    return 0


def _explain(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation.explain import explain
    from posttrain.evaluation.preflight import preflight
    from posttrain.overrides import code_named
    from posttrain.registry import load_plugins

    load_plugins([*options.plugin, *code_named(words)])
    experiment = _solo(options, words)
    preflight(experiment)
    print(explain(experiment, options.output))
    return 0


def _verify(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from posttrain.artifacts.report import render_all
    from posttrain.reporting.actions import verify_paths

    reports = verify_paths(options.paths, options.plugin, options.rerun, options.budget)
    if options.json:
        print(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        print(render_all(reports))
    codes = [report.exit_code for report in reports]
    return 1 if 1 in codes else max(codes)


def _list(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from posttrain.evaluation.catalogue import catalogue, render
    from posttrain.registry import load_plugins

    load_plugins(options.plugin)
    found = catalogue()
    print(json.dumps(found, indent=2) if options.json else render(found))
    return 0


def _new(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation.scaffold import write_algorithm

    for line in write_algorithm(options.name, options.directory):
        print(line)
    return 0


def _env(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from posttrain.artifacts import provenance

    environment, hardware = provenance.environment(), provenance.hardware()
    code = provenance.code_state(Path(__file__).parent)
    if options.json:
        print(json.dumps({"code": code, "environment": environment, "hardware": hardware}, indent=2))
        return 0
    packages = environment.pop("packages")
    shown = ("torch", "transformers", "datasets", "accelerate", "numpy", "scipy", "omegaconf", "safetensors", "rich")
    print(f"posttrain {code['package_version']}, commit {code['git_commit']}, dirty {code['git_dirty']}")
    print("\n".join(f"{name} {packages.get(name, 'not installed')}" for name in shown))
    for part in (environment, hardware):
        print("\n".join(f"{key}: {value}" for key, value in part.items() if key != "unknown"))
    return 0
