"""How long and how fast to train: the settings of the optimizer, and what they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from posttrain.ranges import BELOW_ONE, NOT_NEGATIVE, POSITIVE, at_least, check, or_null


@dataclass(frozen=True)
class Optimization:
    """How long and how fast to train. The words are Hugging Face's where it has one."""

    steps: int = 100  # rollout phases
    learning_rate: float = 0.05
    optim: Literal["adamw_torch", "sgd"] = "adamw_torch"
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    max_grad_norm: float | None = None  # of the whole gradient
    max_grad_value: float | None = None  # of each component
    problems_per_step: int = 1
    group_size: int = 1  # completions of each problem
    num_iterations: int = 1  # passes over each step's completions
    minibatch_problems: int | None = None  # problems per optimizer step; None: all of the step
    micro_batch_size: int | None = None  # completions per forward pass; changes memory, never the result
    max_refills: int = 10  # draws in place of groups that an algorithm turns down
    mask_truncated: bool = False  # completions cut at the limit teach nothing: neither in the loss nor in what divides
    eval_steps: int | None = None  # None: a tenth of `steps`

    def __post_init__(self) -> None:
        one, number = at_least(1), or_null(POSITIVE)
        check("", self, steps=one, problems_per_step=one, group_size=one, num_iterations=one, warmup_steps=at_least(0))
        check("", self, max_refills=at_least(0))
        check("", self, minibatch_problems=number, micro_batch_size=number, eval_steps=number)
        check("", self, max_grad_norm=number, max_grad_value=number, learning_rate=POSITIVE)
        check(
            "", self, adam_beta1=BELOW_ONE, adam_beta2=BELOW_ONE, adam_epsilon=NOT_NEGATIVE, weight_decay=NOT_NEGATIVE
        )

    @property
    def evaluation_period(self) -> int:
        """Updates between two rows of the history."""
        return self.eval_steps or max(1, self.steps // 10)


def optimizer_of(
    parameters: list[torch.nn.Parameter], options: Optimization
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """The optimizer over the parameters, and the schedule that moves its learning rate once a step."""
    if options.optim == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=options.learning_rate, weight_decay=options.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(
            parameters,
            lr=options.learning_rate,
            betas=(options.adam_beta1, options.adam_beta2),
            eps=options.adam_epsilon,
            weight_decay=options.weight_decay,
        )

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / options.warmup_steps) if options.warmup_steps else 1.0
        # The decay starts where the warm-up ends, as in transformers.
        done = min(1.0, max(0, step - options.warmup_steps) / max(1, options.steps - options.warmup_steps))
        decay = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + float(np.cos(np.pi * done)))}
        return warm * decay[options.lr_scheduler_type]

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def state_of(
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LambdaLR,
) -> dict[str, Any]:
    """Weights, moments and where the schedule stands, for a checkpoint."""
    return {
        "weights": list(parameters),
        "optimizer": [optimizer.state.get(parameter, {}) for parameter in parameters],
        "learning_rates": [group["lr"] for group in optimizer.param_groups],
        "scheduled": scheduler.last_epoch,
    }


@torch.no_grad()
def restore(
    state: Mapping[str, Any],
    parameters: Sequence[torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LambdaLR,
) -> None:
    """Brings all of them to where `state_of` saw them."""
    for parameter, saved, moments in zip(parameters, state["weights"], state["optimizer"], strict=True):
        parameter.copy_(saved)
        if moments:
            # Moments lie with their weights, as in the optimizer's own loading; the step count stays on the CPU.
            optimizer.state[parameter] = {
                name: value if name == "step" else value.to(parameter.device) for name, value in moments.items()
            }
    for group, rate in zip(optimizer.param_groups, state["learning_rates"], strict=True):
        group["lr"] = rate
    scheduler.last_epoch = state["scheduled"]
