"""Names for the parts a run is made of. The registered dataclass is the schema: its defaults are the vetted setting."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


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
    """Dataclasses of one kind by name. The built-in ones register when their package is first looked into."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self.plural = kind[:-1] + "ies" if kind.endswith("y") else kind + "s"
        self._entries: dict[str, Any] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator; a name taken twice is an error."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ConfigError(f"{self.kind} `{name}` is registered twice. Give one of them another name.")
            if not is_dataclass(entry):
                raise ConfigError(f"{self.kind} `{name}`: {entry!r} is not a dataclass. Add @dataclass(frozen=True).")
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def get(self, name: str) -> Any:
        """What is registered; an unknown name is an error with the nearest one."""
        self._load()
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} `{name}`.{did_you_mean(name, self._entries)}")
        return self._entries[name]

    def name_of(self, entry: object) -> str:
        """The name under which the class of an object is registered; the name of the class where it is not."""
        self._load()
        return next((name for name, cls in self._entries.items() if cls is type(entry)), type(entry).__name__)

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._entries

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
    installed: bool = False  # found through an entry point, so other processes find it too


def load_plugins(names: Iterable[str] = ()) -> list[Plugin]:
    """Imports installed plugins (entry points in `posttrain.plugins`) and the named modules or files."""
    loaded = [_import(entry.name, entry.load, True) for entry in entry_points(group="posttrain.plugins")]
    for name in names:
        if name.endswith(".py"):
            loaded.append(_import(name, lambda path=Path(name): _import_file(path)))
        else:
            loaded.append(_import(name, lambda module=name: importlib.import_module(module)))
    return loaded


CODE = r"(?:[^:,{}\[\]\s]+\.py|[A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*"  # FILE.py:NAME or MODULE:NAME

_files: dict[str, tuple[Path, str]] = {}  # where an imported file lay and what it held: one that changed runs anew
_modules: dict[str, Any] = {}  # what load_plugins was told to import, by the name it was given
_digests: dict[str, str] = {}  # of what was imported, by the same names


def loaded(name: str, field: str) -> Any:
    """A module that `load_plugins` was told to import, by its name or, for a file, by that of the file.

    A configuration may name code, but only whoever starts the program has it run: other modules are refused.
    """
    same = [module for given, module in _modules.items() if Path(given).name == Path(name).name]
    if name in _modules:
        return _modules[name]
    if name.endswith(".py") and len(same) == 1:
        return same[0]
    raise ConfigError(f"{field}: {name} is named by a configuration, which runs no code. Add --plugin {name}.")


def _import(name: str, load: Callable[[], Any], installed: bool = False) -> Plugin:
    try:
        module = load()
    except ConfigError as error:
        raise ConfigError(f"plugin `{name}`: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(
            f"{error.name}."
        ):  # the module is there, one it needs is not
            raise ConfigError(f"plugin `{name}` does not import: {type(error).__name__}: {error}") from error
        near = difflib.get_close_matches(name, [path.name for path in Path().glob("*.py")], n=1)
        meant = f" Did you mean `{near[0]}`?" if near else ""
        raise ConfigError(
            f"plugin `{name}`: there is no module of this name.{meant} A file is named with its ending, .py: "
            "reward=FILE.py:FUNCTION or --plugin FILE.py."
        ) from error
    except (Exception, SystemExit) as error:
        where = _line(error, name)
        raise ConfigError(f"plugin `{name}` does not import: {type(error).__name__}: {error}{where}") from error
    _modules[name], _digests[name] = module, _digest(module)
    return Plugin(name, _digests[name], installed)


def digests(names: Iterable[str]) -> dict[str, str]:
    """What plugins held when this process imported them, by name."""
    return {name: _digests[name] for name in names}


def require_same(expected: Mapping[str, str]) -> None:
    """ConfigError where this process imported other bytes under a name than the one that began the run."""
    for name, digest in expected.items():
        if _digests.get(name) != digest:
            raise ConfigError(
                f"plugin `{name}` has changed since the run began, and its processes would run different code. "
                "Run it again in another folder."
            )


def _line(error: BaseException, name: str) -> str:
    """` (my.py, line 3)`, the last line of the file that an import came to; a syntax error says it by itself."""
    if isinstance(error, SyntaxError) or not name.endswith(".py"):
        return ""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if _same_file(frame, name)]
    return f" ({Path(name).name}, line {lines[-1]})" if lines else ""


def _same_file(frame: FrameType, name: str) -> bool:
    return Path(frame.f_code.co_filename).resolve() == Path(name).resolve()


def _digest(module: Any) -> str:
    """Of a module's file; for a package, of all its code and configurations by sorted relative path."""
    path = getattr(module, "__file__", None)
    if path is None or not hasattr(module, "__path__"):
        return "sha256:" + hashlib.sha256(Path(path).read_bytes() if path else b"").hexdigest()
    folder = Path(path).parent
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.suffix in (".py", ".yaml")}
    lines = (f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError("there is no such file. Give a path to a .py file or a module's name.")
    name = f"posttrain_plugin_{path.stem}"
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    if name in sys.modules and _files.get(name) == (path.resolve(), content):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _files[name] = (path.resolve(), content)
    return module
