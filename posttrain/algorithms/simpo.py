"""`simpo`: preferences by the mean log-prob, without a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, pair_weights
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import preferences
from posttrain.ranges import NOT_NEGATIVE, POSITIVE, check
from posttrain.registry import algorithms


@algorithms.register("simpo")
@dataclass(frozen=True)
class SimPO(Algorithm):
    """-log sigmoid(beta (mean log pi of chosen - of rejected) - margin) (arXiv 2405.14734, eq. 6)."""

    paper = "2405.14734"
    title = "SimPO: Simple Preference Optimization with a Reference-Free Reward"
    rollouts = "data"

    beta: float = 2.5
    margin: float = 1.375

    def __post_init__(self) -> None:
        check("algorithm", self, beta=POSITIVE, margin=NOT_NEGATIVE)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"pairs"})

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        return Batch(rollouts, *pair_weights(rollouts))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        return preferences.simpo(_gap(scores, batch), self.beta, self.margin)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        return {"pair_accuracy": (_gap(scores, batch) > 0).to(batch.weight)}


def _gap(scores: Scores, batch: Batch) -> Tensor:
    """Mean log-prob per token of chosen minus rejected [P]."""
    return preferences.pair_gap(preferences.sequence_mean_logprob(scores.logprobs, batch.where))
