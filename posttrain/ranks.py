"""Processes that share one optimizer step. One process is the ordinary case and costs nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from posttrain.registry import ConfigError

BUCKET_BYTES = 16 * 2**20  # of gradients that travel together

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Which process this is and how many there are; sums go over all of them."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """True in the one process that writes."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on every rank."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        with _meeting():
            torch.distributed.all_reduce(total)
        return total

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds up the gradients of all ranks; every rank has to call it at every step, also one without rows."""
        if self.size == 1:
            return
        for bucket in _buckets(parameters):
            whole = torch.cat([gradient.flatten() for gradient in bucket])
            with _meeting():
                torch.distributed.all_reduce(whole)
            for gradient, total in zip(bucket, whole.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def gather(self, value: Any) -> list[Any]:
        """One object from each rank, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        with _meeting():
            torch.distributed.all_gather_object(gathered, value)
        return gathered

    def together(self, what: str, work: Callable[[], Value]) -> list[Value]:
        """What `work` gives on each rank, in rank order, on every rank.

        Where it fails on one, a RuntimeError on all says which one failed in `what`, and how: the others would wait
        for that rank's results for ever. A ConfigError stays one.
        """
        if self.size == 1:
            return [work()]
        value, error = _tried(work)
        gathered = self.gather((value, _told(error)))
        self._agree(what, [failure for _, failure in gathered], error)
        return [found for found, _ in gathered]

    def each(self, what: str, work: Callable[[], Value]) -> Value:
        """What `work` gives on this rank, where it has failed on none (see `together`): for what need not travel."""
        if self.size == 1:
            return work()
        value, error = _tried(work)
        self._agree(what, self.gather(_told(error)), error)
        return value  # type: ignore[return-value]

    def alone(self, what: str, work: Callable[[], Value]) -> Value:
        """What `work` gives on the main rank, on every rank; where it fails there, all end with its message."""
        return self.together(what, lambda: work() if self.main else None)[0]  # type: ignore[return-value]

    def _agree(self, what: str, failures: Sequence[str | ConfigError | None], own: Exception | None) -> None:
        """Raises for the first rank that failed."""
        for rank, failure in enumerate(failures):
            if isinstance(failure, ConfigError):
                raise failure from own
            if failure is not None:
                raise RuntimeError(f"rank {rank} of {self.size} failed in {what}: {failure}") from own


def _tried(work: Callable[[], Value]) -> tuple[Value | None, Exception | None]:
    try:
        return work(), None
    except Exception as raised:  # whatever it is, it goes on elsewhere, on every rank
        return None, raised


def _told(error: Exception | None) -> str | ConfigError | None:
    """An error as the other ranks are told of it."""
    if error is None or isinstance(error, ConfigError):
        return error
    return f"{type(error).__name__}: {error}"


@contextmanager
def _meeting() -> Iterator[None]:
    """Where ranks wait for each other. One that has ended closes its connections, and the others end too."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(f"another rank has ended; why, stands in its own output ({reason})") from error


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[Tensor]]:
    """The gradients of one type and device, a few MiB at a time: small ones each on their own would cost a round trip.

    A parameter without a gradient gets one of zeros.
    """
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found = parameter.grad
        full = sum(gradient.nbytes for gradient in bucket) + found.nbytes > BUCKET_BYTES
        if bucket and (full or (found.dtype, found.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(found)
    if bucket:
        yield bucket


def join() -> Ranks:
    """Joins the processes a launcher started (gloo on the CPU); alone where there are none.

    Refuses to go on where the launcher announced more processes than could be joined: two runs would each believe to
    be the only one.
    """
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if announced == 1:
        return Ranks()
    from accelerate import PartialState

    try:
        state = PartialState(cpu=True)
    except ValueError as error:
        raise ConfigError(
            f"launcher: WORLD_SIZE is {announced}, but no other process is found: {error}. Unset it, or use torchrun."
        ) from error
    if state.num_processes != announced:
        raise ConfigError(
            f"launcher: WORLD_SIZE is {announced}, but {state.num_processes} process(es) joined. For two processes on "
            "a CPU write: ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 posttrain ..."
        )
    return Ranks(state.process_index, state.num_processes)


def end(code: int) -> NoReturn:
    """Ends this process at once, where a launcher started several.

    gloo's threads may outlive the group, and an interpreter that is torn down around them aborts now and then after
    everything has been written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(code)
    sys.exit(code)


def leave(ranks: Ranks) -> None:
    """Waits for the others and takes down what `join` set up."""
    if ranks.size > 1 and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
