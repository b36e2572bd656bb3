"""`cispo`: the importance weight is clipped, never the token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import ZSCORE, Algorithm, Need, corrected, correction_needs, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.ranges import NOT_NEGATIVE, POSITIVE, check
from posttrain.registry import algorithms


@algorithms.register("cispo")
@dataclass(frozen=True)
class CISPO(Algorithm):
    """-min(r, cap_high) A log pi with a constant weight, so that rare tokens keep a gradient (arXiv 2506.13585, eq. 4).

    `cap_high` bounds the ratio itself: 1.28 is what others write as 0.28 above one.
    """

    paper = "2506.13585"
    title = "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention"

    cap_low: float = 0.0
    cap_high: float = 1.28
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, cap_low=NOT_NEGATIVE, cap_high=POSITIVE)

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
        credit = advantages.group_zscore(signals.rewards.values, signals.rewards.valid)
        weight, normaliser = weighting.token_mean(judged(rollouts, signals.rewards), rollouts.logprobs.dtype)
        batch = Batch(rollouts, weight, normaliser, advantages=per_token(credit, rollouts))
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return surrogates.cispo(scores.logprobs, log_ratio, batch.advantages, self.cap_low, self.cap_high)
