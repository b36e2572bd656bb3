"""Control arms by name: what a claim has to beat before it means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from posttrain.registry import ConfigError, did_you_mean
from posttrain.settings import TrainConfig

Overrides = Mapping[str, Any]


def _kept(config: TrainConfig) -> int:
    """Tokens that the configured selection keeps in its scope."""
    rule = config.algorithm.select
    if rule.rule == "extremes":
        return rule.low + rule.high
    if rule.rule in ("highest", "lowest", "random", "first", "last"):
        return rule.k
    raise ConfigError(f"controls: a budget in tokens is not defined for algorithm.select.rule={rule.rule}")


def _select(rule: str) -> Callable[[TrainConfig], Overrides]:
    def overrides(config: TrainConfig) -> Overrides:
        return {"algorithm.select.rule": rule, "algorithm.select.k": _kept(config)}

    return overrides


def _scaled_dense(config: TrainConfig) -> Overrides:
    """All tokens, with the learning rate lowered by the share of tokens that the sparse arm supervises."""
    if not hasattr(config.dataset, "positions"):
        raise ConfigError(
            "controls: `scaled_dense` needs completions of a known length (dataset=decisions). Write controls=dense."
        )
    scope = config.group_size if config.algorithm.select.scope == "group" else 1
    tokens = scope * config.dataset.positions
    return {"algorithm.select.rule": "all", "learning_rate": config.learning_rate * min(1.0, _kept(config) / tokens)}


def _constant_negative(config: TrainConfig) -> Overrides:
    """A fixed negative advantage on the tokens the student itself finds least likely (arXiv 2608.31046)."""
    return {
        "algorithm.credit": "constant_negative",
        "algorithm.score": "logprob",
        "algorithm.select.rule": "lowest",
        "algorithm.select.k": _kept(config),
    }


CONTROLS: dict[str, Callable[[TrainConfig], Overrides]] = {
    "dense": lambda config: {"algorithm.select.rule": "all"},
    "random": _select("random"),
    "first": _select("first"),
    "last": _select("last"),
    "scaled_dense": _scaled_dense,
    "trajectories": _select("trajectories"),
    "shuffled_teacher": lambda config: {"teacher.shuffle": True},
    "constant_negative": _constant_negative,
    "random_reward": lambda config: {"reward": {"name": "coin"}},
}


def control(name: str, config: TrainConfig) -> dict[str, Any]:
    """The settings in which a control arm differs; a control that does not apply is a ConfigError."""
    if name not in CONTROLS:
        raise ConfigError(f"controls: unknown control `{name}`.{did_you_mean(name, CONTROLS)}")
    if name == "shuffled_teacher":
        if not hasattr(config.teacher, "shuffle"):
            raise ConfigError("controls: `shuffled_teacher` needs an online teacher. Write teacher=frozen.")
    elif name == "random_reward":
        if "rewards" not in config.algorithm.needs:
            raise ConfigError(f"controls: `random_reward` changes the reward, which `{config.method}` does not read.")
    elif "select" not in {f.name for f in fields(config.algorithm)}:
        raise ConfigError(
            f"controls: `{name}` varies which tokens are supervised, but `{config.method}` has no `select`."
        )
    return dict(CONTROLS[name](config))
