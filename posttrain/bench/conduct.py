"""Runs a bench: the plan first, then every cell, each kept in a file of its own, then the artifact, the record last.

A run that was killed goes on where it stopped: cells whose file is there and bears the right digest are read instead of
run. A cell is a pure function of plan, arm, settings and seed, so the artifact has the same bytes either way, and
whatever the number of processes.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posttrain import stopping
from posttrain.artifacts import documents, manifest
from posttrain.artifacts.bench_statistics import best_cell, summary
from posttrain.artifacts.digests import code_digest, content_digest
from posttrain.artifacts.lock import exclusive
from posttrain.artifacts.provenance import code_of
from posttrain.assembly import pin
from posttrain.bench import foreign, planning, records
from posttrain.bench.folders import default_folder, take
from posttrain.bench.foreign import OutsideError, described
from posttrain.bench.options import Bench, load
from posttrain.bench.rehearsal import ARMS, rehearse
from posttrain.bench.track import Cell, Result
from posttrain.evaluation.conduct import Finished, Watch
from posttrain.evaluation.work import KILLED, deaf_to_interrupts
from posttrain.registry import ConfigError, digests, require_same
from posttrain.reporting.bench_figures import track as track_figure
from posttrain.reporting.figures import FigureError, draw
from posttrain.stopping import end_with_parent

FIGURE = "figure.svg"
QUIET = Watch()


@dataclass(frozen=True)
class Unit:
    """One training, as plain data that can travel to another process."""

    arm: str
    place: int  # of the cell in the arm's sweep
    seed: int

    @property
    def name(self) -> str:
        """The file that keeps its result."""
        return f"{self.arm}-{self.place}-seed-{self.seed}.json"


def conduct(
    bench: Bench, output: Path | None = None, *, jobs: int = 1, watch: Watch = QUIET, argv: Sequence[str] = ()
) -> Finished:
    """Runs what is missing and writes the folder; one that is complete, of another plan or held is refused.

    OutsideError where the idea or track of a user raises; ConfigError where a dry call already does.
    """
    started = datetime.now(UTC)
    rehearse(bench)
    plan = manifest.plan_document(planning.plan(bench))
    folder = output or default_folder(bench, plan["plan_sha256"])
    with stopping.interrupting():
        try:
            with exclusive(folder, plan["plan_sha256"]):
                return _run(bench, plan, folder, jobs, watch, argv, started)
        except OutsideError as error:
            left = f"{folder} is incomplete. A mended file is another plan: write another --output, or remove it."
            raise OutsideError(f"{error} {left}", error.calls) from error
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{folder} is incomplete. The same command goes on with it.") from None


def _run(
    bench: Bench,
    plan: Mapping[str, Any],
    folder: Path,
    jobs: int,
    watch: Watch,
    argv: Sequence[str],
    started: datetime,
) -> Finished:
    take(folder, plan)
    pin()  # the record says how many threads there are, also where other processes do the work
    plugins = [{"name": plugin.name, "sha256": plugin.sha256} for plugin in bench.plugins]
    origin = {"plan_sha256": plan["plan_sha256"], "code": code_of(code_digest(records.PACKAGE), plugins)}
    tuning = {(arm, i): bench.tuning_seeds for arm in ARMS for i in range(len(bench.track.sweep))}
    with _pool(bench, jobs) as pool:
        cells = _Cells(bench, folder / "cells", origin, pool, watch)
        tuned = cells.run(tuning)
        best = {arm: _best(bench, arm, tuned) for arm in ARMS}
        done = cells.run({(arm, best[arm]): bench.evaluation_seeds for arm in ARMS})
    artifact = records.artifact(bench, plan, tuned, done, best)
    documents.write_atomically(folder / "artifact.json", documents.dumps(artifact))
    with suppress(FigureError):  # without matplotlib the run is complete all the same
        documents.write_atomically(folder / FIGURE, draw(track_figure(artifact, bench.track.metric)))
    record = records.execution(bench, folder, started, argv, cells.read, cells.refused)
    documents.write_atomically(folder / "execution.json", documents.dumps(manifest.execution_document(record)))
    return Finished(folder, artifact)


def _best(bench: Bench, arm: str, tuned: Mapping[Unit, Result]) -> int:
    """The first cell with the best mean over the tuning seeds."""
    means = [
        summary([records.value(bench, tuned[Unit(arm, i, seed)]) for seed in bench.tuning_seeds])["mean"]
        for i in range(len(bench.track.sweep))
    ]
    return best_cell(means, bench.track.direction)


@contextmanager
def _pool(bench: Bench, jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that have loaded the bench; they start when there is work for them."""
    if jobs < 2:
        yield None
        return
    others = set(multiprocessing.active_children())
    names = [*(plugin.name for plugin in bench.plugins), *(source.file for source in bench.sources)]
    given = (bench.request, digests(names))
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare, given)
    try:
        yield pool
    except BaseException:
        # Nobody waits for what they are at: only this process writes, so nothing is lost with them.
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


@dataclass
class _Cells:
    """The results on disk, and what makes those that are missing."""

    bench: Bench
    folder: Path
    origin: Mapping[str, str]  # digests of plan and code: a result of other code is no result of this run
    pool: ProcessPoolExecutor | None  # None: this process alone
    watch: Watch
    written: set[str] = field(default_factory=set)  # by this run
    read: int = 0  # results that an earlier run had finished
    refused: int = 0  # files with a wrong digest, or of other code, run again

    def run(self, wanted: Mapping[tuple[str, int], Sequence[int]]) -> dict[Unit, Result]:
        """Every wanted cell at every seed."""
        units = [Unit(arm, place, seed) for (arm, place), seeds in wanted.items() for seed in seeds]
        found = {unit: result for unit in units if (result := self._kept(unit)) is not None}
        missing = [unit for unit in units if unit not in found]
        self.read += len({unit.name for unit in found} - self.written)
        self.watch.start(len(units), len(units))
        for i in range(len(found)):
            self.watch.unit(i)
        for i, (unit, made) in enumerate(self._perform(missing)):
            result = _as_kept(made)  # what a later process would read: both have to give the same bytes
            self._keep(unit, result)
            found[unit] = result
            self.watch.unit(len(units) - len(missing) + i)
        self._refuse_failures(found)
        # In the order asked for: what is paired by seed must not depend on which process ended first.
        return {unit: found[unit] for unit in units}

    def _perform(self, units: Sequence[Unit]) -> Iterator[tuple[Unit, Result]]:
        if self.pool is None:
            yield from ((unit, perform(self.bench, unit)) for unit in units)
            return
        with deaf_to_interrupts():
            futures = {self.pool.submit(_perform_here, unit): unit for unit in units}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool as error:
                raise BrokenProcessPool(f"{KILLED} {self.folder.parent} is kept: the same command goes on.") from error

    def _identity(self, unit: Unit) -> dict[str, Any]:
        return {**self.origin, "arm": unit.arm, "cell": unit.place, "seed": unit.seed}

    def _keep(self, unit: Unit, result: Result) -> None:
        finite = math.isfinite(result.metric)
        body = {
            **self._identity(unit),
            "status": "completed" if finite else "non_finite",
            "metric": result.metric if finite else None,
            "measures": {key: None if _is_nan(value) else value for key, value in result.measures.items()},
            "start": dict(result.start),
        }
        sealed = {**body, "content_digest": content_digest(body)}
        documents.write_atomically(self.folder / unit.name, documents.dumps(sealed))
        self.written.add(unit.name)

    def _kept(self, unit: Unit) -> Result | None:
        path = self.folder / unit.name
        if not path.exists():
            return None
        body: dict[str, Any] = {}
        try:
            stored = documents.read(path)
            body = {key: value for key, value in stored.items() if key != "content_digest"}
            good = stored["content_digest"] == content_digest(body)
            good = good and {key: body[key] for key in self._identity(unit)} == self._identity(unit)
        except (documents.DocumentError, KeyError, AttributeError):
            good = False
        if not good:
            self.refused += 1
            return None
        measures = {key: math.nan if value is None else value for key, value in body["measures"].items()}
        metric = math.nan if body["metric"] is None else float(body["metric"])
        return Result(metric, measures, body["start"])

    def _refuse_failures(self, found: Mapping[Unit, Result]) -> None:
        lost = sorted(unit.name.removesuffix(".json") for unit, r in found.items() if not math.isfinite(r.metric))
        if lost and self.bench.failure_value is None:
            raise ArithmeticError(
                f"{self.bench.track.name}: the metric is not finite in {', '.join(lost)}. Leaving seeds out would "
                "flatter the arm. Mend the arm, or declare before the run what such a seed counts as: "
                "failure_value=NUMBER in another --output."
            )


def _as_kept(result: Result) -> Result:
    """A result as its file gives it again: whatever is no finite number is NaN."""
    for name, value in result.measures.items():
        if value is not None and not isinstance(value, str | bool | int | float):
            raise ConfigError(f"track.task: its measure `{name}` is {described(value)}, expected a number or a text")
    measures = {key: math.nan if not _is_finite(value) else value for key, value in result.measures.items()}
    return Result(result.metric if math.isfinite(result.metric) else math.nan, measures, result.start)


def _is_finite(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (value is not None and math.isfinite(value))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def perform(bench: Bench, unit: Unit) -> Result:
    """Trains one unit."""
    idea = bench.idea if unit.arm == "idea" else None
    settings = bench.track.cells(idea)[unit.place]
    with foreign.training(bench, unit.arm, f", cell {unit.place}, seed {unit.seed}"):
        return bench.track.task.run(Cell(settings, bench.track.data, unit.seed, idea))


_loaded: list[Bench] = []  # of a worker process, which serves one bench
_expected: dict[str, str] = {}  # digests of its files as the run's first process imported them


def _prepare(request: tuple[Any, ...], expected: dict[str, str]) -> None:
    end_with_parent()
    name, idea, overrides, config, plugins = request
    _loaded[:] = [load(name, idea, overrides, config, plugins)]
    _expected.update(expected)


def _perform_here(unit: Unit) -> Result:
    require_same(_expected)
    return perform(_loaded[0], unit)
