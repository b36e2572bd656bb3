"""Stores of teachers' answers: filled before a run, described, and checked entry by entry."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.assembly import assemble, pin
from posttrain.registry import ConfigError
from posttrain.settings import REPEATABLE, TrainConfig
from posttrain.teachers.base import Found
from posttrain.teachers.cached import CachedTeacher
from posttrain.teachers.store import HEADER, CorruptEntry, Store, read_header, shelves


@dataclass(frozen=True)
class Filled:
    """What one seed's completions needed, and what the store held of it."""

    seed: int
    needed: int  # different completions
    found: Found


def buildable(config: TrainConfig, store: str | None) -> TrainConfig:
    """The run with its store; refused where no run would find it, or where completions are not known before."""
    algorithm, name = config.algorithm, config.names.get("teacher")
    if name != "cached":
        raise ConfigError(
            f"teacher.name: found {name}, but a store belongs to teacher=cached. Write teacher=cached "
            "(with teacher.model=..., or teacher.prompt=... for a privileged one)."
        )
    config = replace(config, teacher=replace(config.teacher, store=store or config.teacher.store))
    if config.teacher.store is None:
        raise ConfigError("teacher.store: nothing is chosen, so no run would find what is built. Write --store DIR.")
    if algorithm.rollouts == "sample" and algorithm.on_policy == 1.0:
        raise ConfigError(
            f"algorithm: the completions of `{config.method}` are drawn from a student that moves, so they are not "
            "known before. Write lightning-opd, or gkd with algorithm.support=K for its data rows; teacher.on_miss="
            "score fills a store while it trains."
        )
    return config


def fill(config: TrainConfig) -> Iterator[Filled]:
    """Fills the store of a run that is `buildable`: completions drawn once, or data rows, of its training problems."""
    if config.tier in REPEATABLE:
        pin()
    for seed in config.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            trainer = assemble(config, seed, folder=Path(scratch))
        teacher = trainer.teacher
        assert isinstance(teacher, CachedTeacher)
        if config.algorithm.rollouts == "once":
            trainer._sample_once()
        else:
            rows = trainer.policy.respond(list(trainer.problems), seed, 0)
            teacher.prefill(rows, config.algorithm.top_k)
        yield Filled(seed, teacher.events().teacher_cache_entries, teacher.found)


@dataclass
class Form:
    """Entries of one kind: the sampled token alone, or with a support."""

    support: int | None
    entries: int = 0
    tokens: int = 0
    bytes: int = 0
    captured: float = 0.0  # sum over tokens of the teacher's mass inside the support

    @property
    def said(self) -> dict[str, Any]:
        """As plain data: with bytes per token and, of a support, the mean mass it holds."""
        per_token = self.bytes / self.tokens if self.tokens else None
        mass = self.captured / self.tokens if self.support is not None and self.tokens else None
        kept = {"support": self.support, "entries": self.entries, "tokens": self.tokens, "bytes": self.bytes}
        return {**kept, "bytes_per_token": per_token, "support_mass": mass}


@dataclass
class Shelf:
    """What lies in the store of one teacher, every entry read and checked."""

    store: Store
    forms: dict[int | None, Form] = field(default_factory=dict)
    corrupt: list[str] = field(default_factory=list)  # one line each
    damaged: list[str] = field(default_factory=list)  # their keys

    @property
    def header(self) -> dict[str, Any] | None:
        """Who answers here."""
        return read_header(self.store)


def look(root: Path) -> list[Shelf]:
    """Reads every entry of every teacher; a folder that is no store is a ConfigError."""
    stores = shelves(root)
    if not stores:
        raise ConfigError(f"STORE: {root} holds no teacher's answers. Give the folder that teacher.store names.")
    return [_looked(store) for store in stores]


def _looked(store: Store) -> Shelf:
    shelf, keys = Shelf(store), store.keys()
    for key in keys:
        try:
            entry = store.get(key)
            if entry is not None:  # gone since, as by a repair
                _count(shelf, entry, store.path(key).stat().st_size)
        except (CorruptEntry, KeyError, IndexError) as error:
            said = str(error) if isinstance(error, CorruptEntry) else f"{store.path(key)} holds no teacher's answers"
            shelf.corrupt.append(said)
            shelf.damaged.append(key)
    return shelf


def _count(shelf: Shelf, entry: dict[str, np.ndarray], size: int) -> None:
    support = entry["support_logprobs"].shape[1] if "support_logprobs" in entry else None
    form = shelf.forms.setdefault(support, Form(support))
    form.entries += 1
    form.tokens += len(entry["logprobs"])
    form.bytes += size
    if support is not None:
        form.captured += float(np.exp(entry["support_logprobs"].astype(np.float64)).sum())


def info(root: Path) -> list[dict[str, Any]]:
    """Every teacher of a store with its identity and the forms of its entries, as plain data."""
    return [
        {
            "folder": shelf.store.root.name,
            **(shelf.header or {"teacher": None, "prompt": None, "identity": None, "format": None}),
            "forms": [shelf.forms[key].said for key in sorted(shelf.forms, key=lambda key: key or 0)],
            "corrupt": len(shelf.corrupt),
        }
        for shelf in look(root)
    ]


def render(found: Sequence[dict[str, Any]]) -> str:
    """`info` as text."""
    lines = []
    for shelf in found:
        lines.append(
            f"{shelf['folder']}  teacher: {shelf['teacher'] or f'unknown, its {HEADER} is missing or damaged'}"
        )
        if shelf["prompt"]:
            lines.append(f"  behind the prompt {shelf['prompt']!r}")
        if shelf["identity"]:
            named = (
                f"{key} {value[:12]}" if len(value) == 64 else f"{key} {value}"
                for key, value in shelf["identity"].items()
            )
            lines.append(f"  {', '.join(named)}, format {shelf['format']}")
        lines += [f"  {_form(form)}" for form in shelf["forms"]]
        if not shelf["forms"]:
            lines.append("  no entries")
        if shelf["corrupt"]:
            lines.append(f"  {shelf['corrupt']} corrupt entries: posttrain cache verify names them")
    return "\n".join(lines)


def _form(form: dict[str, Any]) -> str:
    kind = "sampled token" if form["support"] is None else f"sampled token and {form['support']} ids with tail"
    per = "" if form["bytes_per_token"] is None else f", {form['bytes_per_token']:.1f} bytes per token"
    mass = "" if form["support_mass"] is None else f", which hold {form['support_mass']:.4f} of the teacher's mass"
    return f"{kind}: {form['entries']} entries, {form['tokens']} tokens, {form['bytes']} bytes{per}{mass}"


@dataclass(frozen=True)
class Verified:
    """The outcome of a check: what is sound, and one line for everything that is not."""

    sound: int
    faults: tuple[str, ...]
    repaired: int = 0


def verify(root: Path, repair: bool = False) -> Verified:
    """Checks every entry and header. `repair` deletes corrupt entries, and nothing else."""
    found = look(root)
    faults, repaired = [], 0
    for shelf in found:
        faults += shelf.corrupt
        if shelf.header is None:
            faults.append(f"{shelf.store.root / HEADER} is missing or damaged: the next run of this teacher writes it")
        faults += [f"{path} is no entry; nothing reads it" for path in shelf.store.strangers()]
        if repair:
            shelf.store.sweep()
            for key in shelf.damaged:
                shelf.store.path(key).unlink(missing_ok=True)
            repaired += len(shelf.damaged)
    known = {shelf.store.root for shelf in found}
    faults += [
        f"{path} is no teacher's folder; nothing reads it" for path in sorted(root.iterdir()) if path not in known
    ]
    return Verified(sum(form.entries for shelf in found for form in shelf.forms.values()), tuple(faults), repaired)


def line(filled: Filled) -> str:
    """One seed's line as text."""
    found = filled.found
    corrupt = f", {found.teacher_store_corrupt} of them in place of corrupt ones" if found.teacher_store_corrupt else ""
    return (
        f"seed {filled.seed}: {filled.needed} different completions, {found.teacher_store_hits} were there, "
        f"{found.teacher_store_scored} made now{corrupt}"
    )


def as_json(filled: Filled) -> dict[str, Any]:
    """One seed's line as plain data."""
    return {"seed": filled.seed, "needed": filled.needed, **asdict(filled.found)}
