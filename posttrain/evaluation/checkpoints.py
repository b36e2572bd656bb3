"""What an evaluation is about: a run's models, a model folder, a tiny model or a hub id, as checkpoints by seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain import settings, tiny
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.eval_verify import is_eval
from posttrain.registry import ConfigError, did_you_mean
from posttrain.settings import TrainConfig
from posttrain.shorthand import require_model

SEED = 0  # of data and samples, where none is given and no run has one
_SEED_FOLDER = re.compile(r"seed-(\d+)")


@dataclass(frozen=True)
class Subject:
    """One model for each seed: the seed of the data it is asked about and of the samples that are drawn."""

    name: str  # as the artifact calls it; never a place
    tier: str
    models: Mapping[int, str]  # seed -> folder, tiny name or hub id
    run: TrainConfig | None = None  # the configuration of the run that made the models
    origins: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # seed -> the training it came from

    @property
    def seeds(self) -> tuple[int, ...]:
        """One evaluation each."""
        return tuple(self.models)

    def asked_with(self, seeds: tuple[int, ...]) -> Subject:
        """The subject on the data of these seeds: a run's own models, a single model at each of them."""
        if self.seeds == seeds:
            return self
        if len(self.models) == 1 and not self.origins:
            return Subject(self.name, self.tier, dict.fromkeys(seeds, *self.models.values()))
        missing = sorted(set(seeds) - set(self.models))
        if missing:
            raise ConfigError(
                f"--against: `{self.name}` has models of seeds {sorted(self.models)}, not of {missing}. "
                f"Choose common ones with --seed N, or give one model folder."
            )
        chosen = {seed: self.models[seed] for seed in seeds}
        return Subject(self.name, self.tier, chosen, self.run, {seed: self.origins[seed] for seed in seeds})


def evaluation_file(word: str) -> Path | None:
    """The artifact of a finished evaluation that a word names, None if it names something else."""
    path = Path(word)
    file = path / "artifact.json" if path.is_dir() else path
    return file if file.is_file() and is_eval(file) else None


def rival_of(word: str | None, seed: int | None) -> Subject | Path | None:
    """What is compared with: a finished evaluation by its file, or checkpoints that are still to be evaluated."""
    if word is None:
        return None
    return evaluation_file(word) or locate(word, seed)


def locate(word: str, seed: int | None) -> Subject:
    """The checkpoints that a word names; whatever is not there is a ConfigError."""
    path = Path(word)
    if word.startswith(tiny.PREFIX):
        name = word.removeprefix(tiny.PREFIX)
        if name not in tiny.RECIPES:
            raise ConfigError(f"model: there is no tiny model `{name}`.{did_you_mean(name, tiny.RECIPES)}")
        return Subject(word, "l2", {SEED if seed is None else seed: word})
    if evaluation_file(word) is not None:
        raise ConfigError(
            f"model: {word} is a finished evaluation. Give a run or a model, or write it after --against."
        )
    if not path.exists():
        require_model("model", word)
        return Subject(word, "l3", {SEED if seed is None else seed: word})
    if path.is_file():
        raise ConfigError(f"model: {word} is a file. Give the folder of a run or of a model.")
    path = path.resolve()
    match = _SEED_FOLDER.fullmatch(path.name)
    if match and path.parent.name == "model" and _is_run(path.parents[1]):
        return _of_run(path.parents[1], Path(word).parents[1], int(match[1]), asked=seed)
    if _is_run(path):
        return _run(path, Path(word), seed)
    return Subject(path.name, "l3", {SEED if seed is None else seed: word})


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and not (folder / "config.json").is_file()


def _run(path: Path, word: Path, seed: int | None) -> Subject:
    """All models of a run, or the one of a seed."""
    found = sorted(int(m[1]) for m in map(_SEED_FOLDER.fullmatch, _names(path / "model")) if m)
    if not (path / "execution.json").is_file():
        raise ConfigError(f"model: the run {word} is incomplete, it has no execution.json. {_instead(word, found)}")
    if not found:
        raise ConfigError(
            f"model: the run {word} has no model folder; runs of candidate policies measure themselves. Train a "
            "language model: posttrain train ALGO --tier l2."
        )
    if seed is not None and seed not in found:
        raise ConfigError(f"--seed: the run {word} has models of seeds {found}, not of {seed}")
    parts = [_of_run(path, word, one) for one in (found if seed is None else [seed])]
    models = {s: model for part in parts for s, model in part.models.items()}
    origins = {s: origin for part in parts for s, origin in part.origins.items()}
    return Subject(parts[0].name, parts[0].tier, models, parts[0].run, origins)


def _instead(word: Path, found: Sequence[int]) -> str:
    """What to do about a run that is not complete: a model is there only once its seed is done."""
    again = f"go on with it: its own command with --output {word} --resume auto"
    if not found:
        return f"No seed of it is done yet: {again}."
    return (
        f"Give a model of it that is done ({', '.join(str(word / 'model' / f'seed-{n}') for n in found)}), or {again}."
    )


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _of_run(path: Path, word: Path, seed: int, asked: int | None = None) -> Subject:
    """The model of one training seed, asked about the held-out data of that seed unless another one is given."""
    raw = settings._read_yaml(path / "config.yaml")
    name = (raw.get("algorithm") or {}).get("name") if isinstance(raw.get("algorithm"), dict) else None
    if not isinstance(name, str):
        raise ConfigError(f"model: {word / 'config.yaml'} names no algorithm, so {word} is not the folder of a run")
    config = settings.resolve(raw, name)
    artifact = path / "artifact.json"
    digest = file_digest(artifact) if artifact.is_file() else None
    at = seed if asked is None else asked
    origin = {"method": config.method, "seed": seed, "artifact_sha256": digest}
    return Subject(path.name, config.tier, {at: str(word / "model" / f"seed-{seed}")}, config, {at: origin})
