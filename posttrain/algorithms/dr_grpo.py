"""`dr-grpo`: group-relative advantages without the two normalisers that bias them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, corrected, correction_needs, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.ranges import OPEN_UNIT, at_least, check
from posttrain.registry import algorithms


@algorithms.register("dr-grpo")
@dataclass(frozen=True)
class DrGRPO(Algorithm):
    """Centred rewards under the clip, summed over tokens and divided by one constant (arXiv 2503.20783).

    Neither the group's standard deviation nor the completion's length divides anything: the first would favour easy and
    hard problems, the second short right and long wrong answers.
    """

    paper = "2503.20783"
    title = "Understanding R1-Zero-Like Training: A Critical Perspective"

    clip: float = 0.2
    length: int = 1024  # the constant: the longest completion; it scales the loss, and nothing else
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, clip=OPEN_UNIT, length=at_least(1))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"rewards", *correction_needs(self.correction)})

    @property
    def minimum_group(self) -> int:
        return 2

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        credit = advantages.group_mean(signals.rewards.values, signals.rewards.valid)
        mask = judged(rollouts, signals.rewards)
        weight, normaliser = weighting.constant(mask, self.length, rollouts.logprobs.dtype)
        batch = Batch(rollouts, weight, normaliser, advantages=per_token(credit, rollouts))
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.ppo_clip(scores.logprobs - batch.rollouts.logprobs, batch.advantages, self.clip, self.clip)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return {"clip_fraction": surrogates.clipped(log_ratio, batch.advantages, self.clip, self.clip).to(batch.weight)}
