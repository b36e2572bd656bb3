"""Run folders: where a run goes, what may lie there, and what of it an interrupted run is taken up from."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from posttrain.artifacts import documents, manifest
from posttrain.evaluation import records
from posttrain.evaluation.experiment import Arm, Experiment
from posttrain.evaluation.saving import FOLDER
from posttrain.registry import ConfigError


@dataclass(frozen=True)
class Finished:
    """A finished experiment: where it lies, and what it found."""

    folder: Path
    artifact: Mapping[str, Any]
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the other arms' artifacts

    @property
    def path(self) -> Path:
        """The artifact's file."""
        return self.folder / "artifact.json"


def default_folder(experiment: Experiment) -> Path:
    """A new folder under `runs/`, named after method, data, tier and configuration; a counter keeps it new."""
    config = experiment.main.config
    methods = "-vs-".join(arm.name for arm in experiment.arms) if experiment.verb == "compare" else experiment.main.name
    study = "-study" if experiment.verb == "reproduce" else ""
    base = f"{methods}{study}-{config.data}-{config.tier}-{experiment.digest}"
    count = 1
    while (Path("runs") / (base if count == 1 else f"{base}-{count}")).exists():
        count += 1
    return Path("runs") / (base if count == 1 else f"{base}-{count}")


def place_of(experiment: Experiment, folder: Path, arm: Arm) -> Path:
    """An arm's own folder: the run folder for the first, `arms/<name>` for the others."""
    return folder if arm.name == experiment.main.name else folder / "arms" / arm.name


def configuration(arm: Arm) -> bytes:
    """The content of `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(arm.config.resolved))).encode()


def check_folder(experiment: Experiment, output: Path | None, resume: bool) -> Finished | None:
    """Refuses a folder that is not free or, when resuming, not of this experiment; gives what is complete already."""
    if resume and output is None:
        raise ConfigError("--resume: which run? Write --output DIR beside it.")
    if output is None or not output.exists():
        return None
    # What begins with a dot is a lock, or a file that a killed process did not come to rename.
    written = output.is_dir() and any(not path.name.startswith(".") for path in output.iterdir())
    if not output.is_dir() or (written and not resume):
        more = " or go on with what lies in it by --resume auto" if (output / "plan.json").is_file() else ""
        raise ConfigError(f"--output: {output} is not an empty folder. Choose a new one, remove it{more}.")
    if written and not (output / "config.yaml").is_file():
        raise ConfigError(f"--resume: {output} holds no run (no config.yaml). Choose its folder, or a new one.")
    plan = documents.dumps(manifest.plan_document(records.plan(experiment)))
    for arm in experiment.arms:
        place = place_of(experiment, output, arm)
        _require_same(place / "config.yaml", configuration(arm))
        _require_same(place / "plan.json", plan)
    if not all((place_of(experiment, output, arm) / "execution.json").is_file() for arm in experiment.arms):
        return None
    found = {a.name: documents.read(place_of(experiment, output, a) / "artifact.json") for a in experiment.arms}
    return Finished(output, found.pop(experiment.main.name), found)


def sweep(experiment: Experiment, folder: Path) -> None:
    """Removes what only an incomplete run has a use for."""
    for arm in experiment.arms:
        for left in (FOLDER, "tuning"):
            shutil.rmtree(place_of(experiment, folder, arm) / left, ignore_errors=True)


def _require_same(path: Path, expected: bytes) -> None:
    """What an earlier process wrote there, if it came so far, has to be what this one would write."""
    if not path.is_file() or path.read_bytes() == expected:
        return
    lines = difflib.unified_diff(path.read_text().splitlines(), expected.decode().splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    raise ConfigError(
        f"--resume: {path} is of another run: {'; '.join(changed[:4])} (- what lies there, + what was asked for). "
        "Give the settings that it was started with, or choose another --output."
    )
