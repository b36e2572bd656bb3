"""Short ways to name a part: a file, a folder, a hub id or a function, where a registered name is expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posttrain.registry import CODE, ConfigError

FILES = (".jsonl", ".json", ".csv", ".parquet")
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def expanded(kind: str, field: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of one kind (`dataset`, `reward`) whose name is a shorthand, spelled out.

    `{"name": "data.jsonl", "held_out": 64}` becomes `{"name": "files", "path": "data.jsonl", "held_out": 64}`. A file
    or folder that is not there is a ConfigError.
    """
    name = part.get("name")
    expand = EXPAND.get(kind)
    found = expand(field, name) if isinstance(name, str) and expand is not None else None
    if found is None:
        return dict(part)
    twice = sorted((found.keys() & part.keys()) - {"name"})
    if twice:
        raise ConfigError(f"{field}.{twice[0]}: given twice, as {field}={name} and by name. Leave one out.")
    return {**found, **{key: value for key, value in part.items() if key != "name"}}


def require_model(field: str, word: str) -> None:
    """ConfigError unless a word is a folder that is there, or may be a model of the hub: OWNER/NAME.

    A path (it begins with a dot, a slash or a folder that is there) and a bare name are never looked for on the hub.
    """
    path = Path(word).expanduser()
    if path.is_dir():
        return
    local = word.startswith((".", "/", "~")) or Path(word).parts[0] == "runs"
    if HUB_ID.fullmatch(word) and not local and not Path(Path(word).parts[0]).is_dir():
        return
    beside = path.parent if path.parent.is_dir() else Path()
    near = difflib.get_close_matches(path.name, [found.name for found in beside.iterdir() if found.is_dir()], n=3)
    meant = f" Did you mean {' or '.join(f'`{beside / name}`' for name in near)}?" if near else ""
    raise ConfigError(
        f"{field}: there is no folder `{word}`.{meant} Give the folder of a model; a model of the hub is written "
        "OWNER/NAME."
    )


def _dataset(field: str, name: str) -> dict[str, Any] | None:
    path = Path(name).expanduser()
    if name.startswith("reasoning_gym:"):
        return {"name": "reasoning_gym", "task": name.removeprefix("reasoning_gym:")}
    if name.lower().endswith(FILES) and not path.is_dir():
        if not path.is_file():
            raise ConfigError(f"{field}: there is no file `{name}`. Give the path of a file with one row per problem.")
        return {"name": "files", "path": name}
    if path.is_file():
        raise ConfigError(f"{field}: `{name}` is no file of rows: these end in {', '.join(FILES)}.")
    if path.is_dir():
        return {"name": "hub", "path": str(path)}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"{field}: there is no folder `{name}`. Give a file, a folder or a hub id (owner/name).")
    return {"name": "hub", "path": name} if HUB_ID.fullmatch(name) else None


def _reward(field: str, name: str) -> dict[str, Any] | None:
    """A function; the file it lies in is loaded, or missed, as the plugin that it is."""
    if not re.fullmatch(CODE, name):
        if name.endswith(".py"):
            raise ConfigError(f"{field}: found `{name}`, expected the function too: {field}={name}:FUNCTION")
        return None
    return {"name": "function", "source": name}


EXPAND: Mapping[str, Callable[[str, str], dict[str, Any] | None]] = {"dataset": _dataset, "reward": _reward}
