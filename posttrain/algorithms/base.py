"""What an algorithm is: a frozen dataclass that attaches weight and signal to tokens and prices each token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from posttrain.batch import Batch, Rewards, Rollouts, Scores, Signals
from posttrain.functional.corrections import Correction, correction_weights
from posttrain.policies.base import Divergence

Need = Literal["rewards", "teacher", "reference", "student", "support", "divergence", "values", "pairs"]


ZSCORE = "Dividing by the group's standard deviation weights problems by 1/sqrt(p(1-p)) of their success rate p."
TOKEN_CREDIT = "A token's credit is its own log-ratio: the gradient is that of the KL at the states visited alone."


class Algorithm(ABC):
    """Pure and without state. The trainer divides once, over all micro-batches and ranks: nothing here reduces."""

    paper: ClassVar[str] = ""  # arXiv id, or empty
    title: ClassVar[str] = ""
    rollouts: ClassVar[Literal["sample", "data", "once"]] = "sample"
    single_update: ClassVar[bool] = False  # without a ratio, a second update on the same completions is off-policy
    refills: ClassVar[bool] = False  # whether groups that `accept` turns down are drawn anew

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """What must be there before `prepare` and `loss` can work."""

    @property
    def scope(self) -> Literal["group", "batch"]:
        """`group` promises that groups do not see each other in `prepare`."""
        return "group"

    @property
    def minimum_group(self) -> int:
        """The smallest group size the advantages are defined for."""
        return 1

    @property
    def on_policy(self) -> float:
        """Share of problems whose completions the student draws; the rest are data rows."""
        return 1.0

    @property
    def divergence(self) -> Divergence | None:
        """The full-vocabulary divergence the loss reads from `scores.divergence`."""
        return None

    @property
    def top_k(self) -> int | None:
        """Support size of the teacher's answers, where `needs` has `support`."""
        return None

    @property
    def biases(self) -> tuple[str, ...]:
        """Known ways in which this setting's expected gradient differs from that of its stated objective."""
        return ()

    def positions(self, rollouts: Rollouts) -> Tensor:
        """[B, T] bool: the tokens the teacher is asked about, from what the student alone knows."""
        return rollouts.mask

    def accept(self, rollouts: Rollouts, rewards: Rewards) -> Tensor:
        """[P] bool: the groups worth training on; asked where `refills` is true."""
        return torch.ones(rollouts.groups, dtype=torch.bool)

    @abstractmethod
    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        """Weights and signals for the whole step, all groups at once. No gradient flows here."""

    @abstractmethod
    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The unreduced loss in the shape of `batch.weight`. Gradient flows through `scores` alone."""

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        """Further quantities in the shape of `batch.weight`, averaged over what carries weight."""
        return {}


def judged(rollouts: Rollouts, rewards: Rewards) -> Tensor:
    """[B, T] bool: tokens of completions that have a reward. A failure to judge leaves a completion out."""
    return rollouts.mask & rewards.valid.flatten().unsqueeze(1)


def per_token(values: Tensor, rollouts: Rollouts) -> Tensor:
    """One number per completion [P, G], repeated over its tokens [B, T]."""
    return values.flatten().unsqueeze(1).expand(rollouts.mask.shape)


def pair_weights(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Weight [P] and normaliser [B] of a mean over pairs; a pair without a token counts nothing."""
    weight = rollouts.mask.any(1).view(-1, 2).any(1).to(rollouts.logprobs)
    return weight, weight.repeat_interleave(2) / 2


def correction_needs(correction: Correction) -> frozenset[Need]:
    """A correction compares the sampler with the trainer's own log-probs at the start of the phase."""
    return frozenset() if correction.rule == "none" else frozenset({"student"})


def own_logprobs(rollouts: Rollouts, signals: Signals, correction: Correction) -> Tensor:
    """[B, T] log pi_old of the trainer's own policy: as recorded, or as scored where a sampler is corrected for."""
    if correction.rule == "none":
        return rollouts.logprobs
    assert signals.student is not None
    return signals.student.logprobs


def corrected(batch: Batch, signals: Signals, correction: Correction) -> Batch:
    """The batch with its weights corrected for who drew it, and its ratios taken to the trainer's own policy.

    rho = pi_old / mu multiplies the weight, per token or, where the loss speaks of rows, as the product over the row;
    the normaliser stays. The clip then acts on pi / pi_old: rho counts once.
    """
    if correction.rule == "none":
        return batch
    assert signals.student is not None
    log_rho = (signals.student.logprobs - batch.rollouts.logprobs) * batch.rollouts.mask
    if batch.unit == "row":
        log_rho = log_rho.sum(1)
    weight = batch.weight * correction_weights(correction, log_rho)
    return replace(batch, weight=weight, rollouts=replace(batch.rollouts, logprobs=signals.student.logprobs))
