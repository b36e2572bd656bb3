"""What pages need to know of the registered algorithms, as plain data."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields, is_dataclass
from typing import Any

from posttrain.evaluation.study import studies
from posttrain.registry import algorithms
from posttrain.registry import datasets as known_datasets
from posttrain.reporting.facts import Dataset, Method
from posttrain.settings import config_folder


def methods() -> list[Method]:
    """Every registered algorithm, sorted by name."""
    return [_method(name) for name in algorithms.names()]


def datasets() -> list[Dataset]:
    """Every registered dataset, sorted by name."""
    return [_dataset(name) for name in known_datasets.names()]


def _dataset(name: str) -> Dataset:
    cls = known_datasets.get(name)
    default = cls()
    summary = inspect.cleandoc(cls.__doc__ or name).partition("\n\n")[0]
    return Dataset(name, " ".join(summary.split()), {f.name: _plain(getattr(default, f.name)) for f in fields(cls)})


def _method(name: str) -> Method:
    cls = algorithms.get(name)
    default = cls()
    summary, _, rest = inspect.cleandoc(cls.__doc__ or name).partition("\n\n")
    claims = tuple(claim.id for claim in studies.get(name).claims) if name in studies else ()
    configurations = tuple(sorted(path.stem for path in (config_folder() / name).glob("*.yaml")))
    return Method(
        name=name,
        paper=cls.paper,
        title=cls.title,
        summary=" ".join(summary.split()),
        objective="\n\n".join(_source(cls, part) for part in ("prepare", "loss")),
        description="\n\n".join(" ".join(part.split()) for part in rest.split("\n\n")),
        defaults={f.name: _plain(getattr(default, f.name)) for f in fields(cls)},
        needs=tuple(sorted(default.needs)),
        pitfalls=tuple(default.biases),
        claims=claims,
        configurations=configurations,
    )


def _source(cls: type, name: str) -> str:
    """The code itself: a formula in other names would drift from it."""
    return textwrap.dedent(inspect.getsource(getattr(cls, name))).rstrip()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
