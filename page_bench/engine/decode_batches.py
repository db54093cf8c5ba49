"""Keep sets of one prompt that are to be decoded: which are the same, and how many fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil
import torch
from transformers.cache_utils import Cache

from page_bench.model.cache_layers import SlidingLayer
from page_bench.model.keep_plan import KeepPlan

DECODE_ROWS = 64
"""Answers to one prompt that are decoded together, at most, unless `batch_size` says otherwise.

A constant: a product in half precision depends on how many rows it has, so that what happens to be
free on a device must not decide. Larger than the 33 keep sets of the paper's grid and the full
cache, and where products no longer gain much from more rows."""

SHARE_OF_FREE_MEMORY = 0.5
"""How much of the memory that is free the caches of one decode batch may take."""


@dataclass(frozen=True)
class KeepJob:
    """A keep set to decode.

    Attributes:
        keep: None for the full cache.
        by_layer: entries of each layer over its KV heads, once the whole prompt is in the cache.
        wanted_by: which of the plans asked for have it.
    """

    keep: KeepPlan | None
    by_layer: tuple[int, ...]
    wanted_by: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Over all layers."""
        return sum(self.by_layer)


@dataclass(frozen=True)
class LayerSize:
    """What one layer of the model holds of a whole prompt where nothing is evicted.

    Attributes:
        device: where it lies.
        heads: KV heads; of a latent cache, 1.
        entries: over these.
        entry_bytes: of one of them, key and value.
        evictable: whether it has full attention; what slides is no evictor's.
    """

    device: torch.device
    heads: int
    entries: int
    entry_bytes: int
    evictable: bool


@dataclass(frozen=True)
class CacheSize:
    """How large the full cache of a prompt is.

    Attributes:
        compressed_tokens: those of the prompt that went through the pass that is evicted from.
        layers: all layers of the model.
    """

    compressed_tokens: int
    layers: tuple[LayerSize, ...]

    @classmethod
    def of(cls, cache: Cache, length: int, compressed_tokens: int | None = None) -> Self:
        """The size, once a prompt of `length` is in the cache.

        Args:
            cache: the full cache after the first pass.
            length: T.
            compressed_tokens: those of the first pass; None means all.
        """
        layers = tuple(
            LayerSize(
                layer.keys.device,
                int(layer.keys.shape[1]),
                layer.full_entries(length),
                layer.bytes_in_use // layer.entries,
                not isinstance(layer, SlidingLayer),
            )
            for layer in cache.layers
        )
        return cls(length if compressed_tokens is None else compressed_tokens, layers)

    @property
    def entries(self) -> int:
        """Over all layers and KV heads, those of sliding-window layers included."""
        return sum(layer.entries for layer in self.layers)

    @property
    def bytes(self) -> int:
        """Of all these."""
        return sum(layer.entries * layer.entry_bytes for layer in self.layers)

    def bytes_at(self, kept: int) -> int:
        """Bytes where a KV head keeps so many of the compressed tokens, on average."""
        gone = self.compressed_tokens - kept
        return self.bytes - sum(
            gone * layer.heads * layer.entry_bytes for layer in self.layers if layer.evictable
        )

    def planned(self, keep: KeepPlan | None) -> tuple[int, ...]:
        """Entries of each layer over its KV heads once the whole prompt is in the cache.

        What the plan does not speak of, sliding-window layers and a question read afterwards, is
        there in full.
        """
        if keep is None:
            return tuple(layer.entries for layer in self.layers)
        rows = keep.members.shape[1]
        kept = iter(keep.positions(sum(layer.evictable for layer in self.layers)))
        return tuple(
            layer.entries - self.compressed_tokens * layer.heads + next(kept) * layer.heads // rows
            if layer.evictable
            else layer.entries
            for layer in self.layers
        )


def jobs_of(plans: Sequence[KeepPlan | str], size: CacheSize) -> list[KeepJob]:
    """Distinct keep sets, the smallest first; the full cache comes last, it is used up.

    Args:
        plans: as asked for; a reason stands for the full cache.
        size: of the full cache.
    """
    wanted: dict[object, list[int]] = {}
    keeps: dict[object, KeepPlan | None] = {}
    for i, plan in enumerate(plans):
        keep = plan if isinstance(plan, KeepPlan) else None
        key = None if keep is None else keep.key()
        keeps[key] = keep
        wanted.setdefault(key, []).append(i)
    jobs = [
        KeepJob(keeps[key], size.planned(keeps[key]), tuple(places))
        for key, places in wanted.items()
    ]
    return sorted(jobs, key=lambda job: (job.keep is None, job.entries))


def rows_that_fit(jobs: Sequence[KeepJob], size: CacheSize, room: int) -> int:
    """How many of the next jobs may be decoded together without filling the memory of any device.

    Args:
        jobs: the smallest first.
        size: of the full cache, which is there already.
        room: entries per layer and KV head that each row needs for the answer.

    Returns:
        At least 1.
    """
    left = {
        device: SHARE_OF_FREE_MEMORY * _free_bytes(device)
        for device in {layer.device for layer in size.layers}
    }
    for rows, job in enumerate(jobs):
        if job.keep is None:
            continue
        for layer, entries in zip(size.layers, job.by_layer, strict=True):
            # Besides its entries, each row has room for the answer, and for a token read again.
            added = (room + 1) * layer.heads if layer.evictable else 0
            left[layer.device] -= (entries + added) * layer.entry_bytes
        if rows and min(left.values()) < 0:
            return rows
    return len(jobs)


def lowered_warning(limit: int) -> str:
    """What is said where memory held fewer rows than were asked for."""
    return (
        f"memory did not hold the caches of {limit} answers to a prompt at once, so that some were "
        f"decoded with fewer others; in half precision an answer may depend on that at a near tie: "
        f"give --batch_size a number that always fits."
    )


def _free_bytes(device: torch.device) -> int:
    """Memory that is free for tensors; what torch's allocator holds and does not use is."""
    runtime: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(runtime, "mem_get_info"):
        return int(psutil.virtual_memory().available)
    unused = runtime.memory_reserved(device) - runtime.memory_allocated(device)
    return int(runtime.mem_get_info(device)[0] + unused)
