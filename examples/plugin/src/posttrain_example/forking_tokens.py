"""`forking-tokens`: a reinforcement-learning step on the tokens where the student was least sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from posttrain.algorithms.base import Algorithm, Need, judged, per_token
from posttrain.batch import Batch, Rollouts, Scores, Signals
from posttrain.functional import advantages, surrogates, weighting
from posttrain.functional.selection import Select, keyed_uniforms, select
from posttrain.ranges import OPEN_UNIT, SHARE, check
from posttrain.registry import algorithms

TIE = 1e-9  # nats
RANDOM_STREAM = 23  # the control's draws


@algorithms.register("forking-tokens")
@dataclass(frozen=True)
class ForkingTokens(Algorithm):
    """Clipped ratio times the group z-score of the reward, on the share `keep` of tokens with the highest entropy.

    Paper: arXiv 2506.01939. The threshold is one for the whole step, and the kept tokens all count the same, as in the
    authors' code. Entropy is that of the policy that sampled. `lowest` and `random` are the comparisons at any budget.
    The paper's DAPO base also resamples groups without variance and shapes overlong rewards; this file does neither.
    """

    paper = "2506.01939"
    title = (
        "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning"
    )

    keep: float = 0.2
    score: Literal["highest", "lowest", "random"] = "highest"
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        check("algorithm", self, keep=SHARE, clip_low=OPEN_UNIT, clip_high=OPEN_UNIT)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"rewards"})

    @property
    def scope(self) -> Literal["group", "batch"]:
        return "batch"

    @property
    def minimum_group(self) -> int:
        return 2

    @property
    def biases(self) -> tuple[str, ...]:
        found = [
            "Dividing by the group's standard deviation weights problems by 1/sqrt(p(1-p)) of their success rate p."
        ]
        if self.keep < 1:
            found.append("Tokens that are not kept have no gradient: its mean is not that of the expected reward.")
        return tuple(found)

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        assert signals.rewards is not None
        credit = advantages.group_zscore(signals.rewards.values, signals.rewards.valid)
        mask = judged(rollouts, signals.rewards)
        if self.score == "random":
            score = keyed_uniforms(rollouts.keys, mask.shape[1], stream=RANDOM_STREAM)
        else:
            score = rollouts.entropy if self.score == "highest" else -rollouts.entropy
            # Equal entropies (one state in several completions) are told apart by the rows' keys, not by their order.
            score = score + TIE * keyed_uniforms(rollouts.keys, mask.shape[1], stream=RANDOM_STREAM)
        rule = Select("top_fraction", fraction=self.keep, scope="batch")
        kept = select(rule, score, mask, rollouts.group_size, rollouts.keys)
        weight, normaliser = weighting.sparse_kept(kept, rollouts.logprobs.dtype)
        return Batch(rollouts, weight, normaliser, advantages=per_token(credit, rollouts))

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.advantages is not None
        log_ratio = scores.logprobs - batch.rollouts.logprobs
        return surrogates.ppo_clip(log_ratio, batch.advantages, self.clip_low, self.clip_high)

    def diagnostics(self, scores: Scores, batch: Batch) -> Mapping[str, Tensor]:
        return {"kept_entropy": batch.rollouts.entropy}
