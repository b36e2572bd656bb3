"""`distillation_gap`: every sampled token against two per completion, on a tiny language model with a real teacher.

The settings of a cell are settings of `posttrain train` at tier L2. Both arms draw equally many completions, ask the
same teacher and take equally many updates; they differ in how many tokens carry a gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from posttrain.artifacts.gap import share_closed
from posttrain.bench.track import Idea, Settings, Track, checked, tracks
from posttrain.bench.trained import Measured, Trained
from posttrain.evaluation.study import Claim, Results, difference, ratio
from posttrain.policies.base import Policy
from posttrain.tracking import judge
from posttrain.trainer import Trainer

SHORT = 2  # tokens of a completion at which two per completion are all
ROUNDING = 1e-5  # float32 gradients, relative


def accuracy(trainer: Trainer, policy: Policy) -> float:
    """Share of the held-out problems that a policy's most probable answer solves; an unreadable answer is wrong."""
    problems = trainer.evaluator.problems
    return float(judge(trainer.evaluator.accuracy, problems, policy.greedy(problems)).values.double().mean())


def train(trainer: Trainer) -> Measured:
    """Share of the gap closed on held-out problems, and what it took."""
    assert trainer.teacher is not None
    teacher = trainer.teacher.distribution()
    assert teacher is not None
    before = accuracy(trainer, trainer.policy)
    steps = [trainer.step(step) for step in range(1, trainer.options.steps + 1)]
    after, best = accuracy(trainer, trainer.policy), accuracy(trainer, teacher)
    measures = {
        "accuracy_before": before,
        "accuracy_after": after,
        "teacher_accuracy": best,
        "supervised_positions": int(sum(step["supervised_positions"] for step in steps)),
        "sampled_positions": int(sum(step["sampled_positions"] for step in steps)),
        "teacher_calls": trainer.teacher.events().online_teacher_calls,
    }
    closed = share_closed(before, after, best)
    return math.nan if closed is None else closed, measures  # a seed without a gap is no number, which a run refuses


def math_check() -> dict[str, Any]:
    """On completions of two tokens both arms are one algorithm; the start closes nothing, the teacher everything."""
    gradients = []
    for algorithm in (BASE["algorithm"], IDEA.settings["algorithm"]):
        options = {**BUDGET, **BASE, "algorithm": algorithm, "policy.max_completion_tokens": SHORT}
        trainer = TASK.trainer(options, track.data, 0)
        problems = list(trainer.problems[:8])
        drawn = trainer.policy.sample(problems, 1, trainer.stream, trainer.seed, 1)
        gradients.append(trainer.gradient(problems, drawn))
    dense, sparse = gradients
    apart = float(torch.linalg.vector_norm(sparse - dense) / torch.linalg.vector_norm(dense))
    return checked(
        two_tokens_same_gradient=(apart, ROUNDING),
        start_closes_nothing=(share_closed(0.5, 0.5, 0.9) or 0.0, 0.0),
        teacher_closes_everything=((share_closed(0.5, 0.9, 0.9) or 0.0) - 1, 0.0),
    )


def _kept(results: Results) -> dict[str, list[float]]:
    sparse, dense = (difference(results.measure(arm, "accuracy_after"), results.measure(arm, "accuracy_before"))
                     for arm in ("idea", "baseline"))  # fmt: skip
    return {"gain ratio": ratio(sparse, dense)}


def _supervised(results: Results) -> dict[str, list[float]]:
    sampled, kept = (results.measure("idea", f"{name}_positions") for name in ("sampled", "supervised"))
    return {"share": ratio(kept, sampled)}


BUDGET: Settings = {"steps": 60, "problems_per_step": 64, "group_size": 1}
BASE: Settings = {
    "lr": 6e-4,
    "algorithm": "opd",
    "warmup_steps": 10,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "policy.model": "tiny:student",
    "policy.max_completion_tokens": 28,
    "teacher.model": "tiny:teacher",
}

TASK = Trained(
    run_one=train,
    common={
        "tier": "l2",
        "policy": "causal_lm",
        "teacher": "frozen",
        "evaluation.accuracy": "last_step",
        "evaluation.reward": "last_step",
    },
    defaults={**BUDGET, **BASE},
    words={"lr": "learning_rate"},
)

IDEA = Idea(
    name="two-extreme-tokens",
    settings={"algorithm": "sparse-opd"},
    claims=(
        Claim(
            id="D1",
            claim="Two tokens per completion do nearly what all tokens do",
            prediction="at least 95 % of the accuracy gain under dense supervision, as with candidate policies",
            metric="accuracy gain / accuracy gain under dense supervision",
            rule="interval at least threshold",
            threshold=0.95,
            values=_kept,
        ),
        Claim(
            id="D2",
            claim="They are few",
            prediction="at most an eighth of the sampled tokens carry a gradient",
            metric="supervised tokens / sampled tokens, largest over seeds",
            rule="value at most threshold",
            threshold=0.125,
            values=_supervised,
        ),
    ),
)

track = Track(
    name="distillation_gap",
    model="tiny_lm",
    metric="share of the accuracy gap between student and teacher that training closes, on held-out problems",
    direction="higher is better",
    rationale=(
        "On-policy distillation of a language model that was pretrained half as long as its teacher. The baseline "
        "supervises every sampled token (opd); the idea supervises the lowest and the highest log-ratio of each "
        "completion (sparse-opd)."
    ),
    task=TASK,
    budget=BUDGET,
    base=BASE,
    data={"name": "steps", "train_examples": 512, "validation_examples": 512},
    sweep=tuple({"lr": lr} for lr in (3e-4, 6e-4, 1e-3)),
    shown=("lr", "algorithm"),
    idea=IDEA,
    math_check=math_check,
    tier="l2_tiny_lm",
)
tracks.register(track.name)(track)
