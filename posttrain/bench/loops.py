"""The training loop that tracks share: AdamW over shuffled epochs, hooks of an idea where it has some."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.assembly import pin
from posttrain.bench.foreign import described, hook, own
from posttrain.bench.models import initialise
from posttrain.bench.track import Cell, Result, Settings
from posttrain.registry import ConfigError

# Streams of one seed, apart from the data's own.
WEIGHTS, ORDER = 1, 2

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Batch:
    """Examples: N of them, any shape after that."""

    inputs: Tensor  # [N, ...]
    targets: Tensor  # [N, ...]

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, chosen: Tensor) -> Batch:
        """Some of the examples."""
        return Batch(self.inputs[chosen], self.targets[chosen])


@dataclass(frozen=True)
class Data:
    """The data of one seed, and what the generator drew for them (integers and noise, not what follows from them)."""

    train: Batch
    test: Batch
    drawn: Mapping[str, np.ndarray]  # split -> [N, ...]
    further: Mapping[str, Batch] = field(default_factory=dict)  # other splits, such as one for calibration


Loss = Callable[[Any, Batch, Settings], Tensor]
Measure = Callable[[nn.Module, Data, Settings], Mapping[str, Any]]


@dataclass(frozen=True)
class Training:
    """A task for gradient descent (see `track.Task`)."""

    streams: ClassVar[Mapping[str, str]] = {  # what is drawn from a seed, and how, for the record
        "data": "numpy.random.default_rng(seed), PCG64",
        "weights and order": "torch.Generator seeded from SHA-256 of seed and purpose",
    }

    data: Callable[[int, Settings], Data]
    model: Callable[[Settings, Settings], nn.Module]  # (settings, data options); its layers are drawn afterwards
    loss: Loss
    evaluate: Callable[[nn.Module, Data, Settings], float]
    measure: Measure = lambda model, data, settings: {}

    def drawn(self, seed: int, options: Settings) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Each example by the digest of what was drawn for it."""
        found = self._data(seed, options).drawn
        return {split: [{"drawn": _digest([row])} for row in rows] for split, rows in found.items()}

    def check(self, cell: Cell) -> None:
        """Refuses a budget of nothing."""
        for key in ("epochs", "batch_size"):
            if cell.settings[key] < 1:
                raise ConfigError(f"settings.{key}: found {cell.settings[key]}, expected at least 1")

    def run(self, cell: Cell) -> Result:
        """Trains one cell from the seed's weights, on the seed's data, in the seed's order."""
        return self._trained(cell, None)

    def rehearse(self, cells: Sequence[Cell]) -> list[Result]:
        """Each cell with the one batch that comes first: every function and hook is called as in a training."""
        return [self._trained(cell, int(cell.settings["batch_size"])) for cell in cells]

    def _trained(self, cell: Cell, only: int | None) -> Result:
        """A cell on the examples of its order, or on so many that come first in it."""
        pin()
        settings, idea = cell.settings, cell.idea
        data = self._data(cell.seed, cell.data)
        with torch.random.fork_rng(devices=()):  # a module from outside may draw from the global generator
            torch.manual_seed(cell.seed)
            model = _given("track.model", own("model", self.model, settings, cell.data), nn.Module)
            model = initialise(model, _stream(cell.seed, WEIGHTS))
            weights = _digest(parameter.detach().numpy() for parameter in model.parameters())
            if idea is not None and idea.model is not None:
                model = _given("idea.model", hook("model", idea.model, model, settings), nn.Module)
            order = epochs(len(data.train), int(settings["epochs"]), _stream(cell.seed, ORDER))
            shared = {"data": _digest(data.drawn.values()), "initial_weights": weights}
            shared["order"] = _digest([order.numpy()])
            if idea is not None and idea.order is not None:
                order = _reordered(hook("order", idea.order, order, data, settings), order)
            optimizer = _optimizer(model, cell)
            order = order if only is None else order[:1, :only]
            loss = self._loss(cell) if only is None else _finite(self._loss(cell), cell)
            descend(model, optimizer, data.train, order, settings, loss)
        model.eval()
        with torch.no_grad():
            metric = own("evaluate", self.evaluate, model, data, settings)
            if not isinstance(metric, Real) and getattr(metric, "ndim", None) != 0:
                raise ConfigError(f"track.evaluate: gave {described(metric)}, expected a float; does it return?")
            measures = _given("track.measure", own("measure", self.measure, model, data, settings), Mapping)
            return Result(float(metric), {key: _measured(key, value) for key, value in measures.items()}, shared)

    def _data(self, seed: int, options: Settings) -> Data:
        return _given("track.data", own("data", self.data, seed, options), Data)

    def _loss(self, cell: Cell) -> Loss:
        changed = None if cell.idea is None else cell.idea.loss
        if changed is None:
            return lambda model, batch, settings: own("loss", self.loss, model, batch, settings)
        return lambda model, batch, settings: _scalar(hook("loss", changed, model, batch, settings, self.loss))


def descend(
    model: nn.Module, optimizer: torch.optim.Optimizer, train: Batch, order: Tensor, settings: Settings, loss: Loss
) -> None:
    """One pass per row of `order` [E, N], in batches; the last batch of a pass may be smaller."""
    model.train()
    for epoch in order:
        for chosen in epoch.split(int(settings["batch_size"])):
            optimizer.zero_grad()
            loss(model, train.rows(chosen), settings).backward()
            optimizer.step()


def epochs(count: int, number: int, stream: torch.Generator) -> Tensor:
    """A permutation of `count` examples for each epoch: [E, N]."""
    return torch.stack([torch.randperm(count, generator=stream) for _ in range(number)])


def _given(who: str, found: Any, kind: type[Kind]) -> Kind:
    """What a function from outside gave, if it is what that function has to give."""
    if not isinstance(found, kind):
        article = "a torch " if kind.__module__.startswith("torch") else "a "
        raise ConfigError(f"{who}: gave {type(found).__name__}, expected {article}{kind.__name__}; does it return?")
    return found


def _finite(loss: Loss, cell: Cell) -> Loss:
    """The same loss, refused where it is no number before anything was learnt."""

    def checked(model: Any, batch: Batch, settings: Settings) -> Tensor:
        found = loss(model, batch, settings)
        if not bool(torch.isfinite(found)):
            who = "idea.loss" if cell.idea is not None and cell.idea.loss is not None else "the loss"
            where = "the baseline" if cell.idea is None else f"the idea `{cell.idea.name}`"
            raise ConfigError(f"{who}: gave {float(found.detach())} on the first batch of {where}, before any update")
        return found

    return checked


def _measured(name: str, value: Any) -> Any:
    """A measure as JSON can hold it: a text, a truth, or a number of whatever library."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | Tensor | np.ndarray) and value.ndim == 0:
        return value.item()
    raise ConfigError(f"track.measure: `{name}` is {described(value)}, expected a number, a text or None")


def _scalar(found: Any) -> Tensor:
    """An idea's loss."""
    if isinstance(found, Real):
        raise ConfigError(
            f"idea.loss: gave the number {found}, expected a tensor that can be differentiated: no .item()"
        )
    loss = _given("idea.loss", found, Tensor)
    if loss.dim():
        raise ConfigError(f"idea.loss: gave a tensor of shape {tuple(loss.shape)}, expected a scalar; take its mean")
    if not loss.requires_grad:
        raise ConfigError("idea.loss: gave a number that depends on no parameter; compute it from model(batch.inputs)")
    return loss


def _reordered(given: Any, base: Tensor) -> Tensor:
    """An idea's order as a tensor, which may repeat examples but not train longer."""
    found = torch.as_tensor(given) if isinstance(given, np.ndarray | list) else _given("idea.order", given, Tensor)
    if found.is_floating_point():
        raise ConfigError(f"idea.order: gave {found.dtype}, expected whole numbers of examples")
    if found.shape != base.shape:
        raise ConfigError(
            f"idea.order: gave shape {tuple(found.shape)}, expected {tuple(base.shape)}: a row for each epoch, so that "
            "both arms see equally many examples"
        )
    if found.min() < 0 or found.max() >= base.shape[1]:
        raise ConfigError(
            f"idea.order: gave numbers from {int(found.min())} to {int(found.max())}, expected 0 to "
            f"{base.shape[1] - 1}: they count the training examples"
        )
    return found


def _optimizer(model: nn.Module, cell: Cell) -> torch.optim.Optimizer:
    parameters, settings = list(model.parameters()), cell.settings
    if cell.idea is not None and cell.idea.optimizer is not None:
        return _given(
            "idea.optimizer", hook("optimizer", cell.idea.optimizer, parameters, settings), torch.optim.Optimizer
        )
    return torch.optim.AdamW(parameters, lr=settings["lr"], weight_decay=settings.get("weight_decay", 0.0))


def _stream(seed: int, purpose: int) -> torch.Generator:
    """A generator for one purpose of one seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _digest(arrays: Iterable[Any]) -> str:
    """SHA-256 over shapes, types and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()
