"""`grpo`: group-relative policy optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import ZSCORE, Algorithm, Need, corrected, correction_needs, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.functional.divergences import Estimator, kl_estimator
from posttrain.ranges import NOT_NEGATIVE, OPEN_UNIT, check
from posttrain.registry import algorithms


@algorithms.register("grpo")
@dataclass(frozen=True)
class GRPO(Algorithm):
    """Clipped ratio times the group z-score of the reward, plus kl_coef times an estimate of KL(pi || pi_ref).

    Paper: arXiv 2402.03300, eq. 3. Every completion counts the same, its tokens share it. Of the estimates that `kl`
    names, `ratio_k3`, `k3_plus` and `k2` have the gradient of KL(pi || pi_ref) in expectation. Two have not: `k3`, the
    paper's own, has that of KL(pi_ref || pi), and `k1` none at all.
    """

    paper = "2402.03300"
    title = "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models"

    clip: float = 0.2
    kl_coef: float = 0.04
    kl: Estimator = "ratio_k3"
    correction: Correction = Correction()

    def __post_init__(self) -> None:
        check("algorithm", self, clip=OPEN_UNIT, kl_coef=NOT_NEGATIVE)

    @property
    def needs(self) -> frozenset[Need]:
        needs: tuple[Need, ...] = ("rewards", "reference") if self.kl_coef else ("rewards",)
        return frozenset((*needs, *correction_needs(self.correction)))

    @property
    def minimum_group(self) -> int:
        return 2

    @property
    def biases(self) -> tuple[str, ...]:
        found = [ZSCORE, "Dividing by a completion's own length favours short right and long wrong ones."]
        if self.kl_coef and self.kl in ("k1", "k3"):
            gradient = {"k1": "zero", "k3": "that of KL(pi_ref || pi), not of KL(pi || pi_ref)"}[self.kl]
            found.append(f"The {self.kl} estimate in the loss has an expected gradient that is {gradient}.")
        return tuple(found)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        credit = advantages.group_zscore(signals.rewards.values, signals.rewards.valid)
        weight, normaliser = weighting.sequence_mean(judged(rollouts, signals.rewards), rollouts.logprobs.dtype)
        credit = per_token(credit, rollouts)
        batch = Batch(rollouts, weight, normaliser, advantages=credit, reference=signals.reference)
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        loss = surrogates.ppo_clip(log_ratio, batch.advantages, self.clip, self.clip)
        if self.kl_coef:
            assert batch.reference is not None
            loss = loss + self.kl_coef * kl_estimator(self.kl, scores.logprobs, batch.reference.logprobs, log_ratio)
        return loss

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return {"clip_fraction": surrogates.clipped(log_ratio, batch.advantages, self.clip, self.clip).to(batch.weight)}
