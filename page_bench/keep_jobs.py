"""Keep sets of one prompt that are to be decoded: which are the same, and how many fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from page_bench.eviction import KeepPlan

SHARE_OF_FREE_MEMORY = 0.5
"""How much of the memory that is free the caches of one decode batch may take."""


@dataclass(frozen=True)
class KeepJob:
    """A keep set to decode.

    Attributes:
        keep: None for the full cache.
        entries: over all layers and KV heads, once the whole prompt is in the cache.
        wanted_by: which of the plans asked for have it.
    """

    keep: KeepPlan | None
    entries: int
    wanted_by: tuple[int, ...]


@dataclass(frozen=True)
class CacheSize:
    """How large the full cache of a prompt is.

    Attributes:
        compressed_tokens: those of the prompt that went through the pass that is evicted from.
        layers, kv_heads: with full attention.
        entries: over all layers and KV heads, those of sliding-window layers included.
        bytes: of all these.
    """

    compressed_tokens: int
    layers: int
    kv_heads: int
    entries: int
    bytes: int

    def planned(self, keep: KeepPlan | None) -> int:
        """Entries over all layers and KV heads once the whole prompt is in the cache.

        What the plan does not speak of, sliding-window layers and a question read afterwards, is
        there in full.
        """
        if keep is None:
            return self.entries
        evictable = self.layers * self.kv_heads
        kept = keep.entries(self.layers, self.kv_heads)
        return self.entries - self.compressed_tokens * evictable + kept


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


def rows_that_fit(jobs: Sequence[KeepJob], size: CacheSize, room: int, device: torch.device) -> int:
    """How many of the next jobs may be decoded together without filling the memory.

    Args:
        jobs: the smallest first.
        size: of the full cache.
        room: entries per layer and KV head that each row needs for the answer.
        device: where the caches lie.
    """
    free = SHARE_OF_FREE_MEMORY * _free_bytes(device)
    each = size.bytes / size.entries
    # Besides its entries, each row has room for the answer, and for a token read again.
    added = (room + 1) * size.layers * size.kv_heads
    rows, used = 0, 0.0
    while rows < len(jobs):
        used += (jobs[rows].entries + added) * each
        if rows and used > free:
            break
        rows += 1
    return rows


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
