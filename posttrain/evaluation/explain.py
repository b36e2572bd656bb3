"""`posttrain explain`: everything a run would do and write, without doing it."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from posttrain.data.splits import RowOptions
from posttrain.evaluation import records
from posttrain.evaluation.experiment import Experiment
from posttrain.evaluation.folders import default_folder
from posttrain.reporting.formatting import plural
from posttrain.reporting.sentences import label
from posttrain.settings import TrainConfig

SEEDS = """\
each of the seeds {seeds} controls:
  problems      {problems}
  training      default_rng(seed) started anew, as in the recorded protocol: problems of a step, then completions
  selection     counter-based, from (seed, step, problem, completion): random tokens, the mixture's coins
  samples       default_rng([seed, 4]): the completions in samples.jsonl
  probes        default_rng([seed, 2]): the extra measurements of a study
not controlled: nothing; one thread and deterministic kernels are pinned, BLAS and CPU are recorded"""


def explain(experiment: Experiment, output: Path | None) -> str:
    """The resolved configuration, what will run and be written, seeds, biases and what may be claimed."""
    config = experiment.main.config
    parts = [
        ("configuration", OmegaConf.to_yaml(OmegaConf.create(dict(config.resolved))).rstrip()),
        ("algorithm", _algorithm(config)),
        ("what runs", _runs(experiment)),
        ("what is written", _files(experiment, output)),
        ("seeds", SEEDS.format(seeds=", ".join(map(str, config.seeds)), problems=_problems(config))),
        ("known biases", "\n".join(f"- {bias}" for bias in records.biases(config)) or "none known"),
        ("what may be claimed", _claims(config, bool(experiment.rivals or experiment.claims))),
    ]
    return "\n\n".join(f"# {title}\n{text}" for title, text in parts)


def _problems(config: TrainConfig) -> str:
    """What a seed has to do with the problems."""
    if not isinstance(config.dataset, RowOptions):
        return "numpy default_rng(seed): dataset.build, training problems first, then the held-out ones"
    split = "which rows are held out (dataset.resplit)" if config.dataset.resplit else "neither rows nor split"
    return f"{split}: the rows are fixed; the order in which they are drawn follows below"


def _algorithm(config: TrainConfig) -> str:
    algorithm = config.algorithm
    lines = [(type(algorithm).__doc__ or "").strip(), f"needs: {', '.join(sorted(algorithm.needs))}"]
    lines.append(f"groups see each other in prepare: {'yes' if algorithm.scope == 'batch' else 'no'}")
    return "\n".join(lines)


def _runs(experiment: Experiment) -> str:
    config = experiment.main.config
    rows = config.problems_per_step * config.group_size
    lines = [
        f"{plural(len(config.seeds), 'seed')} x {config.steps} steps of {config.problems_per_step} problems x "
        f"{config.group_size} completions = {rows} completions a step",
        f"evaluations on held-out problems: before training, after step 1 and every {config.evaluation_period} steps",
        f"teacher: {_teacher(config, rows)}",
    ]
    if len(experiment.arms) > 1:
        lines.append("arms: " + ", ".join(arm.name for arm in experiment.arms))
    if config.tune.seeds:
        rates = ", ".join(f"{rate:g}" for rate in config.tune.learning_rate)
        lines.append(f"first, each arm tries learning rates {rates} on seeds {', '.join(map(str, config.tune.seeds))}")
    return "\n".join(lines)


def _teacher(config: TrainConfig, rows: int) -> str:
    name = config.names.get("teacher")
    if name is None:
        return "none"
    online = f"asked online about {rows} completions a step, {rows * config.steps} a seed"
    period = getattr(config.teacher, "refresh_every", None)
    past = f"the student's own past, {config.steps // (period or 1)} refreshes a seed"
    a_pass = "one more forward pass over prompt and completion each"
    said = {
        "frozen": f"{online}: {a_pass}, the vocabulary projection at the supervised tokens alone",
        "snapshot": f"{past}: {a_pass}",
        "privileged": f"{past if period else online}: {a_pass}, behind a longer prompt",
        "cached": _store(config),
    }
    return f"{name}, {said.get(name, 'as its own documentation says')}"


def _store(config: TrainConfig) -> str:
    """What a store saves and takes: of a token log-prob and entropy, and id and log-prob of each in the support."""
    known = getattr(config.dataset, "train_examples", None)
    once = (
        "every training problem's completions" if known is None else f"{known * config.group_size} completions a seed"
    )
    when = f"{once}, before training" if config.algorithm.rollouts == "once" else "each completion it has not seen"
    real = 8 if getattr(config.policy, "dtype", "float32") == "float64" else 4
    size = 2 * real + (4 + real) * (config.algorithm.top_k or 0)
    return f"asked once about {when}; an entry takes about {size} bytes a token, and no forward pass to read again"


def _files(experiment: Experiment, output: Path | None) -> str:
    folder = output or default_folder(experiment)
    lines = [
        f"{folder}/",
        "  config.yaml      every default spelled out",
        "  plan.json        what would count as evidence, before the first run",
        "  metrics.jsonl    one row per seed and step",
        "  samples.jsonl    a few completions of each seed",
        "  artifact.json    what a rerun reproduces, byte for byte on the same kind of machine",
        "  execution.json   written last: command, code, environment, times, digests of the files above",
    ]
    if len(experiment.arms) > 1:
        lines.append("  arms/<arm>/      the same for every other arm")
    lines.append(f"intended place of the artifact: {records.artifact_path(experiment, experiment.main)}")
    return "\n".join(lines)


def _claims(config: TrainConfig, compares: bool) -> str:
    allowed = records.claim_policy(config)
    said = label(allowed["claim_policy"], allowed["formal_comparison"], len(config.seeds), compares)
    return f"{said}. Words of significance need 6 paired seeds or more and a rival run under the same plan."
