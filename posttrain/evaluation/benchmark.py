"""What an evaluation asks and how: data, reward and sampler as settings, resolved and checked before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from posttrain import settings
from posttrain.artifacts.digests import content_digest
from posttrain.batch import Problem
from posttrain.conversion import refuse_unknown
from posttrain.evaluation.checkpoints import Subject
from posttrain.overrides import parse_overrides, put
from posttrain.policies.causal_lm import CausalLM
from posttrain.registry import ConfigError
from posttrain.settings import COMPONENTS, TRUST

Split = Literal["validation", "train", "all"]
PARTS = {"policy", "dataset", "reward"}
DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
# Options of the policy that no answer depends on, or that say where the model lies.
_NOT_SETTINGS = ("name", "model", "lora", "gradient_checkpointing", "start")


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the settings."""

    dataset: str | None = None
    split: Split | None = None
    samples: int = 0
    ks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ConfigError(f"--samples: found {self.samples}, expected 0 or more")
        if any(k < 1 for k in self.ks):
            raise ConfigError(f"--k: found {min(self.ks)}, expected numbers from 1 up: --k 1,4,8")
        if self.ks and max(self.ks) > self.samples:
            raise ConfigError(
                f"--k: found {max(self.ks)}, but --samples is {self.samples}. Write --samples {max(self.ks)} or more."
            )
        if len(set(self.ks)) != len(self.ks):
            raise ConfigError(f"--k: found {','.join(map(str, self.ks))}, expected each number once")


@dataclass(frozen=True)
class Benchmark:
    """Checked settings with their parts built; `resolved` is the same as plain data, every default spelled out."""

    policy: CausalLM  # `model` is not yet chosen
    dataset: Any
    reward: Any
    split: Split
    samples: int
    ks: tuple[int, ...]
    resolved: Mapping[str, Any]
    overrides: tuple[str, ...] = ()

    @property
    def dataset_name(self) -> str:
        """The registered name."""
        return self.resolved["dataset"]["name"]

    @property
    def settings(self) -> dict[str, Any]:
        """What the answers depend on, as the artifact holds it: no place of a model."""
        policy = {key: value for key, value in self.resolved["policy"].items() if key not in _NOT_SETTINGS}
        return {"policy": policy, "reward": self.resolved["reward"], "samples": self.samples, "k": list(self.ks)}

    def digest(self, *subjects: str) -> str:
        """Eight digits that name settings and models."""
        return content_digest([self.resolved, *subjects]).removeprefix("sha256:")[:8]


def resolve(subject: Subject, words: Sequence[str], asked: Asked = Asked()) -> Benchmark:
    """The benchmark of a subject: what its run was set to, under `key=value` words; ConfigError names what is wrong."""
    given = parse_overrides(words, PARTS)
    _refuse_foreign(given)
    raw = _defaults(subject)
    own = raw["dataset"]["name"] if isinstance(raw.get("dataset"), dict) else None
    if asked.dataset is not None:
        if "dataset" in given:
            raise ConfigError("dataset: given twice, as --dataset and as dataset=...")
        # The run's own data keep its options: its held-out problems are those it did not train on.
        given = given if asked.dataset == own else {"dataset": asked.dataset, **given}
    for key in sorted(given, key=lambda key: key.count(".")):
        put(raw, key, given[key], COMPONENTS)
    if raw.get("dataset") is None:
        raise ConfigError("dataset: nothing is chosen. Write --dataset NAME or --dataset FILE.jsonl.")
    dataset, spelled = settings.component("dataset", raw["dataset"])
    if raw.get("reward") is None:
        raw["reward"] = getattr(type(dataset), "judged_by", "exact")
    reward, judged = settings.component("reward", raw["reward"])
    policy, options = settings.component("policy", raw["policy"])
    if not isinstance(policy, CausalLM):
        raise ConfigError(f"policy: found {options['name']}, but an evaluation is of a language model (causal_lm)")
    ks = tuple(sorted(asked.ks)) or ((1,) if asked.samples else ())
    split = asked.split or _usual_split(asked.dataset, own)
    whole = {"policy": options, "dataset": spelled, "reward": judged, "split": split}
    whole |= {"samples": asked.samples, "k": list(ks), "seeds": list(subject.seeds)}
    return Benchmark(policy, dataset, reward, split, asked.samples, ks, whole, tuple(words))


def _defaults(subject: Subject) -> dict[str, Any]:
    """The settings of the run that made the models; the defaults of a language model otherwise.

    Trust is not among them: a folder cannot ask for its own code to be run.
    """
    if subject.run is None:
        return {"policy": {"name": "causal_lm"}}
    run = subject.run.resolved
    policy = {key: value for key, value in run["policy"].items() if key not in ("model", "lora", "start", *TRUST)}
    dataset = {key: value for key, value in run["dataset"].items() if key not in TRUST}
    return {"policy": policy, "dataset": dataset, "reward": dict(run["evaluation"]["accuracy"])}


def _refuse_foreign(given: Mapping[str, Any]) -> None:
    """Keys that an evaluation has no use for, with what to write instead."""
    for key in given:
        if key in {f.name for f in fields(CausalLM)}:
            raise ConfigError(f"{key}: belongs to the policy. Write policy.{key}=VALUE.")
        if key.startswith("evaluation"):
            raise ConfigError(f"{key}: what judges the answers is called `reward` here. Write reward=NAME.")
        if key == "policy" or key.split(".")[:2] in (["policy", "model"], ["policy", "lora"], ["policy", "start"]):
            raise ConfigError(
                f"{key}: the model is the word after `eval`, and it is evaluated as it is. Leave {key} out."
            )
    refuse_unknown("", {key.partition(".")[0]: None for key in given}, PARTS)


def _usual_split(dataset: str | None, own: str | None) -> Split:
    """Held-out problems; of a file that no run trained on, every row."""
    whole = dataset is not None and dataset != own and Path(dataset).suffix in DATA_FILES
    return "all" if whole else "validation"


def problems_of(benchmark: Benchmark, seed: int) -> dict[str, tuple[Problem, ...]]:
    """The problems by split `<seed>/<split>`; none at all or an id twice is a ConfigError."""
    found = benchmark.dataset.build(seed)
    names = ("train", "validation") if benchmark.split == "all" else (benchmark.split,)
    splits = {f"{seed}/{name}": tuple(getattr(found, name)) for name in names if getattr(found, name)}
    if not splits:
        raise ConfigError(f"dataset: `{benchmark.dataset_name}` gave no problem in split `{benchmark.split}`")
    counts = Counter(problem.id for problems in splits.values() for problem in problems)
    double = [name for name, count in counts.items() if count > 1]
    if double:
        raise ConfigError(
            f"dataset: {len(double)} ids stand for more than one problem, such as {double[0]}. Give each its own id."
        )
    return splits


def prompt_digest(problem: Problem) -> str:
    """Of what is asked, before any template: the messages or the prompt."""
    return content_digest(problem.meta.get("messages", problem.prompt))
