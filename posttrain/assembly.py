"""From a checked configuration to a trainer: the parts are built here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from posttrain.batch import Problem, ProblemSet
from posttrain.data.rows import USUAL
from posttrain.data.splits import RowOptions, chosen_are_answers
from posttrain.policies.base import Policy
from posttrain.policies.causal_lm import CausalLM
from posttrain.policies.lm_loading import Lora
from posttrain.policies.vocabulary import same_vocabulary
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, did_you_mean
from posttrain.rewards.exact import Exact
from posttrain.samplers.in_process import require_parity, tolerance_of
from posttrain.settings import TrainConfig
from posttrain.shorthand import require_model
from posttrain.teachers.base import Surroundings
from posttrain.tiny import PREFIX, located
from posttrain.tracking import Evaluator
from posttrain.trainer import Trainer

PROBED = 4  # completions whose log-probs are compared with the trainer's before anything is trained


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
    torch.manual_seed(seed)  # fresh adapters and dropout draw from the global stream: the same in every arm
    drawn: ProblemSet = problems or config.dataset.build(seed)
    for split, some in (("training", drawn.train), ("held-out", drawn.validation)):
        if not some:
            raise ConfigError(f"dataset: `{config.names['dataset']}` gave no {split} problem. Ask for one or more.")
    everything = (*drawn.train, *drawn.validation)
    critic = "values" in config.algorithm.needs

    def build(start: str | None, critic: bool) -> Policy:
        if start is not None and start not in drawn.checkpoints:
            raise ConfigError(
                f"policy.start: dataset `{config.names['dataset']}` has no checkpoint `{start}`."
                f"{did_you_mean(start, drawn.checkpoints)} Write policy.start=null to start uniform."
            )
        weights = {} if start is None else drawn.checkpoints[start]
        return _at_home(config.policy).build(everything, weights, critic)

    def load(model: str) -> Policy:
        made = _at_home(replace(config.policy, model=model, lora=Lora())).build(everything, {}, False)
        same_vocabulary(student.vocabulary, made.vocabulary)
        return made.requires_grad_(False)

    _check_policy(config, drawn)
    _check_rows(config, drawn)
    _check_answers(config, drawn)
    _check_places(config)
    student: Any = build(config.policy.start, critic)
    if isinstance(config.policy, CausalLM) and config.algorithm.rollouts != "data":
        probe = student.sample(drawn.train[:PROBED], 1, None, seed, 0)
        require_parity(student, probe, tolerance_of(getattr(torch, config.policy.dtype)))
    teacher = None
    if config.teacher is not None:
        known = {name: build(name, False) for name in drawn.checkpoints}
        loads = load if isinstance(config.policy, CausalLM) else None
        teacher = config.teacher.build(Surroundings(student, known, folder, loads, everything))
        if "divergence" in config.algorithm.needs and not teacher.full_distribution:
            raise ConfigError(
                f"teacher.name: `{config.method}` compares full distributions, which `{config.names['teacher']}` as "
                "configured does not give. Write teacher=frozen, or algorithm.support=K where the algorithm has it."
            )
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


def _at_home(policy: Any) -> Any:
    """The policy's options with a `tiny:` model made and found in the cache, and `~` spelled out."""
    if not isinstance(policy, CausalLM) or policy.model is None:
        return policy
    model = str(Path(policy.model).expanduser()) if policy.model.startswith("~") else located(policy.model)
    return replace(policy, model=model)


def _check_policy(config: TrainConfig, drawn: ProblemSet) -> None:
    """Text is answered by a language model."""
    if not isinstance(config.policy, CausalLM) and not all(problem.candidates for problem in drawn.train):
        raise ConfigError(
            f"policy.model: nothing is chosen, but `{config.names['dataset']}` has texts without candidates, which "
            f"`{config.names['policy']}` cannot answer. Write policy.model=FOLDER, or --tier l2 for one made here."
        )


def _check_places(config: TrainConfig) -> None:
    """Models are where they are said to be, or on the hub."""
    if isinstance(config.policy, CausalLM):
        named = {"policy.model": config.policy.model, "teacher.model": getattr(config.teacher, "model", None)}
        for key, model in named.items():
            if model and not model.startswith(PREFIX):
                require_model(key, model)


def _check_rows(config: TrainConfig, drawn: ProblemSet) -> None:
    """Algorithms that train on data rows need as many of them per problem as a group has."""
    algorithm, name = config.algorithm, config.names["dataset"]
    # Problems are drawn with replacement: somebody's rows would be repeated within a step without a word.
    if isinstance(config.dataset, RowOptions) and len(drawn.train) < config.problems_per_step:
        raise ConfigError(
            f"problems_per_step: found {config.problems_per_step}, but `{name}` has {len(drawn.train)} problems to "
            f"train on ({drawn.source}). Lower problems_per_step, or give more rows."
        )
    rows = {len(problem.responses) for problem in drawn.train}
    if isinstance(config.dataset, RowOptions):
        _check_columns(config, rows)
    if "pairs" in algorithm.needs and (rows != {2} or config.group_size != 2):
        raise ConfigError(
            f"dataset.name: `{config.method}` needs pairs (chosen, rejected) and group_size=2, but `{name}` has "
            f"{sorted(rows)} rows per problem and group_size is {config.group_size}. Write dataset=preferences."
        )
    if (algorithm.rollouts == "data" or algorithm.on_policy < 1) and rows != {config.group_size}:
        raise ConfigError(
            f"group_size: `{config.method}` trains on data rows, of which `{name}` has {sorted(rows)} per problem, but "
            f"group_size is {config.group_size}. Make them equal, or choose another dataset."
        )


def _check_columns(config: TrainConfig, rows: set[int]) -> None:
    """Rows of somebody's own lack a column where they lack responses: it is named with the setting that maps it."""
    algorithm, name = config.algorithm, config.names["dataset"]
    if "pairs" in algorithm.needs and rows != {2}:
        raise ConfigError(
            f"dataset.columns.chosen: `{config.method}` trains on pairs, but the rows of `{name}` have no columns "
            "chosen and rejected. Name them with dataset.columns.chosen=NAME dataset.columns.rejected=NAME."
        )
    if (algorithm.rollouts == "data" or algorithm.on_policy < 1) and 0 in rows:
        raise ConfigError(
            f"dataset.columns.response: `{config.method}` trains on given completions, but rows of `{name}` have none: "
            f"no column {' or '.join(USUAL['response'])}, and no conversation (messages) that ends with the "
            "assistant's turn. Name the column with dataset.columns.response=NAME."
        )


def refuse_chosen_answers(
    dataset: Any, reward: Any, resolved: Mapping[str, Any] | None, problems: Sequence[Problem]
) -> None:
    """Pairs without a column of answers have none that a reward could compare with: their chosen text is not one."""
    if not getattr(reward, "reads_answer", False) or not isinstance(dataset, RowOptions) or resolved is None:
        return
    if chosen_are_answers(dataset, problems):
        raise ConfigError(
            "dataset.columns.answer: the rows are pairs (chosen, rejected) and have no column of answers, which reward "
            f"`{resolved['name']}` compares with. Name one with dataset.columns.answer=NAME, or train on the pairs "
            "themselves: posttrain train dpo."
        )


def _check_answers(config: TrainConfig, drawn: ProblemSet) -> None:
    """What compares with an answer needs one. `exact` measures 0 without; nothing can be trained on that."""
    refuse_chosen_answers(config.dataset, config.reward, config.resolved["reward"], drawn.train)
    judges = {"reward": (config.reward, drawn.train)}
    judges |= {
        f"evaluation.{f.name}": (getattr(config.evaluation, f.name), drawn.validation)
        for f in fields(config.evaluation)
        if not isinstance(getattr(config.evaluation, f.name), Exact)
    }
    for key, (judge, problems) in judges.items():
        otherwise = (
            "" if key == "reward" else ", or write evaluation.accuracy=exact evaluation.reward=exact (0 throughout)"
        )
        refuse_without_answers(key, config.names.get(key, ""), judge, problems, otherwise)


def refuse_without_answers(key: str, name: str, judge: Any, problems: Sequence[Problem], otherwise: str = "") -> None:
    """ConfigError where a reward (`name`, set by `key`) compares with answers that some problems do not have."""
    without = [problem.id for problem in problems if not problem.answer]
    if without and getattr(judge, "reads_answer", False):
        raise ConfigError(
            f"{key}: `{name}` compares with the answer, but {len(without)} of {len(problems)} problems have none, "
            f"{without[0]} the first. Name its column with dataset.columns.answer=NAME{otherwise}."
        )
