"""Settings: dataclass defaults < a YAML file < `key=value`, checked as a whole before any work starts."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posttrain import registry
from posttrain.conversion import refuse_misspelt_policy, refuse_unknown, spelled, typed_values
from posttrain.optimization import Optimization
from posttrain.overrides import parse_overrides, parse_seeds, put
from posttrain.ranges import POSITIVE
from posttrain.registry import ConfigError, Registry, did_you_mean
from posttrain.shorthand import expanded

TIERS = {"l0": "l0_smoke", "l1": "l1_mechanism", "l2": "l2_tiny_lm", "l3": "l3_real_model"}
# Tiers whose artifacts repeat bit for bit: one thread, deterministic kernels, and ranks that share seeds, not rows.
REPEATABLE = ("l0", "l1", "l2")
# A real checkpoint starts from the tiny model's configuration, with a step size for trained weights.
REAL: dict[str, Any] = {"tier": "l3", "learning_rate": 1e-5, "teacher": None, "policy": {"name": "causal_lm"}}
# What judges answers to data that the command names, where it names no reward; exact for all others.
GRADERS = {"reasoning_gym": "reasoning_gym", "gsm8k": "numeric"}
# The smoke tier: a few steps of the mechanism tier's configuration.
SMOKE: dict[str, Any] = {"tier": "l0", "steps": 10, "seeds": [0, 1], "tune": None, "note": None}
TRUST = ("trust_remote_code", "allow_eval")  # options by which the caller lets code of data or models run
PLACES = ("path", "validation", "source", "model")  # options of parts that may name a file or folder
TRACKERS = ("tensorboard", "wandb", "trackio")  # beside metrics.jsonl, which is always written
COMPONENTS: dict[str, Registry] = {
    "algorithm": registry.algorithms,
    "policy": registry.policies,
    "teacher": registry.teachers,
    "dataset": registry.datasets,
    "reward": registry.rewards,
    "evaluation.accuracy": registry.rewards,
    "evaluation.reward": registry.rewards,
}


@dataclass(frozen=True)
class Evaluation:
    """How held-out answers are judged."""

    accuracy: Any = "exact"
    reward: Any = "exact"


@dataclass(frozen=True)
class Tune:
    """A learning rate for each arm, found on other seeds with the same budget for every arm."""

    learning_rate: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainConfig(Optimization):
    """Everything a run depends on. The component fields hold registered dataclasses."""

    tier: str = "l1"
    seeds: tuple[int, ...] = (42, 43, 44)
    algorithm: Any = None
    policy: Any = None
    teacher: Any = None
    dataset: Any = None
    reward: Any = None
    evaluation: Evaluation = Evaluation()
    controls: tuple[str, ...] = ()
    tune: Tune = Tune()
    report_to: tuple[str, ...] = ()
    supersedes: str | None = None  # digest of an artifact this run replaces
    note: str | None = None  # printed with the result and kept in the artifact
    names: Mapping[str, str] = field(default_factory=dict)  # component -> registered name
    resolved: Mapping[str, Any] = field(default_factory=dict)  # every default spelled out, as plain data

    @property
    def method(self) -> str:
        """The algorithm's registered name."""
        return self.names["algorithm"]

    @property
    def data(self) -> str:
        """What records call the data: the dataset's registered name, or what file, folder, hub id or task it is."""
        options = self.resolved["dataset"]
        name = str(options.get("path") or "").removeprefix("./")
        if self.names["dataset"] == "files":
            name = Path(name).stem
        elif name.startswith(("/", "~", ".")):
            name = Path(name).name
        name = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")
        return "-".join(part for part in (self.names["dataset"], options.get("task"), name) if part)


KEYS = tuple(f.name for f in fields(TrainConfig) if f.name not in ("names", "resolved"))


def config_folder() -> Path:
    """Where the shipped configurations lie: in the wheel, or beside the package in a clone."""
    package = Path(__file__).parent
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            return folder
    raise ConfigError("configs: the shipped configurations are missing. Install posttrain again.")


def configurations(algorithm: str) -> dict[str, Path]:
    """The algorithm's configurations by name: shipped ones, and those in `configs/<algorithm>/` beside its module."""
    module = Path(inspect.getfile(registry.algorithms.get(algorithm)))
    folders = (module.parent / "configs" / algorithm, config_folder() / algorithm)
    return {found.stem: found for folder in folders for found in sorted(folder.glob("*.yaml"))}


def config_path(algorithm: str, tier: str, config: str | None) -> Path:
    """The file a run starts from: `--config FILE`, or a name such as `l1-paper` among the algorithm's own.

    The smoke tier starts from the mechanism tier's file, and a real checkpoint from the tiny model's, unless there is
    one of their own.
    """
    if config is not None and (config.endswith((".yaml", ".yml")) or "/" in config):
        path = Path(config)
        if not path.is_file():
            raise ConfigError(f"--config: there is no file {config}")
        return path
    shipped = configurations(algorithm)
    names = [config] if config else {"l0": ["l0", "l1"], "l3": ["l3", "l2"]}.get(tier, [tier])
    for name in names:
        if name in shipped:
            return shipped[name]
    what = f"--config {config}" if config else f"--tier {tier}"
    if not shipped:
        raise ConfigError(f"{what}: `{algorithm}` ships no configuration. Write --config FILE.yaml.")
    raise ConfigError(f"{what}: `{algorithm}` has no such configuration.{did_you_mean(names[0], shipped)}")


def tier_of(tier: str | None, overrides: Sequence[str] | Mapping[str, Any]) -> str:
    """The tier asked for; where none is, a checkpoint of one's own (`policy.model=`) means l3, anything else l1."""
    given = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides, KEYS)
    if tier is not None or given.get("policy.model") is None:
        return tier or "l1"
    return "l2" if str(given["policy.model"]).startswith("tiny:") else "l3"


def load(
    algorithm: str,
    tier: str = "l1",
    config: str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    path: Path | None = None,
) -> TrainConfig:
    """The resolved configuration of one run; every mistake is a ConfigError before anything is built.

    `overrides` are `key=value` words, or keys with values.
    """
    registry.algorithms.get(algorithm)
    if tier not in TIERS:
        raise ConfigError(f"--tier: found {tier!r}.{did_you_mean(tier, TIERS)}")
    path = path or config_path(algorithm, tier, config)
    raw = _read_yaml(path)
    given = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides, KEYS)
    refuse_misspelt_policy(given)
    if tier == "l0" and path.stem != "l0":
        raw.update(SMOKE)
    elif tier == "l3" and path.stem == "l2":
        raw.update(REAL)
        _choose_graders(raw, given)
    if raw.setdefault("tier", tier) != tier:
        raise ConfigError(f"--tier: found {tier!r}, but {path.name} is a configuration of tier {raw['tier']!r}.")
    # The whole before its parts, however they were written: `teacher=snapshot` would undo `teacher.refresh_every=8`.
    for key in sorted(given, key=lambda key: key.count(".")):
        put(raw, key, given[key], COMPONENTS)
    teacher = raw.get("teacher")
    if isinstance(teacher, dict) and teacher.get("model") is not None:
        teacher.setdefault("name", "frozen")  # another model does not move
    return resolve(raw, algorithm)


def _choose_graders(raw: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Other data or another reward than the file's: answers are judged by that reward; without one, as the data asks.

    What the command says of `reward` and `evaluation.` is put in later and has the last word.
    """
    if not given.keys() & {"dataset", "reward"}:
        return
    data = str(given.get("dataset"))
    own = [grader for word, grader in GRADERS.items() if word in data and grader in registry.rewards]
    grader = given.get("reward", (own or ["exact"])[0])
    options = {key.removeprefix("reward."): value for key, value in given.items() if key.startswith("reward.")}
    if options and isinstance(grader, str):
        grader = {"name": grader, **options}
    raw["evaluation"] = {"accuracy": grader, "reward": grader}
    if raw.get("reward") is not None:
        raw["reward"] = grader


def resolve(raw: Mapping[str, Any], algorithm: str) -> TrainConfig:
    """Checks plain data against the schemas of its parts and fills in the defaults."""
    data = _plain(raw)
    chosen = _named(data.pop("algorithm", None) or {}, "algorithm")
    if chosen.get("name", algorithm) != algorithm:
        raise ConfigError(
            f"algorithm.name: found {chosen['name']!r}, but the command says `{algorithm}`. Leave it out."
        )
    parts: dict[str, Any] = {"algorithm": {**chosen, "name": algorithm}}
    judged = data.pop("evaluation", None) or {}
    if not isinstance(judged, dict):
        raise ConfigError(f"evaluation: found {judged!r}, expected evaluation.accuracy=NAME and evaluation.reward=NAME")
    refuse_unknown("evaluation", judged, Evaluation)
    for name in ("policy", "teacher", "dataset", "reward"):
        parts[name] = data.pop(name, None)
    parts |= {f"evaluation.{f.name}": judged.get(f.name, f.default) for f in fields(Evaluation)}
    for required in ("policy", "dataset"):
        if parts[required] is None:
            raise ConfigError(
                f"{required}: nothing is chosen. Write {required}=NAME.{did_you_mean('', COMPONENTS[required].names())}"
            )
    built = {name: component(name, part) for name, part in parts.items() if part is not None}
    data["seeds"] = parse_seeds(data.get("seeds", TrainConfig.seeds))
    data["tune"] = _tune(data.get("tune") or {})
    for name in ("controls", "report_to"):
        data[name] = _words(name, data.get(name))
    plain = set(KEYS) - {"algorithm", "policy", "teacher", "dataset", "reward", "evaluation"}
    refuse_unknown("", data, set(KEYS))
    flat = typed_values(TrainConfig, {k: v for k, v in data.items() if k != "tune"}, "", plain - {"tune"})
    names = {name: part["name"] for name, (_, part) in built.items()}
    resolved = _resolved(flat, data["tune"], built)
    chosen_parts: dict[str, Any] = {name: made for name, (made, _) in built.items() if "." not in name}
    evaluation = Evaluation(*(built[f"evaluation.{f.name}"][0] for f in fields(Evaluation)))
    config = TrainConfig(
        **flat, **chosen_parts, tune=data["tune"], evaluation=evaluation, names=names, resolved=resolved
    )
    check(config)
    return config


def check(config: TrainConfig) -> None:
    """Conflicts between parts, found before anything is built. Each message says what to write."""
    algorithm, needs = config.algorithm, config.algorithm.needs
    if config.tier not in TIERS:
        raise ConfigError(f"tier: found {config.tier!r}.{did_you_mean(config.tier, TIERS)}")
    _check_tier(config)
    if needs & {"teacher", "divergence", "support"} and config.teacher is None:
        raise ConfigError(f"teacher: `{config.method}` needs one. Write teacher=frozen, cached or snapshot.")
    if "rewards" in needs and config.reward is None:
        raise ConfigError(
            f"reward: `{config.method}` needs one. Write reward=NAME.{did_you_mean('', registry.rewards.names())}"
        )
    if config.group_size < algorithm.minimum_group:
        raise ConfigError(
            f"group_size: found {config.group_size}, but `{config.method}` compares the completions of a group. "
            f"Write group_size={algorithm.minimum_group} or more."
        )
    if algorithm.single_update and (config.num_iterations > 1 or config.minibatch_problems is not None):
        raise ConfigError(
            f"num_iterations, minibatch_problems: the loss of `{config.method}` has no ratio to the policy that drew, "
            "so only one update per step is on-policy. Leave both out, or choose an algorithm with a ratio (grpo, ppo)."
        )
    if config.mask_truncated and "pairs" in algorithm.needs:
        raise ConfigError(f"mask_truncated: `{config.method}` compares the two completions of a pair. Leave it out.")
    if set(config.tune.seeds) & set(config.seeds):
        shared = sorted(set(config.tune.seeds) & set(config.seeds))
        raise ConfigError(f"tune.seeds: {shared} are also evaluation seeds. Tune on other seeds.")
    if config.supersedes is not None and not re.fullmatch("sha256:[0-9a-f]{64}", config.supersedes):
        raise ConfigError(f"supersedes: found {config.supersedes!r}, expected an artifact's digest, sha256:<64 digits>")
    if bool(config.tune.seeds) != bool(config.tune.learning_rate):
        raise ConfigError("tune: needs both tune.learning_rate=[...] and tune.seeds=A-B")
    _check_report(config)


def _check_tier(config: TrainConfig) -> None:
    """A tier is a statement about the model: no run may carry the name of another one."""
    model = config.resolved["policy"].get("model")
    fits = ("l0", "l1") if model is None else ("l2",) if str(model).startswith("tiny:") else ("l3",)
    if config.tier not in fits:
        what = f"policy `{config.names['policy']}`" + (f" with model `{model}`" if model is not None else "")
        raise ConfigError(f"tier: found {config.tier!r}, but {what} is tier {' or '.join(fits)}. Leave the tier out.")


def _check_report(config: TrainConfig) -> None:
    for name in config.report_to:
        if name not in TRACKERS:
            raise ConfigError(f"report_to: unknown tracker `{name}`.{did_you_mean(name, TRACKERS)}")
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # without one it is a mere folder, such as wandb leaves behind
            raise ConfigError(f"report_to: `{name}` is not installed. Write: pip install 'posttrain[{name}]'")


# -- plain data -----------------------------------------------------------------------------------------------


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        if "${oc." in path.read_text(encoding="utf-8"):
            raise ValueError("`${oc...}` reads from this machine; write the value itself")
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: cannot be read as a configuration: {error}") from error
    except Exception as error:  # PyYAML's errors share no importable base with the ones above
        raise ConfigError(f"{path.name}: is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path.name}: expected a mapping of settings, found {type(data).__name__}")
    return {str(key): value for key, value in data.items()}


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) if isinstance(value, Mapping) else value for key, value in raw.items()}


def _words(name: str, value: Any) -> tuple[str, ...]:
    if value is None or value in ("", "none"):
        return ()
    if not isinstance(value, str | list | tuple):
        raise ConfigError(f"{name}: found {value!r}, expected names: {name}=A,B")
    return tuple(value.split(",")) if isinstance(value, str) else tuple(str(word) for word in value)


def _tune(data: Any) -> Tune:
    if not isinstance(data, dict):
        raise ConfigError(f"tune: found {data!r}, expected tune.learning_rate=[0.01,0.03] and tune.seeds=0-3")
    refuse_unknown("tune", data, Tune)
    rates = data.get("learning_rate") or ()
    rates = rates if isinstance(rates, list | tuple) else [rates]
    if not all(type(rate) in (int, float) and POSITIVE.holds(rate) for rate in rates):
        raise ConfigError(
            f"tune.learning_rate: found {rates}, expected positive numbers: tune.learning_rate=[0.01,0.03]"
        )
    seeds = data.get("seeds") or ()
    return Tune(tuple(float(rate) for rate in rates), parse_seeds(seeds) if seeds else ())


def _named(part: Any, field_name: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"name": part}
    if not isinstance(part, dict):
        raise ConfigError(f"{field_name}: found {part!r}, expected a name: {field_name}=NAME")
    return dict(part)


def component(field_name: str, part: Any, known: Registry | None = None) -> tuple[Any, dict[str, Any]]:
    """The registered dataclass of a part, and the part with every default spelled out."""
    registry_ = known or COMPONENTS[field_name]
    options = _named(part, field_name)
    if options.get("name") not in registry_.names():
        options = expanded(registry_.kind, field_name, options)
    name = options.pop("name", None)
    if not isinstance(name, str):
        choices = did_you_mean("", registry_.names())
        raise ConfigError(f"{field_name}.name: nothing is chosen. Write {field_name}=NAME.{choices}")
    try:
        cls = registry_.get(name)
    except ConfigError as error:
        raise ConfigError(f"{field_name}.name: {error}") from None
    refuse_unknown(field_name, options, cls, f"{registry_.kind} `{name}` has")
    inner = {f.name: _inner(f"{field_name}.{f.name}", options[f.name], f) for f in fields(cls) if f.name in options}
    inner = {key: value for key, value in inner.items() if value is not None}
    options |= {key: tuple(made for made, _ in several) for key, several in inner.items()}
    typed = typed_values(cls, options, f"{field_name}.", {f.name for f in fields(cls)})
    try:
        made = cls(**typed)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{field_name}: {error}") from error
    written = {key: list(value) if isinstance(value, tuple) else value for key, value in spelled(made).items()}
    return made, {"name": name, **written, **{key: [part for _, part in several] for key, several in inner.items()}}


def _inner(field_name: str, value: Any, schema: Field[Any]) -> list[tuple[Any, dict[str, Any]]] | None:
    """The components of a field that holds several; None where the field holds something else."""
    kind = schema.metadata.get("components")
    if kind is None:
        return None
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{field_name}: found {value!r}, expected a list: {field_name}=[NAME,NAME]")
    return [component(f"{field_name}[{i}]", part, COMPONENTS[kind]) for i, part in enumerate(value)]


def _resolved(flat: Mapping[str, Any], tune: Tune, built: Mapping[str, tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The whole configuration as plain data in the order of the schema."""
    data: dict[str, Any] = {}
    for f in fields(TrainConfig):
        if f.name in ("names", "resolved"):
            continue
        if f.name in built:
            data[f.name] = built[f.name][1]
        elif f.name == "evaluation":
            data[f.name] = {g.name: built[f"evaluation.{g.name}"][1] for g in fields(Evaluation)}
        elif f.name == "tune":
            data[f.name] = {"learning_rate": list(tune.learning_rate), "seeds": list(tune.seeds)}
        else:
            value = flat.get(f.name, f.default)
            data[f.name] = list(value) if isinstance(value, tuple) else value
    return data
