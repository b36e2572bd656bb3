"""Rows of a language model's rollouts: their keys, their tensors, and the way to and from packed rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from posttrain.batch import SOURCES, Problem, Rollouts, Scores, Source, Targets, completion_numbers
from posttrain.policies.lm_encoding import Encoder
from posttrain.registry import ConfigError
from posttrain.samplers.in_process import Drawn

Rows = TypeVar("Rows", Scores, Targets)


def keys_of(problems: Sequence[Problem], group_size: int, seed: int, step: int) -> Tensor:
    """[B, 4]: a problem is named by its id, so that the rest of the dataset has no say in what is drawn for it."""
    names = [int.from_bytes(hashlib.sha256(problem.id.encode()).digest()[:7], "big") for problem in problems]
    problem = torch.tensor(names, dtype=torch.int64).repeat_interleave(group_size)
    fixed = [torch.full_like(problem, number) for number in (seed, step)]
    return torch.stack([*fixed, problem, completion_numbers(problems, group_size)], dim=1)


def prompts_of(encoder: Encoder, problems: Sequence[Problem], group_size: int, width: int) -> tuple[Tensor, Tensor]:
    """Ids and mask [B, S] of the problems' prompts, left-padded to at least `width`."""
    found = [ids for problem in problems for ids in [encoder.prompt(problem)] * group_size]
    width = max(width, *(len(ids) for ids in found))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in found], dtype=torch.int64)
    return ids, torch.arange(width) >= width - torch.tensor([[len(row)] for row in found])


def responses_of(encoder: Encoder, problems: Sequence[Problem], real: torch.dtype) -> tuple[Drawn, int]:
    """The problems' data rows, and how many each of them has."""
    sizes = {len(problem.responses) for problem in problems}
    if len(sizes) != 1 or sizes == {0}:
        raise ConfigError(
            f"dataset: its problems have {sorted(sizes)} responses each, but data rows need one fixed number"
        )
    size = sizes.pop()
    found = [encoder.response(problem, row) for problem in problems for row in range(size)]
    length = max(len(ids) for ids, _ in found)
    ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in found], dtype=torch.int64)
    mask = torch.arange(length) < torch.tensor([[len(row)] for row, _ in found])
    nothing = torch.zeros(2, *ids.shape, dtype=real)
    return Drawn(ids, mask, nothing[0], nothing[1], torch.tensor([cut for _, cut in found])), size


def rollouts_of(
    encoder: Encoder, problems: Sequence[Problem], drawn: Drawn, keys: Tensor, source: Source, width: int
) -> Rollouts:
    """Completions, equally many of each problem, as rollouts."""
    group_size = len(keys) // len(problems)
    prompt_ids, prompt_mask = prompts_of(encoder, problems, group_size, width)
    rows = zip(drawn.ids, drawn.mask.sum(1).tolist(), strict=True)
    return Rollouts(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=drawn.ids,
        mask=drawn.mask,
        logprobs=drawn.logprobs,
        entropy=drawn.entropy,
        truncated=drawn.truncated,
        texts=tuple(encoder.text(ids[:length].tolist()) for ids, length in rows),
        problem_ids=tuple(problem.id for problem in problems for _ in range(group_size)),
        group_size=group_size,
        source=torch.full((len(keys),), SOURCES.index(source)),
        keys=keys,
    )


def packed(rollouts: Rollouts, rows: slice, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [b, L] without padding inside, and [b, T] the place that predicts each completion token."""
    prompt = rollouts.prompt_mask[rows][asked]
    mask = rollouts.mask[rows][asked]
    ids = torch.cat([rollouts.prompt_ids[rows][asked], rollouts.completion_ids[rows][asked]], dim=1)
    keep = torch.cat([prompt, mask], dim=1)
    order = (~keep).to(torch.uint8).argsort(dim=1, stable=True)
    packed = ids.masked_fill(~keep, 0).gather(1, order)
    place = prompt.sum(1, keepdim=True) + mask.cumsum(1) - 2
    return packed, place.clamp(min=0)


def placed(values: Tensor, where: Tensor) -> Tensor:
    """[N, ...] at the N places of `where` [b, T], zero elsewhere: [b, T, ...] on `where`'s device."""
    values = values.to(where.device)
    empty = values.new_zeros(*where.shape, *values.shape[1:])
    return empty.index_put(where.nonzero(as_tuple=True), values)


def joined(part: Callable[[slice], Rows], slices: Iterable[slice]) -> Rows:
    """Parts over rows as one."""
    parts = [part(rows) for rows in slices]
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, list[Any]] = {f.name: [getattr(found, f.name) for found in parts] for f in fields(parts[0])}
    whole: dict[str, Any] = {n: None if column[0] is None else torch.cat(column) for n, column in columns.items()}
    return type(parts[0])(**whole)
