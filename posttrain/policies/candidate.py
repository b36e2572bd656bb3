"""Policies small enough to enumerate: `bandit` (one choice), `factored` (T choices), `tree` (choices see the last m).

A candidate policy is a causal LM with a small vocabulary: the prompt is one token, the problem's row in a table of
features [N, T, V, F], and the logit of choice v at position t is `features[t, v] . weight`, in a tree plus
`transition[context, v]`, where the context is the last `memory` choices.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import SOURCES, Problem, Rollouts, Scores, Source, Targets, completion_numbers
from posttrain.functional import divergences
from posttrain.policies.base import Divergence, Expectations, Policy, States
from posttrain.ranges import NOT_NEGATIVE, POSITIVE, Range, check
from posttrain.registry import ConfigError, policies

Weights = Mapping[str, np.ndarray]
ENGINE_STREAM = 3  # `default_rng([seed, step, ENGINE_STREAM])`: the noise of a mismatched sampler


@dataclass(frozen=True)
class CandidateConfig:
    """Options of every candidate policy."""

    temperature: float = 1.0  # divides the logits in every log-prob and while sampling
    replacement: bool = True  # False draws a group without replacement, which biases the gradient
    mismatch: float = 0.0  # standard deviation of noise on the sampler's logits, as another engine would have
    log_floor: float = 0.0  # added to probabilities inside reported logarithms: value only, never gradient
    dtype: Literal["float64", "float32"] = "float64"
    start: str | None = None  # a checkpoint the dataset knows; None starts at zero, the uniform policy

    def __post_init__(self) -> None:
        check("policy", self, temperature=POSITIVE, log_floor=NOT_NEGATIVE, mismatch=NOT_NEGATIVE)


@policies.register("bandit")
@dataclass(frozen=True)
class Bandit(CandidateConfig):
    """One choice among K candidates: T = 1."""

    def build(self, problems: Sequence[Problem], weights: Weights, critic: bool) -> CandidatePolicy:
        """The policy over `problems`; without weights all logits start at zero."""
        if any(problem.features is not None and len(problem.features) != 1 for problem in problems):
            raise ConfigError(
                "policy.name: `bandit` makes one choice, but this dataset has several. Write `factored` or `tree`."
            )
        return CandidatePolicy(self, problems, weights, critic, memory=0)


@policies.register("factored")
@dataclass(frozen=True)
class Factored(CandidateConfig):
    """T choices that do not see each other."""

    def build(self, problems: Sequence[Problem], weights: Weights, critic: bool) -> CandidatePolicy:
        """The policy over `problems`; without weights all logits start at zero."""
        return CandidatePolicy(self, problems, weights, critic, memory=0)


@policies.register("tree")
@dataclass(frozen=True)
class Tree(CandidateConfig):
    """T choices that see the last `memory` ones, so that expectations stay exact by dynamic programming."""

    memory: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        few = Range("1, 2 or 3 (contexts grow as (V + 1)^m)", lambda value: 1 <= value <= 3)
        check("policy", self, memory=few)

    def build(self, problems: Sequence[Problem], weights: Weights, critic: bool) -> CandidatePolicy:
        """The policy over `problems`; without weights all logits start at zero."""
        return CandidatePolicy(self, problems, weights, critic, memory=self.memory)


class CandidatePolicy(torch.nn.Module):
    """A linear softmax policy over the candidates of a fixed table of problems."""

    features: Tensor  # [N, T, V, F]
    noise: Tensor | None = None  # [T, V], on a sampler that is not quite the trainer's policy
    lengths: Tensor  # [N, T] bool

    keyed = False

    def __init__(
        self, config: CandidateConfig, problems: Sequence[Problem], weights: Weights, critic: bool, memory: int
    ) -> None:
        super().__init__()
        self.config, self.memory = config, memory
        self.problems = tuple(problems)
        self.place = {problem.id: row for row, problem in enumerate(self.problems)}
        dtype = getattr(torch, config.dtype)
        table, mask = _table(self.problems)
        _, steps, vocabulary, columns = table.shape
        if not config.replacement and steps != 1:
            raise ConfigError("policy.replacement: false is defined for one choice only (policy.name=bandit)")
        weight = weights.get("weight", np.zeros(columns))
        self.register_buffer("features", torch.from_numpy(table[..., : len(weight)]).to(dtype))
        self.register_buffer("lengths", torch.from_numpy(mask))
        # Copies: training must not reach the dataset's checkpoints.
        self.weight = torch.nn.Parameter(torch.tensor(weight, dtype=dtype))
        contexts = (vocabulary + 1) ** memory
        if "transition" in weights and not memory:
            raise ConfigError("policy.name: this dataset's choices depend on the prefix. Write policy.name=tree.")
        transition = torch.tensor(weights.get("transition", np.zeros((contexts, vocabulary))), dtype=dtype)
        if memory:  # a table of the last choice alone serves every context that ends in it
            transition = transition.repeat(contexts // len(transition), 1)
        self.transition = torch.nn.Parameter(transition) if memory else None
        self.critic = torch.nn.Parameter(torch.zeros(2 * len(weight) + 2, dtype=dtype)) if critic else None

    # -- drawing ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self, problems: Sequence[Problem], group_size: int, stream: np.random.Generator, seed: int, step: int
    ) -> Rollouts:
        """Completions by inverse CDF, one uniform per row and position (see `Policy.sample`)."""
        rows, engine = self._rows(problems), self._engine(seed, step)
        if not self.config.replacement:
            probabilities = engine._log_probs(rows, rows.new_zeros(len(rows), 1)).exp()[:, 0].numpy()
            if group_size > probabilities.shape[-1]:
                raise ConfigError(
                    f"group_size: found {group_size}, but policy.replacement=false draws each of "
                    f"{probabilities.shape[-1]} candidates once. Write fewer, or policy.replacement=true."
                )
            drawn = [stream.choice(len(p), group_size, replace=False, p=p / p.sum()) for p in probabilities]
            ids = torch.from_numpy(np.stack(drawn)).reshape(-1, 1)
        else:
            uniforms = torch.from_numpy(stream.random((len(rows) * group_size, self.features.shape[1])))
            ids = engine._decode(
                rows.repeat_interleave(group_size), lambda p, steps: _inverse_cdf(p, uniforms[:, steps])
            )
        return engine._rollouts(problems, ids, group_size, seed, step, "student")

    def _engine(self, seed: int, step: int) -> CandidatePolicy:
        """What samples: this policy, or a copy whose logits are off by noise that is fixed within a step."""
        if not self.config.mismatch:
            return self
        engine = self.snapshot()
        noise = np.random.default_rng([seed, step, ENGINE_STREAM]).standard_normal(tuple(self.features.shape[1:3]))
        engine.noise = self.config.mismatch * torch.from_numpy(noise).to(self.weight.dtype)
        return engine

    @torch.no_grad()
    def greedy(self, problems: Sequence[Problem]) -> Rollouts:
        """The argmax of each choice, lowest id on a tie (see `Policy.greedy`)."""
        ids = self._decode(self._rows(problems), lambda p, steps: torch.from_numpy(p.numpy().argmax(-1)))
        return self._rollouts(problems, ids, 1, 0, 0, "student")

    @torch.no_grad()
    def respond(self, problems: Sequence[Problem], seed: int, step: int) -> Rollouts:
        """The problems' data rows (see `Policy.respond`)."""
        sizes = {len(problem.responses) for problem in problems}
        if len(sizes) != 1 or sizes == {0}:
            raise ConfigError(
                f"dataset: its problems have {sorted(sizes)} responses each, but data rows need one fixed number"
            )
        steps = self.features.shape[1]
        rows = [
            [problem.candidates.index(word) for word in text.split(" ")]
            for problem in problems
            for text in problem.responses
        ]
        ids = torch.tensor([row + [0] * (steps - len(row)) for row in rows])
        return self._rollouts(problems, ids, sizes.pop(), seed, step, "data")

    def _decode(self, rows: Tensor, choose: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Token ids [B, T] by `choose(probabilities [B, t, V], steps)`: at once where choices are independent."""
        length = self.features.shape[1]
        ids = torch.zeros(len(rows), length, dtype=torch.int64)
        stride = 1 if self.memory else length
        for t in range(0, length, stride):
            steps = slice(t, t + stride)
            ids[:, steps] = choose(self._log_probs(rows, ids, steps).exp(), steps)
        return ids

    def _rollouts(
        self, problems: Sequence[Problem], ids: Tensor, group_size: int, seed: int, step: int, source: Source
    ) -> Rollouts:
        rows = self._rows(problems).repeat_interleave(group_size)
        ids = ids.masked_fill(~self.lengths[rows], 0)
        count = len(rows)
        completion = completion_numbers(problems, group_size)
        keys = torch.stack([torch.full((count,), seed), torch.full((count,), step), rows, completion], dim=1)
        mask = self.lengths[rows]
        repeated = [problem for problem in problems for _ in range(group_size)]
        texts = tuple(
            " ".join(p.candidates[i] for i, m in zip(row, keep, strict=True) if m)
            for p, row, keep in zip(repeated, ids.tolist(), mask.tolist(), strict=True)
        )
        rollouts = Rollouts(
            prompt_ids=rows.unsqueeze(1),
            prompt_mask=torch.ones(count, 1, dtype=torch.bool),
            completion_ids=ids,
            mask=mask,
            logprobs=torch.zeros(ids.shape, dtype=self.weight.dtype),
            entropy=torch.zeros(ids.shape, dtype=self.weight.dtype),
            truncated=torch.zeros(count, dtype=torch.bool),
            texts=texts,
            problem_ids=tuple(p.id for p in repeated),
            group_size=group_size,
            source=torch.full((count,), SOURCES.index(source)),
            keys=keys,
        )
        if source == "data":
            return rollouts
        # Recorded through `score` on the very same rows: a snapshot with equal weights then agrees bit for bit.
        recorded = self.score(rollouts, mask)
        return replace(rollouts, logprobs=recorded.logprobs, entropy=recorded.entropy)

    # -- pricing ----------------------------------------------------------------------------------------------

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
        """Log-probs, entropy and what else is asked for at `where` (see `Policy.score`)."""
        log_probs = self._log_probs(rollouts.prompt_ids[:, 0], rollouts.completion_ids)
        reported = self._floored(log_probs)
        chosen = reported.gather(-1, rollouts.completion_ids.unsqueeze(-1)).squeeze(-1)
        apart = None
        if divergence is not None and against is not None:
            teacher = against.project(against.hidden)
            apart = divergences.divergence(divergence.kind, log_probs, teacher, divergence.beta)
        return Scores(
            logprobs=_only(where, chosen),
            entropy=_only(where, -(log_probs.exp() * reported).sum(-1)),
            divergence=None if apart is None else _only(where, apart),
            support_logprobs=None if support_ids is None else reported.gather(-1, support_ids),
            values=_only(where, self._values(rollouts)) if values else None,
        )

    @torch.no_grad()
    def states(self, rollouts: Rollouts) -> States:
        """Log-probs stand for the hidden states, since V is small (see `Policy.states`)."""
        return States(self._log_probs(rollouts.prompt_ids[:, 0], rollouts.completion_ids), lambda hidden: hidden)

    @torch.no_grad()
    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None = None) -> Targets:
        """Log-probs at `where`, optionally of the top k and the sampled token (see `Policy.targets`)."""
        scores = self.score(rollouts, where)
        if top_k is None:
            return Targets(scores.logprobs, where, entropy=scores.entropy)
        log_probs = self._log_probs(rollouts.prompt_ids[:, 0], rollouts.completion_ids)
        ids = log_probs.topk(min(top_k, log_probs.shape[-1]), dim=-1).indices
        sampled = rollouts.completion_ids.unsqueeze(-1)
        absent = ~(ids == sampled).any(-1)
        ids[..., -1] = torch.where(absent, rollouts.completion_ids, ids[..., -1])
        return Targets(scores.logprobs, where, ids, self._floored(log_probs).gather(-1, ids), scores.entropy)

    @torch.no_grad()
    def expectations(self, problems: Sequence[Problem], others: Mapping[str, Policy]) -> Expectations:
        """Exact means over all prefixes, weighted by how often this policy visits them."""
        rows = self._rows(problems)
        log_probs = self._context_log_probs(rows)
        visits = self._visits(log_probs) * self.lengths[rows].unsqueeze(-1)
        visits = visits / self.lengths[rows].sum(-1)[:, None, None]
        reported, probabilities = self._floored(log_probs), log_probs.exp()

        def mean(per_state: Tensor) -> Tensor:
            return (visits * per_state).sum((1, 2))

        kl = {}
        for name, other in others.items():
            assert isinstance(other, CandidatePolicy)
            rival = other._floored(other._context_log_probs(other._rows(problems)))
            kl[name] = mean((probabilities * (reported - rival)).sum(-1))
        return Expectations(mean(-(probabilities * reported).sum(-1)), kl)

    # -- copying ----------------------------------------------------------------------------------------------

    def token_texts(self, problem: Problem, ids: Sequence[int]) -> list[str]:
        """The candidates themselves (see `Policy.token_texts`)."""
        return [problem.candidates[token] for token in ids]

    def snapshot(self) -> CandidatePolicy:
        """A frozen copy that shares the table of features."""
        shared = {id(self.features): self.features, id(self.lengths): self.lengths, id(self.problems): self.problems}
        return copy.deepcopy(self, shared).requires_grad_(False)

    def identity(self) -> Mapping[str, str]:
        """Digests of weights, table and settings (see `Policy.identity`)."""
        weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in self.parameters())).hexdigest()
        table = hashlib.sha256(self.features.numpy().tobytes() + self.lengths.numpy().tobytes()).hexdigest()
        settings = f"{self.config.temperature}/{self.config.log_floor}/{self.config.dtype}"
        return {"weights": weights, "vocabulary": table, "settings": settings}

    # -- logits -----------------------------------------------------------------------------------------------

    def _rows(self, problems: Sequence[Problem]) -> Tensor:
        return torch.tensor([self.place[problem.id] for problem in problems])

    def _base(self, rows: Tensor, steps: slice = slice(None)) -> Tensor:
        # Products and a sum, not a matrix product: BLAS may round two equal rows differently, which breaks exact ties.
        logits = (self.features[rows, steps] * self.weight).sum(-1)
        return (logits if self.noise is None else logits + self.noise[steps]) / self.config.temperature

    def _log_probs(self, rows: Tensor, ids: Tensor, steps: slice = slice(None)) -> Tensor:
        """[B, t, V] at positions `steps`, given the choices `ids` [B, T] before them."""
        logits = self._base(rows, steps)
        if self.transition is not None:
            logits = logits + self.transition[self._contexts(ids)[:, steps]] / self.config.temperature
        return torch.log_softmax(logits, dim=-1)

    def _context_log_probs(self, rows: Tensor) -> Tensor:
        """[P, T, C, V] for every context."""
        logits = self._base(rows).unsqueeze(2)
        if self.transition is not None:
            logits = logits + self.transition / self.config.temperature
        return torch.log_softmax(logits, dim=-1)

    def _contexts(self, ids: Tensor) -> Tensor:
        """[B, T]: the last `memory` choices as one number in base V + 1, where V stands for the start."""
        base = self.features.shape[2] + 1
        padded = torch.nn.functional.pad(ids, (self.memory, 0), value=base - 1)
        shifted = padded.unfold(1, self.memory, 1)[:, : ids.shape[1]]
        return (shifted * base ** torch.arange(self.memory - 1, -1, -1)).sum(-1)

    def _visits(self, log_probs: Tensor) -> Tensor:
        """[P, T, C]: the probability of each context at each position under this policy."""
        problems, steps, contexts, vocabulary = log_probs.shape
        if not self.memory:
            return log_probs.new_ones(problems, steps, 1)
        base = vocabulary + 1
        following = (torch.arange(contexts)[:, None] * base + torch.arange(vocabulary)).flatten() % contexts
        current = log_probs.new_zeros(problems, contexts)
        current[:, -1] = 1.0  # all places hold the start symbol
        visits = []
        for t in range(steps):
            visits.append(current)
            moved = (current.unsqueeze(-1) * log_probs[:, t].exp()).flatten(1)
            current = torch.zeros_like(current).index_add(1, following, moved)
        return torch.stack(visits, dim=1)

    def _floored(self, log_probs: Tensor) -> Tensor:
        if not self.config.log_floor:
            return log_probs
        return log_probs + (torch.log(log_probs.exp() + self.config.log_floor) - log_probs).detach()

    def _values(self, rollouts: Rollouts) -> Tensor:
        """The critic [B, T]: linear in what the state shows, the choices at hand and the mean of those already made."""
        assert self.critic is not None
        features = self.features[rollouts.prompt_ids[:, 0]]  # [B, T, V, F]
        steps = features.shape[1]
        index = rollouts.completion_ids[..., None, None].expand(-1, -1, 1, features.shape[-1])
        made = features.gather(2, index).squeeze(2) * rollouts.mask.unsqueeze(-1)
        before = (made.cumsum(1) - made) / steps
        left = (torch.arange(steps, 0, -1, dtype=features.dtype) / steps).expand(len(features), steps).unsqueeze(-1)
        state = torch.cat([features.mean(2), before, left, torch.ones_like(left)], dim=-1)
        return state @ self.critic


def _table(problems: Sequence[Problem]) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, T, V, F] padded to the longest problem, and which positions are real [N, T]."""
    found = [problem.features for problem in problems if problem.features is not None]
    if len(found) != len(problems) or not problems:
        raise ConfigError("dataset: a candidate policy needs problems with candidates and features")
    shapes = {features.shape[1:] for features in found}
    if len(shapes) != 1:
        raise ConfigError(f"dataset: all problems need the same candidates and features, found {sorted(shapes)}")
    steps = max(len(features) for features in found)
    table = np.zeros((len(found), steps, *shapes.pop()))
    mask = np.zeros((len(found), steps), dtype=bool)
    for row, features in enumerate(found):
        table[row, : len(features)], mask[row, : len(features)] = features, True
    return table, mask


def _inverse_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative probability exceeds the uniform: [B, t, V], [B, t] -> [B, t]."""
    cumulative = probabilities.double().cumsum(-1)  # in float32 the largest uniforms would round to 1
    threshold = uniforms.unsqueeze(-1) * cumulative[..., -1:]
    return (cumulative <= threshold).sum(-1).clamp(max=probabilities.shape[-1] - 1)


def _only(where: Tensor, value: Tensor) -> Tensor:
    return torch.where(where, value, torch.zeros_like(value))
