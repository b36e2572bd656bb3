"""`sft`: maximum likelihood on given completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import surrogates, weighting
from posttrain.registry import algorithms


@algorithms.register("sft")
@dataclass(frozen=True)
class SFT(Algorithm):
    """-log pi of every token of the data's completions: forward KL to the data."""

    title = "Supervised fine-tuning"
    rollouts = "data"

    normaliser: Literal["tokens", "sequence_mean"] = "tokens"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        aggregate = weighting.token_mean if self.normaliser == "tokens" else weighting.sequence_mean
        return Batch(rollouts, *aggregate(rollouts.mask, rollouts.logprobs.dtype))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        return surrogates.reinforce(scores.logprobs, torch.ones_like(batch.weight))
