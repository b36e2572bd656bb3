"""A key-value cache with room ahead. Imports transformers, so it is imported where a cache is made."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 64  # tokens that are made room for at once


class RoomyLayer(DynamicLayer):
    """Keys and values as views of larger buffers: concatenation would copy the whole cache for each token."""

    buffers: tuple[Tensor, ...] | None = None  # [n, heads, room, size] each

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds the states [n, heads, L, size] of L tokens and gives those of all so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self.buffers is None or self.buffers[0].shape[-2] < end:
            given = ((self.keys, key_states), (self.values, value_states))
            self.buffers = tuple(_roomier(old if start else None, states, end) for old, states in given)
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps rows, or repeats them."""
        length = self.get_seq_length()
        if self.buffers is not None:
            self.buffers = tuple(buffer[indices] for buffer in self.buffers)
            self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)


def roomy_cache(config: Any) -> DynamicCache:
    """The model's own kind of cache, with room in each layer that keeps every token."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _roomier(old: Tensor | None, states: Tensor, end: int) -> Tensor:
    """A buffer for `end` tokens and some more that begins with what `old` holds."""
    rows, heads, _, size = states.shape
    buffer = states.new_empty(rows, heads, end + ROOM, size)
    if old is not None:
        buffer[:, :, : old.shape[-2]] = old
    return buffer
