"""Conducts an experiment: plan first, then the runs, then the artifact, and the execution record last."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import posttrain
from posttrain import stopping
from posttrain.artifacts import documents, manifest, provenance
from posttrain.artifacts.comparisons import Rival
from posttrain.artifacts.digests import bytes_digest, file_digest
from posttrain.artifacts.lock import exclusive
from posttrain.assembly import pin
from posttrain.checkpoint import Broken, read_sealed, write_sealed
from posttrain.evaluation import records
from posttrain.evaluation.card import model_card
from posttrain.evaluation.disk import disk_is_full, full_disk
from posttrain.evaluation.experiment import Arm, Experiment, vary
from posttrain.evaluation.folders import Finished, check_folder, configuration, default_folder, place_of, sweep
from posttrain.evaluation.preflight import preflight
from posttrain.evaluation.saving import FOLDER
from posttrain.evaluation.study import Results
from posttrain.evaluation.work import Done, Unit, perform_all
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, Plugin
from posttrain.settings import REPEATABLE

PACKAGE = Path(posttrain.__file__).parent
GO_ON = (
    "Nothing that was saved before is lost: make room, or copy the folder to another disk, and go on with the same "
    "command and --resume auto."
)
PREPARING, MEASURING = "preparing", "measuring the start"  # stages of a run in which no update is made


@dataclass(frozen=True)
class Watch:
    """Who is told of progress: how many units there will be, the row of each update here, each finished unit."""

    start: Callable[[int, int], None] = lambda units, steps: None
    step: Callable[[Mapping[str, Any]], None] = lambda row: None
    unit: Callable[[int], None] = lambda unit: None
    stage: Callable[[str], None] = lambda text: None  # what is being done before there is a row to tell of


def conduct(
    experiment: Experiment,
    output: Path | None = None,
    *,
    ranks: Ranks = Ranks(),
    jobs: int = 1,
    plugins: Sequence[Plugin] = (),
    watch: Watch = Watch(),
    argv: Sequence[str] = (),
    resume: bool = False,
    save_steps: int | None = None,
) -> Finished:
    """Runs everything and writes the folder; only the main rank writes. A folder that is not empty is refused.

    With `resume` it is gone on with what an earlier process left of the same experiment in the folder.
    """
    # Every rank looks before any of them can write.
    complete = check_folder(experiment, output, resume)
    if complete is not None:
        if ranks.main:
            sweep(experiment, complete.folder)
            print(f"posttrain: {complete.folder} is complete already; nothing was run again", file=sys.stderr)
        return complete
    watch.stage(PREPARING)
    preflight(experiment)
    folder = ranks.gather(output or default_folder(experiment))[0]
    session = _Session(experiment, folder, ranks, jobs, tuple(plugins), watch, tuple(argv), save_steps)
    try:
        with _held(folder, experiment, ranks), stopping.listening():
            return session.run()
    except stopping.Stopped:
        raise stopping.Stopped(f"Go on with --output {folder} --resume auto.") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{folder} is incomplete. Go on with --output {folder} --resume auto.") from None
    except Exception as error:
        if not disk_is_full(error):
            raise
        raise OSError(full_disk(folder, GO_ON)) from error


@contextmanager
def _held(folder: Path, experiment: Experiment, ranks: Ranks) -> Iterator[None]:
    """The folder's lock, which the main rank holds for all; where it is refused, every rank ends with the reason."""
    with ExitStack() as stack:
        refused = None
        if ranks.main:
            try:
                stack.enter_context(exclusive(folder, experiment.digest))
            except ConfigError as error:
                refused = str(error)
        (reason, *_) = ranks.gather(refused)
        if reason is not None:
            raise ConfigError(reason)
        yield


def _smoke_checks(arm: Arm) -> list[dict[str, Any]]:
    """The laws, on the algorithm as configured; a broken one ends the run."""
    from posttrain.testing import LawBroken, check_algorithm

    try:
        report = check_algorithm(arm.config.algorithm)
    except LawBroken as error:
        raise RuntimeError(f"{arm.name}: {error}") from error
    return [{"name": name, "ok": True, "message": "holds"} for name in report.checked]


@dataclass
class _Session:
    experiment: Experiment
    folder: Path
    ranks: Ranks
    jobs: int
    plugins: tuple[Plugin, ...]
    watch: Watch
    argv: tuple[str, ...]
    save_steps: int | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    starts: list[str] = field(default_factory=list)  # of every process that worked on the run, this one last

    def run(self) -> Finished:
        if self.experiment.main.config.tier in REPEATABLE:
            pin()  # the record says how many threads there are, also where other processes do the work
        plan = manifest.plan_document(records.plan(self.experiment))

        def begin() -> None:
            for arm in self.experiment.arms:
                self._begin(arm, plan)
            self._count_start()

        self.ranks.alone("writing the plan", begin)  # nobody trains before it is on disk
        arms, sweeps = self._tune()
        done = self._train(arms)
        runs = {name: [part.run for part in parts] for name, parts in done.items()}
        artifacts = self._artifacts(arms, runs, sweeps, plan)

        def finish() -> None:
            for arm in reversed(arms):
                self._finish(arm, done[arm.name], artifacts[arm.name])
            sweep(self.experiment, self.folder)

        self.ranks.alone("writing the artifact", finish)
        main = self.experiment.main.name
        return Finished(self.folder, artifacts[main], {name: a for name, a in artifacts.items() if name != main})

    def place(self, arm: Arm) -> Path:
        """The arm's own folder."""
        return place_of(self.experiment, self.folder, arm)

    def _count_start(self) -> None:
        """Notes when and with which code each process took the run up, for the execution record."""
        path = self.folder / FOLDER / "starts.json"
        path.parent.mkdir(exist_ok=True)
        try:
            self.starts = read_sealed(path) if path.is_file() else []
        except Broken:
            self.starts = []  # a note for the record, not worth a run
        plugins = [{"name": plugin.name, "sha256": plugin.sha256} for plugin in self.plugins]
        code = provenance.code_of(provenance.code_state(PACKAGE)["dirhash"], plugins)
        self.starts = [*self.starts, f"{_stamp(self.started)}{provenance.WITH_CODE}{code}"]
        if provenance.other_code(self.starts[:-1], code):
            print(
                f"posttrain: the code has changed since {self.folder} was begun. What is done stays, the rest is done "
                "by the present code: the record says so, and such a run is neither verified nor published.",
                file=sys.stderr,
            )
        write_sealed(path, self.starts)

    def _begin(self, arm: Arm, plan: Mapping[str, Any]) -> None:
        place = self.place(arm)
        place.mkdir(parents=True, exist_ok=True)
        documents.remove_leftovers(place)
        for name in ("metrics", "samples"):
            (place / f"{name}.jsonl").unlink(missing_ok=True)  # the seeds write down again what they have
        documents.write_atomically(place / "config.yaml", configuration(arm))
        documents.write_atomically(place / "plan.json", documents.dumps(plan))

    def _units(self, arm: Arm, seeds: Sequence[int]) -> list[Unit]:
        names, config = tuple(plugin.name for plugin in self.plugins if not plugin.installed), arm.config
        place, study = self.place(arm), self.experiment.study
        given = (place, study, names, True, self.save_steps)
        return [Unit(arm.name, config.method, config.resolved, seed, *given) for seed in seeds]

    def _perform(self, units: Sequence[Unit]) -> list[Done]:
        self.watch.start(len(units), sum(int(unit.config["steps"]) for unit in units))
        if self.jobs == 1:  # other processes tell of nothing but finished units
            self.watch.stage(MEASURING)
        return perform_all(units, self.ranks, self.jobs, self.watch.unit, self.watch.step)

    def _tune(self) -> tuple[list[Arm], dict[str, list[dict[str, float]]]]:
        """Each arm with the best learning rate of the grid on the tuning seeds; a tie goes to the first."""
        tune = self.experiment.main.config.tune
        if not tune.seeds:
            return list(self.experiment.arms), {}
        usual = self.experiment.main.config.learning_rate
        tried = [
            # An arm that is defined by another learning rate keeps its factor.
            Arm(arm.name, vary(arm.config, {"learning_rate": rate * (arm.config.learning_rate / usual)}), arm.overrides)
            for arm in self.experiment.arms
            for rate in tune.learning_rate
        ]
        units = [for_tuning(unit) for arm in tried for unit in self._units(arm, tune.seeds)]
        found = [done.run["final"]["accuracy"] for done in self._perform(units)]
        means = [sum(found[i : i + len(tune.seeds)]) / len(tune.seeds) for i in range(0, len(found), len(tune.seeds))]
        chosen, sweeps = [], {}
        for start in range(0, len(tried), len(tune.learning_rate)):
            cells = list(zip(tried, means, strict=True))[start : start + len(tune.learning_rate)]
            best = max(cells, key=lambda cell: cell[1])[0]  # the first of equals
            chosen.append(best)
            sweeps[best.name] = [{"learning_rate": arm.config.learning_rate, "mean": mean} for arm, mean in cells]
        return chosen, sweeps

    def _train(self, arms: Sequence[Arm]) -> dict[str, list[Done]]:
        units = [unit for arm in arms for unit in self._units(arm, arm.config.seeds)]
        done = iter(self._perform(units))
        return {arm.name: [next(done) for _ in arm.config.seeds] for arm in arms}

    def _artifacts(
        self,
        arms: Sequence[Arm],
        runs: Mapping[str, list[dict[str, Any]]],
        sweeps: Mapping[str, list[dict[str, float]]],
        plan: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """Every arm's artifact; that of the first names the digests of the others."""
        main, *others = arms
        found = {arm.name: records.artifact(self.experiment, arm, runs[arm.name], plan) for arm in others}
        digests = {name: bytes_digest(documents.dumps(artifact)) for name, artifact in found.items()}
        rivals = [Rival(name, digests[name], runs[name]) for name in self.experiment.rivals]
        mechanism = None
        if self.experiment.study:
            short = {name.removeprefix(f"{main.name}."): parts for name, parts in runs.items() if name != main.name}
            results = Results({"main": runs[main.name], **short})
            mechanism = {
                "study": self.experiment.study,
                "claims": [claim.decide(results) for claim in self.experiment.claims],
                "arms": [
                    {
                        "name": arm.name,
                        "artifact_sha256": digests[arm.name],
                        "learning_rate": arm.config.learning_rate,
                        "sweep": sweeps.get(arm.name, []),
                    }
                    for arm in others
                ],
            }
            if main.name in sweeps:
                mechanism["sweep"] = sweeps[main.name]
        checks = _smoke_checks(main) if main.config.tier == "l0" else None
        found[main.name] = records.artifact(self.experiment, main, runs[main.name], plan, rivals, mechanism, checks)
        return found

    def _finish(self, arm: Arm, done: Sequence[Done], artifact: Mapping[str, Any]) -> None:
        """Metrics, samples and artifact, and then the record that says the run is complete."""
        place = self.place(arm)
        for name in ("metrics", "samples"):
            rows = [row for part in done for row in getattr(part, name)]
            documents.write_atomically(place / f"{name}.jsonl", b"".join(_line(row) for row in rows))
        documents.write_atomically(place / "artifact.json", documents.dumps(artifact))
        for folder in sorted((place / "model").glob("seed-*")):
            card = model_card(artifact, arm.config, int(folder.name.removeprefix("seed-")))
            documents.write_atomically(folder / "README.md", card.encode())
        for remark in remarks(done):
            print(f"posttrain: {arm.name}: {remark}", file=sys.stderr)
        record = manifest.execution_document(self._execution(arm, done))
        documents.write_atomically(place / "execution.json", documents.dumps(record))

    def _execution(self, arm: Arm, done: Sequence[Done]) -> dict[str, Any]:
        place, source = self.place(arm), self.experiment.source
        roles = {
            "config.yaml": "configuration",
            "plan.json": "plan",
            "metrics.jsonl": "metrics",
            "samples.jsonl": "samples",
            "artifact.json": "artifact",
        }
        costs = {kind: _over_seeds(kind, [part.phases.get(kind, {}) for part in done]) for kind in PHASE_COSTS}
        counters = [part.run["training"] for part in done]
        counted = [key for key, value in counters[0].items() if isinstance(value, int) and key.endswith(_COUNTERS)]
        if done[0].found:
            counted.remove("corrupt_cache_entries")  # among the store's own counts, with those damaged before the run
        shipped = [] if source is None else [{"path": source.name, "sha256": file_digest(source)}]
        return {
            "method": arm.name,
            "config": dict(arm.config.resolved),
            "config_source": shipped,
            "overrides": list(self.experiment.overrides),
            "code": provenance.code_state(PACKAGE),
            "entrypoint": "posttrain",
            "argv": list(self.argv),
            "environment": provenance.environment(),
            "hardware": provenance.hardware(),
            "seeds": [
                {"name": "data", "value": seed, "derivation": "numpy.random.default_rng(seed), PCG64"} | {"name": name}
                for seed in arm.config.seeds
                for name in ("data", "training")
            ],
            "started_at": self.starts[0].split()[0] if self.starts else _stamp(self.started),
            "ended_at": _stamp(datetime.now(UTC)),
            "status": "completed",
            "exit_code": 0,
            "inputs": records.inputs(arm.config),
            "outputs": [
                *(_output(place, place / name, role) for name, role in roles.items()),
                *(_output(place, path, "model") for path in sorted((place / "model").rglob("*")) if path.is_file()),
            ],
            **{name: costs[kind] for kind, name in PHASE_COSTS.items() if costs[kind] or kind == "seconds"},
            **({"resumed_from": self.starts[:-1], "kill_count": len(self.starts) - 1} if self.starts[1:] else {}),
            "counters": {key: sum(counter[key] for counter in counters) for key in counted}
            | {key: sum(part.found[key] for part in done) for key in done[0].found},
            "plugins": [{"name": plugin.name, "sha256": plugin.sha256} for plugin in self.plugins],
        }


# What a phase cost, by its name in the execution record.
PHASE_COSTS = {"seconds": "phases", "tokens": "phase_tokens", "peak_bytes": "phase_peak_bytes"}
_COUNTERS = ("_entries", "_calls", "_events", "_updates", "_refreshes", "refills")


def remarks(done: Sequence[Done]) -> Iterator[str]:
    """What the tables of a finished run would hide."""
    damaged = sum(part.found.get("teacher_store_corrupt", 0) for part in done)
    if damaged:
        yield (
            f"{damaged} damaged entries found in the teacher's store; none was used, each was made again or left out "
            "(teacher.on_miss)"
        )
    rows = [row for part in done for row in part.metrics]
    unscored = sum(int(row.get("unscored", 0)) for row in rows)
    if unscored:
        yield f"{unscored} completions have no reward and taught nothing (`unscored` in metrics.jsonl)"
    idle = sum(row.get("supervised_positions") == 0 for row in rows)
    if idle:
        yield f"{idle} of {len(rows)} updates had no token to learn from (`supervised_positions` in metrics.jsonl)"


def _over_seeds(kind: str, costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums over the seeds of each phase; of memory the largest."""
    names = dict.fromkeys(name for cost in costs for name in cost)
    gathered = {name: [cost[name] for cost in costs if name in cost] for name in names}
    return {name: max(values) if kind == "peak_bytes" else sum(values) for name, values in gathered.items()}


def for_tuning(unit: Unit) -> Unit:
    """The unit without probes and without a model to keep: tuning reads the primary metric alone."""
    return replace(unit, folder=unit.folder / "tuning", study=None, keep=False)


def _output(place: Path, path: Path, role: str) -> dict[str, Any]:
    name = path.relative_to(place).as_posix()
    return {"path": name, "sha256": file_digest(path), "bytes": path.stat().st_size, "role": role}


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(documents.plain(row)) + "\n").encode()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def command_line() -> list[str]:
    """The command as it was typed, without the path of the program."""
    return ["posttrain", *sys.argv[1:]]
