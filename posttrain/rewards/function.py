"""`function`: a function of one's own as the reward, `reward=my.py:score`.

    def score(prompt, completion, answer, **columns):     # asked about one completion
        return float(answer in completion)

    def score(completions, answer, **columns):            # asked about all completions of a step, lists throughout
        return [float(a in c) for a, c in zip(answer, completions)]

The parameter `completion` or `completions` says which. A function is given, by name and only where it has a parameter
of that name (or `**columns`): `prompt` (`prompts`), `completion` (`completions`), `answer`, `id`, and every column of
the dataset (`Problem.meta`). It returns a number, None where it has nothing to say, or a `Failure`; for `completions` a
list of those, as long as they are. Numbers of numpy and torch, and bools, are numbers.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor

from posttrain.batch import Failure, Problem
from posttrain.registry import CODE, ConfigError, loaded, rewards
from posttrain.rewards.base import BatchReward, Outcome, RewardError, outcome


@rewards.register("function")
@dataclass(frozen=True)
class Function(BatchReward):
    """A function of your own, from a file or a module: `reward=my.py:score`."""

    source: str = ""  # FILE.py:NAME or MODULE:NAME, as the command line names it
    on_error: Literal["stop", "exclude"] = "stop"  # an exception or no number: end the run, or count and leave out

    def __post_init__(self) -> None:
        if not re.fullmatch(CODE, self.source):
            raise ConfigError(f"reward.source: found {self.source!r}, expected FILE.py:NAME or MODULE:NAME")

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.source.rpartition(":")[2]

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself; ConfigError where the module lacks it or was not named by whoever started the run."""
        module = self.source.rpartition(":")[0]
        found = vars(loaded(module, "reward.source")).get(self.name)
        if not callable(found):
            raise ConfigError(f"reward.source: {module} defines no function `{self.name}`")
        return found

    def judge(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Outcome]:
        """What the function says of each completion, under the policy `on_error`."""
        parameters = inspect.signature(self.function).parameters
        if "completions" not in parameters and "completion" not in parameters:
            raise ConfigError(f"reward.source: `{self.source}` has no parameter `completion` or `completions`")
        columns = _columns(problems)
        if "completions" in parameters:
            columns |= {"prompts": [p.prompt for p in problems], "completions": list(texts)}
            _require(self.source, parameters, columns)
            return self._together(_given(parameters, columns), [p.id for p in problems])
        columns |= {"prompt": [p.prompt for p in problems], "completion": list(texts)}
        _require(self.source, parameters, columns)
        rows = [{name: values[i] for name, values in columns.items()} for i in range(len(texts))]
        return [self._alone(i, _given(parameters, row), problems[i].id) for i, row in enumerate(rows)]

    def _together(self, given: dict[str, Any], ids: list[str]) -> list[Outcome]:
        try:
            found = self.function(**given)
        except (Exception, SystemExit) as error:
            what = f"reward `{self.source}`, samples 0 to {len(ids) - 1} together: {_raised(error)}"
            return [self._failed(what, error)] * len(ids)
        if isinstance(found, np.ndarray | Tensor) and found.ndim == 1:
            found = found.tolist()
        if not isinstance(found, list | tuple) or len(found) != len(ids):
            got = f"{len(found)}" if isinstance(found, list | tuple) else f"{found!r:.80}"
            raise RewardError(f"reward `{self.source}`: expected {len(ids)} values, one per completion, got {got}")
        return [self._outcome(i, value, ids[i]) for i, value in enumerate(found)]

    def _alone(self, i: int, given: dict[str, Any], problem: str) -> Outcome:
        try:
            value = self.function(**given)
        except (Exception, SystemExit) as error:
            return self._failed(f"reward `{self.source}`, sample {i} (problem {problem}): {_raised(error)}", error)
        return self._outcome(i, value, problem)

    def _outcome(self, i: int, value: Any, problem: str) -> Outcome:
        try:
            return outcome(value)
        except ValueError as error:
            return self._failed(f"reward `{self.source}`, sample {i} (problem {problem}): {error}", error)

    def _failed(self, message: str, error: BaseException) -> Failure:
        if self.on_error == "stop":
            raise RewardError(f"{message}. To leave such samples out, write reward.on_error=exclude.") from error
        return Failure(message, "error")


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {error}"


def _columns(problems: Sequence[Problem]) -> dict[str, list[Any]]:
    """What the dataset knows, a list for each name. It is copied: no function changes a problem."""
    names = dict.fromkeys(name for problem in problems for name in problem.meta)
    meta = {name: [copy.deepcopy(problem.meta.get(name)) for problem in problems] for name in names}
    return meta | {"id": [p.id for p in problems], "answer": [p.answer for p in problems]}


def _given(parameters: Mapping[str, inspect.Parameter], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that the function has parameters for."""
    everything = inspect.Parameter.VAR_KEYWORD in [parameter.kind for parameter in parameters.values()]
    return {name: value for name, value in columns.items() if everything or name in parameters}


def _require(source: str, parameters: Mapping[str, inspect.Parameter], columns: Mapping[str, Any]) -> None:
    """ConfigError where the function cannot do without a column that is not there."""
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and parameter.kind not in several and name not in columns:
            raise ConfigError(
                f"reward.source: `{source}` asks for `{name}`, which the dataset has not. Its columns are "
                f"{', '.join(sorted(columns))}."
            )
