"""Policy surrogates: what one token, or one row, costs. Losses to minimise, unreduced, in the shape of their inputs.

`log_ratio` = log π - log π_old, of any shape ([B, T] tokens, [B] rows); advantages broadcast to it and are constants
of the loss. The clip acts on the log-ratio before the exponential: min(r, 1+h) = exp(min(log r, log(1+h))), the same
value and the same gradient, but where the clip cuts no exponential can overflow into a 0 * inf gradient.
Nothing else is clamped: a live ratio that overflows says so.
"""

import math

import torch
from torch import Tensor


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-A log π (Williams 1992, REINFORCE). Gradient in log π: -A."""
    return -advantages.detach() * logprobs


def importance_sampling(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """-r A, no clip (off-policy policy gradient; tinker `importance_sampling`). Gradient in log π: -r A."""
    return -advantages.detach() * log_ratio.exp()


def ppo_clip(log_ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """-min(r A, clip(r, 1-low, 1+high) A) (PPO, arXiv 1707.06347, eq. 7); with `dual`, at most -dual A when A < 0
    (dual-clip PPO, arXiv 1912.09729).

    Gradient in log π: -r A, and 0 where `clipped`. Infinite bounds give `importance_sampling`; at r = 1 the
    gradient is -A.
    """
    lower, upper = _bounds(log_ratio, advantages, low, high, dual)
    return -advantages.detach() * log_ratio.clamp(lower, upper).exp()


def cispo(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """-clip(r, low, high) A log π with a constant weight (CISPO, arXiv 2506.13585, eq. 4). Gradient: -clip(r) A.

    The bounds are those of the ratio itself. No token ever loses its gradient; the value is no surrogate objective.
    """
    return -log_ratio.detach().exp().clamp(low, high) * advantages.detach() * logprobs


def clipped(log_ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Where the clip of `ppo_clip` kills the gradient: bool, in the shape of the loss; never where A = 0."""
    lower, upper = _bounds(log_ratio, advantages, low, high, dual)
    return ((log_ratio < lower) | (log_ratio > upper)) & (advantages != 0)


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Mean log-ratio over the masked tokens of each row: the log of GSPO's ratio s_i (arXiv 2507.18071, eq. 7).

    [B, T] -> [B]; a row without tokens gives 0. `ppo_clip` of it, with one advantage per row, is GSPO.
    """
    return log_ratio.masked_fill(~mask, 0).sum(1) / mask.sum(1).clamp(min=1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """½ max((V - R)², (clip(V, V_old ± clip) - R)²) (OpenAI baselines' PPO2; arXiv 2005.12729)."""
    old_values, returns = old_values.detach(), returns.detach()
    near = values.clamp(old_values - clip, old_values + clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())


def _bounds(like: Tensor, advantages: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, Tensor]:
    """Smallest and largest log-ratio with a gradient, in the shape of the advantages; A = 0 is cut above like A > 0."""
    floor = like.new_tensor(math.log1p(-low) if low < 1 else -math.inf)
    ceiling = like.new_tensor(math.inf if dual is None else math.log(dual))
    lower = torch.where(advantages < 0, floor, -math.inf)
    upper = torch.where(advantages < 0, ceiling, like.new_tensor(math.log1p(high)))
    return lower, upper
