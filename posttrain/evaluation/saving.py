"""What of a unit of work survives a kill: checkpoints on the way, and its result once it is finished."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain import stopping
from posttrain.artifacts.digests import content_digest, file_digest
from posttrain.artifacts.documents import plain
from posttrain.checkpoint import Broken, Checkpoints, read_sealed, write_sealed
from posttrain.evaluation.records import model_files
from posttrain.evaluation.trackers import Tracked, Trackers

if TYPE_CHECKING:
    from posttrain.evaluation.work import Done, Unit
    from posttrain.trainer import Trainer

FOLDER = "checkpoints"  # in an arm's folder; gone once the run is complete
# Seconds between two checkpoints where no number of updates is asked for: a minute, and no less than this many times
# what a checkpoint took, so that a large model spends its time on training.
PERIOD, SHARE = 60.0, 20
FINISHED = "finished.json"


def place_of(unit: Unit) -> Path:
    """The unit's own folder; its name says which configuration, since tuning runs several."""
    digest = content_digest(dict(unit.config)).removeprefix("sha256:")[:8]
    return unit.folder / FOLDER / f"seed-{unit.seed}-{digest}"


def finished(unit: Unit) -> Done | None:
    """The result of a unit that was finished before, with the model it left; None where there is none to trust."""
    from posttrain.evaluation.work import Done

    path = place_of(unit) / FINISHED
    if not path.is_file():
        return None
    try:
        saved = read_sealed(path)
    except Broken as fault:
        _say(f"{path}: {fault}; the seed is run again")
        return None
    for name, digest in saved["files"].items():
        file = unit.folder / name
        if not file.is_file() or file_digest(file) != digest:
            _say(f"{file} is not what was saved; the seed is run again")
            return None
    return Done(**saved["done"])


def finish(unit: Unit, done: Done) -> Done:
    """Keeps the result, as plain data; what lies in the model's folder is part of it."""
    made = plain(asdict(done))
    model = sorted(path for path in unit.model.rglob("*") if path.is_file()) if unit.keep else []
    files = {path.relative_to(unit.folder).as_posix(): file_digest(path) for path in model}
    place_of(unit).mkdir(parents=True, exist_ok=True)
    write_sealed(place_of(unit) / FINISHED, {"done": made, "files": files})
    return type(done)(**made)


@dataclass
class Saver:
    """Writes checkpoints of one trainer while it runs, and stops it when the run is asked to stop."""

    unit: Unit
    trainer: Trainer
    metrics: list[dict[str, Any]] = field(default_factory=list)  # all rows so far
    trackers: Trackers = field(default_factory=Trackers)
    last: float = field(default_factory=time.monotonic)
    cost: float = 0.0  # seconds that the last checkpoint took
    told: int = 0  # answers of the trainer that lie in samples.jsonl

    @property
    def checkpoints(self) -> Checkpoints:
        """Where they lie, and what they must have been written by."""
        config = content_digest(dict(self.unit.config))
        by = {"configuration": config, "seed": self.unit.seed, "ranks": self.trainer.ranks.size, "models": self._models}
        return Checkpoints(place_of(self.unit), by)

    @cached_property
    def _models(self) -> str:
        """Digest of the files of student and teacher: a folder may be replaced between two goes."""
        return content_digest(model_files(self.unit.config))

    def resume(self) -> None:
        """Brings the trainer to where the newest complete checkpoint was written, if there is one."""
        steps = self.trainer.ranks.together("taking up what an earlier process left", self._take_up)
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"the ranks would go on after {steps} updates: they do not see the same checkpoints. All of them have "
                "to read the folder of --output, so put it on a disk that they share."
            )

    def _take_up(self) -> int:
        """Reads what there is; gives the number of updates that are done."""
        saved, broken = self.checkpoints.load()
        for line in broken:
            _say(f"{line}; going on from {'an older one' if saved else 'the start'}")
        if saved is not None:
            self.trainer.load_state_dict(saved["trainer"])
            self.metrics += saved["metrics"]
        if self._logs:
            self.unit.folder.mkdir(parents=True, exist_ok=True)
            self._log(self.metrics)
            names = self.unit.config["report_to"]
            if names:
                unit = self.unit
                tracked = Tracked(unit.folder, unit.arm, unit.seed, unit.config, _tracked_id(unit))
                self.trackers.start(names, tracked, self.metrics)
        return self.trainer.completed

    def after(self, row: Mapping[str, Any]) -> None:
        """Is told of each update's row of metrics. Raises Stopped when the state is saved and the run is to end."""
        ranks = self.trainer.ranks
        # Ranks share the update, so they have to agree on whether it was the last.
        asked = ranks.together("writing down the update", lambda: self._noted(row))
        stop, due = (any(answers) for answers in zip(*asked, strict=True))
        if stop or due:
            began = time.monotonic()
            state = {"trainer": self.trainer.state_dict(), "metrics": self.metrics}
            ranks.alone("saving a checkpoint", lambda: self.checkpoints.save(self.trainer.completed, state))
            self.last = time.monotonic()
            self.cost = self.last - began
        if stop:
            raise stopping.Stopped

    def _noted(self, row: Mapping[str, Any]) -> tuple[bool, bool]:
        """Keeps the row; gives whether this process was asked to stop, and whether it finds a checkpoint due."""
        self.metrics.append(dict(row))
        if self._logs:
            self._log([row])
            self.trackers.log(row)
        return stopping.requested(), self._due()

    def _due(self) -> bool:
        if self.unit.save_steps is not None:
            return self.trainer.completed % self.unit.save_steps == 0
        return time.monotonic() - self.last >= max(PERIOD, SHARE * self.cost)

    @property
    def _logs(self) -> bool:
        return self.unit.keep and self.trainer.ranks.main

    def _log(self, rows: list[Any]) -> None:
        """Rows and answers as they come, seeds mixed, for whoever looks on; at the end both files are written anew."""
        answers, self.told = self.trainer.answers[self.told :], len(self.trainer.answers)
        for name, lines in (("metrics", rows), ("samples", answers)):
            if lines:
                with open(self.unit.folder / f"{name}.jsonl", "a", encoding="utf-8") as file:
                    file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in lines))


def _tracked_id(unit: Unit) -> str:
    """What trackers know the seed by: drawn once, and found again by whoever goes on with it."""
    path = place_of(unit) / "tracked.json"
    try:
        return read_sealed(path)
    except (FileNotFoundError, Broken):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, secrets.token_hex(4))
        return read_sealed(path)


def _say(line: str) -> None:
    print(f"posttrain: {line}", file=sys.stderr, flush=True)
