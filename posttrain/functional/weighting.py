"""Aggregations: how much a unit of the loss counts, and what the one sum is divided by.

    loss = sum(weight * loss_of_unit) / sum(normaliser)

with both sums over the whole optimiser step on all ranks, so no result depends on how the batch was cut. Each function
returns `weight` [B, T] and `normaliser` [B]. A row without tokens in `mask` (a completion that could not be judged, or
was left out) counts in neither: one that is masked beside a valid one must not halve the loss.
"""

import torch
from torch import Tensor


def token_mean(mask: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Every token counts the same, over the whole step (DAPO, arXiv 2503.14476): mask; L_i."""
    return _float(mask, dtype), mask.sum(1).to(dtype)


def sequence_mean(mask: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Every row counts the same, its tokens share it (GRPO, arXiv 2402.03300): mask / L_i; 1."""
    return _float(mask, dtype) / _lengths(mask, dtype), _rows(mask, dtype)


def constant(mask: Tensor, length: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A sum per row over one constant C, usually the longest completion (Dr. GRPO, arXiv 2503.20783): mask; C."""
    if not length > 0:
        raise ValueError(f"length: found {length!r}, expected a number above 0")
    return _float(mask, dtype), _rows(mask, dtype) * length


def sequence_sum(mask: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The log-prob of whole rows (REINFORCE, RLOO, arXiv 2402.14740): mask; 1."""
    return _float(mask, dtype), _rows(mask, dtype)


def sparse_response_length(mask: Tensor, kept: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Kept tokens over the length of their row (arXiv 2609.04565, eq. 4.1): kept / L_i; 1, also if none is kept."""
    return _float(kept, dtype) / _lengths(mask, dtype), _rows(mask, dtype)


def sparse_kept(kept: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Every kept token counts the same (TIP, arXiv 2604.14084): kept; number kept in row i."""
    return token_mean(kept, dtype)


def _float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise TypeError(f"mask: found {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool [B, T]")
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype: found {dtype}, expected torch.float32 or torch.float64 (half types cannot count)")
    return mask.to(dtype)


def _lengths(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Tokens in each row, at least 1: [B, 1]."""
    return mask.sum(1, keepdim=True).clamp(min=1).to(dtype)


def _rows(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 for each row that has a token, else 0: [B]."""
    return mask.any(1).to(dtype)
