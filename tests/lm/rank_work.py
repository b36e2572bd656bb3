"""What each of several processes does for `test_lm_laws_ranks`; alone it is the run that the others are compared with.

    python rank_work.py RANK FOLDER SIZE [SIZE ...]

joins, one world after the other, the first SIZE of the processes and leaves FOLDER/SIZE-RANK.pt.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from test_lm_laws import LM, MADE, trainer_for

from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.optimization import optimizer_of
from posttrain.ranks import Ranks
from posttrain.testing import draw
from posttrain.testing.edits import cut

SHAPES = {"uneven": 4, "fewer groups than ranks": 1}  # problems


@contextmanager
def passes(policy):
    """Counts forward passes with gradient of the model, and backward passes."""
    counted = {"forward": 0, "backward": 0}
    backward = torch.Tensor.backward

    def forward(module, arguments, given):
        counted["forward"] += torch.is_grad_enabled()

    def counting(self, *arguments, **given):
        counted["backward"] += 1
        return backward(self, *arguments, **given)

    hook = policy.model.base_model.register_forward_pre_hook(forward, with_kwargs=True)
    torch.Tensor.backward = counting
    yield counted
    torch.Tensor.backward = backward
    hook.remove()


def trainer(algorithm, ranks, problems=3, **options):
    made = trainer_for(algorithm, replace(LM, problems=problems), dtype="float32")
    made.ranks = ranks
    made.options = replace(made.options, optim="sgd", learning_rate=0.3, micro_batch_size=1, **options)
    made.optimizer, made.scheduler = optimizer_of(made.parameters, made.options)
    return made


def flat(made):
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters])


def gradients(algorithm, ranks):
    """On ragged completions, with more ranks than groups, and where the last group has no token."""
    found = {}
    for shape, number in SHAPES.items():
        made = trainer(algorithm, ranks, number)
        problems, rollouts = draw(made)
        with passes(made.policy) as counted:
            found[shape] = made.gradient(problems, rollouts)
        found[f"{shape}: passes"] = counted
    made = trainer(algorithm, ranks)
    problems, rollouts = draw(made)
    mask = rollouts.mask.clone()
    mask[-rollouts.group_size :] = False
    with passes(made.policy) as counted:
        found["nothing selected"] = made.gradient(problems, cut(rollouts, mask))
    return {**found, "nothing selected: passes": counted}


def steps(algorithm, ranks):
    """Sampled, judged, taught and updated in shares; in two passes over two minibatches where the algorithm allows."""
    options = {} if algorithm.single_update else {"minibatch_problems": 2, "num_iterations": 2}
    made = trainer(algorithm, ranks, **options)
    before, seen, prepare = flat(made), [], made._prepared

    def watched(rollouts, signals):
        seen.append(rollouts)
        return prepare(rollouts, signals)

    made._prepared = watched
    row = made.step(1)
    return {"ids": seen[0].completion_ids, "keys": seen[0].keys, "moved": flat(made) - before, "row": row}


def work(ranks):
    torch.set_num_threads(1)
    found = {}
    settings = {DAPO: {"overlong_filter": False}, DrGRPO: {"length": 6}}  # under which every step moves
    for algorithm in [replace(made, **settings.get(type(made), {})) for made in MADE]:
        found[str(algorithm)] = {**gradients(algorithm, ranks), **steps(algorithm, ranks)}
    return found


def main(rank, folder, sizes):
    for size in sizes:
        if rank >= size:
            continue
        torch.distributed.init_process_group("gloo", f"file://{folder}/store-{size}", rank=rank, world_size=size)
        torch.save(work(Ranks(rank, size)), folder / f"{size}-{rank}.pt")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(word) for word in sys.argv[3:]])
    sys.stdout.flush()
