"""Plan, artifact and execution record of an experiment, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.artifacts.comparisons import Rival, compare_runs
from posttrain.artifacts.digests import (
    content_digest,
    dataset_fingerprint,
    dataset_set_fingerprint,
    file_digest,
    sealed,
)
from posttrain.data.files import Files
from posttrain.data.hub import Hub
from posttrain.data.reading import AbsentData
from posttrain.evaluation.experiment import Arm, Experiment
from posttrain.evaluation.study import Results, studies
from posttrain.registry import ConfigError, datasets
from posttrain.settings import PLACES, TIERS, TrainConfig, component

ALPHA = 0.05
PRIMARY_METRIC = "/final/accuracy"
FORMAL_FROM = 3  # seeds
GENERATOR_VERSION = 1
SINGLE_SEED = "descriptive single-seed mechanism reproduction"  # of one seed, at L1 and L2
# What the artifact of a tier may claim with few seeds, and with enough for a formal comparison.
CLAIM_POLICIES = {
    "l1": ("descriptive multi-seed mechanism reproduction", "formal multi-seed mechanism comparison"),
    "l2": ("descriptive multi-seed mechanism reproduction", "formal multi-seed tiny-LM comparison"),
    "l3": ("single-checkpoint benchmark report", "formal real-model comparison"),
}
TEST = "exact two-sided sign-flip on per-seed differences"


def dataset_block(config: TrainConfig) -> dict[str, Any]:
    """What the data are: generator, options, splits per seed and fingerprints of what is drawn."""
    name = config.names["dataset"]
    options = {key: value for key, value in config.resolved["dataset"].items() if key != "name"}
    return {"id": config.data, **_dataset_block(name, json.dumps(options), config.seeds)}


@cache
def _dataset_block(name: str, written: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    options = json.loads(written)
    splits = drawn_splits(name, options, seeds)
    if not all(splits.values()):
        raise ConfigError(f"dataset: `{name}` gave an empty split. Ask for at least one problem of each kind.")
    return {
        "config": portable(options),
        "splits": [{"name": split, "n": len(examples)} for split, examples in splits.items()],
        "generator": name,
        "generator_version": GENERATOR_VERSION,
        "fingerprint": dataset_fingerprint(splits),
        "set_fingerprint": dataset_set_fingerprint(splits),
    }


def drawn_splits(name: str, options: Mapping[str, Any], seeds: Iterable[int]) -> dict[str, list[Mapping[str, Any]]]:
    """What the generator drew, by split `<seed>/train` and `<seed>/validation`."""
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for seed in seeds:
        problems = component("dataset", {"name": name, **options})[0].build(seed)
        splits[f"{seed}/train"] = [problem.drawn for problem in problems.train]
        splits[f"{seed}/validation"] = [problem.drawn for problem in problems.validation]
    return splits


def regenerate(dataset: Mapping[str, Any]) -> str | None:
    """The fingerprint of a plan's `dataset` block, drawn again; None where generator or files are not at hand."""
    if dataset["generator"] not in datasets or dataset["generator_version"] != GENERATOR_VERSION:
        return None
    seeds = sorted({int(split["name"].split("/")[0]) for split in dataset["splits"]})
    planned = {split["name"] for split in dataset["splits"]}  # an evaluation asks one of the two
    try:
        drawn = drawn_splits(dataset["generator"], dataset["config"], seeds)
    except AbsentData:
        return None
    return dataset_fingerprint({name: examples for name, examples in drawn.items() if name in planned})


def portable(part: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without places on this machine: an absolute path stands as its last name, a relative one as it is.

    What a file held is in the fingerprint of the data and in the inputs of the execution record.
    """
    return {
        key: portable(value)
        if isinstance(value, Mapping)
        else f"./{Path(value).name}"
        if key.rpartition(".")[2] in PLACES and isinstance(value, str) and value.startswith(("/", "~"))
        else value
        for key, value in part.items()
    }


def inputs(config: TrainConfig) -> list[dict[str, Any]]:
    """The files that data and model were read from, by name and digest."""
    found = []
    if isinstance(config.dataset, Files | Hub):
        found += [_input(path, "dataset", config.dataset.path) for path in config.dataset.sources()]
    return found + model_files(config.resolved)


def model_files(resolved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files of the folders that student and teacher are loaded from, by name and digest."""
    found = []
    for part, role in (("policy", "model"), ("teacher", "teacher")):
        model = Path(str((resolved.get(part) or {}).get("model") or "")).expanduser()
        if model.name and model.is_dir():
            found += [_input(path, role, str(model)) for path in sorted(model.iterdir()) if path.is_file()]
    return found


def _input(path: Path, role: str, root: str) -> dict[str, Any]:
    """A file by its name, with that of its folder where a folder was named."""
    folder = Path(root)
    name = f"{folder.name}/{path.relative_to(folder).as_posix()}" if folder.is_dir() else path.name
    return {"path": name, "sha256": file_digest(path), "bytes": path.stat().st_size, "role": role}


def redecide(artifact: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The claims of a study decided again from the runs of all its arms; None where study or arms are not at hand."""
    mechanism = artifact["mechanism"]
    if mechanism["study"] not in studies or {arm["name"] for arm in mechanism["arms"]} - set(arms):
        return None
    prefix = f"{artifact['method']}."
    runs = {arm["name"].removeprefix(prefix): arms[arm["name"]]["runs"] for arm in mechanism["arms"]}
    results = Results({"main": artifact["runs"], **runs})
    return [claim.decide(results) for claim in studies.get(mechanism["study"]).claims]


def plan(experiment: Experiment) -> dict[str, Any]:
    """What would count as evidence, before anything runs. A plan without rivals is the same for every method."""
    config = experiment.main.config
    found: dict[str, Any] = {
        "name": experiment.name,
        "dataset": dataset_block(config),
        "seeds": list(config.seeds),
        "tier": TIERS[config.tier],
        "primary_metric": PRIMARY_METRIC,
        "direction": "higher is better",
        "alpha": ALPHA,
        "test": TEST,
        "family_id": experiment.name,
        "family": [f"{experiment.main.name} vs {rival}" for rival in experiment.rivals] or ["before and after"],
        "sesoi": None,
        "failure_value": None,
        "looks": [],
        "common_config": {
            "dataset": portable(config.resolved["dataset"]),
            "evaluation": portable(_short(config.resolved["evaluation"])),
        },
    }
    if len(experiment.arms) > 1:
        found["arms"] = {
            arm.name: {
                "algorithm": arm.config.method,
                "overrides": portable(arm.overrides),
                "config_sha256": content_digest(portable(arm.config.resolved)),
            }
            for arm in experiment.arms
        }
        found["main"] = experiment.main.name
        found["controls"] = list(experiment.rivals)
    if experiment.claims:
        found["claims"] = [claim.written() for claim in experiment.claims]
    if config.tune.seeds:
        found["tuning"] = {"grid": {"learning_rate": list(config.tune.learning_rate)}, "seeds": list(config.tune.seeds)}
    return found


def _short(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Graders without options by name alone."""
    return {key: part["name"] if len(part) == 1 else part for key, part in evaluation.items()}


def artifact(
    experiment: Experiment,
    arm: Arm,
    runs: Sequence[Mapping[str, Any]],
    plan_document: Mapping[str, Any],
    rivals: Sequence[Rival] = (),
    mechanism: Mapping[str, Any] | None = None,
    checks: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The artifact of one arm, sealed by the digest of its content."""
    config, frozen = arm.config, plan_document["plan"]
    protocol = {
        "tier": frozen["tier"],
        "seeds": list(config.seeds),
        **claim_policy(config),
        "plan_sha256": plan_document["plan_sha256"],
        "primary_metric": frozen["primary_metric"],
        "direction": frozen["direction"],
        "planned_n": len(frozen["seeds"]),
        "alpha": frozen["alpha"],
        "family_id": frozen["family_id"],
        "family_size": len(frozen["family"]),
        "sesoi": frozen["sesoi"],
        "failure_value": frozen["failure_value"],
    }
    found: dict[str, Any] = {
        "schema_version": 2,
        "method": arm.name,
        "seeds": list(config.seeds),
        "runs": list(runs),
        "manifest_ref": f"post-training:{frozen['name']}",
        "evaluation_protocol": protocol,
    }
    if rivals:
        found["comparison"] = compare_runs(runs, rivals, protocol)
    if mechanism is not None:
        found["mechanism"] = mechanism
    if checks is not None:
        found["checks"] = list(checks)
    notes = (*biases(config), *unanswered(config), *((config.note,) if config.note else ()))
    if notes:
        found["notes"] = list(notes)
    found["provenance"] = {
        "artifact_path": artifact_path(experiment, arm),
        "dataset_fingerprint": dataset_block(config)["fingerprint"],
        **({"supersedes": config.supersedes} if config.supersedes else {}),
    }
    return sealed(found)


def claim_policy(config: TrainConfig) -> dict[str, Any]:
    """What the tier and the number of seeds allow."""
    if config.tier == "l0":
        return {"formal_comparison": False, "claim_policy": "smoke only, no performance claim"}
    if len(config.seeds) == 1 and config.tier != "l3":
        return {"formal_comparison": False, "claim_policy": SINGLE_SEED}
    described, compared = CLAIM_POLICIES[config.tier]
    formal = len(config.seeds) >= FORMAL_FROM
    return {"formal_comparison": formal, "claim_policy": compared if formal else described}


def artifact_path(experiment: Experiment, arm: Arm) -> str:
    """The intended place under `docs/`: in the arm's folder, under the plan's name."""
    paper = arm.config.algorithm.paper if arm.name == arm.config.method else ""
    folder = f"{paper}-{arm.name}" if paper else arm.name
    return f"docs/post-training/{folder}/metrics/{experiment.name}.json"


def unanswered(config: TrainConfig) -> tuple[str, ...]:
    """A warning where held-out rows have no answer, so that nothing could be right."""
    if not isinstance(config.dataset, Files | Hub):
        return ()
    problems = config.dataset.build(config.seeds[0]).validation
    without = sum(not problem.answer for problem in problems)
    if not without:
        return ()
    return (
        f"{without} of {len(problems)} held-out problems have no answer; accuracy and reward count them as wrong and "
        "say nothing of them. Distances to teacher and reference do not depend on answers.",
    )


def biases(config: TrainConfig) -> tuple[str, ...]:
    """Known biases of the setting, from the algorithm and from how the policy draws; and whose code was run."""
    drawn: tuple[str, ...] = ()
    if not getattr(config.policy, "replacement", True):
        drawn = (
            "Groups are drawn without replacement, which biases the gradient: the probability of a group is not the "
            "product of the policy's own. The setting exists for the recorded protocol.",
        )
    trusted: tuple[str, ...] = ()
    if getattr(config.policy, "trust_remote_code", False):
        trusted = ("Code that came with the model was run (policy.trust_remote_code=true).",)
    return (*config.algorithm.biases, *drawn, *trusted)
