"""`reinforce`: the plain score-function gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, corrected, correction_needs, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.registry import algorithms


@algorithms.register("reinforce")
@dataclass(frozen=True)
class Reinforce(Algorithm):
    """-(R - b) log pi(y) (Williams, 1992). The baseline is the mean reward of all *other* completions of the step.

    Leaving a completion out of its own baseline keeps the gradient unbiased; including it would shrink the gradient
    by (n - 1) / n.
    """

    single_update = True
    title = "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning"

    baseline: Literal["batch", "none"] = "batch"
    correction: Correction = Correction()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"rewards", *correction_needs(self.correction)})

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.baseline == "batch" else "group"

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        values, valid = signals.rewards.values, signals.rewards.valid
        if self.baseline == "batch":
            credit = advantages.leave_one_out(values.reshape(1, -1), valid.reshape(1, -1)).reshape(values.shape)
        else:
            credit = values * valid
        weight, normaliser = weighting.sequence_sum(judged(rollouts, signals.rewards), rollouts.logprobs.dtype)
        batch = Batch(rollouts, weight, normaliser, advantages=per_token(credit, rollouts))
        return corrected(batch, signals, self.correction)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        return surrogates.reinforce(scores.logprobs, batch.advantages)
