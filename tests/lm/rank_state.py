"""What each of two processes does for `test_lm_ranks_state`; alone it is the run that they are compared with.

python rank_state.py RANK SIZE FOLDER
"""

import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from posttrain import settings, stopping
from posttrain.assembly import assemble, pin
from posttrain.checkpoint import Checkpoints
from posttrain.evaluation.saving import Saver
from posttrain.evaluation.work import Unit
from posttrain.ranks import Ranks
from posttrain.teachers.ledger import Ledger

SHORT = {
    "steps": 6, "eval_steps": 6, "seeds": "3", "problems_per_step": 5, "dataset.train_examples": 12,
    "dataset.validation_examples": 4, "micro_batch_size": 4, "policy.max_completion_tokens": 12,
}  # fmt: skip
DROPOUT = {"policy.lora.rank": 2, "policy.lora.dropout": 0.3}
HALF = 3


def saved(algorithm, ranks, folder, **options):
    """A trainer with what saves it every `HALF` updates, where the unit has its place."""
    folder.mkdir(parents=True, exist_ok=True)
    config = settings.load(algorithm, "l2", overrides={**SHORT, **options})
    trainer = assemble(config, 3, folder=folder / "store", ranks=ranks)
    unit = Unit(config.method, config.method, config.resolved, 3, folder, save_steps=HALF)
    saver = Saver(unit, trainer)
    trainer.report = saver.after
    return trainer, saver


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


def finished(trainer):
    """Trains to the end; gives the weights, this rank's stream and what was measured."""
    outcome = trainer.run()
    row = {**outcome.final, **outcome.last_diagnostics}
    return {"weights": weights(trainer), "stream": torch.get_rng_state(), "row": row, "events": asdict(outcome.events)}


def dropout(ranks, folder):
    """Whole, in two halves, and in two halves of which the second has the main rank's stream on every rank."""
    whole = finished(saved("opd", ranks, folder / "whole", **DROPOUT)[0])
    first, _ = saved("opd", ranks, folder / "halves", **DROPOUT)
    load = Checkpoints.load
    found = {"whole": whole, "stopped": stopped(first, ranks, 1)}
    for name in ("halves", "one stream"):
        torch.rand(7 + ranks.rank)  # another process would not stand where this one does

        def spoilt(checkpoints, name=name):
            state, broken = load(checkpoints)
            own = state["trainer"]["own"]
            if name == "one stream":
                state["trainer"]["own"] = [{**part, "torch_stream": own[0]["torch_stream"]} for part in own]
            return state, broken

        Checkpoints.load = spoilt
        trainer, saver = saved("opd", ranks, folder / "halves", **DROPOUT)
        saver.unit = Unit(**{**vars(saver.unit), "save_steps": 100})
        saver.resume()
        found[name] = {"from": trainer.completed, **finished(trainer)}
        Checkpoints.load = load
    return found


def stopped(trainer, ranks, where):
    """SIGTERM reaches one rank alone, in the middle of an update; gives the update after which this one stopped."""
    step = trainer.step

    def interrupted(number):
        if number == HALF and ranks.rank == min(where, ranks.size - 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return step(number)

    trainer.step = interrupted
    with stopping.listening():
        try:
            trainer.run()
        except stopping.Stopped:
            return trainer.completed
    return None


def full_disk(ranks, folder):
    """The disk refuses where the main rank writes: rows of metrics, or a checkpoint. Gives message and seconds."""
    found = {}
    for what in ("_log", "save"):
        trainer, _ = saved("opd", ranks, folder / what)

        def refuses(*arguments):
            raise OSError(28, "No space left on device")

        owner = Saver if what == "_log" else Checkpoints
        before = getattr(owner, what)
        setattr(owner, what, refuses)
        began = time.monotonic()
        try:
            trainer.run()
        except (OSError, RuntimeError) as error:
            found[what] = (str(error), time.monotonic() - began)
        setattr(owner, what, before)
    return found


def taught(ranks, folder):
    """A shuffled teacher, and one behind a store that was filled before training."""
    shuffled, _ = saved("opd", ranks, folder / "shuffled", **{"teacher.shuffle": True, "optim": "sgd"})
    cached, _ = saved("lightning-opd", ranks, folder / "cached", **{"teacher.on_miss": "score", "optim": "sgd"})
    found = {"shuffled": finished(shuffled), "cached": finished(cached)}
    ledgers = ranks.gather(cached.teacher.ledger)
    found["cached"]["found"] = asdict(Ledger.over(ledgers).found)
    found["cached"]["of each rank"] = [len(ledger.uses) for ledger in ledgers]
    found["cached"]["tokens"] = dict(cached.phases.tokens)
    return found


def work(ranks, folder):
    pin()
    return {
        "dropout": dropout(ranks, folder / "dropout"),
        "full disk": full_disk(ranks, folder / "full"),
        **taught(ranks, folder / "taught"),
    }


def main(rank, size, folder):
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    torch.save(work(Ranks(rank, size), folder / "together"), folder / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
