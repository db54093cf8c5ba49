"""A KV cache with room for the answer, and the physical removal of prompt positions from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from transformers.cache_utils import Cache

from page_bench.model.cache_layers import (
    BatchedLayer,
    GroupedLayer,
    PreallocatedLayer,
    PromptLayer,
    SlidingLayer,
)


def empty_cache(windows: Sequence[int | None], capacity: int) -> Cache:
    """An empty cache.

    Args:
        windows: per layer its sliding window, None where it attends to everything.
        capacity: entries that a layer with full attention has room for.
    """
    return Cache(
        layers=[PreallocatedLayer(capacity) if w is None else SlidingLayer(w) for w in windows]
    )


def evicted_layer(full: PreallocatedLayer, members: Tensor, room: int) -> PromptLayer:
    """A new layer that holds only some entries of a full one; the full one is left as it is.

    Keys keep the rotation of their original position.

    Args:
        full: all T entries.
        members: bool `[H_kv, T]`, or `[1, T]` where all heads keep the same positions.
        room: entries per KV head that will be appended later.
    """
    members = members.to(full.keys.device)
    if members.shape[0] == 1:
        index = members[0].nonzero().squeeze(-1)
        layer = PreallocatedLayer(len(index) + room)
        layer.update(full.keys.index_select(2, index), full.values.index_select(2, index))
        return layer
    counts = members.sum(-1)
    heads, parts = [], []
    for count in sorted(set(counts.tolist())):
        group = (counts == count).nonzero().squeeze(-1)
        part = PreallocatedLayer(count + room)
        part.update(*(_gather(t, group, members) for t in (full.keys, full.values)))
        heads.append(group)
        parts.append(part)
    return parts[0] if len(parts) == 1 else GroupedLayer(heads, parts)


def entry_count(cache: Cache) -> int:
    """Entries (one key and one value each) in the cache, over all layers and KV heads."""
    return sum(layer.entries for layer in cache.layers)


def kv_bytes(cache: Cache) -> int:
    """Bytes of the keys and values in use; room kept for the answer is not counted."""
    return sum(layer.bytes_in_use for layer in cache.layers)


def allocated_bytes(cache: Cache) -> int:
    """Bytes of all buffers, room for the answer included."""
    return sum(layer.bytes_allocated for layer in cache.layers)


def _gather(states: Tensor, group: Tensor, members: Tensor) -> Tensor:
    """`[1, H_kv, T, d]` → `[1, len(group), n, d]`, each head's own n positions, ascending."""
    kept = states[0, group][members[group]]
    return kept.view(1, len(group), -1, states.shape[-1])


def as_one(caches: Sequence[Cache]) -> Cache:
    """Several caches as the rows of one; updating it updates them."""
    if len(caches) == 1:
        return caches[0]
    columns = zip(*(cache.layers for cache in caches), strict=True)
    return Cache(layers=[BatchedLayer(column) for column in columns])


@contextmanager
def rewound(cache: Cache) -> Iterator[None]:
    """What a block appends to the cache is forgotten at its end."""
    marks = [layer.mark() for layer in cache.layers]
    try:
        yield
    finally:
        for layer, mark in zip(cache.layers, marks, strict=True):
            layer.rewind(mark)
