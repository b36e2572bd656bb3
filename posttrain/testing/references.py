"""The laws that compare with something: a point of rest, a dense loss, an equal algorithm, a cache, an objective."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.batch import Problem
from posttrain.teachers.base import Surroundings
from posttrain.teachers.cached import Cached
from posttrain.testing.bench import Priced, Setting, draw, moved, prepare, price, trainer_for
from posttrain.testing.dense import Dense, completions, dense, expected_gradient, group_of
from posttrain.testing.edits import frozen
from posttrain.testing.laws import IDENTITY, LawBroken, same
from posttrain.trainer import Trainer

Loss = Callable[[Dense], Tensor]
REST = 1e-12  # a gradient that should be zero, absolute


def student_as_teacher(trainer: Trainer) -> None:
    """Puts the current student in the teacher's place."""
    trainer.teacher = frozen(trainer.policy.snapshot())


def law_4(algorithm: Algorithm, setting: Setting, bring_to_rest: Callable[[Trainer], None]) -> None:
    """No gradient where there is nothing left to learn."""
    trainer = trainer_for(algorithm, setting)
    problems, rollouts = draw(trainer)
    bring_to_rest(trainer)
    size = float(price(trainer, prepare(trainer, problems, rollouts)).gradient.abs().max())
    if not size <= REST:
        raise LawBroken(4, setting, f"the gradient at the point of rest has size {size:.3g}")


def law_5(algorithm: Algorithm, setting: Setting, reference: Loss) -> None:
    """Value and gradient of the loss, some updates after the step was prepared."""
    trainer = trainer_for(algorithm, setting)
    step, start = prepare(trainer, *draw(trainer)), trainer.policy.snapshot()
    with moved(trainer):
        found = price(trainer, step)
        same(
            5,
            setting,
            "compared with the reference",
            found,
            _priced(trainer, reference(dense(trainer, step, start))),
            IDENTITY,
        )


def law_7(algorithm: Algorithm, setting: Setting, equal: Algorithm) -> None:
    """The other algorithm's loss and gradient on the same completions."""
    trainer = trainer_for(algorithm, setting)
    problems, rollouts = draw(trainer)
    step = prepare(trainer, problems, rollouts)
    with moved(trainer):
        found = price(trainer, step)
    trainer.algorithm = equal
    step = prepare(trainer, problems, rollouts)
    with moved(trainer):
        same(7, setting, f"compared with {equal}", found, price(trainer, step), IDENTITY)


def law_7_cached(algorithm: Algorithm, setting: Setting) -> None:
    """A cached teacher, written and read back, gives the online one's loss and gradient bit for bit."""
    trainer = trainer_for(algorithm, setting)
    problems, rollouts = draw(trainer)
    online = price(trainer, prepare(trainer, problems, rollouts))
    assert trainer.teacher is not None
    policy = trainer.teacher.distribution()
    assert policy is not None
    with tempfile.TemporaryDirectory() as folder:
        around = Surroundings(trainer.policy, {"teacher": policy}, Path(folder))
        for name in ("asked", "read back"):
            trainer.teacher = Cached().build(around)
            found = price(trainer, prepare(trainer, problems, rollouts))
            same(7, setting, f"a cached teacher, {name}", found, online, tolerance=0.0)


def law_8(algorithm: Algorithm, setting: Setting, objective: Loss) -> None:
    """The mean gradient over every outcome of sampling is the gradient of the objective."""
    trainer = trainer_for(algorithm, setting)
    problem = trainer.problems[0]
    found = expected_gradient(trainer, [problem])
    exact = _priced(trainer, objective(every_completion(trainer, problem)))
    same(8, setting, "compared with the objective", Priced(exact.loss, found), exact, IDENTITY)


def every_completion(trainer: Trainer, problem: Problem) -> Dense:
    """All completions of a problem as one group, in the dense view."""
    listed = completions(trainer.policy, problem)
    group = group_of(listed, range(len(listed.texts)), len(listed.texts))
    return dense(trainer, prepare(trainer, [problem], group))


def _priced(trainer: Trainer, loss: Tensor) -> Priced:
    found = torch.autograd.grad(loss, trainer.parameters, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trainer.parameters, found, strict=True)]
    return Priced(float(loss.detach()), torch.cat([g.flatten() for g in filled]))
