"""Conducts an experiment: plan first, then the runs, then the artifact, and the execution record last."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import posttrain
from posttrain import stopping
from posttrain.artifacts import documents, manifest, provenance
from posttrain.artifacts.comparisons import Rival
from posttrain.artifacts.digests import bytes_digest, file_digest
from posttrain.assembly import assemble
from posttrain.checkpoint import Broken, read_sealed, write_sealed
from posttrain.evaluation import records
from posttrain.evaluation.card import model_card
from posttrain.evaluation.experiment import Arm, Experiment, vary
from posttrain.evaluation.saving import FOLDER
from posttrain.evaluation.study import Results
from posttrain.evaluation.trackers import write_tensorboard
from posttrain.evaluation.work import Done, Unit, perform_all
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, Plugin
from posttrain.tracking import judge

PACKAGE = Path(posttrain.__file__).parent


@dataclass(frozen=True)
class Watch:
    """Who is told of progress: how many units there will be, the row of each update here, each finished unit."""

    start: Callable[[int, int], None] = lambda units, steps: None
    step: Callable[[Mapping[str, Any]], None] = lambda row: None
    unit: Callable[[int], None] = lambda unit: None


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
    base = f"{methods}{study}-{config.names['dataset']}-{config.tier}-{experiment.digest}"
    count = 1
    while (Path("runs") / (base if count == 1 else f"{base}-{count}")).exists():
        count += 1
    return Path("runs") / (base if count == 1 else f"{base}-{count}")


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
    complete = _check_folder(experiment, output, resume)
    if complete is not None:
        return complete
    preflight(experiment)
    folder = ranks.gather(output or default_folder(experiment))[0]
    session = _Session(experiment, folder, ranks, jobs, tuple(plugins), watch, tuple(argv), save_steps)
    try:
        with stopping.listening():
            return session.run()
    except stopping.Stopped:
        raise stopping.Stopped(f"Go on with --output {folder} --resume auto.") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{folder} is incomplete. Go on with --output {folder} --resume auto.") from None


def place_of(experiment: Experiment, folder: Path, arm: Arm) -> Path:
    """An arm's own folder: the run folder for the first, `arms/<name>` for the others."""
    return folder if arm.name == experiment.main.name else folder / "arms" / arm.name


def _configuration(arm: Arm) -> bytes:
    """The content of `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(arm.config.resolved))).encode()


def _check_folder(experiment: Experiment, output: Path | None, resume: bool) -> Finished | None:
    """Refuses a folder that is not free or, when resuming, not of this experiment; gives what is complete already."""
    if resume and output is None:
        raise ConfigError("--resume: which run? Write --output DIR beside it.")
    if output is None or not output.exists():
        return None
    if not output.is_dir() or (not resume and any(output.iterdir())):
        more = " or go on with what lies in it by --resume auto" if (output / "plan.json").is_file() else ""
        raise ConfigError(f"--output: {output} is not an empty folder. Choose a new one, remove it{more}.")
    written = [path for path in output.iterdir() if not path.name.startswith(".")]
    if written and not (output / "config.yaml").is_file():
        raise ConfigError(f"--resume: {output} holds no run (no config.yaml). Choose its folder, or a new one.")
    plan = documents.dumps(manifest.plan_document(records.plan(experiment)))
    for arm in experiment.arms:
        place = place_of(experiment, output, arm)
        _require_same(place / "config.yaml", _configuration(arm))
        _require_same(place / "plan.json", plan)
    if not all((place_of(experiment, output, arm) / "execution.json").is_file() for arm in experiment.arms):
        return None
    found = {a.name: documents.read(place_of(experiment, output, a) / "artifact.json") for a in experiment.arms}
    return Finished(output, found.pop(experiment.main.name), found)


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


def preflight(experiment: Experiment) -> None:
    """Builds every arm, draws and grades one problem: parts that do not fit are named before a folder exists."""
    with tempfile.TemporaryDirectory() as scratch:
        for arm in experiment.arms:
            trainer = assemble(arm.config, arm.config.seeds[0], folder=Path(scratch))
            problems = list(trainer.problems[:1])
            rollouts = trainer._draw(problems, 0)
            for grader in (trainer.grader, trainer.evaluator.accuracy, trainer.evaluator.reward):
                if grader is not None:
                    judge(grader, problems, rollouts)


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
        plan = manifest.plan_document(records.plan(self.experiment))
        if self.ranks.main:
            for arm in self.experiment.arms:
                self._begin(arm, plan)
            self._count_start()
        self.ranks.gather(None)  # nobody trains before the plan is on disk
        arms, sweeps = self._tune()
        done = self._train(arms)
        runs = {name: [part.run for part in parts] for name, parts in done.items()}
        artifacts = self._artifacts(arms, runs, sweeps, plan)
        if self.ranks.main:
            for arm in reversed(arms):
                self._finish(arm, done[arm.name], artifacts[arm.name])
            for arm in arms:
                for left in (self.place(arm) / FOLDER, self.place(arm) / "tuning"):
                    shutil.rmtree(left, ignore_errors=True)
        self.ranks.gather(None)
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
        code = provenance.code_state(PACKAGE)["dirhash"]
        self.starts = [*self.starts, f"{_stamp(self.started)} with code {code}"]
        write_sealed(path, self.starts)

    def _begin(self, arm: Arm, plan: Mapping[str, Any]) -> None:
        place = self.place(arm)
        place.mkdir(parents=True, exist_ok=True)
        documents.remove_leftovers(place)
        (place / "metrics.jsonl").unlink(missing_ok=True)  # the seeds write down again what they have
        documents.write_atomically(place / "config.yaml", _configuration(arm))
        documents.write_atomically(place / "plan.json", documents.dumps(plan))

    def _units(self, arm: Arm, seeds: Sequence[int]) -> list[Unit]:
        names, config = tuple(plugin.name for plugin in self.plugins if not plugin.installed), arm.config
        place, study = self.place(arm), self.experiment.study
        given = (place, study, names, True, self.save_steps)
        return [Unit(arm.name, config.method, config.resolved, seed, *given) for seed in seeds]

    def _perform(self, units: Sequence[Unit]) -> list[Done]:
        self.watch.start(len(units), sum(int(unit.config["steps"]) for unit in units))
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
        if "tensorboard" in arm.config.report_to:
            write_tensorboard(place / "tensorboard", (row for part in done for row in part.metrics))
        documents.write_atomically(place / "artifact.json", documents.dumps(artifact))
        for folder in sorted((place / "model").glob("seed-*")):
            card = model_card(artifact, arm.config, int(folder.name.removeprefix("seed-")))
            documents.write_atomically(folder / "README.md", card.encode())
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
            "inputs": [],
            "outputs": [
                *(_output(place, place / name, role) for name, role in roles.items()),
                *(_output(place, path, "model") for path in sorted((place / "model").rglob("*")) if path.is_file()),
            ],
            **{name: costs[kind] for kind, name in PHASE_COSTS.items() if costs[kind] or kind == "seconds"},
            **({"resumed_from": self.starts[:-1], "kill_count": len(self.starts) - 1} if self.starts[1:] else {}),
            "counters": {key: sum(counter[key] for counter in counters) for key in counted},
            "plugins": [{"name": plugin.name, "sha256": plugin.sha256} for plugin in self.plugins],
        }


# What a phase cost, by its name in the execution record.
PHASE_COSTS = {"seconds": "phases", "tokens": "phase_tokens", "peak_bytes": "phase_peak_bytes"}
_COUNTERS = ("_entries", "_calls", "_events", "_updates", "_refreshes", "refills")


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
    return (json.dumps(row, allow_nan=False) + "\n").encode()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def command_line() -> list[str]:
    """The command as it was typed, without the path of the program."""
    return ["posttrain", *sys.argv[1:]]
