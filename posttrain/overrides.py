"""Words of the command line as settings: `key=value`, seeds as ranges, and what other tools call things."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from posttrain.registry import CODE, ConfigError, did_you_mean

# What users of TRL and transformers type, and what it is called here.
ELSEWHERE = {
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "num_generations": "group_size",
    "per_device_train_batch_size": "problems_per_step",
    "train_batch_size": "problems_per_step",
    "gradient_accumulation_steps": "micro_batch_size",
    "output_dir": "--output DIR",
    "dataset_name": "dataset",
    "model_name_or_path": "policy",
    "teacher_model_name_or_path": "teacher",
    "reward_funcs": "reward",
    "seed": "seeds",
    "lr": "learning_rate",
    "mask_truncated_completions": "mask_truncated",
    "lmbda": "algorithm.student_share",
    "epsilon": "algorithm.clip",
    "loss_type": "posttrain train ALGO (one name per algorithm)",
    "num_ppo_epochs": "num_iterations",
    "logging_dir": "report_to",
    "max_new_tokens": "policy.max_completion_tokens",
    "max_tokens": "policy.max_completion_tokens",
    "max_completion_length": "policy.max_completion_tokens",
    "max_prompt_length": "policy.max_prompt_tokens",
}

# What a sampler that leaves tokens out is called. No option here: the log-probs that are trained on are those of the
# whole distribution, and importance ratios would not start at one.
TRUNCATING = ("top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff")

MAX_SEED = 2**53 - 1  # the largest whole number that every reader of JSON keeps


def parse_overrides(words: Sequence[str], known: Collection[str] = ()) -> dict[str, Any]:
    """`key=value` words as data; a key twice, a flag or a bare word is an error."""
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("-"):
            name = word.lstrip("-").split("=")[0].replace("-", "_")
            write = ELSEWHERE.get(name) or (f"{name}=VALUE" if name in known else None)
            raise ConfigError(
                f"{word}: settings are written without dashes. " + (f"Write {write}." if write else "Write key=value.")
            )
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word}: expected key=value, for example learning_rate=0.05")
        if key[0] in "+~":
            near = did_you_mean(key.rpartition(".")[2].lstrip("+~"), known)
            raise ConfigError(f"{key}: settings are set, never added or removed. Write key=value.{near}")
        if key in found:
            raise ConfigError(f"{key}: given twice ({found[key]!r} and {value!r}). Give it once.")
        found[key] = _value(key, value)
    return found


def code_named(settings: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """The files and modules whose functions a user asks for as rewards, `reward=my.py:score`: plugins to be loaded."""
    pairs = settings.items() if isinstance(settings, Mapping) else [word.partition("=")[::2] for word in settings]
    texts = [str(value) for key, value in pairs if key.split(".")[0] in ("reward", "evaluation")]
    words = [word for text in texts for word in re.split(r"[\s,\[\]{}'\"]+", text) if re.fullmatch(CODE, word)]
    return list(dict.fromkeys(word.rpartition(":")[0] for word in words))


def parse_seeds(value: Any) -> tuple[int, ...]:
    """`42-53`, `42,43,44`, `42` or a list, as distinct integers from 0 up."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    seeds: list[int] = []
    for part in parts if parts != [""] else []:
        span = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(part))
        if span is None:
            raise ConfigError(f"seeds: found {part!r}, expected whole numbers from 0 up: seeds=42-53 or seeds=42,43,44")
        first, last = int(span[1]), int(span[2] or span[1])
        if last > MAX_SEED:
            raise ConfigError(f"seeds: found {part!r}, expected numbers up to {MAX_SEED}")
        if last < first or last - first > 9999:
            raise ConfigError(f"seeds: found {part!r}, expected a rising range: seeds=42-53")
        seeds += range(first, last + 1)
    if not seeds:
        raise ConfigError("seeds: found none. Write seeds=42-44.")
    if len(set(seeds)) != len(seeds):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        raise ConfigError(f"seeds: {twice} given twice. Each seed is one independent run.")
    return tuple(seeds)


def _value(key: str, text: str) -> Any:
    if key.rpartition(".")[2] == "seeds" or key in ("controls", "report_to"):
        return text
    if text == "":
        raise ConfigError(f"{key}: the value is empty. Write {key}=VALUE, or {key}=null for none.")
    if key == "teacher.prompt" and text != "null":
        return text  # its braces are fields, not YAML
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index, call-overload]
    except Exception as error:
        raise ConfigError(f"{key}: cannot read the value {text!r}") from error


def put(data: dict[str, Any], key: str, value: Any, components: Collection[str]) -> None:
    """Sets a dotted key. A component given by name alone (`teacher=frozen`) starts from its defaults."""
    *path, last = key.split(".")
    node: dict[str, Any] = data
    for depth, part in enumerate(path):
        below: Any = node.get(part)
        if isinstance(below, str) and ".".join(path[: depth + 1]) in components:
            below = {"name": below}
        if below is not None and not isinstance(below, dict):
            raise ConfigError(f"{key}: `{part}` is a single value ({below!r}) and has no `{last}`")
        node[part] = dict(below or {})
        node = node[part]
    node[last] = value
