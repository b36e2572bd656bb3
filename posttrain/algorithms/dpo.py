"""`dpo`: preferences without a reward model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, pair_weights
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import preferences
from posttrain.ranges import POSITIVE, Range, check
from posttrain.registry import algorithms


@algorithms.register("dpo")
@dataclass(frozen=True)
class DPO(Algorithm):
    """-log sigmoid(beta (margin of chosen over rejected)), margins relative to the reference (arXiv 2305.18290, eq. 7).

    `smoothing` is the share of labels taken to be wrong (the conservative form).
    """

    paper = "2305.18290"
    title = "Direct Preference Optimization: Your Language Model is Secretly a Reward Model"
    rollouts = "data"

    beta: float = 0.1
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check("algorithm", self, beta=POSITIVE, smoothing=Range("0 to below 0.5", lambda value: 0 <= value < 0.5))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"pairs", "reference"})

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        return Batch(rollouts, *pair_weights(rollouts), reference=signals.reference)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        return preferences.dpo(_margins(scores, batch), self.beta, self.smoothing)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        margins = _margins(scores, batch)
        return {"implicit_reward_margin": self.beta * margins, "pair_accuracy": (margins > 0).to(batch.weight)}


def _margins(scores: Scores, batch: Batch) -> Tensor:
    assert batch.reference is not None
    policy, reference = (
        preferences.sequence_logprob(logprobs, batch.where) for logprobs in (scores.logprobs, batch.reference.logprobs)
    )
    return preferences.margins(policy, reference)
