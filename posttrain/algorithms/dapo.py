"""`dapo`: group-relative advantages with a wider upper clip, a token mean, and problems that teach something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.base import ZSCORE, Algorithm, Need, corrected, correction_needs, judged, per_token
from posttrain.batch import Batch, Rewards, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.ranges import OPEN_UNIT, POSITIVE, check
from posttrain.registry import algorithms


@algorithms.register("dapo")
@dataclass(frozen=True)
class DAPO(Algorithm):
    """Group z-scores, clip 0.2 below and 0.28 above, every token the same, no KL (arXiv 2503.14476).

    A group whose rewards are all equal is drawn anew (dynamic sampling), and completions cut at the limit are left out
    (overlong filtering).
    """

    paper = "2503.14476"
    title = "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"
    refills: ClassVar[bool] = True

    clip_low: float = 0.2
    clip_high: float = 0.28
    overlong_filter: bool = True
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, clip_low=OPEN_UNIT, clip_high=POSITIVE)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"rewards", *correction_needs(self.correction)})

    @property
    def minimum_group(self) -> int:
        return 2

    @property
    def biases(self) -> tuple[str, ...]:
        return (
            ZSCORE,
            "Drawing again where all rewards are equal shifts training to problems of middling difficulty.",
        )

    def accept(self, rollouts: Rollouts, rewards: Rewards) -> Tensor:
        low = rewards.values.masked_fill(~rewards.valid, torch.inf).amin(1)
        high = rewards.values.masked_fill(~rewards.valid, -torch.inf).amax(1)
        return low < high

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        credit = advantages.group_zscore(signals.rewards.values, signals.rewards.valid)
        mask = judged(rollouts, signals.rewards)
        if self.overlong_filter:
            mask = mask & ~rollouts.truncated.unsqueeze(1)
        weight, normaliser = weighting.token_mean(mask, rollouts.logprobs.dtype)
        batch = Batch(rollouts, weight, normaliser, advantages=per_token(credit, rollouts))
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return surrogates.ppo_clip(log_ratio, batch.advantages, self.clip_low, self.clip_high)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        dead = surrogates.clipped(log_ratio, batch.advantages, self.clip_low, self.clip_high)
        return {"clip_fraction": dead.to(batch.weight)}
