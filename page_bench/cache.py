"""A KV cache with room for the answer, and the physical removal of prompt positions from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers of fixed capacity, filled from the front.

    A step writes in place; nothing is concatenated, so a decode step moves no old entry.

    Attributes:
        length: entries in use, the same for every KV head.
        capacity: entries there is room for.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._buffers = _room_for(key_states, self.capacity), _room_for(value_states, self.capacity)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, H_kv, n, head_dim]` and return all keys and values in use."""
        if self._buffers is None:
            self.lazy_initialization(key_states, value_states)
        assert self._buffers is not None
        key_buffer, value_buffer = self._buffers
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise RuntimeError(f"the cache has room for {self.capacity} entries, not for {end}")
        key_buffer[:, :, self.length : end] = key_states
        value_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = key_buffer[:, :, :end], value_buffer[:, :, :end]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        # Not the capacity: transformers would take a bounded cache for one of static shape.
        return -1

    def get_max_cache_shape(self) -> int:
        return self.get_max_length()


def empty_cache(n_layers: int, capacity: int) -> Cache:
    """An empty cache whose layers have room for `capacity` entries each."""
    return Cache(layers=[PreallocatedLayer(capacity) for _ in range(n_layers)])


def evicted_cache(full: Cache, positions: Sequence[Tensor], room: int) -> Cache:
    """A new cache that holds only some entries of a full one; the full one is left as it is.

    Keys keep the rotation of their original position.

    Args:
        full: the cache after prefill, T entries per layer.
        positions: per layer, int64 `[n]`, ascending.
        room: entries that will be appended later.
    """
    layers = []
    for source, index in zip(full.layers, positions, strict=True):
        layer = PreallocatedLayer(len(index) + room)
        index = index.to(source.keys.device)
        layer.update(source.keys.index_select(2, index), source.values.index_select(2, index))
        layers.append(layer)
    return Cache(layers=layers)


def entry_count(cache: Cache) -> int:
    """Entries (one key and one value each) in the cache, over all layers and KV heads."""
    return sum(layer.keys.shape[0] * layer.keys.shape[1] * layer.length for layer in cache.layers)


def kv_bytes(cache: Cache) -> int:
    """Bytes of the keys and values in use; room kept for the answer is not counted."""
    return sum(
        tensor.numel() * tensor.element_size()
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )


def _room_for(states: Tensor, capacity: int) -> Tensor:
    """An uninitialised buffer like `states` `[B, H, n, d]`, with `capacity` entries."""
    batch, heads, _, dim = states.shape
    return torch.empty((batch, heads, capacity, dim), dtype=states.dtype, device=states.device)
