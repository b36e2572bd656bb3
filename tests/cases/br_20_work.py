"""One of the processes of case BR-20; alone it is the run that the two are compared with.

python br_20_work.py RANK SIZE FOLDER
"""

import hashlib
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from posttrain.algorithms.grpo import GRPO
from posttrain.optimization import optimizer_of
from posttrain.ranks import Ranks, end
from posttrain.testing import Setting, trainer_for
from posttrain.tracking import NonFinite

STEPS = 4


@dataclass(frozen=True)
class Fails:
    """A reward function that cannot judge what the second rank shows it."""

    rank: int

    def __call__(self, problem, text):
        if self.rank == 1:
            raise ArithmeticError("cannot divide by the length of nothing")
        return 1.0


def trainer(ranks, problems):
    made = trainer_for(GRPO(), Setting("tree", problems=problems))
    made.ranks = ranks
    made.options = replace(made.options, micro_batch_size=1, optim="sgd", learning_rate=0.5)
    made.optimizer, made.scheduler = optimizer_of(made.parameters, made.options)
    return made


def walk(made, change=None):
    """Four steps; `change(step, batch)` alters what is trained on. Weights, checksum and counts after each of them."""
    prepare, updates, backward, passes = made._prepared, [0], torch.Tensor.backward, [0]
    made.optimizer.register_step_post_hook(lambda *_: updates.__setitem__(0, updates[0] + 1))

    def counting(self, *arguments, **given):
        passes[0] += 1
        return backward(self, *arguments, **given)

    torch.Tensor.backward = counting
    rows, lost = [], None
    for step in range(1, STEPS + 1):
        if change is not None:
            made._prepared = lambda *given, step=step: change(step, prepare(*given))
        try:
            loss = made.step(step)["loss"]
        except NonFinite as error:
            lost = str(error)
        weights = torch.cat([p.detach().flatten() for p in made.parameters])
        checksum = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
        row = {"weights": weights.tolist(), "checksum": checksum, "updates": updates[0], "passes": passes[0]}
        rows.append({**row, "loss": None if lost else loss})
        if lost:
            break
    torch.Tensor.backward = backward
    return {"rows": rows, "lost": lost}


def of_rank_1(batch):
    """The rows of the second of two ranks."""
    index = torch.arange(len(batch.rollouts.texts))
    return index >= len(batch.shard(0, 2).rollouts.texts)


def masked(step, batch):
    """At step 2 nothing of what the second rank holds has weight."""
    gone = of_rank_1(batch) if step == 2 else torch.zeros(len(batch.rollouts.texts), dtype=torch.bool)
    weight = batch.weight.masked_fill(gone.unsqueeze(1), 0)
    return replace(batch, weight=weight, normaliser=batch.normaliser.masked_fill(gone, 0))


def level(step, batch):
    """At step 2 all advantages of what the second rank holds are zero."""
    gone = of_rank_1(batch) & (step == 2)
    return replace(batch, advantages=batch.advantages.masked_fill(gone.unsqueeze(1), 0))


def lost(step, batch):
    """At step 3 the second rank's loss is not a number."""
    gone = of_rank_1(batch) & (step == 3)
    return replace(batch, advantages=batch.advantages.masked_fill(gone.unsqueeze(1), math.nan))


def work(ranks):
    torch.set_num_threads(1)
    return {
        "a, masked": walk(trainer(ranks, 4), masked),
        "a, zero advantage": walk(trainer(ranks, 4), level),
        "b, five items": walk(trainer(ranks, 5)),
        "b, one item": walk(trainer(ranks, 1)),
        "d, not a number": walk(trainer(ranks, 4), lost),
    }


if __name__ == "__main__":
    joined, folder = Ranks(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=joined.rank, world_size=joined.size)
    (folder / f"{joined.rank}.json").write_text(json.dumps(work(joined)))
    failing = trainer(joined, 4)
    failing.grader = Fails(joined.rank)
    try:
        failing.step(1)
    except RuntimeError as error:
        print(f"posttrain: {error}", file=sys.stderr)
        end(1)
    end(0)
