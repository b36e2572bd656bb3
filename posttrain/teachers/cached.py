"""`cached`: any teacher that does not change behind a store on disk, asked once per completion."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Rollouts, Scores, Targets
from posttrain.functional.divergences import kl_estimator
from posttrain.policies.base import Policy, States
from posttrain.ranges import POSITIVE, at_least, check, or_null
from posttrain.registry import ConfigError, teachers
from posttrain.teachers.base import Events, Found, Gather, Surroundings, alone
from posttrain.teachers.frozen import Frozen
from posttrain.teachers.ledger import Ledger, Use
from posttrain.teachers.privileged import Informed, check_template, insight
from posttrain.teachers.store import FORMAT, CorruptEntry, Store, entry_key, shelf

Entry = Mapping[str, np.ndarray]  # logprobs, entropy [L]; support_ids, support_logprobs [L, K]: L tokens, no padding


@teachers.register("cached")
@dataclass(frozen=True)
class Cached:
    """A teacher whose answers are kept, with a guard that notices when the student has moved on."""

    policy: str = "teacher"
    model: str | None = None  # see `frozen`
    prompt: str | None = None  # see `privileged`: the student's start behind this prompt, in place of another policy
    max_prompt_tokens: int | None = None  # see `privileged`
    store: str | None = None  # a folder to share between runs; None keeps the entries in the run's own folder, or
    # where there is none for as long as the teacher lives
    on_miss: Literal["score", "mask", "error"] = "score"  # ask the teacher, leave the tokens out, or stop
    drift_limit: float = 0.5  # KL(policy of the cache || student), nats per token, at which the guard fires
    on_drift: Literal["record", "error"] = "record"

    def __post_init__(self) -> None:
        check("teacher", self, drift_limit=POSITIVE, max_prompt_tokens=or_null(at_least(1)))
        if self.prompt is not None:
            check_template(self.prompt)
            if self.model is not None:
                raise ConfigError(
                    "teacher.prompt: a privileged teacher has the student's own weights, but teacher.model names "
                    f"{self.model!r}. Leave one of them out."
                )

    def build(self, surroundings: Surroundings) -> CachedTeacher:
        """The store over the teacher that the options name."""
        inner, said = self._inner(surroundings)
        root = Path(self.store) if self.store else surroundings.folder
        scratch = None if root else Path(tempfile.mkdtemp(prefix="posttrain-teacher-"))
        made = CachedTeacher(inner, shelf(root or scratch, inner.identity(), said), self)  # type: ignore[arg-type]
        if scratch is not None:
            weakref.finalize(made, shutil.rmtree, scratch, ignore_errors=True)  # nobody else knows where it lies
        return made

    def _inner(self, surroundings: Surroundings) -> tuple[Policy, Mapping[str, Any]]:
        """The policy that answers, and what it is called in the header of its store."""
        if self.prompt is None:
            answers = Frozen(self.policy, self.model).build(surroundings).policy
            return answers, {"teacher": self.model or self.policy, "prompt": None}
        seen = insight(surroundings, self.prompt, self.max_prompt_tokens)
        return seen(surroundings.student.snapshot()), {"teacher": "the student's start", "prompt": self.prompt}


@dataclass
class CachedTeacher:
    """Reads from the store and scores what is missing; counts what it needed apart from what it found."""

    policy: Policy
    store: Store
    config: Cached
    ledger: Ledger = field(default_factory=Ledger)
    drifted: bool = False
    watches_student: bool = True
    full_distribution: bool = False

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """What decides the teacher's answers; it never changes, and hashing it is not free."""
        return self.policy.identity()

    def prefill(self, rollouts: Rollouts, top_k: int | None) -> None:
        """Scores what the store lacks, before training."""
        for row, key in enumerate(self._keys(rollouts, top_k)):
            if key not in self.ledger.uses:
                entry = self._read(key, rollouts, row, top_k)
                known = entry or self._score(key, rollouts, row, top_k)
                self._used(key, known, before_training=True, was_there=entry is not None)

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
        """What the store holds at `where`; a miss is handled as `on_miss` says."""
        entries = []
        for row, key in enumerate(self._keys(rollouts, top_k)):
            entry = self._read(key, rollouts, row, top_k)
            known = entry or self._missing(key, rollouts, row, top_k)
            if known is not None:
                self._used(key, known, before_training=False, was_there=entry is not None)
            entries.append(known)
        return _joined(entries, rollouts, where, top_k)

    def heard(self, targets: Targets, rollouts: Rollouts) -> Targets:
        """All of it."""
        return targets

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
            self.ledger.counted.drift_events += 1
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

    def events(self, gather: Gather = alone) -> Events:
        """Counters so far (see `Teacher.events`)."""
        return Ledger.over(gather(self.ledger)).events

    @property
    def found(self) -> Found:
        """What this process found in the store so far."""
        return self.ledger.found

    def state_dict(self) -> dict[str, Any]:
        """Counters, the entries they are about, and whether the guard has fired; the entries themselves are on disk."""
        return {"ledger": self.ledger.state_dict(), "drifted": self.drifted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on counting."""
        self.ledger, self.drifted = Ledger.load(state["ledger"]), state["drifted"]

    def _keys(self, rollouts: Rollouts, top_k: int | None) -> list[str]:
        """The teacher's weights, vocabulary and settings, the support, and the exact ids that it reads."""
        fixed: Mapping[str, object] = {**self.identity, "format": FORMAT, "top_k": top_k}
        read = self.policy.behind(rollouts) if isinstance(self.policy, Informed) else rollouts
        rows = zip(read.prompt_ids, read.prompt_mask, read.completion_ids, read.mask, strict=True)
        return [entry_key({**fixed, "prompt": p[pm].tolist(), "completion": c[m].tolist()}) for p, pm, c, m in rows]

    def _read(self, key: str, rollouts: Rollouts, row: int, top_k: int | None) -> Entry | None:
        """The entry as it was written, for exactly this completion."""
        try:
            entry = self.store.get(key)
            if entry is not None and not _fits(entry, int(rollouts.mask[row].sum()), top_k):
                raise CorruptEntry(f"teacher cache entry {self.store.path(key)} is of another completion or support")
        except CorruptEntry:
            self.ledger.noted.teacher_store_corrupt += 1
            self.ledger.counted.corrupt_cache_entries += key in self.ledger.uses
            return None
        return entry

    def _missing(self, key: str, rollouts: Rollouts, row: int, top_k: int | None) -> Entry | None:
        if key in self.ledger.uses:  # damaged or lost since: the run has what it needs to make it again
            return self._score(key, rollouts, row, top_k)
        if self.config.on_miss == "error":
            raise RuntimeError(
                f"teacher cache: no sound entry for completion {rollouts.texts[row]!r} of problem "
                f"`{rollouts.problem_ids[row]}` in {self.store.root.parent}. Write teacher.on_miss=score or mask."
            )
        if self.config.on_miss == "mask":
            self.ledger.noted.teacher_store_masked += 1
            return None
        return self._score(key, rollouts, row, top_k)

    def _score(self, key: str, rollouts: Rollouts, row: int, top_k: int | None) -> Entry:
        """Asks the teacher about one completion, by itself: what it says must not depend on who is asked beside it."""
        alone = replace(rollouts, group_size=1).rows(slice(row, row + 1))
        entry = _entry(self.policy.targets(alone, alone.mask, top_k))
        self.store.put(key, entry)
        self.ledger.noted.teacher_store_scored += 1
        return entry

    def _used(self, key: str, entry: Entry, before_training: bool, was_there: bool) -> None:
        """Takes note of the first use of an entry in the run."""
        if key not in self.ledger.uses:
            size = self.store.path(key).stat().st_size
            self.ledger.uses[key] = Use(before_training, was_there, len(entry["logprobs"]), size)


def _entry(targets: Targets) -> dict[str, np.ndarray]:
    """One row's answers at its tokens, without padding; ids take four bytes, which any vocabulary fits."""
    kept = {
        "logprobs": targets.logprobs,
        "entropy": targets.entropy,
        "support_ids": None if targets.support_ids is None else targets.support_ids.to(torch.int32),
        "support_logprobs": targets.support_logprobs,
    }
    return {name: value[targets.mask].numpy() for name, value in kept.items() if value is not None}


def _fits(entry: Entry, length: int, top_k: int | None) -> bool:
    """Whether an entry is about this many tokens and this support, which is smaller where the vocabulary is."""
    names = {"logprobs", "entropy"} | ({"support_ids", "support_logprobs"} if top_k is not None else set())
    return set(entry) == names and all(len(value) == length for value in entry.values())


def _joined(entries: list[Entry | None], rollouts: Rollouts, where: Tensor, top_k: int | None) -> Targets:
    """Entries as one answer, at `where` and only in rows that have one."""
    found = torch.tensor([entry is not None for entry in entries])
    template = next((entry for entry in entries if entry is not None), None)
    if template is None:
        return _silence(rollouts, top_k)
    columns: dict[str, Tensor] = {}
    for name in template:
        rows = [torch.zeros(*where.shape[1:], *template[name].shape[1:], dtype=_dtype(template[name])) for _ in entries]
        for row, entry, mask in zip(rows, entries, rollouts.mask, strict=True):
            if entry is not None:
                row[mask] = torch.from_numpy(entry[name]).to(row)
        columns[name] = torch.stack(rows)
    mask = where & found.unsqueeze(1)
    return Targets(
        torch.where(mask, columns["logprobs"], 0.0),
        mask,
        columns.get("support_ids"),
        columns.get("support_logprobs"),
        columns["entropy"],
    )


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.int64 if array.dtype.kind == "i" else torch.from_numpy(array).dtype


def _silence(rollouts: Rollouts, top_k: int | None) -> Targets:
    """A teacher that has nothing to say about any token."""
    nothing, support = torch.zeros_like(rollouts.logprobs), None
    if top_k is not None:
        support = nothing.unsqueeze(-1).repeat(1, 1, top_k)
    ids = None if support is None else support.to(torch.int64)
    return Targets(nothing, torch.zeros_like(rollouts.mask), ids, support, nothing)
