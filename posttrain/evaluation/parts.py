"""One seed at a time: `--only-seed` runs one seed of a plan, `merge` puts the seeds together to the same bytes.

A part is a complete run of its one seed, which anyone can verify, with `part.json`: the whole experiment it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain import settings
from posttrain.artifacts import documents, manifest
from posttrain.artifacts.digests import content_digest, file_digest
from posttrain.artifacts.manifest import PART
from posttrain.artifacts.provenance import environment_class
from posttrain.artifacts.report import Report
from posttrain.evaluation import records
from posttrain.evaluation.conduct import PHASE_COSTS, Watch, _Session
from posttrain.evaluation.experiment import Arm, Experiment
from posttrain.evaluation.folders import Finished, default_folder
from posttrain.evaluation.work import Done
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, Plugin
from posttrain.teachers.base import Found

ARM = r"[a-z0-9][a-z0-9._-]*"  # the name of an arm, which is a folder's


def only(experiment: Experiment, seed: int) -> Experiment:
    """The experiment with one of its seeds."""
    planned = experiment.main.config.seeds
    if seed not in planned:
        raise ConfigError(f"--only-seed: found {seed}, expected one of the plan's seeds {', '.join(map(str, planned))}")
    return replace(experiment, arms=tuple(_with_seeds(arm, [seed]) for arm in experiment.arms))


def _with_seeds(arm: Arm, seeds: Sequence[int]) -> Arm:
    raw = {**arm.config.resolved, "seeds": list(seeds)}
    return replace(arm, config=settings.resolve(raw, arm.config.method))


def write_part(whole: Experiment, seed: int, folder: Path, plugins: Sequence[Plugin]) -> None:
    """Says, in the folder of one seed, what it is a part of."""
    part = {
        "seed": seed,
        "plan_sha256": manifest.plan_document(records.plan(whole))["plan_sha256"],
        "plugins": [plugin.name for plugin in plugins],
        "experiment": {
            "verb": whole.verb,
            "rivals": list(whole.rivals),
            "study": whole.study,
            "overrides": list(whole.overrides),
            "source": None
            if whole.source is None
            else {"path": whole.source.name, "sha256": file_digest(whole.source)},
            "arms": [
                {
                    "name": arm.name,
                    "algorithm": arm.config.method,
                    "config": dict(arm.config.resolved),
                    "overrides": dict(arm.overrides),
                }
                for arm in whole.arms
            ],
        },
    }
    document = {"part_version": 1, "part": part, "part_sha256": content_digest(part)}
    documents.write_atomically(folder / PART, documents.dumps(document))


@dataclass(frozen=True)
class _Part:
    """One seed's folder and what it says."""

    folder: Path
    part: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return self.part["seed"]

    def place(self, arm: str) -> Path:
        """The folder of an arm."""
        first = self.part["experiment"]["arms"][0]["name"]
        return self.folder if arm == first else self.folder / "arms" / arm

    def read(self, arm: str, name: str) -> Any:
        """One of an arm's documents."""
        return documents.read(self.place(arm) / name)

    def rows(self, arm: str, name: str) -> list[dict[str, Any]]:
        """One of an arm's lists of rows."""
        lines = (self.place(arm) / name).read_bytes().splitlines()
        return [documents.parse(line, f"{name}:{i}") for i, line in enumerate(lines, start=1)]


def plugins_of(folder: Path) -> list[str]:
    """The plugins a part was run with, which have to be there before anything is rebuilt."""
    return _part(folder).part["plugins"]


def merge(folders: Sequence[Path], output: Path | None, verify: Callable[[Path], Report]) -> Finished:
    """Checks the parts and writes the whole run; a ConfigError says what does not fit or is missing."""
    parts = sorted((_part(folder) for folder in folders), key=lambda part: part.seed)
    whole = _experiment(parts[0].part["experiment"])
    _require_whole(parts, whole)
    _require_alike(parts, whole)
    for part in parts:
        for arm in whole.arms:
            report = verify(part.place(arm.name))
            if report.exit_code:
                raise ConfigError(f"merge: {part.place(arm.name)} is not verified: see posttrain verify. Run it again.")
    target = output or default_folder(whole)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"--output: {target} is not empty. Choose a new folder, or remove it.")
    return _assemble(parts, whole, target)


def _part(folder: Path) -> _Part:
    if not (folder / PART).is_file():
        raise ConfigError(f"merge: {folder} has no {PART}. Give folders of finished runs with --only-seed N.")
    document = documents.read(folder / PART)
    if (
        not isinstance(document, Mapping)
        or document.get("part_version") != 1
        or document.get("part_sha256") != content_digest(document.get("part"))
    ):
        raise ConfigError(f"merge: {folder / PART} does not have the digest that it bears. Run the seed again.")
    named = [arm["name"] for arm in document["part"]["experiment"]["arms"]]
    if strange := [name for name in named if not re.fullmatch(ARM, name)]:  # names become folders
        raise ConfigError(f"merge: {folder / PART} names an arm {strange[0]!r}. Run the seed again.")
    return _Part(folder, document["part"])


def _experiment(written: Mapping[str, Any]) -> Experiment:
    arms = [
        Arm(arm["name"], settings.resolve(arm["config"], arm["algorithm"]), arm["overrides"]) for arm in written["arms"]
    ]
    return Experiment(
        written["verb"], tuple(arms), tuple(written["rivals"]), written["study"], None, tuple(written["overrides"])
    )


def _require_whole(parts: Sequence[_Part], whole: Experiment) -> None:
    """Every seed of the plan once, and one plan."""
    found, planned = [part.seed for part in parts], list(whole.main.config.seeds)
    for part in parts[1:]:
        if {**part.part, "seed": None} != {**parts[0].part, "seed": None}:
            raise ConfigError(f"merge: {part.folder} is a part of another experiment than {parts[0].folder}.")
    if len(set(found)) < len(found):
        raise ConfigError(f"merge: found the seeds {found}, expected each once. Leave one of the doubles out.")
    missing = [seed for seed in planned if seed not in found]
    if missing:
        raise ConfigError(
            f"merge: the seeds {missing} are missing. Run the same command with --only-seed {missing[0]}."
        )
    plan = manifest.plan_document(records.plan(whole))
    if plan["plan_sha256"] != parts[0].part["plan_sha256"]:
        raise ConfigError("merge: the present code makes another plan of this experiment. Use the code of the parts.")


def _require_alike(parts: Sequence[_Part], whole: Experiment) -> None:
    """One code, one class of environments and one tuned configuration: else the whole could never be run again."""
    for arm in whole.arms:
        first, *others = [part.read(arm.name, "execution.json")["execution"] for part in parts]
        for part, other in zip(parts[1:], others, strict=True):
            pairs = {
                "code": (first["code"]["dirhash"], other["code"]["dirhash"]),
                "environment class": tuple(environment_class(e["environment"], e["hardware"]) for e in (first, other)),
                "tuned configuration": tuple({**e["config"], "seeds": None} for e in (first, other)),
            }
            for name, (one, another) in pairs.items():
                if one != another:
                    raise ConfigError(
                        f"merge: {part.folder} has another {name} than {parts[0].folder}. Run the seeds on one kind of "
                        "machine with one version."
                    )


def _assemble(parts: Sequence[_Part], whole: Experiment, target: Path) -> Finished:
    order = {seed: i for i, seed in enumerate(whole.main.config.seeds)}
    parts = sorted(parts, key=lambda part: order[part.seed])
    first = parts[0].read(whole.main.name, "execution.json")["execution"]
    session = _Session(whole, target, Ranks(), 1, (), Watch(), tuple(_command(first["argv"])))
    plan = manifest.plan_document(records.plan(whole))
    for arm in whole.arms:
        session._begin(arm, plan)
    tuned = [_tuned(arm, parts[0]) for arm in whole.arms]
    done = {arm.name: [_done(part, arm.name) for part in parts] for arm in whole.arms}
    runs = {name: [one.run for one in several] for name, several in done.items()}
    artifacts = session._artifacts(tuned, runs, _sweeps(parts[0], whole), plan)
    for arm in reversed(tuned):
        session._finish(arm, done[arm.name], artifacts[arm.name])
        _rewrite_execution(session.place(arm), arm.name, parts)
    main = whole.main.name
    return Finished(target, artifacts[main], {name: a for name, a in artifacts.items() if name != main})


_OF_A_PART = ("--only-seed", "--output", "--resume", "--save-steps")  # each with a value


def _command(argv: Sequence[str]) -> list[str]:
    """The command of a part without its seed and place: the one that makes the whole."""
    kept, skip = [], False
    for word in argv:
        if not skip and word.partition("=")[0] not in _OF_A_PART:
            kept.append(word)
        skip = not skip and word in _OF_A_PART
    return kept


def _tuned(arm: Arm, part: _Part) -> Arm:
    """The arm under the configuration that tuning chose."""
    config = part.read(arm.name, "execution.json")["execution"]["config"]
    raw = {**config, "seeds": list(arm.config.seeds)}
    return replace(arm, config=settings.resolve(raw, arm.config.method))


def _done(part: _Part, arm: str) -> Done:
    (run,) = part.read(arm, "artifact.json")["runs"]
    record = part.read(arm, "execution.json")["execution"]
    costs = {kind: record.get(name, {}) for kind, name in PHASE_COSTS.items()}
    found = {f.name: record["counters"][f.name] for f in fields(Found) if f.name in record.get("counters", {})}
    return Done(run, part.rows(arm, "metrics.jsonl"), part.rows(arm, "samples.jsonl"), costs, found)


def _sweeps(part: _Part, whole: Experiment) -> dict[str, list[dict[str, float]]]:
    """What tuning tried, which a study's artifact records."""
    mechanism = part.read(whole.main.name, "artifact.json").get("mechanism", {})
    found = {arm["name"]: arm["sweep"] for arm in mechanism.get("arms", []) if arm["sweep"]}
    return {**found, **({whole.main.name: mechanism["sweep"]} if "sweep" in mechanism else {})}


def _rewrite_execution(place: Path, arm: str, parts: Sequence[_Part]) -> None:
    """Where and when the parts ran counts, not where they were put together; the parts are its inputs."""
    of_parts = [part.read(arm, "execution.json")["execution"] for part in parts]
    record = documents.read(place / "execution.json")["execution"]
    kept = {key: of_parts[0][key] for key in ("code", "environment", "hardware", "config_source", "plugins")}
    started = min((part["started_at"] for part in of_parts), key=datetime.fromisoformat)
    inputs = [
        {
            "path": f"seed-{part.seed}/{name}",
            "sha256": file_digest(part.place(arm) / name),
            "bytes": (part.place(arm) / name).stat().st_size,
            "role": "part",
        }
        for part in parts
        for name in ("artifact.json", "execution.json")
    ]
    document = manifest.execution_document({**record, **kept, "started_at": started, "inputs": inputs})
    documents.write_atomically(place / "execution.json", documents.dumps(document))
