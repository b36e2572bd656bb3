"""What the parts of a training step cost: seconds, tokens and peak memory per phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): sets the high-water mark of resident memory to what is resident now


@dataclass
class Phases:
    """Sums over a run. Memory is looked at where asked: a short step costs less than asking the kernel about it."""

    memory: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)  # of the device where there is one, else of the process

    inner: list[float] = field(default_factory=list)  # of each phase that is open: seconds of the phases inside it

    @contextmanager
    def measure(self, name: str, tokens: int = 0) -> Iterator[None]:
        """Adds what happens inside to phase `name`, which worked on `tokens` tokens.

        What a phase inside another takes is its own alone, so that the phases add up to what they took together.
        """
        if self.memory:
            _reset_peak()
        self.inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self.inner.pop()
            if self.inner:
                self.inner[-1] += spent
            self.count(name, tokens)
            peak = _peak() if self.memory else None
            if peak is not None:
                self.peak_bytes[name] = max(peak, self.peak_bytes.get(name, 0))

    def count(self, name: str, tokens: int) -> None:
        """Adds tokens that were not known before the phase ended."""
        if tokens:
            self.tokens[name] = self.tokens.get(name, 0) + tokens

    def state_dict(self) -> dict[str, Any]:
        """The sums so far."""
        return {"seconds": self.seconds, "tokens": self.tokens, "peak_bytes": self.peak_bytes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from sums of before."""
        self.seconds, self.tokens, self.peak_bytes = state["seconds"], state["tokens"], state["peak_bytes"]


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return  # not Linux, or not allowed: the peak is then that of the whole process so far


def _peak() -> int | None:
    """Bytes at the high-water mark; None where the system does not say."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024
