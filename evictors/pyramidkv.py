"""PyramidKV (arXiv 2406.02069) in the form that the PAGE paper ran with one shared keep set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need, mean_over_group


@dataclass(frozen=True)
class PyramidKV(Evictor):
    """SnapKV's score, weighted by depth; every layer keeps the same number of positions.

    Attributes:
        bottom: weight of the first layer.
        top: weight of the last layer; the layers between lie on a line.
    """

    name: ClassVar[str] = "pyramidkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"window_attention"})

    bottom: float = 2.0
    top: float = 0.5

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        depth = layer.index / max(layer.n_layers - 1, 1)
        weight = self.bottom + (self.top - self.bottom) * depth
        return weight * mean_over_group(layer.window_attention, layer.n_kv_heads)
