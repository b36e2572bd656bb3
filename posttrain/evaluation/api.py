"""The verbs as functions: the same runs, the same files, and the artifact as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain import settings
from posttrain.evaluation import benchmark, benchmark_conduct, checkpoints, experiment
from posttrain.evaluation.benchmark import Split
from posttrain.evaluation.benchmark_conduct import Evaluated
from posttrain.evaluation.conduct import Watch, conduct
from posttrain.overrides import code_named
from posttrain.registry import ConfigError, load_plugins
from posttrain.reporting.sentences import said


@dataclass(frozen=True)
class Artifact:
    """A finished run's artifact with its place; `data` is the JSON as it stands in the file."""

    data: Mapping[str, Any]
    path: Path

    @property
    def method(self) -> str:
        """The method's id."""
        return self.data["method"]

    @property
    def seeds(self) -> list[int]:
        """Training seeds, in the order of the runs."""
        return self.data["seeds"]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One run per seed."""
        return self.data["runs"]

    @property
    def comparison(self) -> list[dict[str, Any]]:
        """Paired comparisons with the rivals, if there were any."""
        return self.data.get("comparison", [])

    @property
    def claims(self) -> dict[str, str]:
        """Claim id -> outcome, where a study decided claims."""
        return {claim["id"]: claim["outcome"] for claim in self.data.get("mechanism", {}).get("claims", [])}

    def before(self, metric: str = "accuracy") -> dict[int, float]:
        """The metric before training, by seed."""
        return {run["seed"]: run["baseline"][metric] for run in self.runs}

    def after(self, metric: str = "accuracy") -> dict[int, float]:
        """The metric after training, by seed."""
        return {run["seed"]: run["final"][metric] for run in self.runs}

    def __str__(self) -> str:
        """What the artifact licenses to say."""
        return "\n".join(said(self.data))


def train(
    algorithm: str,
    *,
    tier: str | None = None,
    config: str | None = None,
    output: str | Path | None = None,
    plugins: Sequence[str] = (),
    jobs: int = 1,
    resume: bool = False,
    save_steps: int | None = None,
    **options: Any,
) -> Artifact:
    """`posttrain train`: options are settings (`seeds="42-53"`, `learning_rate=0.02`; dotted ones in a `**{...}`).

    With `resume` it goes on with what lies in `output`; `save_steps` counts the updates between checkpoints.
    """
    loaded = load_plugins([*plugins, *code_named(options)])
    tier = settings.tier_of(tier, options)
    resolved = settings.load(algorithm, tier, config, options)
    made = experiment.solo(resolved, settings.config_path(algorithm, tier, config), _words(options))
    return _run(made, output, loaded, jobs, resume, save_steps)


def compare(
    *algorithms: str,
    tier: str | None = None,
    config: str | None = None,
    output: str | Path | None = None,
    plugins: Sequence[str] = (),
    jobs: int = 1,
    resume: bool = False,
    save_steps: int | None = None,
    **options: Any,
) -> Artifact:
    """`posttrain compare`: the artifact of the first algorithm, with its paired comparisons."""
    loaded = load_plugins([*plugins, *code_named(options)])
    options = {"seeds": "42-53", **options}
    tier = settings.tier_of(tier, options)
    resolved = [settings.load(algorithm, tier, config, options) for algorithm in algorithms]
    return _run(experiment.versus(resolved, _words(options)), output, loaded, jobs, resume, save_steps)


def reproduce(
    algorithm: str,
    *,
    output: str | Path | None = None,
    plugins: Sequence[str] = (),
    jobs: int = 1,
    resume: bool = False,
    save_steps: int | None = None,
    **options: Any,
) -> Artifact:
    """`posttrain reproduce`: the algorithm's artifact with its claims decided."""
    loaded = load_plugins([*plugins, *code_named(options)])
    return _run(experiment.study(algorithm, options), output, loaded, jobs, resume, save_steps)


def evaluate(
    model: str | Path,
    dataset: str | None = None,
    *,
    samples: int = 0,
    k: Sequence[int] = (),
    against: str | Path | None = None,
    split: Split | None = None,
    seed: int | None = None,
    output: str | Path | None = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> Evaluated:
    """`posttrain eval`: a run's models, a model folder, a tiny model or a hub id on the items of a dataset."""
    loaded = load_plugins([*plugins, *code_named(options)])
    subject = checkpoints.locate(str(model), seed)
    resolved = benchmark.resolve(subject, _words(options), benchmark.Asked(dataset, split, samples, tuple(k)))
    rival = checkpoints.rival_of(None if against is None else str(against), seed)
    folder = None if output is None else Path(output)
    return benchmark_conduct.conduct(subject, resolved, rival, folder, plugins=loaded)


def _words(options: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in options.items()]


def _run(
    made: experiment.Experiment,
    output: str | Path | None,
    plugins: Sequence[Any],
    jobs: int,
    resume: bool,
    save_steps: int | None,
) -> Artifact:
    if save_steps is not None and save_steps < 1:
        raise ConfigError(f"save_steps: found {save_steps}, expected at least 1")
    folder = None if output is None else Path(output)
    finished = conduct(made, folder, plugins=plugins, jobs=jobs, watch=Watch(), resume=resume, save_steps=save_steps)
    return Artifact(finished.artifact, finished.path)
