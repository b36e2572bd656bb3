"""`gkd`: generalised knowledge distillation on a mixture of own and given completions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import divergences, weighting
from posttrain.policies.base import Divergence, DivergenceKind
from posttrain.ranges import UNIT, at_least, check, or_null
from posttrain.registry import algorithms


@algorithms.register("gkd")
@dataclass(frozen=True)
class GKD(Algorithm):
    """A full-vocabulary divergence on states that the student (share `student_share`) or the data visits.

    Paper: arXiv 2306.13649. JSD_beta = beta KL(q || M) + (1 - beta) KL(pi || M), M = beta q + (1 - beta) pi. With
    `top_k` the teacher gives its k best tokens, and the rest is one bucket on both sides.
    """

    paper = "2306.13649"
    title = "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes"

    kind: DivergenceKind = "jsd"
    beta: float = 0.5
    student_share: float = 0.5
    support: int | None = None

    def __post_init__(self) -> None:
        check("algorithm", self, beta=UNIT, student_share=UNIT, support=or_null(at_least(1)))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"divergence"} if self.support is None else {"teacher", "support"})

    @property
    def on_policy(self) -> float:
        return self.student_share

    @property
    def divergence(self) -> Divergence | None:
        return Divergence(self.kind, self.beta) if self.support is None else None

    @property
    def top_k(self) -> int | None:
        return self.support

    @property
    def biases(self) -> tuple[str, ...]:
        if self.support is None:
            return ()
        return (
            "Beyond the teacher's top tokens only the total mass is matched: the bucket divergence is a lower bound.",
        )

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        mask = rollouts.mask if signals.teacher is None else signals.teacher.mask
        weight, normaliser = weighting.token_mean(mask, rollouts.logprobs.dtype)
        return Batch(rollouts, weight, normaliser, teacher=signals.teacher)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        if self.support is None:
            assert scores.divergence is not None
            return scores.divergence
        assert batch.teacher is not None and batch.teacher.support_logprobs is not None
        assert scores.support_logprobs is not None
        student = divergences.with_tail(scores.support_logprobs)
        teacher = divergences.with_tail(batch.teacher.support_logprobs.detach())
        return divergences.divergence(self.kind, student, teacher, self.beta)
