"""The two models that tracks share, and how they start."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from posttrain.registry import ConfigError


class MLP(nn.Module):
    """`mlp_tiny`: `hidden` layers of GELU. [B, inputs] -> [B, outputs]."""

    def __init__(self, inputs: int, outputs: int, width: int, hidden: int = 2) -> None:
        super().__init__()
        _at_least_one(width=width, hidden=hidden)
        sizes = [inputs, *[width] * hidden]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, outputs] of inputs [B, inputs]."""
        for layer in self.layers:
            inputs = nn.functional.gelu(layer(inputs))
        return self.head(inputs)


class Transformer(nn.Module):
    """`transformer_tiny`: a causal transformer with a fading-memory gate on its tokens. [B, L, inputs] -> [B, L, out].

    The gate multiplies the representation of token t by g_t = 1 / (1 + beta m_t), where m_t = rho m_{t-1} +
    (1 - rho) u_t from m = 0 and u_t is the token's mean absolute activation. beta = 0 is the identity.
    """

    def __init__(
        self, inputs: int, outputs: int, length: int, width: int, layers: int, heads: int, rho: float, beta: float
    ) -> None:
        super().__init__()
        _at_least_one(width=width, layers=layers, heads=heads)
        if width % heads:
            raise ConfigError(f"settings.heads: found {heads}, expected a divisor of the width {width}")
        self.rho, self.beta = rho, beta
        self.embed = nn.Linear(inputs, width)
        self.places = nn.Linear(length, width, bias=False)  # a column per place
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs at every token, each from the tokens up to it."""
        return self.head(self._gated(inputs)[0])

    def states(self, inputs: Tensor) -> Tensor:
        """The gate's state m [B, L]."""
        return self._gated(inputs)[1]

    def _gated(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(inputs) + self.places.weight.T[: inputs.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        state = fading_memory(hidden.abs().mean(-1), self.rho)
        if self.beta:
            hidden = hidden / (1 + self.beta * state).unsqueeze(-1)
        return hidden, state


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"settings.{name}: found {size}, expected at least 1")


class _Block(nn.Module):
    """Pre-norm causal attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        mixed = self.mix(self.before(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        blind = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (query @ key.mT / math.sqrt(width // self.heads)).masked_fill(blind, -torch.inf)
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.out(seen)
        return hidden + self.down(nn.functional.gelu(self.up(self.between(hidden))))


def fading_memory(activity: Tensor, rho: float) -> Tensor:
    """m_t = rho m_{t-1} + (1 - rho) u_t from 0. [B, L] -> [B, L]."""
    states, state = [], torch.zeros_like(activity[:, 0])
    for t in range(activity.shape[1]):
        state = rho * state + (1 - rho) * activity[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


@torch.no_grad()
def initialise(model: nn.Module, stream: torch.Generator) -> nn.Module:
    """Uniform within 1/sqrt(fan in), layer by layer from one stream; norms start as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            for parameter in module.parameters():
                parameter.copy_((2 * torch.rand(parameter.shape, generator=stream) - 1) * bound)
    return model
