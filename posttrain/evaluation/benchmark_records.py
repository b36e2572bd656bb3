"""Plan, artifact and execution record of an evaluation, as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from posttrain.artifacts import provenance
from posttrain.artifacts.digests import bytes_digest, dataset_fingerprint, dataset_set_fingerprint, file_digest, sealed
from posttrain.artifacts.eval_verify import ITEMS, METHOD
from posttrain.artifacts.evaluations import Item, measured, overall
from posttrain.batch import Problem
from posttrain.evaluation.answering import Cost
from posttrain.evaluation.benchmark import Benchmark
from posttrain.evaluation.checkpoints import Subject
from posttrain.evaluation.conduct import PACKAGE, _output, _stamp
from posttrain.evaluation.experiment import seed_words
from posttrain.evaluation.records import ALPHA, GENERATOR_VERSION
from posttrain.registry import Plugin
from posttrain.settings import TIERS

TEST = "exact two-sided McNemar on greedy answers paired by item"
Splits = Mapping[str, Sequence[Problem]]
_ROLES = {"config.yaml": "configuration", "plan.json": "plan", ITEMS: "items", "artifact.json": "artifact"}


@dataclass(frozen=True)
class Model:
    """A subject's model at one seed, named by what it is made of."""

    subject: Subject
    seed: int
    identity: Mapping[str, str]  # digests of weights, vocabulary and template
    revision: str | None  # commit of a hub checkpoint

    def written(self) -> dict[str, Any]:
        """Its block of the artifact."""
        names = {"weights": "weights", "tokenizer": "vocabulary", "template": "template"}
        found: dict[str, Any] = {"name": self.subject.name}
        found |= {name: f"sha256:{self.identity[key]}" for name, key in names.items()}
        if self.revision is not None:
            found["revision"] = self.revision
        if self.seed in self.subject.origins:
            found["run"] = dict(self.subject.origins[self.seed])
        return found


def dataset_block(benchmark: Benchmark, splits: Splits) -> dict[str, Any]:
    """What is asked: generator, options, splits and fingerprints."""
    drawn = {name: [problem.drawn for problem in problems] for name, problems in splits.items()}
    options = {key: value for key, value in benchmark.resolved["dataset"].items() if key != "name"}
    return {
        "id": benchmark.dataset_name,
        "config": options,
        "splits": [{"name": name, "n": len(problems)} for name, problems in splits.items()],
        "generator": benchmark.dataset_name,
        "generator_version": GENERATOR_VERSION,
        "fingerprint": dataset_fingerprint(drawn),
        "set_fingerprint": dataset_set_fingerprint(drawn),
    }


def plan(benchmark: Benchmark, splits: Splits, models: Sequence[Model], rivals: Sequence[Model]) -> dict[str, Any]:
    """What is going to be asked of whom, before the first completion is drawn."""
    seeds = [model.seed for model in models]
    name = f"eval-{benchmark.dataset_name}-{benchmark.split}-seeds{seed_words(seeds)}"
    listed: dict[str, list[dict[str, Any]]] = {}
    for model in (*models, *rivals):
        listed.setdefault(model.subject.name, []).append({"seed": model.seed, **model.written()})
    rival = f" vs {rivals[0].subject.name}" if rivals else ""
    return {
        "name": name,
        "dataset": dataset_block(benchmark, splits),
        "seeds": seeds,
        "tier": TIERS[tier_of([model.subject for model in (*models, *rivals)])],
        "primary_metric": "/greedy/accuracy",
        "direction": "higher is better",
        "alpha": ALPHA,
        "test": TEST,
        "family_id": name,
        "family": [f"{models[0].subject.name}{rival}, seed {seed}" for seed in seeds],
        "sesoi": None,
        "failure_value": None,
        "looks": [],
        "common_config": {"settings": benchmark.settings, "split": benchmark.split, "models": listed},
    }


def tier_of(subjects: Iterable[Subject]) -> str:
    """A tiny model on either side makes it a statement about tiny models."""
    return "l2" if any(subject.tier == "l2" for subject in subjects) else "l3"


def artifact(
    benchmark: Benchmark,
    models: Sequence[Model],
    items: Mapping[int, Sequence[Item]],
    lines: bytes,
    source: str,
    plan_document: Mapping[str, Any],
    comparison: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The artifact, sealed by the digest of its content. `lines` is the content of `items.jsonl`."""
    frozen = plan_document["plan"]
    evaluations = [
        {"seed": model.seed, "model": model.written(), **measured(items[model.seed], benchmark.ks)} for model in models
    ]
    whole = overall(evaluations)
    found: dict[str, Any] = {
        "eval_version": 1,
        "name": models[0].subject.name,
        "seeds": [model.seed for model in models],
        "benchmark": {"dataset": benchmark.dataset_name, "split": benchmark.split, "source": source},
        "settings": benchmark.settings,
        "items": {
            "path": ITEMS,
            "sha256": bytes_digest(lines),
            "bytes": len(lines),
            "n": sum(len(part) for part in items.values()),
        },
        "evaluations": evaluations,
        **({"overall": whole} if whole else {}),
        **({"comparison": list(comparison)} if comparison else {}),
        "manifest_ref": f"post-training:{frozen['name']}",
        "evaluation_protocol": {
            "tier": frozen["tier"],
            "unit": "item",
            "formal_comparison": False,
            "claim_policy": "single-checkpoint benchmark report",
            "plan_sha256": plan_document["plan_sha256"],
            "primary_metric": frozen["primary_metric"],
            "direction": frozen["direction"],
            "planned_n": len(frozen["seeds"]),
            "alpha": frozen["alpha"],
            "family_id": frozen["family_id"],
            "family_size": len(frozen["family"]),
        },
        "provenance": {"dataset_fingerprint": frozen["dataset"]["fingerprint"]},
    }
    return sealed(found)


def execution(
    benchmark: Benchmark,
    config: Mapping[str, Any],
    models: Sequence[Model],
    folder: Path,
    cost: Cost,
    started: datetime,
    ended: datetime,
    plugins: Sequence[Plugin],
    argv: Sequence[str],
) -> dict[str, Any]:
    """How the evaluation came about."""
    return {
        "method": METHOD,
        "config": dict(config),
        "config_source": [],
        "overrides": list(benchmark.overrides),
        "code": provenance.code_state(PACKAGE),
        "entrypoint": "posttrain",
        "argv": list(argv),
        "environment": provenance.environment(),
        "hardware": provenance.hardware(),
        "seeds": [
            {"name": name, "value": model.seed, "derivation": derivation}
            for model in models
            for name, derivation in (
                ("data", "numpy.random.default_rng(seed), PCG64"),
                ("samples", "keys (seed, step -2, item, sample), counter-based"),
            )
        ],
        "started_at": _stamp(started),
        "ended_at": _stamp(ended),
        "status": "completed",
        "exit_code": 0,
        "inputs": [entry for model in models for entry in _inputs(model)],
        "outputs": [_output(folder, folder / name, role) for name, role in _ROLES.items()],
        "phases": dict(cost.seconds),
        "counters": {"completions": cost.completions, "tokens": cost.tokens},
        "plugins": [{"name": plugin.name, "sha256": plugin.sha256} for plugin in plugins],
    }


def _inputs(model: Model) -> list[dict[str, Any]]:
    """The files of a model folder; a tiny model is named by its recipe, a hub checkpoint by its commit."""
    folder = Path(model.subject.models[model.seed])
    if not folder.is_dir():
        return []
    name = f"{model.subject.name}/seed-{model.seed}"
    return [
        {"path": f"{name}/{path.name}", "sha256": file_digest(path), "bytes": path.stat().st_size, "role": "model"}
        for path in sorted(folder.iterdir())
        if path.is_file() and re.search(r"\.(json|safetensors|model|jinja|txt)$", path.name)
    ]
