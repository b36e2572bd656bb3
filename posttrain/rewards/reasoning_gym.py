"""`reasoning_gym`: the own scorer of a reasoning-gym task."""

from __future__ import annotations

import re
from dataclasses import dataclass

from posttrain.batch import Failure, Problem
from posttrain.registry import ConfigError, rewards
from posttrain.rewards.base import Outcome, Verdict


@rewards.register("reasoning_gym")
@dataclass(frozen=True)
class ReasoningGymScore:
    """What the task's own scorer gives the completion, in [0, 1]; needs dataset=reasoning_gym.

    A scorer that raises on a completion could not read it: that is a missing answer, worth 0, for the scorer was tried
    on the task's own answers and on garbage before it was used. Only where the machine is at fault (no memory, a file
    or a package that is not there), or where the scorer leaves [0, 1], is it a failure.
    """

    tag: str | None = None  # the answer stands between the last <tag> and </tag>; null: it is the whole completion

    def __call__(self, problem: Problem, text: str) -> Outcome:
        if not callable(problem.meta.get("score")):
            raise ConfigError(
                "reward: `reasoning_gym` scores tasks of dataset=reasoning_gym alone. Write reward=exact."
            )
        if self.tag is not None:
            found = re.findall(f"<{re.escape(self.tag)}>(.*?)</{re.escape(self.tag)}>", text, re.DOTALL)
            if not found:
                return Verdict(0.0, answered=False)
            text = found[-1]
        try:
            value = problem.meta["score"](text.strip())
        except (ImportError, OSError, MemoryError) as error:
            return Failure(f"the scorer raised {type(error).__name__}", "error")
        except Exception:  # scorers raise anything on what they cannot read
            return Verdict(0.0, answered=False)
        return value if 0 <= value <= 1 else Failure(f"the scorer gave {value}", "error")
