"""`sum`: several rewards as one, each with its weight and logged by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.batch import Failure, Problem
from posttrain.registry import ConfigError, rewards
from posttrain.rewards.base import BatchReward, Outcome, Verdict, outcomes
from posttrain.rewards.function import Function


@rewards.register("sum")
@dataclass(frozen=True)
class Sum(BatchReward):
    """A weighted sum of rewards: `reward=sum reward.of=[numeric,my.py:style] reward.weights=[1,0.5]`.

    A part that has nothing to say of a completion adds nothing; where none has, or where judging a part broke down,
    the whole is a failure.
    """

    of: tuple[Any, ...] = field(default=(), metadata={"components": "reward"})  # names, or names with their options
    weights: tuple[float, ...] = ()  # one for each part; empty: each counts 1

    def __post_init__(self) -> None:
        if not self.of:
            raise ConfigError("reward.of: names no reward. Write reward.of=[numeric,my.py:score].")
        if self.weights and len(self.weights) != len(self.of):
            raise ConfigError(
                f"reward.weights: found {len(self.weights)}, expected one for each of the {len(self.of)} rewards"
            )
        names = self.names
        if len(set(names)) < len(names):
            raise ConfigError(f"reward.of: found {', '.join(names)}, expected different names: they are logged by them")

    @property
    def reads_answer(self) -> bool:
        """Whether a part does."""
        return any(getattr(part, "reads_answer", False) for part in self.of)

    @property
    def names(self) -> tuple[str, ...]:
        """What the parts are called: a function by its own name, others as registered."""
        return tuple(part.name if isinstance(part, Function) else rewards.name_of(part) for part in self.of)

    def judge(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Outcome]:
        """The weighted sum for each completion, with its parts."""
        found = [outcomes(part, problems, texts) for part in self.of]
        weights, names = self.weights or (1.0,) * len(self.of), self.names
        return [_total(dict(zip(names, row, strict=True)), weights) for row in zip(*found, strict=True)]


def _total(parts: dict[str, Outcome], weights: Sequence[float]) -> Verdict:
    values = {name: part.value if isinstance(part, Verdict) else part for name, part in parts.items()}
    failures = {name: value for name, value in values.items() if isinstance(value, Failure)}
    scored = [w * v for w, v in zip(weights, values.values(), strict=True) if not isinstance(v, Failure)]
    broken = [failure for failure in failures.values() if failure.broke_down]
    total: float | Failure = sum(scored)
    if broken or not scored:
        reasons = "; ".join(f"{name}: {failure.reason}" for name, failure in failures.items())
        total = Failure(reasons, broken[0].kind if broken else "unscored")
    looked = [part.answered for part in parts.values() if isinstance(part, Verdict) and part.answered is not None]
    return Verdict(total, all(looked) if looked else None, parts)
