"""KeyDiff (arXiv 2504.15364): keys unlike the mean key stay.

`published` compares with the mean of the keys' directions, as the method was published; `paper`
with the mean of the keys themselves, as the PAGE paper ran it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.selection import top_k_members


@dataclass(frozen=True)
class KeyDiff(Evictor):
    """Keeps keys that point away from the mean key of their head.

    Attributes:
        variant: `paper` or `published`; sets the defaults of the options that are None.
        anchor: what a key is compared with: the mean of the `keys`, or of their `directions`
            (keys scaled to length 1).
        block: positions that join the cache at a time, each block followed by an eviction down to
            the budget with a fresh anchor, as where a prompt is processed in blocks (128 is
            usual); 0 scores all positions at once. What left earlier ranks below what left
            later. Queries still see the whole prompt, and the engine's protected positions
            compete inside the simulation like all others.
    """

    name: ClassVar[str] = "keydiff"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys"})
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"anchor": "keys"},
        "published": {"anchor": "directions"},
    }

    variant: Literal["paper", "published"] | None = None
    anchor: Literal["keys", "directions"] | None = None
    block: int = 0

    def __post_init__(self) -> None:
        self.check_options("block", at_least=0)

    @property
    def reads_budget(self) -> bool:
        return self.block > 0

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        if self.anchor is None:
            return self.resolved("shared").score(layer, n_keep)
        keys = layer.keys.float()
        if self.block == 0:
            return self._distinctness(keys)
        if n_keep is None:
            raise ValueError("keydiff in blocks needs to know how many positions will be kept")
        return torch.stack([self._in_blocks(head, n_keep) for head in keys])

    def _distinctness(self, keys: Tensor) -> Tensor:
        """Minus the cosine to the anchor, fp32 `[..., T]`, of keys `[..., T, d]`."""
        members = F.normalize(keys, dim=-1) if self.anchor == "directions" else keys
        return -F.cosine_similarity(keys, members.mean(-2, keepdim=True), dim=-1)

    def _in_blocks(self, keys: Tensor, n_keep: int) -> Tensor:
        """Survivors score in [-1, 1], evicted positions in [-3, -2), the later the higher."""
        length = len(keys)
        cached = torch.arange(min(n_keep, length), device=keys.device)
        evicted = []
        for start in range(n_keep, length, self.block):
            joined = torch.arange(start, min(start + self.block, length), device=keys.device)
            cached = torch.cat([cached, joined])
            score = self._distinctness(keys[cached])
            stays = top_k_members(score, n_keep)
            # The worst first and, where scores are equal, the highest position first.
            order = score.masked_fill(stays, torch.inf).argsort(descending=True, stable=True)
            evicted.append(cached[order.flip(0)[: len(joined)]])
            cached = cached[stays]
        result = torch.empty(length, device=keys.device)
        result[cached] = self._distinctness(keys[cached])
        if evicted:
            left = torch.cat(evicted)
            result[left] = torch.arange(len(left), device=keys.device) / len(left) - 3
        return result
