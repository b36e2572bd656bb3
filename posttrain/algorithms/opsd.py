"""`opsd`: on-policy self-distillation from the same weights that have seen the solution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import weighting
from posttrain.policies.base import Divergence, DivergenceKind
from posttrain.ranges import UNIT, check
from posttrain.registry import algorithms


@algorithms.register("opsd")
@dataclass(frozen=True)
class OPSD(Algorithm):
    """A full-vocabulary divergence to a privileged teacher on the student's own completions (arXiv 2601.18734).

    The teacher is the student's start under a privileged prompt; at the mechanism tier, the dataset's teacher, which
    sees what the student does not.
    """

    paper = "2601.18734"
    title = "Self-Distilled Reasoner: On-Policy Self-Distillation for Large Language Models"

    kind: DivergenceKind = "jsd"
    beta: float = 0.5

    def __post_init__(self) -> None:
        check("algorithm", self, beta=UNIT)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"divergence"})

    @property
    def divergence(self) -> Divergence:
        return Divergence(self.kind, self.beta)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        return Batch(rollouts, *weighting.token_mean(rollouts.mask, rollouts.logprobs.dtype))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert scores.divergence is not None
        return scores.divergence
