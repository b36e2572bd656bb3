"""`opd`: on-policy distillation as a policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posttrain.algorithms.base import TOKEN_CREDIT, Algorithm, Need, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.ranges import NOT_NEGATIVE, POSITIVE, check
from posttrain.registry import algorithms


@algorithms.register("opd")
@dataclass(frozen=True)
class OPD(Algorithm):
    """The student samples, the teacher's log-ratio is the advantage of each token (Thinking Machines Lab, 2025).

    A = coefficient (log q - log mu), plus reward_weight times the group-centred reward; the loss is -(pi / mu) A
    without a clip.
    """

    title = "On-Policy Distillation"

    coefficient: float = 1.0
    reward_weight: float = 0.0
    normaliser: Literal["tokens", "sequence_sum"] = "tokens"

    def __post_init__(self) -> None:
        check("algorithm", self, coefficient=POSITIVE, reward_weight=NOT_NEGATIVE)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"teacher", "rewards"} if self.reward_weight else {"teacher"})

    @property
    def minimum_group(self) -> int:
        return 2 if self.reward_weight else 1

    @property
    def biases(self) -> tuple[str, ...]:
        return (TOKEN_CREDIT,)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.teacher is not None
        credit = self.coefficient * (signals.teacher.logprobs - rollouts.logprobs)
        if self.reward_weight:
            assert signals.rewards is not None
            centred = advantages.group_mean(signals.rewards.values, signals.rewards.valid)
            credit = credit + self.reward_weight * per_token(centred, rollouts)
        aggregate = weighting.token_mean if self.normaliser == "tokens" else weighting.sequence_sum
        weight, normaliser = aggregate(signals.teacher.mask, credit.dtype)
        return Batch(rollouts, weight, normaliser, advantages=credit, teacher=signals.teacher)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.importance_sampling(scores.logprobs - batch.rollouts.logprobs, batch.advantages)
