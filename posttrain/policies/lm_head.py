"""From hidden states to what a loss reads, a tile of logits at a time: none outlives its turn.

N positions, H hidden size, V vocabulary, K support size. The forward pass keeps hidden states and results, [N] and
[N, K], and the softmax's normalisers; the backward pass computes each tile's logits again. A tile holds some positions
and a block of ids (see `lm_blocks`), small enough to stay in a processor's cache, and never more than chunk * V
numbers. Half types are raised to float32 right after the projection; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posttrain.functional import divergences
from posttrain.policies.base import Divergence
from posttrain.policies.lm_blocks import Blocks, add_at, adds_up, pieces, take, tiles, whole_divergence
from posttrain.policies.lm_projection import Head, distribution

CACHE_BYTES = 8 * 2**20  # of one tile on a CPU, whose allocator and cache make larger ones slower


@dataclass(frozen=True)
class Question:
    """What is asked at N positions."""

    ids: Tensor  # [N] int64, the tokens whose log-prob is wanted
    support_ids: Tensor | None = None  # [N, K] int64
    divergence: Divergence | None = None
    other: Tensor | None = None  # [N, H'], the other model's hidden states, where there is a divergence
    project: Callable[[Tensor], Tensor] | None = None  # [..., H'] -> log-probs [..., V] of the other model, or a Head

    @property
    def wanted(self) -> Tensor:
        """[N, 1 + K]: the sampled ids and after them the support's."""
        sampled = self.ids.unsqueeze(1)
        return sampled if self.support_ids is None else torch.cat([sampled, self.support_ids], dim=1)

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
    for rows in pieces(len(hidden), head.positions):
        chunk, sampled = distribution(head, hidden[rows]), ids[rows].unsqueeze(1)
        found = chunk.shifted.topk(min(k, chunk.shifted.shape[1]), dim=1).indices
        absent = ~(found == sampled).any(1)
        found[:, -1] = torch.where(absent, sampled.squeeze(1), found[:, -1])
        answers.append((chunk.at(sampled).squeeze(1), chunk.entropy(), chunk.at(found)))
        kept.append(found)
    logprobs, entropy, support = (torch.cat(part) for part in zip(*answers, strict=True))
    return Answer(logprobs, entropy, support), torch.cat(kept)


class _Answer(torch.autograd.Function):
    """The four results of a question; of the logits, nothing but their normalisers is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head, question: Question
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.head, ctx.question = head, question
        head = head.detached()
        rows, blocks = _tiles(head, question)
        parts = [_forward(head, hidden[some], question.rows(some), blocks) for some in rows]
        found = Found(*(None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)))  # type: ignore[arg-type]
        ctx.save_for_backward(hidden, weight, bias, *found)
        support = None if question.support_ids is None else found.picked[:, 1:].clone()
        return found.picked[:, 0].clone(), found.entropy, support, found.divergence

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, *kept = ctx.saved_tensors
        if all(gradient is None for gradient in gradients):
            return None, None, None, None, None
        head, found = replace(ctx.head, weight=weight, bias=bias).detached(), Found(*kept)
        wanted = ctx.needs_input_grad
        # Half types would lose the small tiles' shares in a running sum.
        wide = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        d_hidden = torch.zeros_like(hidden, dtype=wide) if wanted[0] else None
        d_weight = torch.zeros_like(weight, dtype=wide) if wanted[1] else None
        d_bias = None if bias is None or not wanted[2] else torch.zeros_like(bias, dtype=wide)
        rows, blocks = _tiles(head, ctx.question)
        for some in rows:
            part = [None if gradient is None else gradient[some] for gradient in gradients]
            asked, known, states = ctx.question.rows(some), found.rows(some), hidden[some].to(weight)
            for ids in blocks:
                slope = _slope(head, states, asked, known, part, ids)
                if d_bias is not None:
                    d_bias[ids] += slope.sum(0)
                slope = slope.to(weight.dtype)
                if d_hidden is not None:
                    _add_product(d_hidden[some], slope, weight[ids])
                if d_weight is not None:
                    _add_product(d_weight[ids], slope.T, states)
        d_hidden, d_weight, d_bias = (
            None if made is None else made.to(like)
            for made, like in ((d_hidden, hidden), (d_weight, weight), (d_bias, weight))
        )
        return d_hidden, d_weight, d_bias, None, None


class Found(NamedTuple):
    """What the forward pass knows of its positions."""

    picked: Tensor  # [N, 1 + K] log-probs of the ids that are wanted
    entropy: Tensor  # [N]
    divergence: Tensor | None  # [N]
    peak: Tensor  # [N, 1] with the next one, what makes logits log-probs
    log_total: Tensor  # [N, 1]
    other_peak: Tensor | None  # [N, 1], so for the other model
    other_log_total: Tensor | None

    def rows(self, index: slice) -> Found:
        """The positions `index`."""
        return Found(*(None if value is None else value[index] for value in self))  # type: ignore[arg-type]


def _tiles(head: Head, question: Question) -> tuple[list[slice], list[slice]]:
    """Slices of positions and of ids. All ids are seen at once where the divergence or a foreign projection asks it."""
    rows, size = len(question.ids), len(head.weight)
    elements = head.positions * size
    if head.weight.device.type == "cpu":
        elements = min(elements, CACHE_BYTES // head.bytes)
    if question.divergence is None or (adds_up(question.divergence) and isinstance(question.project, Head)):
        return tiles(rows, size, elements)
    return pieces(rows, min(head.positions, max(64, elements // size))), [slice(0, size)]


def _forward(head: Head, hidden: Tensor, question: Question, blocks: list[slice]) -> Found:
    wanted, asked = question.wanted, question.divergence
    like = hidden.new_empty(0, dtype=torch.float64 if head.bytes == 8 else torch.float32)
    mine, theirs = (Blocks(len(hidden), len(blocks), like) for _ in range(2))
    picked, within = like.new_zeros(wanted.shape), torch.empty_like(mine.peak)
    for block, ids in enumerate(blocks):
        logits = head.block(hidden, ids)
        take(picked, logits, wanted, ids.start)
        student = mine.put(block, logits, entropy=True)
        if asked is not None:
            teacher = theirs.put(block, _other(question, ids, len(head.weight)).to(student))
            within[:, block] = divergences.divergence(asked.kind, student, teacher, asked.beta)
    peak, log_total = mine.normaliser()
    apart, other = None, (None, None)
    if asked is not None:
        apart, other = whole_divergence(asked, mine, theirs, within), theirs.normaliser()
    return Found(picked.sub_(peak).sub_(log_total), mine.whole_entropy(), apart, peak, log_total, *other)


def _slope(
    head: Head, hidden: Tensor, question: Question, found: Found, gradients: list[Tensor | None], ids: slice
) -> Tensor:
    """Gradient in a block's raw logits [n, W], before scale, cap and temperature.

    With p the distribution: d log p_i = onehot_i - p; dH = -p (log p + H).
    """
    for_sampled, for_entropy, for_support, for_divergence = gradients
    logits = head.block(hidden, ids)
    bend = None if head.cap is None else 1 - (logits * (head.temperature / head.cap)).square_()
    log_probs = logits.sub_(found.peak).sub_(found.log_total)
    slope = None
    if for_divergence is not None:
        slope = _divergence_slope(question, log_probs, found, ids, len(head.weight)).mul_(for_divergence.unsqueeze(1))
    if for_sampled is not None or for_support is not None:
        values = torch.zeros_like(found.picked)
        if for_sampled is not None:
            values[:, 0] = for_sampled
        if for_support is not None:
            values[:, 1:] = for_support
        through = log_probs.exp().mul_(-values.sum(1, keepdim=True))
        add_at(through, values, question.wanted, ids.start)
        slope = through if slope is None else slope.add_(through)
    if for_entropy is not None:
        p = log_probs.exp()
        through = log_probs.add_(found.entropy.unsqueeze(1)).mul_(p).mul_(-for_entropy.unsqueeze(1))
        slope = through if slope is None else slope.add_(through)
    assert slope is not None
    if bend is not None:
        slope.mul_(bend)
    factor = head.scale / head.temperature
    return slope if factor == 1 else slope.mul_(factor)


def _divergence_slope(question: Question, student: Tensor, found: Found, ids: slice, size: int) -> Tensor:
    """[n, W]: the gradient of the divergence in the block's logits."""
    assert question.divergence is not None and found.divergence is not None
    assert found.other_peak is not None and found.other_log_total is not None
    teacher = _other(question, ids, size).to(student).sub_(found.other_peak).sub_(found.other_log_total)
    kind, beta = question.divergence.kind, question.divergence.beta
    return divergences.logit_gradient(kind, student, teacher, beta, found.divergence)


def _other(question: Question, ids: slice, size: int) -> Tensor:
    """The other model's logits [n, W] of a block, a tensor of its own: constants."""
    assert question.other is not None and question.project is not None
    if isinstance(question.project, Head):
        _require_same_size(size, len(question.project.weight))
        return question.project.detached().block(question.other, ids)
    found = question.project(question.other).detach()
    _require_same_size(size, found.shape[-1])
    return found.clamp(min=torch.finfo(found.dtype).min)  # as `Head.block` does


def _require_same_size(mine: int, theirs: int) -> None:
    if mine != theirs:
        raise ValueError(
            f"divergence: the student has {mine} token ids, the other model {theirs}. Both need the same vocabulary."
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in one go where they are of one type."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
