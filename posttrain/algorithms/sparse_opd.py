"""`sparse-opd`: on-policy distillation of one or two tokens per completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posttrain.algorithms.base import TOKEN_CREDIT, Algorithm, Need, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.selection import Select, select
from posttrain.ranges import OPEN_UNIT, check
from posttrain.registry import algorithms


@algorithms.register("sparse-opd")
@dataclass(frozen=True)
class SparseOPD(Algorithm):
    """On-policy distillation that supervises one or two tokens of each completion (arXiv 2609.04565, eq. 4.1).

    A = log q - log pi of the sampled token; the extremes of A are kept, and the clipped loss of the kept tokens is
    divided by the length of the whole response.
    """

    paper = "2609.04565"
    title = "Extremely Sparse Supervision Incentivizes Reasoning Ability"

    select: Select = Select("extremes", low=1, high=1)
    score: Literal["log_ratio", "abs_log_ratio", "logprob"] = "log_ratio"
    credit: Literal["teacher", "outcome", "constant_negative"] = "teacher"
    normaliser: Literal["response_length", "kept"] = "response_length"
    surrogate: Literal["clip", "reinforce"] = "clip"
    clip: float = 0.2

    def __post_init__(self) -> None:
        check("algorithm", self, clip=OPEN_UNIT)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"teacher", "rewards"} if self.credit == "outcome" else {"teacher"})

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch" if self.select.mixes_groups else "group"

    @property
    def minimum_group(self) -> int:
        return 2 if self.credit == "outcome" else 1

    @property
    def biases(self) -> tuple[str, ...]:
        found = ["Selected tokens are those with unusual log-ratios, so their mean gradient is not that of all tokens."]
        if self.credit == "teacher":
            found.append(TOKEN_CREDIT)
        return tuple(found) if self.select.reads_scores else tuple(found[1:])

    def positions(self, rollouts: Rollouts) -> Tensor:
        if self.select.reads_scores:
            return rollouts.mask
        return select(self.select, None, rollouts.mask, rollouts.group_size, rollouts.keys)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.teacher is not None
        log_ratio = signals.teacher.logprobs - rollouts.logprobs
        score = {"log_ratio": log_ratio, "abs_log_ratio": log_ratio.abs(), "logprob": rollouts.logprobs}[self.score]
        mask, dtype = rollouts.mask, log_ratio.dtype
        if self.credit == "outcome":
            assert signals.rewards is not None
            mask = judged(rollouts, signals.rewards)
        kept = signals.teacher.mask & mask
        if self.select.reads_scores:
            kept = select(self.select, score, kept, rollouts.group_size, rollouts.keys)
        if self.normaliser == "kept":
            weight, normaliser = weighting.sparse_kept(kept, dtype)
        else:
            weight, normaliser = weighting.sparse_response_length(mask, kept, dtype)
        credit = self._credit(rollouts, signals, log_ratio)
        return Batch(rollouts, weight, normaliser, advantages=credit, teacher=signals.teacher)

    def _credit(self, rollouts: Rollouts, signals: Signals, log_ratio: Tensor) -> Tensor:
        if self.credit == "outcome":
            assert signals.rewards is not None
            return per_token(advantages.group_mean(signals.rewards.values, signals.rewards.valid), rollouts)
        return log_ratio if self.credit == "teacher" else torch.full_like(log_ratio, -1.0)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        if self.surrogate == "reinforce":
            return surrogates.reinforce(scores.logprobs, batch.advantages)
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return surrogates.ppo_clip(log_ratio, batch.advantages, self.clip, self.clip)
