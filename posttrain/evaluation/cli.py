"""`posttrain eval`. The verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posttrain.verbs import add_plugin, add_verb

EPILOG = """\
examples:
  posttrain eval tiny:student --dataset steps dataset.validation_examples=200 --samples 8 --k 1,4,8
  posttrain eval runs/grpo-steps-l2-1a2b3c4d       each seed's model on its own held-out problems
  posttrain eval FOLDER --dataset my.jsonl reward=numeric policy.temperature=0.7 --samples 16
  posttrain eval FOLDER --dataset steps --against OTHER_FOLDER   paired by item: exact McNemar

Settings are written key=value, as in training: policy.*, dataset.*, reward=NAME. A run's own are the defaults.
"""


def add_verbs(verbs: Any) -> None:
    """Adds `eval` to the command line's verbs."""
    text = "greedy accuracy and pass@k of a run's models or of any model, with intervals"
    added = add_verb(verbs, "eval", _eval, text, settings=True, epilog=EPILOG)
    added.add_argument("model", metavar="RUN|MODEL", help="a run folder, a model folder, tiny:NAME or a hub id")
    added.add_argument("--dataset", metavar="NAME|FILE", help="what is asked (default: the run's own)")
    added.add_argument(
        "--split",
        choices=["validation", "train", "all"],
        help="which problems (default: the held-out ones; all of a FILE that no run trained on)",
    )
    added.add_argument("--samples", type=int, default=0, metavar="N", help="samples an item (default: greedy only)")
    added.add_argument("--k", metavar="K,...", help="of pass@k, at most the samples (default: 1)")
    added.add_argument("--against", metavar="RUN|MODEL|EVAL", help="another model, run or finished evaluation")
    added.add_argument("--seed", type=int, metavar="N", help="of data and samples; of a run, the seed to evaluate")
    added.add_argument("--output", type=Path, metavar="DIR", help="the folder (default: a new one under runs/)")
    add_plugin(added)


def _eval(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation import benchmark, benchmark_display, checkpoints
    from posttrain.evaluation.benchmark_conduct import conduct
    from posttrain.evaluation.conduct import command_line
    from posttrain.overrides import MAX_SEED, code_named
    from posttrain.registry import ConfigError, load_plugins

    if options.seed is not None and not 0 <= options.seed <= MAX_SEED:
        raise ConfigError(f"--seed: found {options.seed}, expected a whole number from 0 to {MAX_SEED}")
    asked = benchmark.Asked(options.dataset, options.split, options.samples, _ks(options.k))
    plugins = load_plugins([*options.plugin, *code_named(words)])
    subject = checkpoints.locate(options.model, options.seed)
    resolved = benchmark.resolve(subject, words, asked)
    against = checkpoints.rival_of(options.against, options.seed)
    with benchmark_display.progress() as watch:
        finished = conduct(
            subject, resolved, against, options.output, plugins=plugins, watch=watch, argv=command_line()
        )
    benchmark_display.show(finished)
    return 0


def _ks(text: str | None) -> tuple[int, ...]:
    from posttrain.registry import ConfigError

    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"--k: found {text!r}, expected whole numbers: --k 1,4,8") from None
