"""What is tried before a run has a folder: parts that do not fit, and answers that their own reward cannot read."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from posttrain.assembly import assemble
from posttrain.batch import Problem
from posttrain.evaluation.experiment import Experiment
from posttrain.registry import ConfigError
from posttrain.rewards.base import Grader, RewardError, Verdict, outcomes
from posttrain.rewards.maths import Maths
from posttrain.rewards.numeric import Numeric
from posttrain.tracking import judge

LOOKED_AT = 256  # reference answers that are tried


def preflight(experiment: Experiment) -> None:
    """Builds every arm, draws and grades one problem: parts that do not fit are named before a folder exists."""
    with tempfile.TemporaryDirectory() as scratch:
        for arm in experiment.arms:
            trainer = assemble(arm.config, arm.config.seeds[0], folder=Path(scratch))
            if arm is experiment.main:
                _look_at_answers(trainer.grader, [*trainer.problems, *trainer.evaluator.problems])
            problems = list(trainer.problems[:1])
            rollouts = trainer._draw(problems, 0)
            for grader in filter(None, (trainer.grader, trainer.evaluator.accuracy, trainer.evaluator.reward)):
                try:
                    judge(grader, problems, rollouts)
                except RewardError as error:  # nothing has run yet: what breaks its contract is wrong input
                    raise ConfigError(str(error)) from error


def _look_at_answers(grader: Grader | None, problems: Sequence[Problem]) -> None:
    """A note on reference answers that the reward itself cannot read; ConfigError where it can read none of them."""
    if not isinstance(grader, Numeric | Maths):  # others compare text, or are somebody's own
        return
    some = [problem for problem in problems if problem.answer is not None][:LOOKED_AT]
    found = outcomes(grader, some, [str(problem.answer) for problem in some])
    bad = [p for p, o in zip(some, found, strict=True) if (o.value if isinstance(o, Verdict) else o) != 1.0]
    if not bad:
        return
    name = type(grader).__name__.lower()
    said = f"reward: {len(bad)} of {len(some)} answers are worth nothing to `{name}` themselves, so nobody can reach "
    said += f"them; the first is {str(bad[0].answer)[:60]!r} of problem {bad[0].id}"
    if len(bad) == len(some):
        raise ConfigError(f"{said}. Choose another reward, or other rows.")
    print(f"posttrain: {said}", file=sys.stderr)
