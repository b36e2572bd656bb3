"""One step's work shared out over ranks: whole groups each, and what they give gathered in order on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from posttrain.batch import Problem, Rewards, Rollouts, Scores, Targets, concatenate, concatenate_rewards, share
from posttrain.ranks import Ranks

Found = TypeVar("Found", Rewards, Scores, Targets)


@dataclass(frozen=True)
class Shares:
    """Which groups of a step each rank works on, in the order in which it trains on them."""

    ranks: Ranks
    groups: tuple[tuple[int, ...], ...]  # of each rank

    @property
    def mine(self) -> tuple[int, ...]:
        """The groups of this rank; possibly none."""
        return self.groups[self.ranks.rank]

    def own(self, rollouts: Rollouts) -> Rollouts:
        """The rows of this rank. A rank without any gets the first group without its tokens, which asks nothing."""
        if self.ranks.size == 1:
            return rollouts
        if self.mine:
            return rollouts.rows(rollouts.rows_of(self.mine))
        first = rollouts.rows(slice(0, rollouts.group_size))
        return replace(first, mask=torch.zeros_like(first.mask))

    def gathered(self, what: str, rows: int, work: Callable[[], Found]) -> Found:
        """What `work` gives for this rank's groups, `rows` entries each, put together in the order of the step.

        A rank without groups has nothing to do. `what` names the work where it fails.
        """
        if self.ranks.size == 1:
            return work()
        parts = [part for part in self.ranks.together(what, lambda: work() if self.mine else None) if part is not None]
        order = torch.tensor([group for groups in self.groups for group in groups]).argsort()
        if isinstance(parts[0], Rewards):
            return concatenate_rewards(parts).take(order.tolist())  # type: ignore[arg-type, return-value]
        index = (order.unsqueeze(1) * rows + torch.arange(rows)).flatten()
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(parts[0])}
        joined: dict[str, Any] = {
            name: torch.cat(column)[index] if isinstance(column[0], Tensor) else None
            for name, column in columns.items()
        }
        return type(parts[0])(**joined)


def shares(groups: int, minibatch: int | None, ranks: Ranks) -> Shares:
    """Each rank's share of every minibatch of `minibatch` groups, as `Batch.shard` cuts it; None is one minibatch."""
    size = minibatch or max(1, groups)
    starts = range(0, groups, size)
    found = [
        tuple(start + g for start in starts for g in share(min(size, groups - start), rank, ranks.size))
        for rank in range(ranks.size)
    ]
    return Shares(ranks, tuple(found))


def drawn(problems: Sequence[Problem], ranks: Ranks, draw: Callable[[list[Problem]], Rollouts]) -> Rollouts:
    """Completions of `problems` in their order, each rank having drawn those of its own.

    A problem that comes twice in a step stays with one rank, which counts its completions on. For policies that draw
    from keys alone: what a row says does not depend on the rank that draws it.
    """
    number = {name: place for place, name in enumerate(dict.fromkeys(problem.id for problem in problems))}
    places = [
        [place for place, problem in enumerate(problems) if number[problem.id] % ranks.size == rank]
        for rank in range(ranks.size)
    ]
    mine = [problems[place] for place in places[ranks.rank]]
    parts = ranks.together("sampling", lambda: draw(mine) if mine else None)
    return concatenate([part for part in parts if part is not None], [place for found in places for place in found])
