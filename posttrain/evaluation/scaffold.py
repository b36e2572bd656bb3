"""`posttrain new algorithm NAME`: an algorithm with its study, its configuration and its test, ready to run."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path

from posttrain.registry import ConfigError, algorithms


def write_algorithm(name: str, directory: Path) -> list[str]:
    """Writes the files; existing ones are never touched. Gives the lines to print."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(f"new algorithm: found {name!r}, expected lower-case words joined by dashes, such as my-opd")
    if name in algorithms:
        raise ConfigError(f"new algorithm: `{name}` exists already. Choose another name.")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"new algorithm: {name!r} is a word of Python. Choose another name.")
    words = {
        "name": name,
        "module": module,
        "identifier": module,
        "cls": "".join(part.capitalize() for part in name.split("-")),
    }
    places = {
        "algorithm.py.txt": directory / f"{module}.py",
        "l1.yaml.txt": directory / "configs" / name / "l1.yaml",
        "test_algorithm.py.txt": directory / f"test_{module}.py",
    }
    present = [str(path) for path in places.values() if path.exists()]
    if present:
        raise ConfigError(f"new algorithm: {', '.join(present)} exists already. Choose another name or --directory.")
    for template, path in places.items():
        text = resources.files("posttrain.templates").joinpath(template).read_text(encoding="utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words), encoding="utf-8")
    plugin = places["algorithm.py.txt"]
    return [
        *(f"wrote {path}" for path in places.values()),
        "next:",
        f"  posttrain train {name} --plugin {plugin}",
        f"  posttrain reproduce {name} --plugin {plugin}",
        f"  pytest {places['test_algorithm.py.txt']}",
    ]
