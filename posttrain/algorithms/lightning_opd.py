"""`lightning-opd`: on-policy distillation from completions drawn once and a cached teacher."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import surrogates, weighting
from posttrain.ranges import OPEN_UNIT, check
from posttrain.registry import algorithms


@algorithms.register("lightning-opd")
@dataclass(frozen=True)
class LightningOPD(Algorithm):
    """The starting policy samples once, the teacher scores once, and training needs neither again (arXiv 2604.13010).

    A = log q - log pi with the current pi, and a clip around the current policy: no weight leads back to the policy
    that sampled, so the student fits the teacher's log-probs on a fixed set of completions.
    """

    paper = "2604.13010"
    title = "Lightning OPD: Efficient Post-Training for Large Reasoning Models with Offline On-Policy Distillation"
    rollouts = "once"

    clip: float = 0.2

    def __post_init__(self) -> None:
        check("algorithm", self, clip=OPEN_UNIT)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"teacher", "student"})

    @property
    def biases(self) -> tuple[str, ...]:
        return (
            "Completions come from the starting policy and carry no importance weight: the objective is a "
            "least-squares fit of log-probs on them, not the reverse KL of the moving student.",
        )

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.teacher is not None and signals.student is not None
        credit = signals.teacher.logprobs - signals.student.logprobs
        weight, normaliser = weighting.token_mean(signals.teacher.mask, credit.dtype)
        # The ratio is taken to the student at the start of the phase, not to the policy that sampled.
        current = replace(rollouts, logprobs=signals.student.logprobs)
        return Batch(current, weight, normaliser, advantages=credit, teacher=signals.teacher)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.ppo_clip(scores.logprobs - batch.rollouts.logprobs, batch.advantages, self.clip, self.clip)
