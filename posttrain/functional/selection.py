"""Which tokens of the sampled completions are supervised.

A selection reads scores, masks and keys and returns a bool mask [B, T] inside the given one. Random choices are drawn
from `keys` [B, 4] (seed, step, problem, completion) alone, so they survive any split, permutation or padding of rows.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

Rule = Literal[
    "all", "highest", "lowest", "extremes", "tails", "random",
    "first", "last", "interval", "trajectories", "top_fraction",
]  # fmt: skip
Scope = Literal["completion", "group", "batch"]

# Streams of `keyed_uniforms` that belong to `select`; those from 0 up are free for others.
_TOKEN_STREAM, _ROW_STREAM = -1, -2
_FIELDS: dict[str, tuple[str, ...]] = {
    "all": (),
    "highest": ("k", "scope"),
    "lowest": ("k", "scope"),
    "extremes": ("low", "high", "scope"),
    "tails": ("fraction", "scope"),
    "random": ("k", "scope"),
    "first": ("k",),
    "last": ("k",),
    "interval": ("k",),
    "trajectories": ("k",),
    "top_fraction": ("fraction", "scope"),
}


@dataclass(frozen=True)
class Select:
    """A rule and its numbers. A rule reads the fields named here and ignores the rest; n = masked tokens in its scope.

    | rule           | keeps                                                          | fields           | reads  |
    |----------------|----------------------------------------------------------------|------------------|--------|
    | `all`          | every token                                                    |                  |        |
    | `highest`      | the k highest scores                                           | k, scope         | scores |
    | `lowest`       | the k lowest scores                                            | k, scope         | scores |
    | `extremes`     | the `low` lowest and the `high` highest, a token in both once  | low, high, scope | scores |
    | `tails`        | max(1, ceil(fraction n)) at each end, a token in both once     | fraction, scope  | scores |
    | `random`       | k uniformly, without replacement                               | k, scope         | keys   |
    | `first`        | the first k of each completion                                 | k                |        |
    | `last`         | the last k of each completion                                  | k                |        |
    | `interval`     | tokens 0, k, 2k, ... of each completion                        | k                |        |
    | `trajectories` | all of some completions: about k tokens a completion on average | k               | keys   |
    | `top_fraction` | the max(1, ceil(fraction n)) highest scores                    | fraction, scope  | scores |

    Scores tie to the lowest index (row-major in a group or batch), except `highest` at group scope, which keeps the
    last k of a stable ascending sort: the recorded artifact was made so. A scope with fewer than k tokens keeps all.
    A random fraction is `top_fraction` of `keyed_uniforms`.
    """

    rule: Rule = "all"
    k: int = 1
    low: int = 1
    high: int = 1
    fraction: float = 0.5
    scope: Scope = "completion"

    def __post_init__(self) -> None:
        if self.rule not in _FIELDS:
            raise ValueError(f"Select.rule: found {self.rule!r}, expected one of {', '.join(_FIELDS)}")
        used = _FIELDS[self.rule]
        for name, least in (("k", 1), ("low", 0), ("high", 0)):
            value = getattr(self, name)
            if name in used and (not isinstance(value, int) or value < least):
                raise ValueError(f"Select.{name}: found {value!r}, expected a whole number from {least} up")
        if self.rule == "extremes" and self.low + self.high == 0:
            raise ValueError("Select.low, Select.high: found 0 and 0, expected at least one token to keep")
        if "fraction" in used and not 0 < self.fraction <= 1:
            raise ValueError(f"Select.fraction: found {self.fraction!r}, expected a number above 0 and at most 1")
        if "scope" in used and self.scope not in get_args(Scope):
            raise ValueError(f"Select.scope: found {self.scope!r}, expected one of {', '.join(get_args(Scope))}")

    @property
    def reads_scores(self) -> bool:
        """False for a rule that can be applied before anything is known of the tokens."""
        return self.rule in ("highest", "lowest", "extremes", "tails", "top_fraction")

    @property
    def mixes_groups(self) -> bool:
        """True for a rule that looks at the whole step at once."""
        return self.rule == "trajectories" or ("scope" in _FIELDS[self.rule] and self.scope == "batch")


@torch.no_grad()
def select(rule: Select, scores: Tensor | None, mask: Tensor, group_size: int, keys: Tensor) -> Tensor:
    """The kept tokens: bool [B, T], never outside the mask; rows without tokens keep none.

    `scores` [B, T] may be anything outside the mask and None for a rule that does not read them; `keys` int64 [B, 4].
    """
    rows, length = mask.shape
    if rows % group_size:
        raise ValueError(f"mask: found {rows} rows, expected a multiple of group_size = {group_size}")
    if not mask.any():
        return torch.zeros_like(mask)
    if rule.rule == "all":
        return mask.clone()
    if rule.rule in ("first", "last", "interval"):
        return _by_place(rule, mask)
    if rule.rule == "trajectories":
        return _whole_rows(rule.k, mask, keys)
    if rule.rule == "random":
        scores = keyed_uniforms(keys, length, _TOKEN_STREAM).to(mask.device)
    if scores is None or scores.shape != mask.shape:
        found = None if scores is None else tuple(scores.shape)
        raise ValueError(f"scores: found {found}, expected shape {tuple(mask.shape)} for rule {rule.rule!r}")
    if scores[mask].isnan().any():
        raise ValueError("scores: found NaN inside the mask, expected numbers that can be ordered")
    scopes = {"completion": rows, "group": rows // group_size, "batch": 1}[rule.scope]
    return _by_score(rule, scores.reshape(scopes, -1), mask.reshape(scopes, -1)).reshape(rows, length)


@torch.no_grad()
def soft_or(entropy: Tensor, divergence: Tensor, mask: Tensor) -> Tensor:
    """TIP's score ĥ + δ̂ - ĥ δ̂ of student entropy and teacher-student divergence (arXiv 2604.14084). [B, T] -> [B, T].

    Each is min-max normalised over all masked tokens given (constant -> 0), so this mixes groups: call it on the
    whole step. Zero outside the mask.
    """
    h, d = _min_max(entropy, mask), _min_max(divergence, mask)
    return h + d - h * d


def keyed_uniforms(keys: Tensor, count: int, stream: int = 0) -> Tensor:
    """Uniform numbers in [0, 1), a function of (key, index, stream) alone: int64 keys [B, 4] -> float64 [B, count].

    SplitMix64 (Steele, Lea and Flood 2014): the stream and the words of the key are absorbed one after the other, then
    number t is the t-th output from that state. Purposes that must not share numbers take different streams.
    """
    if keys.ndim != 2 or keys.shape[1] != 4 or keys.dtype != torch.int64:
        raise TypeError(f"keys: found {keys.dtype} of shape {tuple(keys.shape)}, expected torch.int64 [B, 4]")
    words = np.ascontiguousarray(keys.cpu().numpy()).view(np.uint64)
    state = _mix(np.full(len(words), stream % 2**64, dtype=np.uint64) + _GOLDEN)
    for word in words.T:
        state = _mix((state ^ word) + _GOLDEN)
    counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(state[:, None] + counters) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53).to(keys.device)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64: a bijection of 64 bits, modulo 2**64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _by_place(rule: Select, mask: Tensor) -> Tensor:
    place = mask.cumsum(1) - 1
    if rule.rule == "first":
        return mask & (place < rule.k)
    if rule.rule == "last":
        return mask & (place >= mask.sum(1, keepdim=True) - rule.k)
    return mask & (place % rule.k == 0)


def _whole_rows(k: int, mask: Tensor, keys: Tensor) -> Tensor:
    """All tokens of max(1, round(rows k / mean length)) non-empty rows, the ones with the smallest draws."""
    lengths = mask.sum(1)
    rows, tokens = int((lengths > 0).sum()), int(lengths.sum())
    number = max(1, round(rows * k * rows / tokens))
    draws = keyed_uniforms(keys, 1, _ROW_STREAM)[:, 0].to(mask.device)
    kept = _rank(draws[None], (lengths > 0)[None])[0] < number
    return mask & kept[:, None]


def _by_score(rule: Select, scores: Tensor, mask: Tensor) -> Tensor:
    """Scores and mask [S, N], one scope a row -> kept [S, N]."""
    if rule.rule == "highest" and rule.scope == "group":
        return mask & (_rank(scores, mask) >= mask.sum(1, keepdim=True) - rule.k)
    lowest, highest = _numbers(rule, mask)
    low = _rank(scores, mask) < lowest
    high = _rank(scores, mask, descending=True) < highest
    return mask & (low | high)


def _numbers(rule: Select, mask: Tensor) -> tuple[Tensor | int, Tensor | int]:
    """How many tokens are kept at the low and at the high end: a number, or one for each scope [S, 1]."""
    if rule.rule == "extremes":
        return rule.low, rule.high
    if rule.rule in ("lowest", "random"):
        return rule.k, 0
    if rule.rule == "highest":
        return 0, rule.k
    # The decimal the config says, not its binary neighbour: 7 of 100 tokens at 0.07, where 0.07 * 100 > 7.
    fraction = Fraction(str(rule.fraction))
    shares = [max(1, math.ceil(fraction * n)) for n in mask.sum(1).tolist()]
    share = torch.tensor(shares, device=mask.device)[:, None]
    return (share if rule.rule == "tails" else 0), share


def _rank(scores: Tensor, mask: Tensor, descending: bool = False) -> Tensor:
    """Place of each entry when its row is sorted, equal scores by index, everything outside the mask last: [S, N]."""
    order = scores.argsort(dim=1, descending=descending, stable=True)
    order = order.gather(1, (~mask).gather(1, order).to(torch.uint8).argsort(dim=1, stable=True))
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def _min_max(values: Tensor, mask: Tensor) -> Tensor:
    if not mask.any():
        return torch.zeros_like(values)
    low, high = values[mask].min(), values[mask].max()
    scaled = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    return scaled.masked_fill(~mask, 0)
