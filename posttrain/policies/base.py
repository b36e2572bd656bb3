"""The one interface every policy has, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Problem, Rollouts, Scores, Targets

DivergenceKind = Literal["forward_kl", "reverse_kl", "jsd"]


@dataclass(frozen=True)
class Divergence:
    """A full-vocabulary divergence between student and teacher, and its mixing weight (JSD only)."""

    kind: DivergenceKind = "reverse_kl"
    beta: float = 0.5


@dataclass(frozen=True)
class States:
    """A model's view of completions before the vocabulary projection, so that full logits never travel."""

    hidden: Tensor  # [B, T, H]
    project: Callable[[Tensor], Tensor]  # [..., H] -> log-probs [..., V]


@dataclass(frozen=True)
class Expectations:
    """Means over a policy's own distribution, in nats per token, one entry per problem."""

    entropy: Tensor  # [P]
    kl: Mapping[str, Tensor]  # name of the other policy -> KL(policy || other) [P]


class Policy(Protocol):
    """Draws completions, prices them, and can be copied. Log-probs are under the sampling temperature.

    `keyed` says that completions are drawn from their keys alone, not from the stream.
    """

    keyed: bool

    def sample(
        self, problems: Sequence[Problem], group_size: int, stream: np.random.Generator, seed: int, step: int
    ) -> Rollouts:
        """`group_size` completions of each problem, drawn from `stream`."""
        ...

    def respond(self, problems: Sequence[Problem], seed: int, step: int) -> Rollouts:
        """The problems' own data rows as rollouts (source `data`); all problems have the same number of them."""
        ...

    def greedy(self, problems: Sequence[Problem]) -> Rollouts:
        """The most probable token at each step; ties go to the lowest id."""
        ...

    def states(self, rollouts: Rollouts) -> States:
        """Hidden states of the completions' positions, without gradient."""
        ...

    def score(
        self,
        rollouts: Rollouts,
        where: Tensor,
        *,
        support_ids: Tensor | None = None,
        divergence: Divergence | None = None,
        against: States | None = None,
        values: bool = False,
    ) -> Scores:
        """Log-probs and entropy at `where` [B, T] (zero elsewhere), with gradient."""
        ...

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None = None) -> Targets:
        """What this policy says as a teacher or reference, without gradient."""
        ...

    def expectations(self, problems: Sequence[Problem], others: Mapping[str, Policy]) -> Expectations:
        """Entropy and KL to other policies: exact where the policy can be enumerated, sampled elsewhere."""
        ...

    def token_texts(self, problem: Problem, ids: Sequence[int]) -> list[str]:
        """How each token of a completion of `problem` reads by itself, blanks and line breaks included."""
        ...

    def snapshot(self) -> Policy:
        """A frozen copy."""
        ...

    def identity(self) -> Mapping[str, str]:
        """Digests of everything that decides this policy's log-probs: weights, vocabulary, settings."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """What the optimizer moves."""
        ...


class PolicyConfig(Protocol):
    """A registered policy's options."""

    start: str | None

    def build(self, problems: Sequence[Problem], weights: Mapping[str, np.ndarray], critic: bool) -> Policy:
        """The policy over `problems`, from `weights` (a checkpoint) or, where that is empty, from its own start."""
        ...
