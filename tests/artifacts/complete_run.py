"""A complete, small, made-up run folder: everything a verification looks at, and nothing that was trained."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts.comparisons import Rival, compare_runs
from posttrain.artifacts.digests import (
    bytes_digest,
    code_digest,
    dataset_fingerprint,
    dataset_set_fingerprint,
    file_digest,
    sealed,
)
from posttrain.artifacts.documents import dumps, read
from posttrain.artifacts.manifest import execution_document, plan_document

SEEDS = [42, 43, 44, 45, 46, 47]
ITEMS = 8
SPLITS = {
    f"{seed}/{split}": [{"prompt": f"{seed}+{i}", "answer": str(seed + i)} for i in range(n)]
    for seed in SEEDS
    for split, n in (("train", 4), ("validation", ITEMS))
}
RECORD = Path(__file__).parents[2] / "docs/post-training/historical/sparse-opd-arithmetic-smoke-seeds42-44.json"
CLAIM = {
    "id": "S2",
    "claim": "extremes beat dense",
    "prediction": "the accuracy difference is positive",
    "metric": "/final/accuracy",
    "rule": "interval above threshold",
    "threshold": 0.0,
}


def point(correct: int, kl: float) -> dict[str, Any]:
    """A metric point of a candidate policy with a uniform reference over six candidates."""
    return {
        "accuracy": correct / ITEMS,
        "mean_reward": 0.3 + correct / 100,
        "entropy": math.log(6) - 6e-12 - kl,
        "kl_from_reference": kl,
    }


def run(seed: int, correct: int, method: str = "sparse-opd") -> dict[str, Any]:
    """One run of two updates that ends with so many correct items."""
    first, last = point(2, 0.001), point(correct, 0.002 + seed / 1e5)
    return {
        "algorithm": method,
        "dataset": "arithmetic-smoke",
        "seed": seed,
        "status": "completed",
        "baseline": point(2, 0.0),
        "final": last,
        "training": {
            "steps": 2,
            "learning_rate": 0.08,
            "group_size": 4,
            "train_examples": 4,
            "validation_examples": ITEMS,
            "data_source": "deterministic arithmetic smoke suite",
            "teacher_cache_entries": 0,
            "teacher_prefill_calls": 0,
            "online_teacher_calls": 8,
            "drift_events": 0,
            "critic_updates": 0,
            "rollout_policy_refreshes": 0,
            "last_diagnostics": {"supervised_positions": 2.0},
            "fidelity": "mechanism reproduction on a candidate-policy model",
        },
        "history": [{"step": 1.0, "loss": -0.0, **first}, {"step": 2.0, "loss": 0.5, **last}],
        "relative_accuracy": (last["accuracy"] - 0.25) / 0.25,
    }


def plan_body() -> dict[str, Any]:
    """A plan with one control arm, one claim and separate tuning seeds."""
    return {
        "name": "arithmetic-smoke-seeds42-47",
        "dataset": {
            "id": "arithmetic-smoke",
            "config": {"maximum_examples": 4},
            "splits": [{"name": name, "n": len(SPLITS[name])} for name in sorted(SPLITS)],
            "generator": "arithmetic_smoke",
            "generator_version": 1,
            "fingerprint": dataset_fingerprint(SPLITS),
            "set_fingerprint": dataset_set_fingerprint(SPLITS),
        },
        "seeds": SEEDS,
        "tier": "l1_mechanism",
        "primary_metric": "/final/accuracy",
        "direction": "higher is better",
        "alpha": 0.05,
        "test": "paired sign-flip, two-sided",
        "family_id": "sparse",
        "family": ["sparse-opd against dense on arithmetic-smoke"],
        "sesoi": 0.01,
        "failure_value": 0.0,
        "looks": [],
        "common_config": {"steps": 2, "evaluation": {"accuracy": "exact"}},
        "arms": {"dense": {"algorithm": "sparse-opd", "overrides": {"algorithm.select": "all"}}},
        "controls": ["dense"],
        "claims": [CLAIM],
        "tuning": {"grid": {"learning_rate": [0.04, 0.08]}, "seeds": [0, 1, 2]},
    }


def artifact_of(runs: list[dict[str, Any]], plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A sealed artifact of these runs under a plan document."""
    body = plan["plan"]
    return sealed(
        {
            "schema_version": 2,
            "method": "sparse-opd",
            "seeds": body["seeds"],
            "runs": runs,
            "manifest_ref": f"post-training:{body['name']}",
            "evaluation_protocol": {
                "tier": "l1_mechanism",
                "seeds": body["seeds"],
                "formal_comparison": True,
                "claim_policy": "formal multi-seed mechanism comparison",
                "plan_sha256": plan["plan_sha256"],
                **{key: body[key] for key in ("primary_metric", "direction")},
                "planned_n": len(body["seeds"]),
                **{key: body[key] for key in ("alpha", "family_id")},
                "family_size": len(body["family"]),
                **{key: body[key] for key in ("sesoi", "failure_value")},
            },
            "provenance": {
                "artifact_path": f"docs/post-training/2609.04565-sparse-opd/metrics/{body['name']}.json",
                "dataset_fingerprint": body["dataset"]["fingerprint"],
            },
            **more,
        }
    )


def execution_body(outputs: list[dict[str, Any]], dirhash: str) -> dict[str, Any]:
    """An execution record of a run on an unremarkable machine."""
    return {
        "method": "sparse-opd",
        "config": {"steps": 2, "server": {"api_key": "very-secret"}},
        "config_source": [],
        "overrides": ["steps=2", "server.api_key=very-secret"],
        "code": {
            "package_version": "0.1.0",
            "dirhash": dirhash,
            "git_commit": None,
            "git_dirty": None,
            "diff_sha256": None,
        },
        "entrypoint": "posttrain",
        "argv": ["posttrain", "train", "sparse-opd", "--hub-token", "very-secret"],
        "environment": {
            "python": "3.11.7",
            "implementation": "CPython",
            "os": "Linux",
            "kernel": "6.1",
            "arch": "x86_64",
            "libc": None,
            "packages": {"numpy": "2.4.6"},
            "lock_sha256": None,
            "env": {},
        },
        "hardware": {
            "cpu_model": None,
            "physical_cores": 2,
            "flags_sha256": None,
            "ram_bytes": 2**34,
            "gpu": [],
            "blas": {"library": "openblas", "version": "0.3.31", "core": "Haswell", "threads": 1},
            "torch_threads": 1,
            "deterministic": True,
        },
        "seeds": [{"name": "numpy", "value": 42, "derivation": "PCG64 of the run's seed"}],
        "started_at": "2026-09-01T10:00:00Z",
        "ended_at": "2026-09-01T10:00:05.25Z",
        "status": "completed",
        "exit_code": 0,
        "inputs": [],
        "outputs": outputs,
        "phases": {"train": 4.5},
        "counters": {"teacher_positions": 8},
        "plugins": [],
    }


@dataclass(frozen=True)
class CompleteRun:
    """A run folder, the package that made it and the generator that draws its data."""

    folder: Path
    package: Path

    @property
    def artifact(self) -> dict[str, Any]:
        return read(self.folder / "artifact.json")

    def fingerprints(self, dataset: dict[str, Any]) -> str | None:
        return dataset_fingerprint(SPLITS) if dataset["generator"] == "arithmetic_smoke" else None

    def record(self) -> None:
        """Writes the execution record of what the folder holds now, as an honest or a cunning writer would."""
        names = [path for path in sorted(self.folder.iterdir()) if path.is_file() and path.name != "execution.json"]
        outputs = [{"path": p.name, "sha256": file_digest(p), "bytes": p.stat().st_size} for p in names]
        document = execution_document(execution_body(outputs, code_digest(self.package)))
        (self.folder / "execution.json").write_bytes(dumps(document))

    def replace(self, artifact: dict[str, Any]) -> None:
        """Puts another artifact in place, sealed and recorded again: only its numbers can give it away."""
        (self.folder / "artifact.json").write_bytes(dumps(sealed(artifact)))
        self.record()


def complete_run(tmp_path: Path) -> CompleteRun:
    """A run folder that verifies, with one rival arm in it."""
    package, folder = tmp_path / "posttrain", tmp_path / "runs" / "one"
    (folder / "arms" / "dense").mkdir(parents=True)
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.1.0"\n')
    plan = plan_document(plan_body())
    dense = dumps(artifact_of([run(seed, 4) for seed in SEEDS], plan))
    (folder / "arms/dense/artifact.json").write_bytes(dense)
    ours = [run(seed, 5 + seed % 3) for seed in SEEDS]
    rival = Rival("dense", bytes_digest(dense), read(folder / "arms/dense/artifact.json")["runs"])
    more: dict[str, Any] = {
        "comparison": compare_runs(ours, [rival], artifact_of(ours, plan)["evaluation_protocol"]),
        "mechanism": {
            "study": "selection",
            "claims": [{**CLAIM, "measured": {"ci95": [0.1, 0.3], "diffs": [0.2, None]}, "outcome": "confirmed"}],
            "arms": [{"name": "dense", "artifact_sha256": rival.artifact_sha256, "learning_rate": 0.08}],
        },
        "notes": ["sampling without replacement biases the gradient"],
    }
    (folder / "plan.json").write_bytes(dumps(plan))
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    result = CompleteRun(folder, package)
    result.replace(artifact_of(ours, plan, **more))
    return result
