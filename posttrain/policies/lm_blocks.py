"""A softmax over a vocabulary that is seen a block of ids at a time, and the cut into blocks.

n positions, W ids of a block, B blocks. Entropy and KL of a whole are those within its blocks, weighed by the blocks'
masses, and that of the masses themselves (the chain rule): every term is non-negative, whatever the cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.functional import divergences
from posttrain.policies.base import Divergence

ROWS = 2048  # of a tile: more make no matrix product faster
WIDTH = 1024  # ids of a tile, at least: fewer make it slower


def pieces(total: int, size: int) -> list[slice]:
    """`total` entries in slices of `size`; one empty slice where there is nothing."""
    return [slice(start, min(start + size, total)) for start in range(0, max(total, 1), size)]


def tiles(rows: int, ids: int, elements: int) -> tuple[list[slice], list[slice]]:
    """Slices of rows and of ids: tiles of at most `elements` numbers, so high that each weight is read seldom."""
    height = max(1, min(rows, ROWS, elements // min(ids, WIDTH)))
    return pieces(rows, height), pieces(ids, max(1, min(ids, elements // height)))


class Blocks:
    """What the blocks of n positions leave behind, in order: [n, B] each.

    The places are made beforehand: small tensors that outlive the large ones they were made among would leave holes
    in the heap that nothing fits into.
    """

    def __init__(self, rows: int, blocks: int, like: Tensor) -> None:
        self.peak = like.new_empty(rows, blocks)  # the largest logit
        self.log_total = like.new_empty(rows, blocks)  # log sum exp(logit - peak), at least 0
        self.entropy = like.new_empty(rows, blocks)  # within the block

    def put(self, block: int, logits: Tensor, entropy: bool = False) -> Tensor:
        """Takes a block's logits [n, W] and makes them, in place, log-probs within the block."""
        peak = logits.amax(1, keepdim=True)
        weights = logits.sub_(peak).exp()
        total = weights.sum(1, keepdim=True)
        log_total = total.log()
        if entropy:
            # Never below zero: both terms are, and neither is a small difference of large ones.
            mean = torch.bmm(weights.unsqueeze(1), logits.unsqueeze(2)).squeeze(2) / total
            self.entropy[:, block] = (log_total - mean).squeeze(1)
        self.peak[:, block], self.log_total[:, block] = peak.squeeze(1), log_total.squeeze(1)
        return logits.sub_(log_total)

    def normaliser(self) -> tuple[Tensor, Tensor]:
        """Peak and log_total [n, 1] of all ids: log-probs are logit - peak - log_total."""
        peak = self.peak.amax(1, keepdim=True)
        return peak, (self.peak - peak + self.log_total).logsumexp(1, keepdim=True)

    def log_masses(self) -> Tensor:
        """[n, B]: log of each block's share."""
        return torch.log_softmax(self.peak + self.log_total, dim=1)

    def whole_entropy(self) -> Tensor:
        """[n], of all ids."""
        masses = self.log_masses()
        return (masses.exp() * self.entropy).sum(1) + divergences.entropy(masses)


def whole_divergence(divergence: Divergence, student: Blocks, teacher: Blocks, within: Tensor) -> Tensor:
    """[n], of all ids, from those within the blocks [n, B]; several blocks only where `adds_up`."""
    if within.shape[1] == 1:
        return within.squeeze(1)
    mine, theirs = student.log_masses(), teacher.log_masses()
    weights = (mine if _is_reverse(divergence) else theirs).exp()
    among = divergences.divergence(divergence.kind, mine, theirs, divergence.beta)
    return (weights * within).sum(1) + among


def adds_up(divergence: Divergence) -> bool:
    """Whether the chain rule holds: the mixture of a JSD mixes each block in a proportion of its own."""
    return divergence.kind != "jsd" or divergence.beta in (0, 1)


def _is_reverse(divergence: Divergence) -> bool:
    return divergence.kind == "reverse_kl" or (divergence.kind == "jsd" and divergence.beta == 1)


def take(found: Tensor, logits: Tensor, wanted: Tensor, start: int) -> None:
    """Fills in `found` [n, K] with the logits [n, W] of the ids `wanted` [n, K] that lie in the block from `start`."""
    inside, place = _places(logits, wanted, start)
    torch.where(inside, logits.gather(1, place), found, out=found)


def add_at(slope: Tensor, values: Tensor, wanted: Tensor, start: int) -> None:
    """Adds `values` [n, K] to the block's `slope` [n, W] at those of the ids `wanted` [n, K] that lie in it."""
    inside, place = _places(slope, wanted, start)
    slope.scatter_add_(1, place, torch.where(inside, values, 0).to(slope))


def _places(block: Tensor, wanted: Tensor, start: int) -> tuple[Tensor, Tensor]:
    place = wanted - start
    inside = (place >= 0) & (place < block.shape[1])
    return inside, place.clamp(0, block.shape[1] - 1)
