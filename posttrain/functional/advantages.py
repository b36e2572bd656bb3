"""Advantage estimators: what a completion or a token is worth beyond what was expected of it.

Rewards are [P, G] with `valid` bool [P, G]: a failure is not a value, enters no statistic and gets 0. A group with
fewer than two valid members gets 0 throughout. Statistics are two-pass in float64 on values shifted by the smallest
one, so that a constant group gives exactly 0 (the one-pass E[x²] - E[x]² turns it into a tiny spread); results come
back in the dtype of the values, without gradient: an advantage is a constant of the loss.
"""

import torch
from torch import Tensor


@torch.no_grad()
def group_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Reward minus the mean of its group, R_i - R̄ (Dr. GRPO, arXiv 2503.20783). [P, G] -> [P, G]."""
    _check_pair(values, valid, "values", "valid")
    centred, _ = _centred(values, valid)
    return centred.to(values.dtype)


@torch.no_grad()
def group_zscore(values: Tensor, valid: Tensor, eps: float = 1e-4) -> Tensor:
    """(R_i - R̄) / (s + eps) with the sample deviation s, ddof 1 (GRPO, arXiv 2402.03300). [P, G] -> [P, G].

    A group without variance gives 0 for every eps, 0 included. Always |A| <= (n-1)/sqrt(n) for n valid members.
    """
    _check_pair(values, valid, "values", "valid")
    centred, number = _centred(values, valid)
    deviation = (centred.square().sum(1, keepdim=True) / (number - 1).clamp(min=1)).sqrt()
    return _ratio(centred, deviation, eps).to(values.dtype)


@torch.no_grad()
def leave_one_out(values: Tensor, valid: Tensor) -> Tensor:
    """R_i - mean of the other valid members = n/(n-1) (R_i - R̄) (RLOO, arXiv 2402.14740). [P, G] -> [P, G]."""
    _check_pair(values, valid, "values", "valid")
    centred, number = _centred(values, valid)
    return (centred * number / (number - 1).clamp(min=1)).to(values.dtype)


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantages and returns (GAE, arXiv 1506.02438, eq. 16), each [B, T]; zero outside the mask.

    δ_t = R_t + γ V_{t+1} - V_t, A_t = δ_t + γλ A_{t+1}, return = A + V. The episode ends after the last masked token
    of a row (V = A = 0 there); what is outside the mask is skipped, so a gap joins its two sides.
    """
    _check_pair(rewards, mask, "rewards", "mask")
    _check_pair(values, mask, "values", "mask")
    rewards, values = rewards.masked_fill(~mask, 0), values.masked_fill(~mask, 0)
    next_value = next_advantage = values.new_zeros(len(values))
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = torch.where(here, delta + gamma * lam * next_advantage, 0)
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantages[:, t], next_advantage)
    return advantages, advantages + values


@torch.no_grad()
def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Values with mean 0 and population variance 1 over the masked tokens (REINFORCE++, arXiv 2501.03262).

    [B, T] -> [B, T]; zero outside the mask and for constant values. Statistics span all rows given, so this mixes
    groups: call it on the whole step, never on a micro-batch.
    """
    _check_pair(values, mask, "values", "mask")
    centred, number = _centred(values.reshape(1, -1), mask.reshape(1, -1))
    deviation = (centred.square().sum() / number.clamp(min=1)).sqrt()
    return _ratio(centred, deviation, 0.0).reshape(values.shape).to(values.dtype)


def _centred(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Values minus the mean of the valid ones in their row, 0 where invalid, and their number: [R, N], [R, 1]."""
    number = valid.sum(1, keepdim=True)
    if not values.numel():
        return values.double(), number
    smallest = values.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
    shifted = (values.double() - smallest.double()).masked_fill(~valid, 0)
    mean = shifted.sum(1, keepdim=True) / number.clamp(min=1)
    return (shifted - mean).masked_fill(~valid, 0), number


def _ratio(centred: Tensor, deviation: Tensor, eps: float) -> Tensor:
    """centred / (deviation + eps), and 0 where nothing deviates."""
    return torch.where(deviation > 0, centred / (deviation + eps), 0)


def _check_pair(values: Tensor, mask: Tensor, name: str, mask_name: str) -> None:
    if values.ndim != 2 or values.shape != mask.shape:
        found = f"{tuple(values.shape)} and {tuple(mask.shape)}"
        raise ValueError(f"{name}, {mask_name}: found shapes {found}, expected one shape of rank 2")
    if mask.dtype != torch.bool or not values.is_floating_point():
        raise TypeError(
            f"{name}, {mask_name}: found {values.dtype} and {mask.dtype}, expected a float type and torch.bool"
        )
