"""`posttrain bench new idea|track NAME`: a commented file that runs as it is."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path

from posttrain.bench.track import tracks
from posttrain.registry import ConfigError


def write(what: str, name: str, directory: Path) -> list[str]:
    """Writes the file; an existing one is never touched. Gives the lines to print."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(module):
        raise ConfigError(f"bench new {what}: found {name!r}, expected lower-case words joined by dashes: my-{what}")
    if what == "track" and (name in tracks or module in tracks):
        raise ConfigError(f"bench new track: `{name}` is a shipped track. Choose another name.")
    path = directory / f"{module}.py"
    if path.exists():
        raise ConfigError(f"bench new {what}: {path} exists already. Choose another name or --directory.")
    text = resources.files("posttrain.templates").joinpath(f"bench_{what}.py.txt").read_text(encoding="utf-8")
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("{name}", name).replace("{file}", path.name), encoding="utf-8")
    run = f"posttrain bench run sequence --idea {path}" if what == "idea" else f"posttrain bench run {path}"
    return [f"wrote {path}", "next:", f"  {run}"]
