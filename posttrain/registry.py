"""Names for the parts a run is made of. The registered dataclass is the schema: its defaults are the vetted setting."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


class ConfigError(ValueError):
    """Something the user wrote is wrong: the message names the field, what was found and what to write."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean `x`?', or the known names where nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean `{close[0]}`?"
    return f" Known: {', '.join(known)}." if known else ""


class Registry:
    """Classes of one kind by name. The built-in ones register when their package is first looked into."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._classes: dict[str, type] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator; a name taken twice is an error."""

        def add(cls: T) -> T:
            taken = self._classes.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(
                    f"{self.kind} `{name}` is registered twice: by {taken.__module__} and {cls.__module__}. "
                    "Give one of them another name."
                )
            if not is_dataclass(cls):
                raise ConfigError(
                    f"{self.kind} `{name}`: {cls.__name__} is not a dataclass. Add @dataclass(frozen=True)."
                )
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._classes)

    def get(self, name: str) -> type:
        """The class; an unknown name is an error with the nearest one."""
        self._load()
        if name not in self._classes:
            raise ConfigError(f"unknown {self.kind} `{name}`.{did_you_mean(name, self._classes)}")
        return self._classes[name]

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._classes

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")


algorithms = Registry("algorithm", "posttrain.algorithms")
policies = Registry("policy", "posttrain.policies")
teachers = Registry("teacher", "posttrain.teachers")
datasets = Registry("dataset", "posttrain.data")
rewards = Registry("reward", "posttrain.rewards")

REGISTRIES = (algorithms, policies, teachers, datasets, rewards)


@dataclass(frozen=True)
class Plugin:
    """A module from outside that registered names; its digest goes into the execution record."""

    name: str
    sha256: str


def load_plugins(names: Iterable[str] = ()) -> list[Plugin]:
    """Imports installed plugins (entry points in `posttrain.plugins`) and the named modules or files."""
    loaded = [_import(entry.name, entry.load) for entry in entry_points(group="posttrain.plugins")]
    for name in names:
        if name.endswith(".py"):
            loaded.append(_import(name, lambda path=Path(name): _import_file(path)))
        else:
            loaded.append(_import(name, lambda module=name: importlib.import_module(module)))
    return loaded


def _import(name: str, load: Callable[[], Any]) -> Plugin:
    try:
        module = load()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"plugin `{name}` does not import: {type(error).__name__}: {error}") from error
    path = getattr(module, "__file__", None)
    return Plugin(name, "sha256:" + hashlib.sha256(Path(path).read_bytes() if path else b"").hexdigest())


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"plugin `{path}`: there is no such file. Give a path to a .py file or a module's name.")
    name = f"posttrain_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
