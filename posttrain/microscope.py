"""Completions for people to look at: answers with their grades, and what is said of every sampled token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.batch import Problem, Rewards, Rollouts, Signals, Targets
from posttrain.policies.base import Policy
from posttrain.teachers.base import Teacher


def answer_rows(
    seed: int, step: int, problems: Sequence[Problem], answers: Rollouts, accuracy: Rewards
) -> list[dict[str, Any]]:
    """The greedy answers to the first held-out problems with their grades; null is one that nobody could grade."""
    where = {"seed": seed, "step": step, "decoding": "greedy"}
    graded = zip(accuracy.values.flatten().tolist(), accuracy.valid.flatten().tolist(), strict=True)
    grades = [grade if valid else None for grade, valid in graded]
    return [
        {**where, **_told(problem, text), "accuracy": grade}
        for problem, text, grade in zip(problems, answers.texts, grades, strict=False)
    ]


@torch.no_grad()
def token_rows(
    algorithm: Algorithm, policy: Policy, teacher: Teacher | None, problems: Sequence[Problem], drawn: Rollouts
) -> list[dict[str, Any]]:
    """Per completion: its tokens, the student's and the teacher's log-probs of them, and which ones carry weight.

    Nothing is counted as a teacher call, so a teacher speaks here only where it is a fixed policy in the process; what
    is supervised is known where the algorithm needs nothing else. What is not known is null.
    """
    fixed = teacher.distribution() if teacher else None
    targets = None if fixed is None else fixed.targets(drawn, drawn.mask)
    where = _supervised(algorithm, drawn, targets)
    return [
        {
            **_told(problem, drawn.texts[row]),
            "tokens": policy.token_texts(problem, _kept(drawn.completion_ids, drawn, row)),
            "logprobs": _kept(drawn.logprobs, drawn, row),
            "teacher_logprobs": None if targets is None else _kept(targets.logprobs, drawn, row),
            "supervised": None if where is None else _kept(where, drawn, row),
        }
        for row, problem in enumerate(problems)
    ]


def _told(problem: Problem, completion: str) -> dict[str, Any]:
    return {"problem": problem.id, "prompt": problem.prompt, "completion": completion, "answer": problem.answer}


def _supervised(algorithm: Algorithm, drawn: Rollouts, targets: Targets | None) -> Tensor | None:
    """[B, T] bool: the tokens that carry weight; None where rewards, a student or a critic would have to say."""
    if targets is None or algorithm.needs != {"teacher"}:
        return None
    return algorithm.prepare(drawn, Signals(None, targets, None, None)).where


def _kept(values: Tensor, drawn: Rollouts, row: int) -> list[Any]:
    return values[row][drawn.mask[row]].tolist()
