"""Draws and grades a checkpoint's answers, a part of the problems at a time, and keeps what the record needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from posttrain.artifacts.evaluations import Completion, Item
from posttrain.batch import Problem, Rollouts
from posttrain.evaluation.benchmark import Benchmark, prompt_digest
from posttrain.judging import FailureWatch
from posttrain.policies.causal_lm import CausalLMPolicy
from posttrain.tracking import Grader, judge

STEP = -2  # in the keys of an evaluation's samples: training counts from 0, expectations are drawn at -1


@dataclass
class Cost:
    """Seconds per phase and what was drawn."""

    seconds: dict[str, float] = field(default_factory=lambda: {"greedy": 0.0, "sample": 0.0, "reward": 0.0})
    completions: int = 0
    tokens: int = 0


def answer(
    policy: CausalLMPolicy,
    problems: Sequence[Problem],
    benchmark: Benchmark,
    seed: int,
    cost: Cost,
    report: Callable[[int, int], None] = lambda completions, tokens: None,
) -> list[Item]:
    """The items in the order of `problems`; `report` is told of completions and tokens after each part."""
    greedy: dict[str, tuple[str, Completion]] = {}
    sampled: dict[str, tuple[Completion, ...]] = {}
    ordered, watch = _by_length(policy, problems), FailureWatch()
    for part in _parts(ordered, policy.config.rows):
        rollouts = _timed(cost, "greedy", lambda part=part: policy.greedy(part))
        graded = _completions(benchmark.reward, part, rollouts, cost, report, watch)
        greedy |= {p.id: (text, one[0]) for p, text, one in zip(part, rollouts.texts, graded, strict=True)}
    for part in _parts(ordered, policy.config.rows // benchmark.samples) if benchmark.samples else ():
        # The stream is for candidate policies; a language model draws from the keys alone.
        draw = lambda part=part: policy.sample(part, benchmark.samples, np.random.default_rng(seed), seed, STEP)  # noqa: E731
        rollouts = _timed(cost, "sample", draw)
        graded = _completions(benchmark.reward, part, rollouts, cost, report, watch)
        sampled |= {problem.id: tuple(ones) for problem, ones in zip(part, graded, strict=True)}
    return [Item(seed, p.id, prompt_digest(p), *greedy[p.id], sampled.get(p.id, ())) for p in problems]


def _by_length(policy: CausalLMPolicy, problems: Sequence[Problem]) -> list[Problem]:
    """Prompts of like length together, so that little is padded."""
    return sorted(problems, key=lambda problem: len(policy.encoder.prompt(problem)))


def _parts(problems: Sequence[Problem], size: int) -> Iterator[list[Problem]]:
    step = max(1, size)
    for start in range(0, len(problems), step):
        yield list(problems[start : start + step])


def _timed(cost: Cost, phase: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    found = work()
    cost.seconds[phase] += time.perf_counter() - began
    return found


def _completions(
    grader: Grader,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    cost: Cost,
    report: Callable[[int, int], None],
    watch: FailureWatch,
) -> list[list[Completion]]:
    """How each completion of each problem ended; RewardError where too many could not be judged."""
    rewards = _timed(cost, "reward", lambda: judge(grader, problems, rollouts))
    watch.add(rewards)
    lengths, size = rollouts.mask.sum(1), rollouts.group_size
    cost.completions += len(rollouts.texts)
    cost.tokens += int(lengths.sum())
    report(len(rollouts.texts), int(lengths.sum()))
    rows = zip(
        rewards.values.flatten().tolist(),
        rewards.valid.flatten().tolist(),
        lengths.tolist(),
        rollouts.truncated.tolist(),
        strict=True,
    )
    flat = [Completion(value if valid else None, length, cut) for value, valid, length, cut in rows]
    return [flat[start : start + size] for start in range(0, len(flat), size)]


def require_gradable(grader: Grader, problem: Problem) -> None:
    """Grades an empty answer: a reward that does not fit the data says so before anything is drawn."""
    ids, some, real = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1)
    empty = Rollouts(
        prompt_ids=ids,
        prompt_mask=some,
        completion_ids=ids,
        mask=some,
        logprobs=real,
        entropy=real,
        truncated=torch.zeros(1, dtype=torch.bool),
        texts=("",),
        problem_ids=(problem.id,),
        group_size=1,
        source=torch.zeros(1, dtype=torch.int64),
        keys=torch.zeros(1, 4, dtype=torch.int64),
    )
    judge(grader, [problem], empty)
