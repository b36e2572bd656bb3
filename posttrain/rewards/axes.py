"""`axes`: a weighted sum of what a dataset knows about each candidate."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.batch import Failure, Problem
from posttrain.registry import ConfigError, rewards


@rewards.register("axes")
@dataclass(frozen=True)
class Axes:
    """Weighted reward axes of `arithmetic-smoke`."""

    outcome: float = 1.0
    format: float = 0.0
    reasoning: float = 0.0
    brevity: float = 0.0

    def __call__(self, problem: Problem, text: str) -> float | Failure:
        axes = problem.meta.get("axes")
        if axes is None:
            raise ConfigError(
                "reward: `axes` needs a dataset with reward axes (dataset=arithmetic-smoke). Write reward=exact."
            )
        i = problem.candidates.index(text)
        # Summed in this order, the held-out means equal the recorded ones bit for bit.
        main = self.outcome * axes["outcome"][i] + self.reasoning * axes["reasoning"][i]
        return float(main + (self.format * axes["format"][i] + self.brevity * axes["brevity"][i]))
