"""What a person asks of a track: seeds, protocol, thresholds and settings, checked before anything runs."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from omegaconf import OmegaConf

from posttrain.bench.track import Cell, Idea, Settings, Track, of_type, tracks
from posttrain.conversion import refuse_unknown, typed_values
from posttrain.overrides import parse_overrides, parse_seeds, put
from posttrain.registry import ConfigError, Plugin, did_you_mean, load_plugins
from posttrain.settings import config_folder

_PARTS = ("settings", "data")  # each with a dot and a word behind it
Defined = TypeVar("Defined", Idea, Track)
CLOSE = 0.6  # how alike a word must be to be meant, by difflib's ratio


@dataclass(frozen=True)
class Options:
    """What `key=value` may change; None takes the track's own value."""

    protocol: Literal["disjoint", "recorded"] = "disjoint"
    evaluation_seeds: tuple[int, ...] | None = None
    tuning_seeds: tuple[int, ...] | None = None
    alpha: float = 0.05
    sesoi_rel_pct: float | None = None  # smallest effect of interest, % of the absolute baseline mean
    failure_value: float | None = None  # stands for a metric that is not finite; declared before the run
    family_size: int = 1  # comparisons that could have been reported
    settings: Settings = field(default_factory=dict)
    data: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha: found {self.alpha}, expected a number between 0 and 1")
        if self.family_size < 1:
            raise ConfigError(f"family_size: found {self.family_size}, expected at least 1")
        if self.failure_value is not None and not math.isfinite(self.failure_value):
            raise ConfigError(f"failure_value: found {self.failure_value}, expected a finite number in metric units")
        if self.sesoi_rel_pct is not None and not 0 <= self.sesoi_rel_pct < float("inf"):
            raise ConfigError(f"sesoi_rel_pct: found {self.sesoi_rel_pct}, expected 0 or more")


@dataclass(frozen=True)
class Source:
    """Where a part from outside came from."""

    kind: Literal["track", "idea"]
    file: str  # as it was given; only its name goes into records
    sha256: str


@dataclass(frozen=True)
class Bench:
    """One experiment on one track, complete: everything the numbers depend on."""

    track: Track  # with the options applied
    idea: Idea
    own_idea: bool  # whether the idea is the track's
    protocol: Literal["disjoint", "recorded"]
    tuning_seeds: tuple[int, ...]
    evaluation_seeds: tuple[int, ...]
    alpha: float
    failure_value: float | None
    family_size: int
    sources: tuple[Source, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    overrides: tuple[str, ...] = ()
    request: tuple[Any, ...] = ()  # what `load` was given, so that another process can load it again


def load(
    name: str,
    idea: str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    config: str | None = None,
    plugins: Sequence[str] = (),
) -> Bench:
    """A track by name or file, with an idea of its own or from a file; every mistake is a ConfigError."""
    loaded = tuple(load_plugins(plugins))
    found, sources = find_track(name)
    given = (
        overrides if isinstance(overrides, Mapping) else parse_overrides(overrides, [f.name for f in fields(Options)])
    )
    raw = _read(found.name, config)
    for key, value in given.items():
        put(raw, key, value, ())
    if given.get("protocol") == "recorded" and "tuning_seeds" not in given:
        raw.pop("tuning_seeds", None)  # those of the file belong to the other protocol
    options = _options(raw, found)
    tried = found.idea
    if idea is not None:
        tried, source = read_idea(Path(idea))
        sources = (*sources, source)
    _refuse_namesakes([*((s.file, s.sha256) for s in sources), *((p.name, p.sha256) for p in loaded)])
    track = _applied(found, options)
    tuning, evaluation = _seeds(track, options)
    for arm in (None, tried):
        for cell in track.cells(arm):  # refuses an idea that changes the budget
            track.check(Cell(cell, track.data, evaluation[0], arm))
    return Bench(
        track,
        tried,
        idea is None,
        options.protocol,
        tuning,
        evaluation,
        options.alpha,
        options.failure_value,
        options.family_size,
        sources,
        loaded,
        tuple(f"{key}={value}" for key, value in given.items()),
        (name, idea, dict(given), config, tuple(plugins)),
    )


def find_track(name: str) -> tuple[Track, tuple[Source, ...]]:
    """A registered track, or the one that a file defines as `track`."""
    if not name.endswith(".py"):
        return tracks.get(name), ()
    module, source = _module(Path(name), "track")
    track = _defined(module, Path(name), "track", Track)
    if track.name in tracks:
        raise ConfigError(f"{Path(name).name}: its track is called `{track.name}` like a shipped one. Rename it.")
    return track, (source,)


def read_idea(path: Path) -> tuple[Idea, Source]:
    """The idea that a file defines as `idea`."""
    module, source = _module(path, "idea")
    return _defined(module, path, "idea", Idea), source


def _defined(module: Any, path: Path, name: str, kind: type[Defined]) -> Defined:
    """What a file defines under a name, if it is of the kind that the name stands for."""
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        what = f"defines no `{name}`" if found is None else f"its `{name}` is a {type(found).__name__}"
        raise ConfigError(
            f"{path.name}: {what}. Write `{name} = {kind.__name__}(name='...', ...)` at the top level of it."
        )
    return found


def _module(path: Path, kind: Literal["track", "idea"]) -> tuple[Any, Source]:
    """A file imported as a plugin, and its digest."""
    if not path.is_file():
        given = "--idea" if kind == "idea" else "bench"
        raise ConfigError(f"{given}: there is no file {path}. `posttrain bench new {kind} NAME` writes one.")
    plugin = load_plugins([str(path)])[-1]
    return sys.modules[f"posttrain_plugin_{path.stem}"], Source(kind, str(path), plugin.sha256)


def _refuse_namesakes(files: Sequence[tuple[str, str]]) -> None:
    """Records and pages call code from outside by the last part of its name, so each file needs one of its own."""
    digests: dict[str, str] = {}
    for file, digest in files:
        if digests.setdefault(Path(file).name, digest) != digest:
            raise ConfigError(f"{Path(file).name}: two files of this run are called so. Rename one of them.")


def config_path(track: str, config: str | None) -> Path | None:
    """`--config FILE`, or the track's shipped file where it has one."""
    if config is not None:
        if not Path(config).is_file():
            raise ConfigError(f"--config: there is no file {config}")
        return Path(config)
    shipped = config_folder() / "bench" / f"{track}.yaml"
    return shipped if shipped.is_file() else None


def _read(track: str, config: str | None) -> dict[str, Any]:
    path = config_path(track, config)
    if path is None:
        return {}
    try:
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # PyYAML's errors share no importable base with OmegaConf's
        raise ConfigError(f"{path.name}: cannot be read as a configuration: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path.name}: expected a mapping of settings, found {type(data).__name__}")
    return {str(key): value for key, value in data.items()}


def _options(raw: dict[str, Any], track: Track) -> Options:
    options = [f.name for f in fields(Options)]
    for key in raw:
        for nested, known in _known(track).items():
            if key in known:
                raise ConfigError(f"{key}: this is a setting of the track. Write {nested}.{key}=VALUE.")
        inside = {near: part for part, known in _known(track).items() for near in known}
        if key not in options and not _near(key, options):
            raise ConfigError(f"{key}: the track `{track.name}` has no such setting.{_instead(key, inside, options)}")
    refuse_unknown("", raw, Options)
    for name in ("evaluation_seeds", "tuning_seeds"):
        if raw.get(name) is not None:
            raw[name] = parse_seeds(raw[name])
    nested = {name: _nested(name, raw.pop(name, None) or {}, known) for name, known in _known(track).items()}
    flat = {key: value for key, value in raw.items() if value is not None}
    typed = typed_values(Options, flat, "", set(flat))
    return Options(**{**typed, **nested})


def _known(track: Track) -> dict[str, Settings]:
    """Words of one option, each with a dot behind it: settings.epochs=4, data.train_examples=64."""
    return {"settings": {**track.budget, **track.base}, "data": dict(track.data)}


def _instead(key: str, inside: Mapping[str, str], options: Sequence[str]) -> str:
    """What may have been meant by a word that is near no option."""
    close, holding = _near(key, inside), [name for name in options if key in name]
    if holding:  # `seeds` for `evaluation_seeds`
        return f" Did you mean {' or '.join(f'`{name}`' for name in holding)}?"
    if close is not None:
        return f" Did you mean `{inside[close]}.{close}`?"
    others = [name for name in tracks.names() if key in _known(tracks.get(name))["settings"]]
    if others:
        return f" It is one of {', '.join(others)}: settings.{key}=VALUE there."
    return did_you_mean(key, {*options, *(f"{part}.{name}" for name, part in inside.items())} - {*_PARTS})


def _near(key: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=CLOSE)), None)


def _nested(name: str, given: Any, known: Settings) -> dict[str, Any]:
    """Settings of the track, each of the type of its default."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: found {given!r}, expected {name}.KEY=VALUE")
    typed = {}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"{name}.{key}: the track has no such setting.{did_you_mean(key, known)}")
        typed[key] = of_type(f"{name}.{key}: found", value, known[key])
    return typed


def _applied(track: Track, options: Options) -> Track:
    """The track with the settings that were asked for; a setting that the sweep varies stays the sweep's."""
    swept = {key for cell in track.sweep for key in cell}
    for key in options.settings:
        if key in swept:
            raise ConfigError(
                f"settings.{key}: the sweep of `{track.name}` varies it. Change the sweep in a track file."
            )
    budget = {**track.budget, **{key: value for key, value in options.settings.items() if key in track.budget}}
    base = {**track.base, **{key: value for key, value in options.settings.items() if key in track.base}}
    sesoi = track.sesoi_rel_pct if options.sesoi_rel_pct is None else options.sesoi_rel_pct
    return replace(track, budget=budget, base=base, data={**track.data, **options.data}, sesoi_rel_pct=sesoi)


def _seeds(track: Track, options: Options) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tuning and evaluation seeds: apart from each other, or the recorded way, which is a bias and says so."""
    evaluation = options.evaluation_seeds or track.seeds
    if options.protocol == "recorded":
        if options.tuning_seeds is not None:
            raise ConfigError("tuning_seeds: the recorded protocol tunes on evaluation seeds. Leave tuning_seeds out.")
        return evaluation[: track.recorded_tuning], evaluation
    tuning = options.tuning_seeds or track.tuning_seeds
    shared = sorted(set(tuning) & set(evaluation))
    if shared:
        raise ConfigError(
            f"tuning_seeds: {shared} are also evaluation seeds. Tune on other seeds, or write protocol=recorded."
        )
    return tuning, evaluation
