"""Preference losses on pairs. Rows come in groups of two, (chosen, rejected): B = 2P. Unreduced, one loss per pair."""

import torch.nn.functional as F
from torch import Tensor


def sequence_logprob(logprobs: Tensor, mask: Tensor) -> Tensor:
    """log π(y|x) = Σ_t log π(y_t|h_t) over the masked tokens. [B, T] -> [B]; a row without tokens gives 0."""
    return logprobs.masked_fill(~mask, 0).sum(1)


def sequence_mean_logprob(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Mean log π(y_t|h_t) over the masked tokens. [B, T] -> [B]; a row without tokens gives 0."""
    return sequence_logprob(logprobs, mask) / mask.sum(1).clamp(min=1)


def pair_gap(values: Tensor) -> Tensor:
    """The chosen row's value minus the rejected one's. [B] in (chosen, rejected) order -> [P]."""
    chosen, rejected = values.reshape(-1, 2).unbind(1)
    return chosen - rejected


def margins(policy: Tensor, reference: Tensor) -> Tensor:
    """Δ = log π/π_ref of the chosen row minus that of the rejected one (DPO, arXiv 2305.18290, eq. 7). [B] -> [P].

    Both arguments are sequence log-probs in (chosen, rejected) order; the reference is a constant.
    """
    if policy.ndim != 1 or policy.shape != reference.shape or len(policy) % 2:
        found = f"{tuple(policy.shape)} and {tuple(reference.shape)}"
        raise ValueError(f"policy, reference: found shapes {found}, expected one even [B]: (chosen, rejected) pairs")
    return pair_gap(policy - reference.detach())


def dpo(margins: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """-(1-ε) log σ(βΔ) - ε log σ(-βΔ) (DPO, arXiv 2305.18290, eq. 7; ε > 0: conservative DPO). [P] -> [P].

    At π = π_ref it is log 2 with gradient -(β/2)(1-2ε) in the margin.
    """
    return -(1 - smoothing) * F.logsigmoid(beta * margins) - smoothing * F.logsigmoid(-beta * margins)


def simpo(gap: Tensor, beta: float, margin: float) -> Tensor:
    """-log σ(β gap - margin), gap in mean log-probs per token (SimPO, arXiv 2405.14734, eq. 6). [P] -> [P].

    At gap 0 it is log(1 + e^margin).
    """
    return -F.logsigmoid(beta * gap - margin)
