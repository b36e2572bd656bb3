"""`gspo`: group-relative advantages with one ratio per completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import ZSCORE, Algorithm, Need, corrected, correction_needs, judged
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates
from posttrain.functional.corrections import Correction
from posttrain.ranges import OPEN_UNIT, check
from posttrain.registry import algorithms


@algorithms.register("gspo")
@dataclass(frozen=True)
class GSPO(Algorithm):
    """The clip acts on s = exp(mean_t log(pi / pi_old)), one ratio per completion (arXiv 2507.18071, eq. 5)."""

    paper = "2507.18071"
    title = "Group Sequence Policy Optimization"

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, clip_low=OPEN_UNIT, clip_high=OPEN_UNIT)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"rewards", *correction_needs(self.correction)})

    @property
    def minimum_group(self) -> int:
        return 2

    @property
    def biases(self) -> tuple[str, ...]:
        return (ZSCORE,)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        credit = advantages.group_zscore(signals.rewards.values, signals.rewards.valid).flatten()
        weight = judged(rollouts, signals.rewards).any(1).to(rollouts.logprobs)
        return corrected(Batch(rollouts, weight, weight, advantages=credit), signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.ppo_clip(_log_ratio(scores, batch), batch.advantages, self.clip_low, self.clip_high)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.advantages is not None
        dead = surrogates.clipped(_log_ratio(scores, batch), batch.advantages, self.clip_low, self.clip_high)
        return {"clip_fraction": dead.to(batch.weight)}


def _log_ratio(scores: Scores, batch: Batch) -> Tensor:
    return surrogates.sequence_log_ratio(scores.logprobs - batch.rollouts.logprobs, batch.where)
