"""From hidden states to what a loss reads, a few positions at a time: the vocabulary axis never outlives a chunk.

N positions, H hidden size, V vocabulary, K support size. The forward pass keeps hidden states and results, [N] and
[N, K]; the backward pass computes each chunk's logits again. Peak memory is a small multiple of chunk * V. Half types
are raised to float32 right after the projection; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posttrain.functional import divergences
from posttrain.policies.base import Divergence

CHUNK_BYTES = 64 * 2**20  # of one [chunk, V] tensor, where the chunk is left to us


@dataclass(frozen=True)
class Head:
    """logits = cap * tanh(scale * (hidden @ weight' + bias) / cap) / temperature, over the first rows of `weight`."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    cap: float | None = None  # final logit soft-capping; None where the model has none
    temperature: float = 1.0
    chunk: int | None = None  # positions per projection; None: as many as CHUNK_BYTES allow

    @property
    def positions(self) -> int:
        """Positions per projection."""
        if self.chunk is not None:
            return self.chunk
        size = 8 if self.weight.dtype == torch.float64 else 4
        return max(16, min(4096, CHUNK_BYTES // (size * len(self.weight))))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V] in at least float32, all at once."""
        raised = _raised(torch.nn.functional.linear(hidden.to(self.weight), self.weight, self.bias))
        if self.cap is not None:
            return self.cap / self.temperature * torch.tanh(raised * (self.scale / self.cap))
        return raised if self.scale == self.temperature else raised * (self.scale / self.temperature)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V], all at once."""
        return torch.log_softmax(self.logits(hidden), dim=-1)

    def detached(self) -> Head:
        """The same head without gradient."""
        return replace(self, weight=self.weight.detach(), bias=None if self.bias is None else self.bias.detach())


@dataclass(frozen=True)
class Question:
    """What is asked at N positions."""

    ids: Tensor  # [N] int64, the tokens whose log-prob is wanted
    support_ids: Tensor | None = None  # [N, K] int64
    divergence: Divergence | None = None
    other: Tensor | None = None  # [N, H'], the other model's hidden states, where there is a divergence
    project: Callable[[Tensor], Tensor] | None = None  # [..., H'] -> log-probs [..., V] of the other model

    def rows(self, index: slice) -> Question:
        """The positions `index`."""
        tensors = {name: getattr(self, name) for name in ("ids", "support_ids", "other")}
        return replace(self, **{name: None if value is None else value[index] for name, value in tensors.items()})

    def with_support(self, ids: Tensor) -> Question:
        """The same, and the log-probs of the ids [N, K]."""
        return replace(self, support_ids=ids)

    def against(self, divergence: Divergence, other: Tensor, project: Callable[[Tensor], Tensor]) -> Question:
        """The same, and the divergence from another model's hidden states [N, H']."""
        return replace(self, divergence=divergence, other=other, project=project)


@dataclass(frozen=True)
class Answer:
    """What the head says at N positions, in nats."""

    logprobs: Tensor  # [N]
    entropy: Tensor  # [N]
    support_logprobs: Tensor | None = None  # [N, K]
    divergence: Tensor | None = None  # [N]


def answer(head: Head, hidden: Tensor, question: Question) -> Answer:
    """Hidden states [N, H] -> log-probs, entropy and what else is asked, with gradient into hidden states and head."""
    logprobs, entropy, support, divergence = _Answer.apply(hidden, head.weight, head.bias, head, question)
    return Answer(
        logprobs,
        entropy,
        None if question.support_ids is None else support,
        None if question.divergence is None else divergence,
    )


@torch.no_grad()
def top_support(head: Head, hidden: Tensor, ids: Tensor, k: int) -> tuple[Answer, Tensor]:
    """The k most probable ids [N, k] and an answer about them; the sampled id is always there, last if need be."""
    answers, kept = [], []
    for rows in _chunks(len(hidden), head):
        chunk, sampled = distribution(head, hidden[rows]), ids[rows].unsqueeze(1)
        found = chunk.shifted.topk(min(k, chunk.shifted.shape[1]), dim=1).indices
        absent = ~(found == sampled).any(1)
        found[:, -1] = torch.where(absent, sampled.squeeze(1), found[:, -1])
        answers.append((chunk.at(sampled).squeeze(1), chunk.entropy(), chunk.at(found)))
        kept.append(found)
    logprobs, entropy, support = (torch.cat(part) for part in zip(*answers, strict=True))
    return Answer(logprobs, entropy, support), torch.cat(kept)


class _Answer(torch.autograd.Function):
    """The four results of a question; nothing of size V is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head, question: Question
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.head, ctx.question = head, question
        head = head.detached()
        parts = [_forward(head, hidden[rows], question.rows(rows)) for rows in _chunks(len(hidden), head)]
        found = [None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)]  # type: ignore[arg-type]
        return found[0], found[1], found[2], found[3]  # type: ignore[return-value]

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias = ctx.saved_tensors
        if all(gradient is None for gradient in gradients):
            return None, None, None, None, None
        head = replace(ctx.head, weight=weight, bias=bias).detached()
        wanted = ctx.needs_input_grad
        d_hidden = torch.zeros_like(hidden) if wanted[0] else None
        # Half types would lose the small chunks' shares in a running sum.
        wide = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        d_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if wanted[1] else None
        d_bias = None if bias is None or not wanted[2] else torch.zeros_like(bias, dtype=wide)
        for rows in _chunks(len(hidden), head):
            part = [None if gradient is None else gradient[rows] for gradient in gradients]
            slope = _backward(head, hidden[rows], ctx.question.rows(rows), part)
            if d_bias is not None:
                d_bias += slope.sum(0)
            slope = slope.to(weight.dtype)
            if d_hidden is not None:
                d_hidden[rows] = (slope @ weight).to(hidden.dtype)
            if d_weight is not None and d_weight.dtype == slope.dtype:
                d_weight.addmm_(slope.T, hidden[rows].to(slope))
            elif d_weight is not None:
                d_weight += slope.T @ hidden[rows].to(slope)
        d_weight = None if d_weight is None else d_weight.to(weight.dtype)
        return d_hidden, d_weight, None if d_bias is None else d_bias.to(weight.dtype), None, None


@dataclass
class Distribution:
    """Next-token distributions at n positions, around the largest logit: log-probs are `shifted - log_total`."""

    shifted: Tensor  # [n, V] logit minus the largest
    weights: Tensor  # [n, V] exp of it
    total: Tensor  # [n, 1] sum of weights, at least 1
    slope: Tensor | None  # [n, V] d logit / d raw logit before soft-capping, where that is not constant

    @property
    def log_total(self) -> Tensor:
        return self.total.log()

    def entropy(self) -> Tensor:
        """[n], never below zero: both terms are, and neither is a small difference of large ones."""
        mean = torch.bmm(self.weights.unsqueeze(1), self.shifted.unsqueeze(2)).flatten() / self.total.squeeze(1)
        return self.log_total.squeeze(1) - mean

    def at(self, ids: Tensor) -> Tensor:
        """Log-probs of ids [n, K]."""
        return self.shifted.gather(1, ids) - self.log_total


def distribution(head: Head, hidden: Tensor, slope: bool = False) -> Distribution:
    """Hidden states [n, H] -> distributions, all at once; `slope` asks for the derivative of the soft-capping too.

    Works in place on the logits: call it without gradient.
    """
    logits = _raised(torch.nn.functional.linear(hidden.to(head.weight), head.weight, head.bias))
    if head.bias is not None:
        logits.clamp_(min=torch.finfo(logits.dtype).min)  # a bias may ban a token with -inf, and 0 * inf is NaN
    derivative = None
    if head.cap is not None:
        logits.mul_(head.scale / head.cap).tanh_()
        derivative = 1 - logits.square() if slope else None
        logits.mul_(head.cap / head.temperature)
    elif head.scale != head.temperature:
        logits.mul_(head.scale / head.temperature)
    logits.sub_(logits.amax(1, keepdim=True))
    weights = logits.exp()
    return Distribution(logits, weights, weights.sum(1, keepdim=True), derivative)


def _forward(head: Head, hidden: Tensor, question: Question) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    chunk = distribution(head, hidden)
    logprobs = chunk.at(question.ids.unsqueeze(1)).squeeze(1)
    support = None if question.support_ids is None else chunk.at(question.support_ids)
    entropy, apart = chunk.entropy(), None
    if question.divergence is not None:
        student = chunk.shifted.sub_(chunk.log_total)
        apart = _divergence(question, student, _other(question))
    return logprobs, entropy, support, apart


def _backward(head: Head, hidden: Tensor, question: Question, gradients: list[Tensor | None]) -> Tensor:
    """Gradient in the raw logits [n, V], before scale, cap and temperature.

    With p the distribution: d log p_i = onehot_i - p; dH = -p (log p + H); any f of log p with slope s: s - p sum(s).
    """
    for_sampled, for_entropy, for_support, for_divergence = gradients
    chunk = distribution(head, hidden, slope=True)
    entropy = chunk.entropy().unsqueeze(1) if for_entropy is not None else None
    probabilities = chunk.weights.div_(chunk.total)
    log_probs = chunk.shifted.sub_(chunk.log_total)
    scattered = [(question.ids.unsqueeze(1), for_sampled.unsqueeze(1))] if for_sampled is not None else []
    if for_support is not None:
        assert question.support_ids is not None
        scattered.append((question.support_ids, for_support))
    through = None
    if for_divergence is not None:
        through = _divergence_slope(question, log_probs, for_divergence)
    factor = sum((values.sum(1, keepdim=True) for _, values in scattered), torch.zeros_like(chunk.total))
    if through is not None:
        factor = factor + through.sum(1, keepdim=True)
    if for_entropy is not None and entropy is not None:
        pulled = for_entropy.unsqueeze(1)
        slope = log_probs.add_(entropy).mul_(pulled).add_(factor).mul_(probabilities).neg_()
    else:
        slope = probabilities.mul_(-factor)
    for ids, values in scattered:
        slope.scatter_add_(1, ids, values.to(slope))
    if through is not None:
        slope.add_(through)
    if chunk.slope is not None:
        slope.mul_(chunk.slope)
    return slope.mul_(head.scale / head.temperature)


def _other(question: Question) -> Tensor:
    """The other model's log-probs [n, V]: constants."""
    assert question.other is not None and question.project is not None
    return question.project(question.other).detach()


def _divergence(question: Question, student: Tensor, other: Tensor) -> Tensor:
    """[n] from log-probs [n, V]."""
    assert question.divergence is not None
    if student.shape != other.shape:
        raise ValueError(
            f"divergence: the student has {student.shape[-1]} token ids, the other model {other.shape[-1]}. "
            "Both need the same vocabulary."
        )
    return divergences.divergence(question.divergence.kind, student, other.to(student), question.divergence.beta)


def _divergence_slope(question: Question, log_probs: Tensor, gradient: Tensor) -> Tensor:
    """[n, V]: the gradient of the divergence in the log-probs, as if they were free."""
    with torch.enable_grad():
        leaf = log_probs.detach().requires_grad_()
        return torch.autograd.grad(_divergence(question, leaf, _other(question)), leaf, gradient)[0]


def _chunks(rows: int, head: Head) -> Iterator[slice]:
    """Slices of at most `head.positions` rows; one empty slice where there is nothing."""
    for start in range(0, max(rows, 1), head.positions):
        yield slice(start, start + head.positions)


def _raised(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
