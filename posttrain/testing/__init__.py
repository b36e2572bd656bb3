"""Laws for algorithms, the package's own and those of outsiders.

    from posttrain.testing import check_algorithm

    def test_my_algorithm_obeys_the_laws():
        print(check_algorithm(MyAlgorithm))                 # laws 1, 2, 3, 6, 9, and the cached teacher of law 7
        check_algorithm(MyAlgorithm(clip=0.1))              # a setting of it
        check_algorithm(MyAlgorithm, at_rest=True)          # and law 4: the teacher is the student
        check_algorithm(MyAlgorithm, reference=dense_loss)  # and law 5: `dense_loss(dense)` is the loss, in plain torch
        check_algorithm(MyAlgorithm, reference=Other())     # and law 7: another algorithm has the same gradient
        check_algorithm(MyAlgorithm, objective=objective)   # and law 8: the mean over all samples is its gradient

A law that does not hold raises LawBroken with a sentence; the report lists what was checked and what was not. The
pieces are public too: `trainer_for`, `draw`, `prepare` and `price` make one real optimizer step, `expected_gradient`
averages it over everything that could have been sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from posttrain.algorithms.base import Algorithm
from posttrain.testing import laws, references
from posttrain.testing.bench import Priced, Setting, Step, draw, moved, prepare, price, trainer_for
from posttrain.testing.dense import Dense, completions, dense, expected_gradient, group_of
from posttrain.testing.laws import LAWS, LawBroken
from posttrain.testing.references import Loss, every_completion, student_as_teacher
from posttrain.trainer import Trainer

__all__ = [
    "ENUMERABLE", "LAWS", "SETTINGS", "Dense", "LawBroken", "Loss", "Priced", "Report", "Setting", "Step",
    "check_algorithm", "completions", "dense", "draw", "every_completion", "expected_gradient", "group_of", "moved",
    "prepare", "price", "student_as_teacher", "trainer_for",
]  # fmt: skip

SETTINGS = (Setting("factored"), Setting("tree", seed=1))
ENUMERABLE = Setting("tree", problems=1, group_size=2, positions=2, candidates=3)  # 9 completions


@dataclass(frozen=True)
class Report:
    """What held, and what was not looked at and why."""

    algorithm: str
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    def __str__(self) -> str:
        lines = [*(f"  holds        {line}" for line in self.checked)]
        return "\n".join([self.algorithm, *lines, *(f"  not checked  {line}" for line in self.unchecked)])


@dataclass(frozen=True)
class _Check:
    law: int
    run: Callable[[Setting], None] | None
    without: str = ""  # why it cannot run
    settings: tuple[Setting, ...] = SETTINGS


def check_algorithm(
    algorithm: type[Algorithm] | Algorithm,
    reference: Loss | Algorithm | None = None,
    objective: Loss | None = None,
    at_rest: bool | Callable[[Trainer], None] | None = None,
) -> Report:
    """Runs every law that the arguments allow; the first broken one raises LawBroken.

    `algorithm` is a class, taken with its defaults, or an instance; it need not be registered. `reference` is its loss
    as one number, in plain torch, from a Dense (law 5), or another algorithm with the same gradient (law 7).
    `objective` is the expected loss as one number, from a Dense that lists each completion of one problem once, with
    the probabilities `Dense.chances` (law 8). `at_rest` is True where a teacher equal to the student leaves nothing to
    learn, or a function that brings a trainer to the point of rest (law 4).
    """
    made = algorithm() if isinstance(algorithm, type) else algorithm
    plan, threads = _plan(made, reference, objective, at_rest), torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    try:
        return _run(made, plan)
    finally:
        torch.set_num_threads(threads)


def _run(made: Algorithm, plan: list[_Check]) -> Report:
    checked, unchecked = [], ["law 1 for packing and chunks: needs a language model", "law 10, resuming: needs a run"]
    for check in plan:
        if check.run is None:
            unchecked.append(f"law {check.law}, {LAWS[check.law]}: {check.without}")
            continue
        for setting in check.settings:
            check.run(setting)
            checked.append(f"law {check.law}, {LAWS[check.law]} ({setting})")
    if made.scope == "batch":
        unchecked.append("law 2 for groups: `scope` says that groups see each other")
    return Report(repr(made), tuple(checked), tuple(unchecked))


def _plan(
    made: Algorithm,
    reference: Loss | Algorithm | None,
    objective: Loss | None,
    at_rest: bool | Callable[[Trainer], None] | None,
) -> list[_Check]:
    rest = student_as_teacher if at_rest is True else at_rest or None
    equal = reference if isinstance(reference, Algorithm) else None
    loss = None if isinstance(reference, Algorithm) else reference
    drawn = made.rollouts != "data" and made.on_policy > 0
    cached = "teacher" in made.needs and "divergence" not in made.needs
    return [
        _Check(9, partial(laws.law_9, made)),  # first, with 3: without a gradient, or with NaN, the others say little
        _Check(3, partial(laws.law_3, made)),
        _Check(1, partial(laws.law_1, made)),
        _Check(2, partial(laws.law_2, made)),
        _Check(4, rest and partial(references.law_4, made, bring_to_rest=rest), "give at_rest"),
        _Check(5, loss and partial(references.law_5, made, reference=loss), "give a dense loss as reference"),
        _Check(6, partial(laws.law_6, made) if drawn else None, "the student draws no completions"),
        _Check(7, partial(references.law_7_cached, made) if cached else None, "no teacher that could be cached"),
        _Check(7, equal and partial(references.law_7, made, equal=equal), "give an equal algorithm as reference"),
        _Check(8, objective and partial(references.law_8, made, objective=objective), "give objective", (ENUMERABLE,)),
    ]
