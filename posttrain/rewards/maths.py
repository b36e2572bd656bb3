"""`maths`: the final answer as mathematics against the answer, exactly for numbers and by sympy for the rest."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from posttrain.batch import Failure, Problem
from posttrain.ranges import NOT_NEGATIVE, POSITIVE, check
from posttrain.registry import ConfigError, rewards
from posttrain.rewards.answers import Answer, Percent, close, final_expression, tidy
from posttrain.rewards.base import BatchReward, Outcome, Verdict
from posttrain.rewards.worker import Broken, Late, Worker


@rewards.register("maths")
@dataclass(frozen=True)
class Maths(BatchReward):
    r"""1 where the final answer equals the answer as mathematics, else 0. Needs `pip install 'posttrain[math]'`.

    Two numbers are compared as `numeric` does, texts that read the same are equal, and everything else is judged by
    math-verify in a process of its own, where nothing exact contradicts it. What takes longer than `timeout` seconds is
    a failure, never a 0.
    """

    reads_answer: ClassVar[bool] = True

    tolerance: float = 0.0
    percent: Percent = "unit"
    timeout: float = 10.0

    def __post_init__(self) -> None:
        check("reward", self, tolerance=NOT_NEGATIVE, timeout=POSITIVE)
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("reward: `maths` needs math-verify. Write: pip install 'posttrain[math]'")

    def judge(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Outcome]:
        """Every completion against its problem's answer; equal pairs are judged once."""
        known: dict[tuple[str, str], Outcome] = {}
        found = []
        for problem, text in zip(problems, texts, strict=True):
            right = final_expression(problem.answer, self.percent) or Answer(problem.answer, None)
            given = final_expression(text, self.percent)
            if given is None:
                found.append(Verdict(0.0, answered=False))
                continue
            pair = (right.text, given.text)
            if pair not in known:
                known[pair] = self._compared(right, given)
            found.append(known[pair])
        return found

    def _compared(self, right: Answer, given: Answer) -> Outcome:
        if right.value is not None and given.value is not None:
            return Verdict(float(close(right.value, given.value, self.tolerance)), answered=True)
        if _letters(right.text) == _letters(given.text):
            return Verdict(1.0, answered=True)
        try:
            said = _worker(os.getpid(), math.ceil(self.timeout)).ask(
                [right.text, given.text, self.tolerance], self.timeout
            )
        except Late as error:
            return Failure(f"{given.text!r:.80} against {right.text!r:.80}: {error}", "timeout")
        except Broken as error:
            return Failure(f"{given.text!r:.80} against {right.text!r:.80}: {error}", "error")
        if isinstance(said, str):
            return Failure(f"{given.text!r:.80} against {right.text!r:.80}: {said}", "error")
        return Verdict(float(said), answered=True)


def _letters(text: str) -> str:
    r"""A text without spaces that part nothing and the marks around it: `(C)`, `\text{C}` and `C` are the same.

    A space between letters or digits stays: `1 2` is not 12.
    """
    plain = tidy(text).replace("$", "").strip().rstrip(".,;")
    plain = re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", plain)
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", plain)


@cache
def _worker(process: int, seconds: int) -> Worker:
    """The worker of a process; a fork gets its own."""
    return Worker("posttrain.rewards.symbolic", str(seconds))
