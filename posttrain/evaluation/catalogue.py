"""`posttrain list`: what is registered and shipped."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from posttrain.evaluation.controls import CONTROLS
from posttrain.evaluation.study import studies
from posttrain.registry import REGISTRIES, Registry, algorithms
from posttrain.settings import configurations


def catalogue() -> dict[str, Any]:
    """Every registered name with its first line, options and, for algorithms, needs, configurations and claims."""
    found: dict[str, Any] = {registry.plural: _entries(registry) for registry in REGISTRIES}
    for name, entry in found["algorithms"].items():
        cls = algorithms.get(name)
        entry["paper"] = cls.paper
        entry["needs"] = sorted(cls().needs)
        entry["configurations"] = sorted(configurations(name))
        entry["claims"] = [claim.id for claim in studies.get(name).claims] if name in studies else []
    found["controls"] = sorted(CONTROLS)
    return found


def _entries(registry: Registry) -> dict[str, Any]:
    return {
        name: {
            "summary": (registry.get(name).__doc__ or "").strip().splitlines()[0],
            "options": [f.name for f in fields(registry.get(name))],
        }
        for name in registry.names()
    }


def render(found: dict[str, Any]) -> str:
    """The catalogue as text."""
    lines: list[str] = []
    for kind, entries in found.items():
        lines.append(kind)
        if isinstance(entries, list):
            lines.append("  " + ", ".join(entries))
            continue
        width = max(len(name) for name in entries)
        lines += [f"  {name:<{width}}  {entry['summary']}" for name, entry in entries.items()]
    return "\n".join(lines)
