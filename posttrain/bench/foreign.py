"""Code from outside inside a bench: an idea's hooks, its claims, the functions of a custom track.

What such code raises ends the run in one paragraph: who raised, what, at which line of which file, and what it was
given. The calls that led there are kept beside it.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

import posttrain
from posttrain.evaluation.study import Results
from posttrain.registry import ConfigError
from posttrain.rewards.base import RewardError

if TYPE_CHECKING:
    from posttrain.bench.options import Bench

PACKAGE = Path(posttrain.__file__).parent
STANDARD = Path(inspect.__file__).parent  # the standard library
LONGEST = 300  # characters of an exception's own words
NAMES = 12  # settings that are listed by name

# What each hook of an idea is given, in order.
HOOKS = {
    "model": ("base", "settings"),
    "loss": ("model", "batch", "settings", "base"),
    "order": ("base", "data", "settings"),
    "optimizer": ("parameters", "settings"),
}
# The same of a track's own functions, those of `loops.Training` and those of `track.Track`.
FUNCTIONS = {
    "data": ("seed", "options"),
    "model": ("settings", "options"),
    "loss": ("model", "batch", "settings"),
    "evaluate": ("model", "data", "settings"),
    "measure": ("model", "data", "settings"),
    "mechanism": ("found",),
    "math_check": (),
}


class OutsideError(RuntimeError):
    """Code from outside raised. The message is one paragraph; `calls` is the traceback as text."""

    def __init__(self, message: str, calls: str) -> None:
        super().__init__(message, calls)  # both, so that it travels between processes
        self.calls = calls

    def __str__(self) -> str:
        return str(self.args[0])


def involved(bench: Bench) -> bool:
    """Whether any code of a bench came from outside."""
    return bool(bench.sources or bench.plugins or not bench.own_idea)


def kept_calls(error: BaseException) -> str | None:
    """The traceback that code from outside left behind an error, if it was such code."""
    held = error if isinstance(error, OutsideError) else error.__cause__
    return held.calls if isinstance(held, OutsideError) else None


def hook(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What an idea's hook gives; OutsideError where it raises."""
    return called(f"idea.{name}", function, dict(zip(HOOKS[name], given, strict=True)))


def own(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a track's function gives; OutsideError where it raises."""
    return called(f"track.{name}", function, dict(zip(FUNCTIONS[name], given, strict=True)))


def called(who: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What `function` gives for the values of `given`, in order; OutsideError, in `who`'s name, where it raises."""
    try:
        return function(*given.values())
    except (ConfigError, OutsideError):
        raise  # said already what is wrong
    except Exception as error:
        received = "; ".join(f"{name}: {described(value)}" for name, value in given.items())
        said = f"{raised(who, error, function)}. It was given {received}." if given else f"{raised(who, error)}."
        raise OutsideError(said, calls_of(error)) from error


@contextmanager
def training(bench: Bench, arm: str, where: str = "") -> Iterator[None]:
    """In here a training of an arm runs: what code from outside raises is said with the arm's name and changes."""
    name = f"the idea `{bench.idea.name}` ({', '.join(bench.idea.changes)})" if arm == "idea" else "the baseline"
    try:
        yield
    except OutsideError as error:
        raise OutsideError(f"{name}{where}: {error}", error.calls) from error.__cause__
    except (ConfigError, RewardError):
        raise
    except Exception as error:
        if not involved(bench):
            raise  # a fault of this package, to be seen whole
        raise OutsideError(f"{raised(name + where, error)}.", calls_of(error)) from error


def raised(who: str, error: Exception, function: Callable[..., Any] | None = None) -> str:
    """`idea.loss: raised NameError: ... (mine.py, line 3, in loss)`."""
    words = " ".join(str(error).split())
    words = words if len(words) <= LONGEST else words[:LONGEST] + "..."
    what = f"raised {type(error).__name__}" + (f": {words}" if words else "")
    return f"{who}: {what} ({_place(error.__traceback__, function)})"


def calls_of(error: Exception) -> str:
    """The traceback as text."""
    return "".join(traceback.format_exception(error))


def _place(trail: TracebackType | None, function: Callable[..., Any] | None) -> str:
    """The innermost line outside this package and the libraries it uses; else where the function begins."""
    frames = traceback.extract_tb(trail)
    code = _code(function)
    mine = [frame for frame in frames if _is_outside(frame.filename)]
    mine = mine or [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    if mine:
        return f"{Path(mine[-1].filename).name}, line {mine[-1].lineno}, in {mine[-1].name}"
    if code is not None:
        return f"{Path(code.co_filename).name}, line {code.co_firstlineno}, in the call of {code.co_name}"
    last = frames[-1] if frames else None
    return "no line is known" if last is None else f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"


def _code(function: Callable[..., Any] | None) -> CodeType | None:
    """The code of a function, also of a partial, a method or an object with `__call__`."""
    function = getattr(function, "func", function)
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    return code or getattr(vars(type(function)).get("__call__"), "__code__", None)


def _is_outside(file: str) -> bool:
    """Whether a file is someone's own: no library, nothing of this package."""
    path = Path(file)
    libraries = {"site-packages", "dist-packages"} & {*path.parts} or STANDARD in path.parents
    return path.is_file() and PACKAGE not in path.parents and not libraries


def described(value: Any) -> str:
    """A value by kind, shape and type, in a few words."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{type(value).__name__} {list(shape)} {str(dtype).removeprefix('torch.')}"
    inputs, targets = getattr(value, "inputs", None), getattr(value, "targets", None)
    if inputs is not None and targets is not None:
        return f"{type(value).__name__}, inputs {described(inputs)}, targets {described(targets)}"
    if hasattr(value, "train") and hasattr(value, "test") and hasattr(value, "drawn"):
        return f"{type(value).__name__}, train a {described(value.train)}, test a {described(value.test)}"
    if isinstance(value, Mapping):
        names = list(map(str, value))
        return ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{type(value).__name__} of {len(value)}" + (f", the first a {described(value[0])}" if value else "")
    if isinstance(value, Results):
        measures = dict.fromkeys(name for runs in value.runs.values() for run in runs for name in run["measures"])
        return f"Results of {' and '.join(value.runs)}, with the measures {', '.join(measures) or 'none'}"
    if inspect.isroutine(value):
        return "the track's own"
    return repr(value) if isinstance(value, int | float | str) else type(value).__name__
