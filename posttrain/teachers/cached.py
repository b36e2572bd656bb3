"""`cached`: any teacher behind a store on disk, asked once per completion."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Rollouts, Scores, Targets
from posttrain.functional.divergences import kl_estimator
from posttrain.policies.base import Policy, States
from posttrain.ranges import POSITIVE, check
from posttrain.registry import ConfigError, teachers
from posttrain.teachers.base import Events, Surroundings
from posttrain.teachers.frozen import Frozen
from posttrain.teachers.store import CorruptEntry, Store, entry_key


@teachers.register("cached")
@dataclass(frozen=True)
class Cached:
    """A frozen teacher whose answers are kept, with a guard that notices when the student has moved on."""

    policy: str = "teacher"
    model: str | None = None  # see `frozen`
    store: str | None = None  # a folder to share between runs; None keeps the entries in the run's own folder
    on_miss: Literal["score", "mask", "error"] = "score"  # ask the teacher, leave the tokens out, or stop
    drift_limit: float = 0.5  # KL(policy of the cache || student), nats per token, at which the guard fires
    on_drift: Literal["record", "error"] = "record"

    def __post_init__(self) -> None:
        check("teacher", self, drift_limit=POSITIVE)

    def build(self, surroundings: Surroundings) -> CachedTeacher:
        """The store over a frozen teacher."""
        inner = Frozen(self.policy, self.model).build(surroundings).policy
        folder = Path(self.store) if self.store else surroundings.folder
        return CachedTeacher(inner, Store(folder or Path(tempfile.mkdtemp(prefix="posttrain-teacher-"))), self)


@dataclass
class CachedTeacher:
    """Reads from the store, scores what is missing, and counts both."""

    policy: Policy
    store: Store
    config: Cached
    counted: Events = field(default_factory=Events)
    drifted: bool = False
    watches_student: bool = True
    full_distribution: bool = False

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """What decides the teacher's answers; it never changes, and hashing it is not free."""
        return self.policy.identity()

    def prefill(self, rollouts: Rollouts, top_k: int | None) -> None:
        """Scores what the store lacks, before training."""
        single = replace(rollouts, group_size=1)
        for row, key in enumerate(self._keys(rollouts, top_k)):
            if self._read(key) is None:
                self.store.put(key, self._ask(single.rows(slice(row, row + 1)), top_k))
                self.counted.teacher_prefill_calls += 1
        self.counted.teacher_cache_entries = len(self.store.keys())

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
        """What the store holds at `where`; a miss is handled as `on_miss` says."""
        single = replace(rollouts, group_size=1)
        entries = [
            self._read(key) or self._missing(single.rows(slice(row, row + 1)), key, top_k)
            for row, key in enumerate(self._keys(rollouts, top_k))
        ]
        found = torch.tensor([entry is not None for entry in entries])
        template = next((entry for entry in entries if entry is not None), None)
        if template is None:
            return _silence(rollouts, top_k)
        filled = [entry or {name: np.zeros_like(value) for name, value in template.items()} for entry in entries]
        length = where.shape[1]
        joined = {
            name: torch.from_numpy(np.concatenate([_fit(entry[name], length) for entry in filled])) for name in template
        }
        mask = where & found.unsqueeze(1)
        return Targets(
            torch.where(mask, joined["logprobs"], 0.0),
            mask,
            joined.get("support_ids"),
            joined.get("support_logprobs"),
            joined["entropy"],
        )

    def states(self, rollouts: Rollouts) -> States:
        """A store holds no full distributions."""
        raise ConfigError(
            "teacher.name: `cached` holds no full distributions. Write teacher.name=frozen or algorithm.support=K."
        )

    def watch(self, rollouts: Rollouts, student: Scores) -> None:
        """Fires once each time the student leaves the policy that made the completions by more than the limit."""
        drawn = rollouts.mask & (rollouts.source == 0).unsqueeze(1)  # data rows have no log-probs to drift from
        if not drawn.any():
            return
        drift = float(kl_estimator("k3", rollouts.logprobs, student.logprobs)[drawn].mean())
        if drift > self.config.drift_limit and not self.drifted:
            self.counted.drift_events += 1
            if self.config.on_drift == "error":
                raise RuntimeError(
                    f"the student has drifted {drift:.3g} nats per token from the policy its cache was made for "
                    f"(teacher.drift_limit={self.config.drift_limit}). Make a new one or write teacher.on_drift=record."
                )
        self.drifted = drift > self.config.drift_limit

    def after_update(self, step: int, student: Policy) -> None:
        """It never changes."""

    def distribution(self) -> Policy | None:
        """The policy behind the store."""
        return self.policy

    def events(self) -> Events:
        """Counters so far."""
        return replace(self.counted, teacher_cache_entries=len(self.store.keys()))

    def state_dict(self) -> dict[str, Any]:
        """Counters and whether the guard has fired; the entries are on disk."""
        return {"counted": asdict(self.counted), "drifted": self.drifted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on counting."""
        self.counted, self.drifted = Events(**state["counted"]), state["drifted"]

    def _keys(self, rollouts: Rollouts, top_k: int | None) -> list[str]:
        """Teacher weights, vocabulary and settings, support, and the exact token ids."""
        fixed: Mapping[str, object] = {**self.identity, "top_k": top_k}
        rows = zip(rollouts.prompt_ids, rollouts.prompt_mask, rollouts.completion_ids, rollouts.mask, strict=True)
        return [entry_key({**fixed, "prompt": p[pm].tolist(), "completion": c[m].tolist()}) for p, pm, c, m in rows]

    def _read(self, key: str) -> dict[str, np.ndarray] | None:
        try:
            return self.store.get(key)
        except CorruptEntry:
            self.counted.corrupt_cache_entries += 1
            return None

    def _missing(self, row: Rollouts, key: str, top_k: int | None) -> dict[str, np.ndarray] | None:
        if self.config.on_miss == "error":
            raise RuntimeError(
                f"teacher cache: no entry for completion {row.texts[0]!r}. Write teacher.on_miss=score or mask."
            )
        if self.config.on_miss == "mask":
            return None
        entry = self._ask(row, top_k)
        self.counted.online_teacher_calls += 1
        self.store.put(key, entry)
        return entry

    def _ask(self, row: Rollouts, top_k: int | None) -> dict[str, np.ndarray]:
        targets = self.policy.targets(row, row.mask, top_k)
        entry = {"logprobs": targets.logprobs, "entropy": targets.entropy}
        entry |= {"support_ids": targets.support_ids, "support_logprobs": targets.support_logprobs}
        return {name: value.numpy() for name, value in entry.items() if value is not None}


def _silence(rollouts: Rollouts, top_k: int | None) -> Targets:
    """A teacher that has nothing to say about any token."""
    nothing, support = torch.zeros_like(rollouts.logprobs), None
    if top_k is not None:
        support = nothing.unsqueeze(-1).repeat(1, 1, top_k)
    ids = None if support is None else support.to(torch.int64)
    return Targets(nothing, torch.zeros_like(rollouts.mask), ids, support, nothing)


def _fit(array: np.ndarray, length: int) -> np.ndarray:
    """[1, T', ...] cut or padded to T: what lies beyond a completion's mask is padding."""
    kept = array[:, :length]
    return np.pad(kept, [(0, 0), (0, length - kept.shape[1])] + [(0, 0)] * (array.ndim - 2))
