"""A model's vocabulary projection, over all ids or a block of them, and the distributions it gives.

n positions, H hidden size, V vocabulary, W ids of a block. Half types are raised to float32 right after the
projection; float64 stays float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20  # of one [chunk, V] tensor, where the chunk is left to us
FEW, LARGE = 8, 2**23  # positions, and numbers of a weight, from which the projection is turned round


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
        return max(16, min(4096, CHUNK_BYTES // (self.bytes * len(self.weight))))

    @property
    def bytes(self) -> int:
        """Of one logit."""
        return 8 if self.weight.dtype == torch.float64 else 4

    def __call__(self, hidden: Tensor) -> Tensor:
        """The log-probs, so that a head is a projection (see `States`)."""
        return self.log_probs(hidden)

    def block(self, hidden: Tensor, ids: slice) -> Tensor:
        """[n, H] -> logits [n, W] of some ids, in at least float32, worked on in place: call it without gradient."""
        weight, bias = self.weight[ids], None if self.bias is None else self.bias[ids]
        logits = _raised(_projected(hidden.to(weight), weight, bias))
        if self.cap is not None:
            logits.mul_(self.scale / self.cap).tanh_().mul_(self.cap / self.temperature)
        elif self.scale != self.temperature:
            logits.mul_(self.scale / self.temperature)
        if bias is not None:
            logits.clamp_(min=torch.finfo(logits.dtype).min)  # a bias may ban a token with -inf, and 0 * inf is NaN
        return logits

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


@dataclass
class Distribution:
    """Next-token distributions at n positions, around the largest logit: log-probs are `shifted - log_total`."""

    shifted: Tensor  # [n, V] logit minus the largest
    weights: Tensor  # [n, V] exp of it
    total: Tensor  # [n, 1] sum of weights, at least 1

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


def distribution(head: Head, hidden: Tensor) -> Distribution:
    """Hidden states [n, H] -> distributions over all ids at once. Call it without gradient."""
    logits = head.block(hidden, slice(None))
    weights = logits.sub_(logits.amax(1, keepdim=True)).exp()
    return Distribution(logits, weights, weights.sum(1, keepdim=True))


def _projected(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """hidden @ weight' + bias, [n, W]."""
    few = 1 < len(hidden) <= FEW and weight.numel() >= LARGE and weight.device.type == "cpu"
    if not few:
        return torch.nn.functional.linear(hidden, weight, bias)
    # The other way round a CPU reads a matrix that no cache holds up to three times as fast.
    logits = torch.mm(weight, hidden.T).T.contiguous()
    return logits if bias is None else logits.add_(bias)


def _raised(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
