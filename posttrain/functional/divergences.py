"""Divergences between two next-token distributions, and estimators from sampled tokens.

Log-probabilities [..., V] in, one number per position [...] out; nothing is summed over positions. Student π and
teacher q as in the papers: forward KL = KL(q‖π), reverse KL = KL(π‖q). 0 log 0 = 0, in the value and in the gradient,
so banned tokens (-inf on both sides) are harmless. Mass where the other side has none is a true +inf for the KLs, with
no usable gradient for the reverse one, and finite for the JSD. Half types are raised to float32; float64 stays float64.

The teacher is not detached here: a teacher's log-probs carry no gradient unless someone asks for one.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]
Estimator = Literal["k1", "k2", "k3", "k3_plus", "ratio_k3"]


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probs over the last axis, in float32 for half types. [..., V] -> [..., V]; one logit must be finite."""
    return torch.log_softmax(_raised(logits), dim=-1)


def entropy(log_probs: Tensor) -> Tensor:
    """H(π) = -Σ_v π log π in nats. [..., V] -> [...]."""
    log_probs = _raised(log_probs)
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0)).sum(-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher‖student), mass-covering. [..., V] -> [...]. Gradient in the student's logits: π - q."""
    return _kl(_raised(teacher), _raised(student))


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student‖teacher), mode-seeking. [..., V] -> [...]. Gradient in the student's logits: π (log π/q - KL)."""
    return _kl(_raised(student), _raised(teacher))


def jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Generalised Jensen-Shannon divergence of GKD (arXiv 2306.13649, section 2). [..., V] -> [...].

    β KL(q‖M) + (1-β) KL(π‖M) with M = β q + (1-β) π for 0 < β < 1: at most the binary entropy of β, symmetric at ½,
    and falling to 0 towards both ends. β = 0 is *defined* as the forward KL and β = 1 as the reverse KL (as TRL does;
    they are the limits of JSD/β and JSD/(1-β)), so the value is discontinuous in β at both ends.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta: found {beta!r}, expected a number between 0 (forward KL) and 1 (reverse KL)")
    if beta == 0:
        return forward_kl(student, teacher)
    if beta == 1:
        return reverse_kl(student, teacher)
    student, teacher = _raised(student), _raised(teacher)
    mixture = _mixture(student, teacher, beta)
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def divergence(kind: Divergence, student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    """The divergence named by a config. [..., V] -> [...]; `beta` matters to 'jsd' alone."""
    if kind == "forward_kl":
        return forward_kl(student, teacher)
    if kind == "reverse_kl":
        return reverse_kl(student, teacher)
    if kind == "jsd":
        return jsd(student, teacher, beta)
    raise ValueError(f"divergence: found {kind!r}, expected 'forward_kl', 'reverse_kl' or 'jsd'")


def logit_gradient(kind: Divergence, student: Tensor, teacher: Tensor, beta: float, value: Tensor) -> Tensor:
    """The gradient of `divergence` in the student's logits, in closed form. Log-probs [..., V] -> [..., V].

    π (log π/q - KL) for the reverse KL, π - q for the forward one, (1-β) π (log π/M - KL(π‖M)) for the JSD. `value`
    [...] is the divergence itself: with it, the KLs give the gradient of any part of the ids from that part alone.
    """
    student, teacher = _raised(student), _raised(teacher)
    if kind == "jsd" and beta in (0, 1):
        kind = "reverse_kl" if beta else "forward_kl"
    p = student.exp()
    if kind == "forward_kl":
        return p - teacher.exp()
    if kind == "reverse_kl":
        gap = (student - teacher).masked_fill_(p == 0, 0)
        return p.mul_(gap.sub_(value.unsqueeze(-1)))
    gap = (student - _mixture(student, teacher, beta)).masked_fill_(p == 0, 0)
    mean = (p * gap).sum(-1, keepdim=True)
    return p.mul_(gap.sub_(mean)).mul_(1 - beta)


def with_tail(support_logprobs: Tensor) -> Tensor:
    """Support log-probs [..., K] and, after them, the log of the mass they leave out: [..., K+1].

    A divergence between two of these on one support is the bucket divergence (SDPO, arXiv 2601.20802): at most the
    full one, zero gradient at π = q, and the full one when K = V. A sum over the support alone is no divergence: it
    may be negative and moves a perfect student. The tail is log(1 - S) = log1mexp(log S), taken as log1p(-S), which
    stays finite for an empty support; what is left of an exhausted mass (K = V) is rounding, so it is floored at the
    machine epsilon and gets no gradient.
    """
    support_logprobs = _raised(support_logprobs)
    mass = support_logprobs.exp().sum(-1, keepdim=True)
    tail = torch.log1p(-mass.clamp(max=1 - torch.finfo(mass.dtype).eps))
    return torch.cat([support_logprobs, tail], dim=-1)


def kl_estimator(kind: Estimator, logprobs: Tensor, reference: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    """Estimates of KL(π‖π_ref) from log-probs of sampled tokens, any shape (Schulman, "Approximating KL", 2020).

    With d = log π - log π_ref and tokens drawn from π, what each is in expectation:

    | kind       | form                        | value      | gradient through log π                    |
    |------------|-----------------------------|------------|-------------------------------------------|
    | `k1`       | d                           | KL         | none: use it in a reward, not in a loss   |
    | `k2`       | ½ d²                        | not the KL | ∇ KL(π‖π_ref)                             |
    | `k3`       | e^{-d} - 1 + d              | KL, >= 0   | ∇ KL(π_ref‖π), not ∇ KL(π‖π_ref) (GRPO's) |
    | `k3_plus`  | k3, with the gradient of k2 | KL, >= 0   | ∇ KL(π‖π_ref)                             |
    | `ratio_k3` | r k3, r = exp(log_ratio)    | KL         | ∇ KL(π‖π_ref), tokens from π_old          |

    `ratio_k3` corrects for the policy that sampled (DeepSeek-V3.2, arXiv 2512.02556); without `log_ratio` that is π
    itself, r = 1 with the gradient of log π. Only k1 and k2 are finite for every finite d; nothing is clamped.
    """
    d = logprobs - reference.detach()
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d.square()
    k3 = torch.expm1(-d) + d
    if kind == "k3":
        return k3
    if kind == "k3_plus":
        k2 = 0.5 * d.square()
        return k2 - k2.detach() + k3.detach()
    if kind == "ratio_k3":
        return (logprobs - logprobs.detach() if log_ratio is None else log_ratio).exp() * k3
    raise ValueError(f"kl estimator: found {kind!r}, expected 'k1', 'k2', 'k3', 'k3_plus' or 'ratio_k3'")


def _mixture(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """log M, M = β q + (1-β) π."""
    # Where both sides have no mass, logaddexp(-inf, -inf) would have a NaN gradient.
    nowhere = (student == -torch.inf) & (teacher == -torch.inf)
    return torch.logaddexp(
        teacher.masked_fill(nowhere, 0) + math.log(beta), student.masked_fill(nowhere, 0) + math.log1p(-beta)
    )


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ_v p (log p - log q), from log-probs."""
    return (p.exp() * (p - q).masked_fill(p == -torch.inf, 0)).sum(-1)


def _raised(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
