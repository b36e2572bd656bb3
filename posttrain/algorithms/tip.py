"""`tip`: full-vocabulary distillation of the tokens where the student is unsure or far from the teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import weighting
from posttrain.functional.selection import Select, keyed_uniforms, select, soft_or
from posttrain.policies.base import Divergence
from posttrain.ranges import SHARE, check
from posttrain.registry import algorithms

RANDOM_STREAM = 11  # the control's draws


@algorithms.register("tip")
@dataclass(frozen=True)
class TIP(Algorithm):
    """Reverse KL averaged over the share `keep` of tokens with the highest soft OR of entropy and divergence.

    Paper: arXiv 2604.14084. Student entropy h and divergence d are min-max normalised over the step; the score is
    h + d - h d. `entropy`, `divergence` and `random` are the paper's comparisons at the same budget.
    """

    paper = "2604.14084"
    title = "TIP: Token Importance in On-Policy Distillation"

    keep: float = 0.5
    score: Literal["soft_or", "entropy", "divergence", "random"] = "soft_or"

    def __post_init__(self) -> None:
        check("algorithm", self, keep=SHARE)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"student", "divergence"})

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch"

    @property
    def divergence(self) -> Divergence:
        return Divergence("reverse_kl")

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        student = signals.student
        assert student is not None and student.divergence is not None
        if self.score == "soft_or":
            score = soft_or(student.entropy, student.divergence, rollouts.mask)
        elif self.score == "random":
            score = keyed_uniforms(rollouts.keys, rollouts.mask.shape[1], stream=RANDOM_STREAM)
        else:
            score = student.entropy if self.score == "entropy" else student.divergence
        rule = Select("top_fraction", fraction=self.keep, scope="batch")
        kept = select(rule, score, rollouts.mask, rollouts.group_size, rollouts.keys)
        weight, normaliser = weighting.sparse_kept(kept, rollouts.logprobs.dtype)
        return Batch(rollouts, weight, normaliser)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert scores.divergence is not None
        return scores.divergence
