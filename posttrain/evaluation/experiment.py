"""What is going to run: arms on the same problems, seeds and initial weights, and what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from posttrain import settings
from posttrain.artifacts.digests import content_digest
from posttrain.conversion import spelled
from posttrain.evaluation.controls import control
from posttrain.evaluation.study import Claim, Study, studies
from posttrain.overrides import parse_overrides, put
from posttrain.registry import ConfigError, did_you_mean
from posttrain.settings import COMPONENTS, PLACES, TrainConfig

# What rivals have to share for their seeds to be pairs and their budgets to be equal.
BUDGET = (
    "dataset", "seeds", "policy", "evaluation",
    "steps", "problems_per_step", "group_size", "num_iterations", "minibatch_problems",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One configuration under a name of its own."""

    name: str  # the method id of its artifact: the algorithm, or `<algorithm>.<arm>`
    config: TrainConfig
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """Arms, of which the first is the one the artifact is about."""

    verb: str
    arms: tuple[Arm, ...]
    rivals: tuple[str, ...]  # names of the arms the first one is compared with: one family
    study: str | None = None
    source: Path | None = None  # the configuration file
    overrides: tuple[str, ...] = ()

    @property
    def main(self) -> Arm:
        """The arm the artifact is about."""
        return self.arms[0]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Claims to be decided."""
        return studies.get(self.study).claims if self.study else ()

    @property
    def name(self) -> str:
        """The plan's name: data and seeds where one method runs alone, with the methods where several are compared."""
        base = f"{data_words(self.main.config)}-seeds{seed_words(self.main.config.seeds)}"
        if self.verb == "reproduce":
            return f"{self.main.name}-study-{base}"
        rivals = (name.removeprefix(f"{self.main.name}.") for name in self.rivals)
        return "-vs-".join([self.main.name, *rivals]) + f"-{base}" if self.rivals else base

    @property
    def digest(self) -> str:
        """Eight digits that name the configuration of all arms."""
        return content_digest([arm.config.resolved for arm in self.arms]).removeprefix("sha256:")[:8]


def data_words(config: TrainConfig) -> str:
    """The data's name; where options that it does not speak of are not the default, with six digits of all of them."""
    spoken = ("name", "task", *PLACES)
    options = {key: value for key, value in config.resolved["dataset"].items() if key not in spoken}
    defaults = {f.name: _default(f) for f in fields(config.dataset)}
    if all(value == defaults[key] for key, value in options.items()):
        return config.data
    return f"{config.data}-{content_digest(options).removeprefix('sha256:')[:6]}"


def _default(option: Field[Any]) -> Any:
    """An option's default as plain data."""
    made = option.default if option.default_factory is MISSING else option.default_factory()
    if is_dataclass(made):
        return spelled(made)
    return list(made) if isinstance(made, tuple) else made


def seed_words(seeds: Sequence[int]) -> str:
    """`42-44` for a range; other sets say how many there are."""
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else f"{min(seeds)}-{max(seeds)}-of{len(seeds)}"


def vary(config: TrainConfig, overrides: Mapping[str, Any], algorithm: str | None = None) -> TrainConfig:
    """The configuration with some settings changed, checked again as a whole."""
    raw = dict(config.resolved)
    for key, value in overrides.items():
        put(raw, key, value, COMPONENTS)
    return settings.resolve(raw, algorithm or config.method)


def solo(config: TrainConfig, source: Path | None, overrides: Sequence[str]) -> Experiment:
    """`train`: one algorithm, with its control arms where `controls=` names some."""
    arms = [Arm(config.method, config, {})]
    for name in config.controls:
        changed = control(name, config)
        arms.append(Arm(f"{config.method}.{name}", vary(config, {**changed, "controls": ()}), changed))
    return Experiment("train", tuple(arms), tuple(arm.name for arm in arms[1:]), None, source, tuple(overrides))


def versus(configs: Sequence[TrainConfig], overrides: Sequence[str]) -> Experiment:
    """`compare`: several algorithms; they have to agree on problems, seeds, policy, budget and evaluation."""
    methods = [config.method for config in configs]
    if len(set(methods)) < len(methods):
        raise ConfigError(f"compare: {methods} names one algorithm twice. Variants of one are controls or a study.")
    first = configs[0].resolved
    for config in configs[1:]:
        for key in BUDGET:
            if config.resolved[key] != first[key]:
                where = _differ(key, first[key], config.resolved[key])
                raise ConfigError(
                    f"compare: `{methods[0]}` and `{config.method}` differ in {where}, so their seeds are no pairs. "
                    "Set the same for both with key=value or one --config FILE.yaml."
                )
    arms = tuple(Arm(config.method, config, {}) for config in configs)
    return Experiment("compare", arms, tuple(methods[1:]), None, None, tuple(overrides))


def _differ(key: str, a: Any, b: Any) -> str:
    """Where two settings differ, by their dotted names."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return ", ".join(_differ(f"{key}.{k}", a.get(k), b.get(k)) for k in {**a, **b} if a.get(k) != b.get(k))
    return f"{key} ({a} and {b})"


def study(algorithm: str, overrides: Sequence[str] | Mapping[str, Any]) -> Experiment:
    """`reproduce`: the arms and claims of an algorithm's study."""
    settings.registry.algorithms.get(algorithm)
    if algorithm not in studies:
        raise ConfigError(f"reproduce: `{algorithm}` has no study.{did_you_mean(algorithm, studies.names())}")
    found: Study = studies.get(algorithm)
    path = settings.config_path(algorithm, "l1", found.config)
    given = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides, settings.KEYS)
    words = {"seeds": found.seeds, **given}
    main = settings.load(algorithm, overrides=words, path=path)
    arms = [Arm(algorithm, main, {})]
    arms += [Arm(f"{algorithm}.{name}", vary(main, changed), changed) for name, changed in found.arms.items()]
    for name, other in found.others.items():
        config = settings.load(other, config=found.config if _ships(other, found.config) else None, overrides=words)
        arms.append(Arm(f"{algorithm}.{name}", config, {}))
    rivals = tuple(f"{algorithm}.{name}" for name in found.rivals)
    said = tuple(f"{key}={value}" for key, value in given.items())
    return Experiment("reproduce", tuple(arms), rivals, algorithm, path, said)


def _ships(algorithm: str, config: str) -> bool:
    return config in settings.configurations(algorithm)
