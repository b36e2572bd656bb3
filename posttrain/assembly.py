"""From a checked configuration to a trainer: the parts are built here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posttrain.batch import ProblemSet
from posttrain.policies.base import Policy
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, did_you_mean
from posttrain.settings import TrainConfig
from posttrain.teachers.base import Surroundings
from posttrain.tracking import Evaluator
from posttrain.trainer import Trainer


def pin() -> None:
    """One thread and deterministic kernels, for the tiers whose numbers are promised bit for bit."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def assemble(
    config: TrainConfig,
    seed: int,
    *,
    problems: ProblemSet | None = None,
    folder: Path | None = None,
    ranks: Ranks = Ranks(),
    report: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Trainer:
    """The trainer of one seed. `folder` is where a teacher may keep a store; `problems` saves building them again."""
    drawn: ProblemSet = problems or config.dataset.build(seed)
    everything = (*drawn.train, *drawn.validation)
    critic = "values" in config.algorithm.needs

    def build(start: str | None, critic: bool) -> Policy:
        if start is not None and start not in drawn.checkpoints:
            raise ConfigError(
                f"policy.start: dataset `{config.names['dataset']}` has no checkpoint `{start}`."
                f"{did_you_mean(start, drawn.checkpoints)} Write policy.start=null to start uniform."
            )
        weights = {} if start is None else drawn.checkpoints[start]
        return config.policy.build(everything, weights, critic)

    student = build(config.policy.start, critic)
    teacher = None
    if config.teacher is not None:
        known = {name: build(name, False) for name in drawn.checkpoints}
        teacher = config.teacher.build(Surroundings(student, known, folder))
    return Trainer(
        algorithm=config.algorithm,
        policy=student,
        reference=student.snapshot(),
        teacher=teacher,
        problems=drawn.train,
        grader=config.reward,
        evaluator=Evaluator(drawn.validation, config.evaluation.accuracy, config.evaluation.reward),
        options=config,
        seed=seed,
        ranks=ranks,
        report=report,
    )
