"""What a page needs to know of a registered method, as plain data: whoever knows the registry collects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Dataset:
    """One registered dataset."""

    name: str
    summary: str  # what it holds, in one line
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One registered algorithm."""

    name: str
    paper: str  # arXiv id, or empty
    title: str
    summary: str  # what it does, in one line
    objective: str  # the code that attaches weight and signal to tokens, and that prices them
    description: str  # the rest of what its code says of itself
    defaults: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    pitfalls: tuple[str, ...] = ()  # known biases under its defaults
    claims: tuple[str, ...] = ()  # ids of the claims its study would decide
    configurations: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its folder below `docs/post-training/`."""
        return f"{self.paper}-{self.name}" if self.paper else self.name
