"""`ppo`: clipped policy optimisation with a critic, in its form for language models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, corrected, judged, own_logprobs
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.functional.divergences import kl_estimator
from posttrain.ranges import NOT_NEGATIVE, OPEN_UNIT, UNIT, check
from posttrain.registry import algorithms


@algorithms.register("ppo")
@dataclass(frozen=True)
class PPO(Algorithm):
    """GAE from a critic, whitened over the step, under the clip, plus value_coef times the clipped value loss.

    Papers: arXiv 1707.06347, eq. 7; 2203.02155 for the form with the reward at the last token and the KL to the
    reference inside the reward of every token.
    """

    paper = "1707.06347"
    title = "Proximal Policy Optimization Algorithms"

    clip: float = 0.2
    value_clip: float = 0.2
    value_coef: float = 0.1
    kl_coef: float = 0.02
    gamma: float = 1.0
    lam: float = 0.95
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, clip=OPEN_UNIT, value_clip=OPEN_UNIT, gamma=UNIT, lam=UNIT)
        check("algorithm", self, value_coef=NOT_NEGATIVE, kl_coef=NOT_NEGATIVE)

    @property
    def needs(self) -> frozenset[Need]:
        needs: tuple[Need, ...] = ("rewards", "student", "values")
        return frozenset((*needs, "reference") if self.kl_coef else needs)

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch"

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None and signals.student is not None and signals.student.values is not None
        mask = judged(rollouts, signals.rewards)
        last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
        rewards = last * signals.rewards.values.flatten().unsqueeze(1)
        if self.kl_coef:
            assert signals.reference is not None
            own = own_logprobs(rollouts, signals, self.correction)
            apart = kl_estimator("k1", own, signals.reference.logprobs)
            rewards = rewards - self.kl_coef * apart * mask
        old_values = signals.student.values
        credit, returns = advantages.gae(rewards, old_values, mask, self.gamma, self.lam)
        weight, normaliser = weighting.token_mean(mask, credit.dtype)
        credit = advantages.whiten(credit, mask)
        batch = Batch(rollouts, weight, normaliser, advantages=credit, returns=returns, old_values=old_values)
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None and batch.returns is not None and batch.old_values is not None
        assert scores.values is not None
        policy = surrogates.ppo_clip(scores.logprobs - batch.rollouts.logprobs, batch.advantages, self.clip, self.clip)
        value = surrogates.value_loss(scores.values, batch.old_values, batch.returns, self.value_clip)
        return policy + self.value_coef * value

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.returns is not None and scores.values is not None
        return {"value_error": (scores.values - batch.returns) ** 2, "returns": batch.returns}
