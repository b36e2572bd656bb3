"""`rloo`: REINFORCE with a leave-one-out baseline within the group."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, corrected, correction_needs, judged, own_logprobs, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.functional.divergences import kl_estimator
from posttrain.ranges import NOT_NEGATIVE, check
from posttrain.registry import algorithms


@algorithms.register("rloo")
@dataclass(frozen=True)
class RLOO(Algorithm):
    """-A log pi(y), A = R - the mean reward of the group's other completions (arXiv 2402.14740).

    The KL to the reference is part of the reward: R = reward - kl_coef * sum_t (log pi - log pi_ref).
    """

    paper = "2402.14740"
    single_update = True
    title = "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs"

    kl_coef: float = 0.03
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, kl_coef=NOT_NEGATIVE)

    @property
    def needs(self) -> frozenset[Need]:
        needs: tuple[Need, ...] = ("rewards", "reference") if self.kl_coef else ("rewards",)
        return frozenset((*needs, *correction_needs(self.correction)))

    @property
    def minimum_group(self) -> int:
        return 2

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        values = signals.rewards.values
        if self.kl_coef:
            assert signals.reference is not None
            own = own_logprobs(rollouts, signals, self.correction)
            apart = kl_estimator("k1", own, signals.reference.logprobs) * rollouts.mask
            values = values - self.kl_coef * apart.sum(1).view_as(values)
        credit = advantages.leave_one_out(values, signals.rewards.valid)
        weight, normaliser = weighting.sequence_sum(judged(rollouts, signals.rewards), rollouts.logprobs.dtype)
        credit = per_token(credit, rollouts)
        batch = Batch(rollouts, weight, normaliser, advantages=credit, reference=signals.reference)
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.reinforce(scores.logprobs, batch.advantages)
