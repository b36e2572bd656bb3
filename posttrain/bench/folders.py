"""Run folders of a bench: where a run goes, what may lie there, and how a plan differs from the one begun there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.artifacts import documents, lock
from posttrain.bench import planning
from posttrain.bench.display import listed as listed_seeds
from posttrain.bench.options import Bench
from posttrain.registry import ConfigError

MOST = 6  # differences that a refusal lists
DIGITS = 8  # of a digest


def default_folder(bench: Bench, digest: str) -> Path:
    """A folder under `runs/` named after the plan: the incomplete one where a run was killed, else a new one."""
    base, count = f"bench-{planning.plan_name(bench)}-{digest.removeprefix('sha256:')[:DIGITS]}", 1
    while True:
        folder = Path("runs") / (base if count == 1 else f"{base}-{count}")
        if not (folder / "execution.json").exists():
            return folder
        count += 1


def take(folder: Path, plan: Mapping[str, Any]) -> None:
    """Finds in the run folder nothing, or what this very plan began; a refusal says what differs."""
    data = documents.dumps(plan)
    complete, begun = (folder / "execution.json").exists(), folder / "plan.json"
    documents.remove_leftovers(folder)
    ours = begun.is_file() and begun.read_bytes() == data
    others = sorted(path.name for path in folder.iterdir() if path.name != lock.NAME)
    if complete or (others and not ours):
        what = _complete(begun, plan, ours) if complete else _other(begun, plan, others)
        raise ConfigError(f"--output: {folder} holds {what} Choose another --output, or remove the folder.")
    documents.write_atomically(begun, data)  # before anything else, so that what a kill leaves can be told by it
    (folder / "cells").mkdir(exist_ok=True)
    documents.remove_leftovers(folder / "cells")


def _complete(begun: Path, plan: Mapping[str, Any], ours: bool) -> str:
    if ours:
        return "a complete run, of this very plan: `posttrain bench report` shows it."
    return f"a complete run of another plan{_listed(begun, plan)}"


def _other(begun: Path, plan: Mapping[str, Any], names: list[str]) -> str:
    if not begun.is_file():
        return f"something else, no plan of a bench: {', '.join(names[:MOST])}."
    return f"what another plan began{_listed(begun, plan)}"


def _listed(begun: Path, plan: Mapping[str, Any]) -> str:
    """`: settings epochs 1 -> 2; ...` from the plan that lies there to the one asked for."""
    try:
        there = documents.read(begun)["plan"]
    except (OSError, documents.DocumentError, KeyError, TypeError):
        return ", which cannot be read."
    return f": {listed(there, plan['plan'])}." if isinstance(there, Mapping) else ", which cannot be read."


def listed(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """What differs between two plans, the one that lies there first, in the words of whoever writes settings."""
    try:
        old, new = _facts(there), _facts(asked)
    except (KeyError, TypeError, AttributeError):
        return "it is no plan of a bench"
    pairs = {name: (old.get(name, "none"), new.get(name, "none")) for name in {**new, **old}}
    shown = [f"{name} {a} -> {b}" for name, (a, b) in pairs.items() if a != b]
    more = f" and {len(shown) - MOST} more" if len(shown) > MOST else ""
    return "; ".join(shown[:MOST]) + more if shown else "it was written by another version of this package"


def _facts(plan: Mapping[str, Any]) -> dict[str, str]:
    """What a plan was asked to be, by the words it was asked in."""
    common = plan["common_config"]
    budget = {key: value for key, value in common["budget"].items() if key not in planning.COUNTS}
    found: dict[str, Any] = {"track": common["track"]}
    for kind in ("track", "idea"):
        source = common.get(f"custom_{kind}")
        digest = source["sha256"][: len("sha256:") + DIGITS] if source else ""
        found[f"{kind} file"] = f"{source['file']} ({digest})" if source else "the shipped one"
    found |= {f"settings.{key}": value for key, value in {**budget, **common["base"]}.items()}
    found |= {f"data.{key}": value for key, value in plan["dataset"]["config"].items()}
    found |= {"evaluation": listed_seeds(plan["seeds"]), "tuning": listed_seeds(common["sweep_seeds"])}
    found |= {name: common[name] for name in ("protocol", "sesoi_rel_pct", "metric")}
    found |= {name: plan[name] for name in ("alpha", "failure_value", "direction")}
    claims = [f"{claim['id']} ({claim['rule']}, {claim['threshold']:g})" for claim in plan["claims"]]
    found |= {"family_size": len(plan["family"]), "predictions": ", ".join(claims) or "none"}
    for arm in ("baseline", "idea"):
        cells = common[f"{arm}_sweep"]
        for key in {key for cell in cells for key in cell} - {*budget}:
            found[f"{arm}'s {key}"] = ", ".join(dict.fromkeys(str(cell.get(key)) for cell in cells))
    return {name: str(value) for name, value in found.items()}
