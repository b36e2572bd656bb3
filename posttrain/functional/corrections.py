"""Weights for completions that another policy than the trainer's drew: rho = pi_old / mu, constant in the loss.

mu is what the sampler used (other kernels, precision, staleness), pi_old the trainer's policy at the start of the
phase. The weight multiplies the loss after any clip, which acts on pi / pi_old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """`tis` truncates rho at `cap` (Yao et al., 2025); `icepop` drops tokens outside low..high (arXiv 2510.18855)."""

    rule: Literal["none", "tis", "icepop"] = "none"
    cap: float = 2.0
    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"Correction.cap: found {self.cap}, expected a number above 0")
        if not 0 <= self.low <= 1 <= self.high:
            raise ValueError(f"Correction.low, .high: found {self.low} and {self.high}, expected low <= 1 <= high")


@torch.no_grad()
def correction_weights(correction: Correction, log_rho: Tensor) -> Tensor:
    """The weight of each token or row from log rho, any shape; 1 throughout for `none`."""
    rho = log_rho.exp()
    if correction.rule == "tis":
        return rho.clamp(max=correction.cap)
    if correction.rule == "icepop":
        # Not a product: beyond float range rho is inf, and inf times 0 is NaN.
        return torch.where((rho >= correction.low) & (rho <= correction.high), rho, 0.0)
    return torch.ones_like(rho)
