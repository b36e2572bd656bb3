"""A dry call of everything that came from outside, before a folder exists and anything is tuned.

Every hook of the idea, every function of a custom track and every prediction is called once on real inputs: one seed,
one batch, each cell of both sweeps. What raises, gives something else or is set and read by nothing ends the run here.
So do settings of a shipped track that its own functions cannot work with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.bench import foreign
from posttrain.bench.foreign import OutsideError, called
from posttrain.bench.options import Bench
from posttrain.bench.track import Cell, Found, Result, Track, tracks
from posttrain.evaluation.study import Claim, Results
from posttrain.registry import ConfigError, did_you_mean

ARMS = ("baseline", "idea")


class Noted(dict[str, Any]):
    """Settings that note which of them were read; what walks over all of them reads all."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def _all(self) -> dict[str, Any]:
        self.read.update(super().keys())
        return dict(super().items())

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def keys(self) -> Any:
        """As of a dict."""
        return self._all().keys()

    def values(self) -> Any:
        """As of a dict."""
        return self._all().values()

    def items(self) -> Any:
        """As of a dict."""
        return self._all().items()

    def copy(self) -> dict[str, Any]:
        """As of a dict."""
        return self._all()

    def __or__(self, other: Any) -> Any:
        return self._all() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._all()


def rehearse(bench: Bench) -> None:
    """Refuses code and settings from outside that cannot run (ConfigError); a track as shipped is taken at its word."""
    run = getattr(bench.track.task, "rehearse", None)
    changed = [word for word in bench.overrides if word.startswith(("settings.", "data."))]
    if run is None or not (foreign.involved(bench) or changed):
        return
    seed, data, notes = bench.tuning_seeds[0], Noted(bench.track.data), []
    results: dict[str, list[Result]] = {}
    try:
        for arm, idea in zip(ARMS, (None, bench.idea), strict=True):
            cells = [Cell(Noted(cell), data, seed, idea) for cell in bench.track.cells(idea)]
            notes += [cell.settings for cell in cells]
            with foreign.training(bench, arm):
                results[arm] = run(cells)
        _rehearse_signature(bench, results)
    except ConfigError:
        raise
    except Exception as error:
        if foreign.involved(bench) and isinstance(error, OutsideError):
            raise ConfigError(f"{error} Nothing was trained.") from error
        if foreign.involved(bench) or not changed:
            raise
        cause = error.__cause__ or error
        said = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        raise ConfigError(f"{' '.join(changed)}: `{bench.track.name}` cannot be trained with this: {said}") from error
    if foreign.involved(bench) and hasattr(bench.track.task, "streams"):
        _refuse_unread(bench, notes, data)


def _rehearse_signature(bench: Bench, results: Mapping[str, list[Result]]) -> None:
    """Predictions and the track's own signature on what one batch left, which decides nothing but whether they run."""
    count = len(bench.evaluation_seeds)
    first = {arm: results[arm][0] for arm in ARMS}
    found = Results({arm: [{"measures": result.measures}] * count for arm, result in first.items()})
    for claim in bench.idea.claims:
        with _forgiving():
            _refuse_shape(claim, called(f"idea.claims: {claim.id}", claim.values, {"results": found}))
    if not any(source.kind == "track" for source in bench.sources):
        return
    track, ideas = bench.track, {"baseline": None, "idea": bench.idea}
    if track.mechanism is not None and bench.own_idea:
        settings = {arm: Noted(track.cells(idea)[0]) for arm, idea in ideas.items()}
        best = {arm: track.cfg(settings[arm], idea) for arm, idea in ideas.items()}
        metrics = {arm: [result.metric] * count for arm, result in first.items()}
        sweep = [
            {"cfg": track.cfg(cell, bench.idea), "mean": result.metric, "std": 0.0, "per_seed": [result.metric], "n": 1}
            for cell, result in zip(track.cells(bench.idea), results["idea"], strict=False)
        ]
        with _forgiving():
            read = Found(bench.evaluation_seeds, metrics, found, settings, best, sweep)
            foreign.own("mechanism", track.mechanism, read)
    if track.math_check is not None:
        foreign.own("math_check", track.math_check)


@contextmanager
def _forgiving() -> Iterator[None]:
    """One batch may leave nothing to divide by, which says nothing of a whole training."""
    try:
        yield
    except OutsideError as error:
        if not isinstance(error.__cause__, ArithmeticError | ValueError):
            raise


def _refuse_shape(claim: Claim, values: Any) -> None:
    """Refuses values of a prediction that its rule cannot read."""
    where = f"idea.claims: {claim.id}: its values gave"
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{where} {type(values).__name__}, expected {{name: [one number per seed]}}; does it return?")
    if len(values) > 1 and not claim.rule.startswith("every"):
        raise ConfigError(f"{where} {len(values)} quantities, but the rule `{claim.rule}` reads one. Give one.")
    for name, numbers in values.items():
        if not all(isinstance(number, int | float) for number in numbers) or not len(numbers):
            raise ConfigError(f"{where} {foreign.described(numbers)} for `{name}`, expected one number per seed")


def _refuse_unread(bench: Bench, notes: list[Any], data: Noted) -> None:
    """Refuses a setting that nothing read in any cell of either arm: it would change nothing, and nobody would know."""
    read = set().union(*(note.read for note in notes))
    track, idea = bench.track, bench.idea
    mine = dict.fromkeys([*idea.settings, *(key for cell in idea.sweep for key in cell)])
    for key in mine:
        if key not in read and not _read_in_file(key, bench):
            raise ConfigError(
                f"{key}: the idea `{idea.name}` sets it, and nothing reads it.{_instead(key, read, track)}"
            )
    if not any(source.kind == "track" for source in bench.sources):
        return
    for part, keys, seen in (
        ("base", track.base, read), ("budget", track.budget, read), ("data", track.data, data.read)
    ):  # fmt: skip
        for key in dict(keys):
            if key not in seen:
                raise ConfigError(f"track.{part}: it sets `{key}`, and nothing reads it.{did_you_mean(key, seen)}")


def _read_in_file(key: str, bench: Bench) -> bool:
    """Whether the code from outside reads a setting somewhere, as a hook does that needs it after its first batch."""
    pattern = re.compile(rf"""(?:\[|\.get\()\s*(['"]){re.escape(key)}\1""")
    return any(pattern.search(Path(source.file).read_text(encoding="utf-8")) for source in bench.sources)


def _instead(key: str, read: set[str], track: Track) -> str:
    """Where a setting that nothing reads may have belonged."""
    others = [name for name in tracks.names() if key in {**tracks.get(name).base, **tracks.get(name).budget}]
    if others:
        return f" It is a setting of {' and '.join(others)}, not of `{track.name}`. Leave it out."
    return f"{did_you_mean(key, read)} Read it in a hook, as settings[{key!r}], or leave it out."
