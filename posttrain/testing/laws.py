"""The laws as functions: each takes an algorithm and a setting and raises LawBroken where the law does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.batch import Batch, Rewards, Scores, Targets
from posttrain.registry import ConfigError
from posttrain.testing import edits
from posttrain.testing.bench import Priced, Setting, Step, draw, moved, prepare, price, trainer_for
from posttrain.trainer import Trainer

LAWS = {
    1: "the gradient does not depend on how the step is cut, padded or shared out",
    2: "what lies beyond the mask changes nothing, and groups do not see each other",
    3: "zero weight gives zero loss and zero gradient, never NaN",
    4: "a student equal to its teacher is at rest",
    5: "the loss equals its dense reference",
    6: "at the first update every ratio is 1",
    7: "limits: the equal setting gives the equal gradient, a cached teacher the online one's",
    8: "the expected gradient is that of the objective",
    9: "every loss term reaches a parameter, and no constant has a gradient",
}
EXACT, IDENTITY = 1e-12, 1e-9  # relative, float64: the same sum in another order; two ways to the same number


class LawBroken(AssertionError):
    """A law does not hold: the sentence names the law, the numbers and the situation."""

    def __init__(self, law: int, setting: Setting, found: str) -> None:
        super().__init__(f"law {law} ({LAWS[law]}) is broken on a {setting}: {found}")
        self.law = law


def law_1(algorithm: Algorithm, setting: Setting) -> None:
    """Micro-batches, padding and ranks (also more ranks than groups) leave loss and gradient as they are."""
    trainer = trainer_for(algorithm, setting)
    step = prepare(trainer, *draw(trainer))
    with moved(trainer):
        whole = price(trainer, step)
        _priced_as_weighed(trainer, step, setting)
        for micro in (1, 2 * trainer.options.group_size, 3 * trainer.options.group_size):
            same(1, setting, f"micro-batches of {micro} rows", price(trainer, step, micro=micro), whole)
        for ranks in (2, 3, setting.problems + 2):
            same(1, setting, f"{ranks} ranks", price(trainer, step, micro=1, ranks=ranks), whole)
    for extra in range(1, 6):
        other, rollouts = edits.padded(trainer, step.rollouts, extra)
        wider = prepare(other, step.problems, rollouts)
        with moved(trainer):
            same(1, setting, f"{extra} columns of padding", price(other, wider), whole)


def law_2(algorithm: Algorithm, setting: Setting) -> None:
    """Garbage beyond the mask, rows and groups in another order, a part of the step on its own."""
    trainer = trainer_for(algorithm, setting)
    problems, rollouts = draw(trainer)
    rollouts = edits.untie(rollouts)
    step = prepare(trainer, problems, rollouts)
    with moved(trainer):
        whole = price(trainer, step)
        spoilt = replace(step, batch=edits.spoil_batch(step.batch))
        same(2, setting, "garbage in the batch where it has no weight", price(trainer, spoilt), whole)
    dirty = edits.spoil_rollouts(rollouts, setting.candidates)
    signals, states = trainer._signals(problems, dirty)
    batch = algorithm.prepare(dirty, edits.spoil_signals(signals, rollouts.mask))
    with moved(trainer):
        spoilt = Step(problems, dirty, signals, states, edits.spoil_batch(batch))
        same(2, setting, "garbage in rollouts and signals beyond their masks", price(trainer, spoilt), whole)
    for name, groups, rows in _orders(algorithm, setting.problems, rollouts.group_size):
        other = prepare(trainer, [problems[p] for p in groups], edits.take(rollouts, rows))
        with moved(trainer):
            same(2, setting, name, price(trainer, other), whole)
    if algorithm.scope == "group":
        _parts_equal_the_whole(trainer, step, setting)


def law_3(algorithm: Algorithm, setting: Setting) -> None:
    """Nothing to learn from: no tokens, no weight, no reward, no answer, no variance, a group of one."""
    trainer = trainer_for(algorithm, setting)
    problems, rollouts = draw(trainer)
    empty = edits.cut(rollouts, torch.zeros_like(rollouts.mask))
    step = prepare(trainer, problems, rollouts)
    weightless = replace(step, batch=replace(step.batch, weight=torch.zeros_like(step.batch.weight)))
    zero = {"completions without a token": prepare(trainer, problems, empty), "a weight of zero": weightless}
    finite = {"one token in all": prepare(trainer, problems, edits.cut(rollouts, _first_token(rollouts.mask)))}
    rewards, teacher = step.signals.rewards, step.signals.teacher
    if rewards is not None:
        failed = Rewards(rewards.values, torch.zeros_like(rewards.valid))
        alone = algorithm.needs <= {"rewards", "student", "values"}
        (zero if alone else finite)["rewards that all failed"] = prepare(trainer, problems, rollouts, rewards=failed)
        level = Rewards(torch.ones_like(rewards.values), torch.ones_like(rewards.valid))
        finite["equal rewards"] = prepare(trainer, problems, rollouts, rewards=level)
    if teacher is not None:
        silent = replace(teacher, mask=torch.zeros_like(teacher.mask))
        alone = algorithm.needs <= {"teacher", "support", "student"}
        (zero if alone else finite)["a teacher that is silent"] = prepare(trainer, problems, rollouts, teacher=silent)
    for name, step in {**zero, **finite}.items():
        with moved(trainer):
            found = price(trainer, step)
        _finite(found, setting, name)
        if name in zero and (found.loss != 0 or found.gradient.any()):
            size = float(found.gradient.abs().max())
            raise LawBroken(3, setting, f"{name} give the loss {found.loss:.3g} and a gradient of size {size:.3g}")
    if algorithm.minimum_group == 1 and "pairs" not in algorithm.needs:
        single = trainer_for(algorithm, replace(setting, group_size=1))
        _finite(price(single, prepare(single, *draw(single))), setting, "groups of one")


def law_6(algorithm: Algorithm, setting: Setting) -> None:
    """The ratio is taken to the current log-probs, bit for bit, so that no clip binds and any bound gives the same.

    A number whose name begins with `clip` is taken for a bound.
    """
    trainer = trainer_for(algorithm, replace(setting, temperature=0.7))
    step = prepare(trainer, *draw(trainer))
    drawn = step.rollouts.mask & (step.rollouts.source == 0).unsqueeze(1)
    now = trainer.policy.score(step.rollouts, step.rollouts.mask).logprobs.detach()
    apart = (step.batch.rollouts.logprobs - now)[drawn].abs()
    if apart.any():
        found = f"log-probs of the batch and of the current student differ by {float(apart.max()):.3g}"
        raise LawBroken(6, setting, found)
    whole = price(trainer, step)
    for name, trainer.algorithm in _variants(algorithm, lambda name: name.startswith("clip"), 0.5):
        same(6, setting, f"half of `{name}`", price(trainer, step), whole)


def law_9(algorithm: Algorithm, setting: Setting) -> None:
    """Gradients arrive where they should and nowhere else.

    A number whose name ends in `coef` is taken for the factor of a term: with twice of it the gradient has to change.
    """
    trainer = trainer_for(algorithm, setting)
    step = prepare(trainer, *draw(trainer))
    for name, value in _constants(step.batch):
        if value.requires_grad:
            raise LawBroken(9, setting, f"`prepare` gives {name} with a gradient")
    with moved(trainer):
        _priced_as_weighed(trainer, step, setting)
        _audit(trainer, step, setting)
        whole = price(trainer, step)
        for name, parameter in trainer.policy.named_parameters():  # type: ignore[attr-defined]
            if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any()):
                raise LawBroken(9, setting, f"the loss has no gradient in the student's `{name}`")
    for name, trainer.algorithm in _variants(algorithm, lambda name: name.endswith(("coef", "coefficient")), 2.0):
        other = prepare(trainer, step.problems, step.rollouts)
        with moved(trainer):
            if torch.equal(price(trainer, other).gradient, whole.gradient):
                raise LawBroken(9, setting, f"twice the `{name}` gives the same gradient: its term reaches nothing")


# -- pieces ---------------------------------------------------------------------------------------------------


def same(law: int, setting: Setting, name: str, found: Priced, expected: Priced, tolerance: float = EXACT) -> None:
    """Loss and gradient agree, relative to the largest component of the expected gradient."""
    size = float(expected.gradient.abs().max())
    apart = float((found.gradient - expected.gradient).abs().max())
    if not apart <= tolerance * size:
        raise LawBroken(law, setting, f"{name}: the gradient, of size {size:.3g}, changes by {apart:.3g}")
    if not abs(found.loss - expected.loss) <= tolerance * max(1.0, abs(expected.loss)):
        raise LawBroken(law, setting, f"{name}: the loss becomes {found.loss!r}, it was {expected.loss!r}")


def _variants(algorithm: Algorithm, wanted: Callable[[str], bool], factor: float) -> Iterator[tuple[str, Algorithm]]:
    """The algorithm with each of the wanted numbers multiplied, where that is still a valid setting."""
    for f in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, f.name)
        if wanted(f.name) and isinstance(value, float) and value:
            with suppress(ConfigError):
                yield f.name, replace(algorithm, **{f.name: factor * value})  # type: ignore[type-var]


def _priced_as_weighed(trainer: Trainer, step: Step, setting: Setting) -> None:
    scores = trainer._score(step.batch.rollouts, step.batch.where, step.batch.teacher, step.states)
    found, expected = trainer.algorithm.loss(scores, step.batch).shape, step.batch.weight.shape
    if found != expected:
        raise LawBroken(
            1, setting, f"`loss` has shape {tuple(found)}, `weight` {tuple(expected)}; the trainer alone reduces"
        )


def _finite(found: Priced, setting: Setting, name: str) -> None:
    if not (torch.isfinite(found.gradient).all() and abs(found.loss) < float("inf")):
        raise LawBroken(3, setting, f"{name}: the loss is {found.loss}, the gradient {found.gradient.tolist()}")


def _first_token(mask: Tensor) -> Tensor:
    return mask & (mask.flatten().cumsum(0) == 1).view_as(mask)


def _orders(algorithm: Algorithm, problems: int, size: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Names, group orders and row orders that leave the gradient alone."""
    back = list(reversed(range(problems)))
    yield "groups in reverse order", back, [p * size + g for p in back for g in range(size)]
    if "pairs" not in algorithm.needs:
        rows = [p * size + g for p in range(problems) for g in reversed(range(size))]
        yield "the rows of each group in reverse order", list(range(problems)), rows


def _parts_equal_the_whole(trainer: Trainer, step: Step, setting: Setting) -> None:
    size, half = step.rollouts.group_size, setting.problems // 2
    for groups in (slice(0, half), slice(half, setting.problems)):
        rows = slice(groups.start * size, groups.stop * size)
        part = prepare(trainer, step.problems[groups], step.rollouts.rows(rows)).batch
        expected = step.batch.rows(rows.start, rows.stop)
        pairs = zip(_constants(part), _constants(expected), strict=True)
        for (name, found), (_, wanted) in pairs:
            apart = float((found - wanted).abs().max()) if found.shape == wanted.shape else float("inf")
            if not apart <= EXACT * max(1.0, float(wanted.abs().max())):
                where = f"groups {groups.start} to {groups.stop - 1} prepared alone"
                raise LawBroken(2, setting, f"{where}: {name} differs by {apart:.3g} from the whole step's")


def _constants(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch that the loss must not differentiate, with their names."""
    for name in ("weight", "normaliser", "advantages", "returns", "old_values"):
        value = getattr(batch, name)
        if value is not None:
            yield name, value
    for name in ("teacher", "reference"):
        targets: Targets | None = getattr(batch, name)
        if targets is not None:
            for f in fields(Targets):
                value = getattr(targets, f.name)
                if value is not None and value.is_floating_point():
                    yield f"{name}.{f.name}", value


def _audit(trainer: Trainer, step: Step, setting: Setting) -> None:
    """The loss on scores and constants that all ask for a gradient: who gets one?"""
    scores = trainer._score(step.batch.rollouts, step.batch.where, step.batch.teacher, step.states)
    leaves = {f.name: getattr(scores, f.name) for f in fields(Scores)}
    leaves = {name: value.detach().requires_grad_() for name, value in leaves.items() if value is not None}
    batch, constants = _with_gradient(step.batch)
    loss = trainer.algorithm.loss(Scores(**leaves), batch)
    if not loss.requires_grad:
        raise LawBroken(9, setting, "the loss has no gradient at all: nothing in it depends on `scores`")
    weighed = (torch.where(step.batch.weight != 0, loss, 0) * step.batch.weight).sum()
    found = torch.autograd.grad(weighed, [*leaves.values(), *constants.values()], allow_unused=True)
    reached = {name for name, gradient in zip(leaves, found, strict=False) if gradient is not None and gradient.any()}
    support = "support_logprobs" if "support" in trainer.algorithm.needs else None
    # With the student's own scores at hand, a divergence may also serve as a constant in `prepare`.
    read = {"values"} if "student" in trainer.algorithm.needs else {"values", "divergence"}
    for needed in read & trainer.algorithm.needs | ({support} if support else set()):
        if needed not in reached:
            raise LawBroken(9, setting, f"the loss has no gradient in `scores.{needed}`, which `needs` asks for")
    if not reached:
        raise LawBroken(9, setting, "the gradient of the loss is zero throughout")
    for name, gradient in zip(constants, found[len(leaves) :], strict=True):
        if gradient is not None:
            raise LawBroken(9, setting, f"the loss differentiates {name}, a constant: write `.detach()`")


def _with_gradient(batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
    """The batch with every constant of the loss as a leaf that asks for a gradient, and those leaves by name."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in _constants(batch)}
    changed: dict[str, Any] = {name: leaf for name, leaf in leaves.items() if "." not in name}
    for name in ("teacher", "reference"):
        inner = {key.partition(".")[2]: leaf for key, leaf in leaves.items() if key.startswith(f"{name}.")}
        if inner:
            changed[name] = replace(getattr(batch, name), **inner)
    return replace(batch, **changed), leaves
