"""Completions from a model in this process: a key-value cache, and rows that leave the batch when they are finished.

Row i's token t is drawn by one inverse-CDF pass from the t-th uniform number of row i's key, so what a row says does
not depend on who shares its batch, up to the rounding of kernels: a matrix product of another shape may round
otherwise. In float64 and float32 that moves the last bits, and a draw only where a uniform number falls between them.
In bfloat16 and float16 it moves the last of a logit's two to four digits, so rows drawn in another batch (another
`policy.rows`, other problems in the step, another number of ranks) may say something else.

Log-probs and entropy are recorded from the very distribution the token was drawn from, under the sampling temperature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.batch import Rollouts
from posttrain.functional.selection import keyed_uniforms
from posttrain.policies.base import Policy
from posttrain.policies.lm_projection import Distribution, Head, distribution

BLOCK = 512  # ids whose weights are summed before the search
TOKEN_STREAM = 5  # keeps a row's draws apart from those of every later choice about it
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}  # nats; half types differ more between their two passes
HALF_TOLERANCE = 0.25


class NonFiniteLogits(ArithmeticError):
    """The model's logits are NaN or infinite: there is no distribution to draw from."""


class Backbone(Protocol):
    """A transformers base model: ids [B, L] (and a cache) -> an output with `last_hidden_state` [B, L, H]."""

    config: Any
    forward: Callable[..., Any]

    def __call__(self, **inputs: Any) -> Any: ...


@dataclass(frozen=True)
class Sampling:
    """The user's settings of the sampler; the checkpoint's generation_config has no say in them."""

    max_tokens: int
    eos: frozenset[int]
    rows: int = 64  # completions in the batch at once
    greedy: bool = False


@dataclass(frozen=True)
class Drawn:
    """Completions with what was recorded, on the CPU. A finished row ends with its end token, inside the mask."""

    ids: Tensor  # [B, T] int64, zeros beyond the mask
    mask: Tensor  # [B, T] bool
    logprobs: Tensor  # [B, T]
    entropy: Tensor  # [B, T]
    truncated: Tensor  # [B] bool: stopped by the limit, not by an end token


@torch.no_grad()
def draw(
    backbone: Backbone, head: Head, prompts: Sequence[Sequence[int]], keys: Tensor, settings: Sampling, device: str
) -> Drawn:
    """One completion of each of B prompts; `keys` [B, 4] decide every draw."""
    batches = _batches([len(prompt) for prompt in prompts], settings.rows, _masks_overflow(backbone, head))
    parts = [
        _draw_batch(backbone, head, [prompts[row] for row in rows], keys[rows], settings, device) for rows in batches
    ]
    length = max(part.mask.shape[1] for part in parts)
    place = torch.tensor([row for rows in batches for row in rows]).argsort()
    joined: dict[str, Tensor] = {}
    for f in fields(Drawn):
        values = [getattr(part, f.name) for part in parts]
        if values[0].dim() == 2:
            values = [torch.nn.functional.pad(v, (0, length - v.shape[1])) for v in values]
        joined[f.name] = torch.cat(values)[place]
    return Drawn(**joined)


def _batches(lengths: list[int], most: int, equal: bool) -> list[list[int]]:
    """Rows with prompts of like length together, at most `most` of them; of one length alone where `equal`."""
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = batches[-1] if batches else None
        if last is None or len(last) == most or (equal and lengths[last[0]] != lengths[row]):
            batches.append([row])
        else:
            last.append(row)
    return batches


def _masks_overflow(backbone: Backbone, head: Head) -> bool:
    """Eager attention in float64 takes its softmax in float32, where a padded row's mask is -inf throughout: NaN."""
    return head.weight.dtype == torch.float64 and backbone.config._attn_implementation == "eager"


def _draw_batch(
    backbone: Backbone, head: Head, prompts: Sequence[Sequence[int]], keys: Tensor, settings: Sampling, device: str
) -> Drawn:
    count, limit = len(prompts), settings.max_tokens
    uniforms = keyed_uniforms(keys, limit, TOKEN_STREAM).to(device)
    state = _prefill(backbone, prompts, device)
    real = torch.float64 if head.weight.dtype == torch.float64 else torch.float32
    ids = torch.zeros(count, limit, dtype=torch.int64, device=device)
    recorded = torch.zeros(2, count, limit, dtype=real, device=device)  # log-prob and entropy
    lengths = torch.full((count,), limit, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    ends = torch.tensor(sorted(settings.eos), dtype=torch.int64, device=device)
    live = torch.arange(count, device=device)
    for step in range(limit):
        found = _finite(distribution(head, state.hidden), step, None if settings.greedy else keys[0])
        token, logprob, entropy = _next(found, None if settings.greedy else uniforms[live, step])
        ids[live, step], recorded[0, live, step], recorded[1, live, step] = token, logprob, entropy
        over = torch.isin(token, ends)
        ended[live] = over
        if over.any():
            lengths[live[over]] = step + 1
            keep = (~over).nonzero().squeeze(1)
            live, token = live[keep], token[keep]
            state.select(keep)
        if not len(live) or step + 1 == limit:
            break
        _advance(backbone, state, token)
    length = int(lengths.max())
    mask = torch.arange(length, device=device) < lengths.unsqueeze(1)
    drawn = (ids[:, :length], mask, recorded[0, :, :length], recorded[1, :, :length], ~ended)
    return Drawn(*(value.cpu() for value in drawn))


@dataclass
class _State:
    """Live rows in the middle of their completions."""

    cache: Any
    hidden: Tensor  # [n, H] of each row's last token
    attention: Tensor | None  # [n, L] bool; None where no prompt is padded, so that nothing has to be masked
    position: Tensor  # [n] of the next token

    def select(self, rows: Tensor) -> None:
        """Keeps rows, or repeats them."""
        self.cache.batch_select_indices(rows)
        self.hidden, self.position = self.hidden[rows], self.position[rows]
        self.attention = None if self.attention is None else self.attention[rows]


def _prefill(backbone: Backbone, prompts: Sequence[Sequence[int]], device: str) -> _State:
    """Each different prompt once, left-padded, then one copy of its cache for each of its rows."""
    from posttrain.samplers.kv_cache import roomy_cache

    place: dict[tuple[int, ...], int] = {}
    row_of = [place.setdefault(tuple(prompt), len(place)) for prompt in prompts]
    longest = max(len(prompt) for prompt in place)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in place], device=device)
    lengths = torch.tensor([len(prompt) for prompt in place], device=device)
    attention = torch.arange(longest, device=device) >= longest - lengths.unsqueeze(1)
    cache = roomy_cache(backbone.config)
    padded = bool((lengths < longest).any())
    output = backbone(
        input_ids=ids,
        attention_mask=attention.long() if padded else None,
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        **{cache_word(backbone): cache},
    )
    state = _State(cache, output.last_hidden_state[:, -1], attention if padded else None, lengths)
    if row_of != list(range(len(place))):
        state.select(torch.tensor(row_of, device=device))
    return state


def _advance(backbone: Backbone, state: _State, token: Tensor) -> None:
    """Feeds the tokens [n] that were just drawn."""
    if state.attention is not None:
        state.attention = torch.nn.functional.pad(state.attention, (0, 1), value=True)
    output = backbone(
        input_ids=token.unsqueeze(1),
        attention_mask=None if state.attention is None else state.attention.long(),
        position_ids=state.position.unsqueeze(1),
        use_cache=True,
        **{cache_word(backbone): state.cache},
    )
    state.hidden, state.position = output.last_hidden_state[:, -1], state.position + 1


def cache_word(backbone: Backbone) -> str:
    """What this model's `forward` calls its cache: transformers renamed it at 5.24."""
    return "cache" if "cache" in inspect.signature(backbone.forward).parameters else "past_key_values"


def _finite(found: Distribution, place: int, key: Tensor | None) -> Distribution:
    """The distributions at a token, of which none is lost; `key` is of one of the rows, None where it is greedy."""
    if not found.total.isfinite().all():
        what = "a greedy completion"
        if key is not None:
            seed, step = key[:2].tolist()
            what = f"a completion (seed {seed}, step {step})"
        raise NonFiniteLogits(
            f"the model's logits are not finite at token {place + 1} of {what}, so nothing can be drawn from them. Its "
            "weights are broken or have grown without bound: lower learning_rate, write policy.dtype=float32 for a "
            "half type, or copy the model again."
        )
    return found


def _next(found: Distribution, uniforms: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Token, its log-prob and the entropy [n] from distributions; the most probable token without uniforms."""
    if uniforms is None:
        places = torch.arange(found.shifted.shape[1], device=found.shifted.device)
        token = torch.where(found.shifted == 0, places, len(places)).amin(1)  # ties go to the lowest id
    else:
        token = inverse_cdf(found.weights, uniforms)
    return token, found.at(token.unsqueeze(1)).squeeze(1), found.entropy()


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative weight exceeds uniform * total: [n, V] >= 0, [n] in [0, 1) float64 -> [n].

    The block of ids is found by the cumulative sums of blocks, the id by those within its block: one pass over V. What
    is accumulated is float64, or the largest uniforms would round to the total; an id of weight zero is never drawn.
    """
    blocks = torch.nn.functional.pad(weights, (0, -weights.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    sums = blocks.sum(2).double()
    place, left = _first_above(sums, uniforms * sums.sum(1))
    inside = blocks[torch.arange(len(blocks), device=blocks.device), place].double()
    return place * BLOCK + _first_above(inside, left)[0]


def _first_above(weights: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """[n, K] float64 >= 0, [n] -> the first place whose cumulative sum exceeds the threshold, and what was left there.

    A threshold that rounding brought to the total is taken just below it, where the place has weight.
    """
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1]
    threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(cumulative, threshold.unsqueeze(1), right=True)
    before = cumulative.gather(1, place) - weights.gather(1, place)
    return place.squeeze(1), (threshold - before.squeeze(1)).clamp(min=0)


# -- does the trainer see what the sampler saw? ---------------------------------------------------------------


class ParityError(RuntimeError):
    """Sampler and trainer disagree about the log-probs of the same tokens."""


@torch.no_grad()
def parity(policy: Policy, rollouts: Rollouts) -> float:
    """The largest |recorded - scored| log-prob over the tokens the student drew, in nats; 0 where there are none."""
    apart = (policy.score(rollouts, rollouts.mask).logprobs - rollouts.logprobs).abs()
    drawn = rollouts.mask & (rollouts.source == 0).unsqueeze(1)
    return float(torch.where(drawn, apart, 0).max()) if drawn.any() else 0.0


def tolerance_of(dtype: torch.dtype) -> float:
    """How far recorded and scored log-probs of weights of this type may lie apart, in nats."""
    return TOLERANCE.get(dtype, HALF_TOLERANCE)


def require_parity(policy: Policy, rollouts: Rollouts, tolerance: float) -> float:
    """`parity`, which raises ParityError above `tolerance`: importance ratios would not start at one."""
    found = parity(policy, rollouts)
    if not found <= tolerance:
        raise ParityError(
            f"the log-probs recorded while sampling and those of the trainer differ by {found:.3g} nats, more than "
            f"{tolerance:.3g}. The two have to use the same weights, temperature, dtype and attention: check "
            "policy.temperature, policy.dtype and policy.attn_implementation."
        )
    return found
