"""What is measured, defined once: averages over tokens, KL and entropy, and what a policy is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.batch import Batch, Problem, Rewards, Rollouts, Scores, Signals, Targets
from posttrain.judging import FailureWatch, judge, named_parts
from posttrain.policies.base import Policy
from posttrain.ranks import Ranks
from posttrain.rewards.base import Grader

Point = dict[str, float]


@dataclass
class Averages:
    """Weighted means that come out the same however the batch was cut: sums and weights are added up, divided once."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, values: Tensor, weight: Tensor) -> None:
        """Adds values with weights of the same shape; values without weight are not looked at."""
        kept = torch.where(weight != 0, values, torch.zeros_like(values)).detach()
        self.sums[name] = self.sums.get(name, 0.0) + (kept * weight).sum(dtype=torch.float64)
        self.weights[name] = self.weights.get(name, 0.0) + weight.sum(dtype=torch.float64)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """The mean of each name over all ranks; a name without any weight is left out, a rank may have none at all."""
        whole = Averages()
        for sums, weights in ranks.gather((self.sums, self.weights)):
            for name in sums:
                whole.sums[name] = whole.sums.get(name, 0.0) + sums[name]
                whole.weights[name] = whole.weights.get(name, 0.0) + weights[name]
        return {name: float(whole.sums[name] / weight) for name, weight in whole.weights.items() if weight}


def track_step(averages: Averages, rollouts: Rollouts, batch: Batch, signals: Signals, own: bool = True) -> None:
    """Entropy, KL, lengths and reward over all sampled tokens; what is selected over the supervised ones.

    `rollouts` are the completions as they were drawn, whatever of them the batch trains on. `own` says that the current
    policy drew them: without it they estimate none of its expectations.
    """
    mask = rollouts.mask.to(rollouts.logprobs)
    drawn = mask * (rollouts.source == 0).unsqueeze(1)  # data rows have neither log-probs nor entropy of their own
    if signals.teacher is not None and signals.teacher.support_logprobs is not None:
        held = signals.teacher.support_logprobs.exp().sum(-1)  # a truncated divergence is as good as this is near 1
        averages.add("teacher_support_mass", held, mask * signals.teacher.mask)
    if signals.teacher is not None:
        apart = (signals.teacher.logprobs - rollouts.logprobs).abs()
        averages.add("selected_discrepancy", apart, batch.where * drawn)
        if own:
            averages.add("kl_to_teacher_sampled", *sampled_kl(rollouts, signals.teacher))
    if signals.reference is not None and own:
        averages.add("kl_to_reference_sampled", *sampled_kl(rollouts, signals.reference))
    if signals.rewards is not None:
        for name, part in {"reward": signals.rewards, **named_parts(signals.rewards)}.items():
            averages.add(name, part.values, part.valid.to(mask))
        values, failed = signals.rewards.values, ~signals.rewards.valid
        lowest = values.masked_fill(failed, torch.inf).amin(1, keepdim=True)
        zero_variance = lowest >= values.masked_fill(failed, -torch.inf).amax(1, keepdim=True)
        averages.add("zero_variance_groups", zero_variance.to(mask), torch.ones_like(zero_variance, dtype=mask.dtype))
    if own:
        averages.add("policy_entropy", rollouts.entropy, drawn)
    each = torch.ones_like(mask[:, 0])
    averages.add("completion_length", mask.sum(1), each)
    averages.add("truncated_fraction", rollouts.truncated.to(mask), each)
    _track_selection(averages, batch)


def _track_selection(averages: Averages, batch: Batch) -> None:
    """Where the supervised tokens stand (0 to 1 along the completion), and what they carry of all credit."""
    mask, where = batch.rollouts.mask, batch.where.to(batch.weight)
    place = mask.cumsum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    averages.add("supervised_place", place.to(where), where)
    if batch.advantages is not None:
        credit = batch.advantages if batch.advantages.dim() == 2 else batch.advantages.unsqueeze(1).expand(mask.shape)
        averages.add("advantage", credit, where)
        averages.add("advantage_negative", (credit < 0).to(where), where)
        averages.add("advantage_share", where, (credit * mask).abs())


def track_update(averages: Averages, batch: Batch, scores: Scores) -> None:
    """The ratio r = pi / pi_old of the supervised tokens that the student drew, and r - 1 - log r: KL(pi_old || pi)."""
    drawn = (batch.where & (batch.rollouts.source == 0).unsqueeze(1)).to(batch.rollouts.logprobs)
    log_ratio = scores.logprobs - batch.rollouts.logprobs
    averages.add("ratio", log_ratio.exp(), drawn)
    averages.add("approx_kl", torch.expm1(log_ratio) - log_ratio, drawn)


def sampled_kl(rollouts: Rollouts, other: Targets) -> tuple[Tensor, Tensor]:
    """The unbiased estimate log pi - log q of KL(pi || q) per sampled token, and its weights; data rows have none."""
    drawn = rollouts.mask & other.mask & (rollouts.source == 0).unsqueeze(1)
    return rollouts.logprobs - other.logprobs, drawn.to(rollouts.logprobs)


@dataclass(frozen=True)
class Evaluator:
    """Measures a policy on held-out problems: greedy answers graded, entropy and KL over its own distribution."""

    problems: tuple[Problem, ...]
    accuracy: Grader
    reward: Grader

    def __call__(
        self,
        policy: Policy,
        reference: Policy,
        teacher: Policy | None,
        seen: Callable[[Sequence[Problem], Rollouts, Rewards], object] = lambda problems, answers, accuracy: None,
    ) -> Point:
        """One point: accuracy and mean reward of the greedy answers, entropy and KL in nats per token.

        `seen` is shown the problems, the answers and how they were graded for accuracy.
        """
        answers = policy.greedy(self.problems)
        others = {"reference": reference} if teacher is None else {"reference": reference, "teacher": teacher}
        expected = policy.expectations(self.problems, others)
        accuracy, reward = (judge(grader, self.problems, answers) for grader in (self.accuracy, self.reward))
        for judged in (accuracy, reward):
            FailureWatch().add(judged)
        point = {
            "accuracy": accuracy_of(accuracy),
            "mean_reward": _mean(reward.values[reward.valid].tolist()),
            "entropy": _mean(expected.entropy.tolist()),
            "kl_from_reference": _mean(expected.kl["reference"].tolist()),
        }
        if teacher is not None:
            point["kl_from_teacher"] = _mean(expected.kl["teacher"].tolist())
        seen(self.problems, answers, accuracy)
        return point


def accuracy_of(rewards: Rewards) -> float:
    """The mean score: the share of right answers where scores are 0 or 1. Unscored answers are not right.

    Where none has a score, nothing is known. What the machinery failed to judge is neither right nor wrong: it is left
    out. An evaluation (`posttrain eval`) counts items instead, right from a score of 1 on, of all there are.
    """
    return _mean(rewards.values[rewards.judged].tolist() if rewards.valid.any() else [])


def _mean(values: Iterable[float]) -> float:
    """Added in order and divided once, as the recorded artifacts were; NaN where nothing could be judged."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else float("nan")


class NonFinite(ArithmeticError):
    """A loss, gradient or metric that is not a number: the run stops and names the step."""


# Measurements that a judge gives, by the setting that names it.
JUDGED = {"accuracy": "evaluation.accuracy", "mean_reward": "evaluation.reward"}


def require_finite(step: int, values: Mapping[str, float]) -> None:
    """Raises NonFinite for the first value that is not finite."""
    for name, value in values.items():
        if not -float("inf") < value < float("inf"):
            advice = "Lower learning_rate, or set max_grad_norm."
            if name in JUDGED:
                advice = f"No completion was judged, or a judgement was no number: look at what gives {JUDGED[name]}."
            raise NonFinite(
                f"step {step}: {name} is {value}. The run stops here; nothing it wrote counts as a result. {advice}"
            )
