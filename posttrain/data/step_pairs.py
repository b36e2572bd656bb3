"""`step-pairs`: the problems of `steps` with a worked answer and one that slips once.

The rejected answer has one wrong result, goes on from it without another fault and ends at a wrong number. Chosen and
rejected are equally long and agree up to the slip: what a pair teaches is which digit is right there, not a length or a
style, so that held-out accuracy can move. The slip is one that a small model makes: it knows the parity of a sum or a
difference before its value, and is seldom wrong about a product. A slip that nobody would make teaches nothing: its
probability is nothing already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from posttrain.batch import Problem, ProblemSet
from posttrain.data.steps import OPERATIONS, Steps, with_slip
from posttrain.registry import datasets

SLIP_STREAM = 1  # beside the seed: the problems are those of `steps` with the same options
PLAUSIBLE = (2, 4, 6, 8)  # added to the right digit, modulo ten


@datasets.register("step-pairs")
@dataclass(frozen=True)
class StepPairs:
    """Pairs (the worked answer, the same with one slip) for the training and held-out problems of `steps`."""

    train_examples: int = 512
    validation_examples: int = 128
    shortest: int = 2
    longest: int = 4

    def __post_init__(self) -> None:
        self._steps()

    def build(self, seed: int) -> ProblemSet:
        """The problems of `steps`, and slips from a stream of their own, training problems first."""
        rng, found = np.random.default_rng([seed, SLIP_STREAM]), self._steps().build(seed)
        train, held_out = (tuple(_paired(rng, p) for p in some) for some in (found.train, found.validation))
        return replace(found, train=train, validation=held_out, source=f"{found.source}, against one slip")

    def _steps(self) -> Steps:
        return Steps(self.train_examples, self.validation_examples, self.shortest, self.longest)


def _paired(rng: np.random.Generator, problem: Problem) -> Problem:
    """The problem with a rejected answer, drawn from the plausible ones, or from all where there is none."""
    digits = problem.drawn["digits"]
    signs = [OPERATIONS[place] for place in problem.drawn["operations"]]
    places = range(len(signs))
    slips = [(place, by) for place in places if signs[place] != "*" for by in PLAUSIBLE]
    wrong = _ending_wrong(slips, digits, signs, problem.answer)
    wrong = wrong or _ending_wrong([(p, by) for p in places for by in range(1, 10)], digits, signs, problem.answer)
    slip = wrong[int(rng.integers(len(wrong)))]
    rejected, _ = with_slip(digits, signs, *slip)
    return replace(problem, responses=(*problem.responses, rejected), drawn={**problem.drawn, "slip": list(slip)})


def _ending_wrong(
    slips: list[tuple[int, int]], digits: list[int], signs: list[str], answer: str
) -> list[tuple[int, int]]:
    """Those that lead to another number: a product with 0 or 5 behind it can forgive a slip."""
    return [slip for slip in slips if with_slip(digits, signs, *slip)[1] != answer]
