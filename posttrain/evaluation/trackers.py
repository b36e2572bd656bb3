"""Where metrics go beside `metrics.jsonl`, while the run goes.

A tracker belongs to one seed. One that is opened again for a resumed seed is given every row that is known so far, and
takes up those it does not have yet: no step is logged twice, and none that was not flushed before a kill is missing.
Nothing that a tracker does or fails to do reaches the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PROJECT = "posttrain"  # where WANDB_PROJECT names no other
Row = Mapping[str, Any]


class Tracker(Protocol):
    """Takes rows of metrics in the order of their steps. Whatever it raises ends the tracker, not the run."""

    def log(self, row: Row) -> None:
        """One step; a step it already has is left as it is."""
        ...

    def close(self) -> None:
        """Waits until everything is where it belongs."""
        ...


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told of the seed it belongs to."""

    folder: Path  # the arm's
    arm: str
    seed: int
    config: Mapping[str, Any]
    id: str  # the same whenever the seed is resumed, and no other run's


class TensorBoard:
    """Event files below `tensorboard/seed-N`; those of an earlier process go, and their steps are written anew.

    A reader that has them open already is told to purge every step it knows.
    """

    def __init__(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard" / f"seed-{run.seed}"
        earlier = list(folder.glob("events.out.tfevents.*"))
        for path in earlier:
            path.unlink()
        self.writer = SummaryWriter(str(folder), purge_step=0 if earlier else None, flush_secs=5)

    def log(self, row: Row) -> None:
        """Every number of the row as a scalar."""
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        """Writes what is buffered."""
        self.writer.close()


class WandB:
    """A run of Weights & Biases, in the group of its run folder; resumed under its id.

    Steps that the server has stay as they are: an earlier process may have logged beyond its last checkpoint, and the
    steps it repeats have the same numbers. Offline there is no server to ask, so each process's folder is complete.
    """

    def __init__(self, run: Tracked) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.folder),
            id=run.id,
            resume="allow",
            reinit="create_new",
            name=f"{run.arm}-seed-{run.seed}",
            group=run.folder.resolve().name,
            config=dict(run.config),
            settings=wandb.Settings(console="off"),  # the progress bar is none of its business
        )

    def log(self, row: Row) -> None:
        """The row as one step, sent at once."""
        step = int(row["step"])
        if step >= self.run.step:
            self.run.log(_numbers(row), step=step, commit=True)

    def close(self) -> None:
        """Sends what is left."""
        self.run.finish()


class Trackio:
    """A local-first run of trackio; its name is its identity, so it holds the id."""

    def __init__(self, run: Tracked) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        name = f"{run.arm}-seed-{run.seed}-{run.id}"
        group = run.folder.resolve().name
        with redirect_stdout(sys.stderr):  # the last line of the output is the artifact's path
            self.run = trackio.init(
                PROJECT, name=name, group=group, config=dict(run.config), resume="allow", embed=False
            )
        self.first = self.run._next_step  # it keeps a step as often as it is logged

    def log(self, row: Row) -> None:
        """The row as one step."""
        step = int(row["step"])
        if step >= self.first:
            self.run.log(_numbers(row), step=step)

    def close(self) -> None:
        """Writes what is queued."""
        import trackio  # pyright: ignore[reportMissingImports]

        with redirect_stdout(sys.stderr):
            trackio.finish()  # and not the run's own, which would be finished once more when the process ends


# By the name in `report_to`, which settings.TRACKERS lists.
TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


@dataclass
class Trackers:
    """All of a seed's trackers; one that fails is named on the error stream once and not asked again."""

    open: dict[str, Tracker] = field(default_factory=dict)

    def start(self, names: Sequence[str], run: Tracked, rows: Iterable[Row]) -> None:
        """Opens each by its name, and gives it the rows of before."""
        for name in names:
            self._guard(name, lambda name=name: self.open.update({name: TRACKERS[name](run)}))
        for row in rows:
            self.log(row)

    def log(self, row: Row) -> None:
        """Tells every tracker of a step."""
        for name, tracker in list(self.open.items()):
            self._guard(name, lambda tracker=tracker: tracker.log(row))

    def close(self) -> None:
        """Closes every tracker."""
        for name, tracker in list(self.open.items()):
            self._guard(name, tracker.close)
        self.open.clear()

    def _guard(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a service raises: a run is worth more than its curves
            self.open.pop(name, None)
            line = " ".join(str(error).split()) or type(error).__name__
            print(
                f"posttrain: report_to: {name} failed and is told no more: {line}. metrics.jsonl has every row.",
                file=sys.stderr,
                flush=True,
            )


def _numbers(row: Row) -> dict[str, float]:
    return {
        name: value for name, value in row.items() if name not in ("seed", "step") and isinstance(value, int | float)
    }
