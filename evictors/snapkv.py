"""SnapKV (arXiv 2404.14469), as the PAGE paper ran it: no pooling kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need, mean_over_group


@dataclass(frozen=True)
class SnapKV(Evictor):
    """Keeps what the last w query rows attend to."""

    name: ClassVar[str] = "snapkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"window_attention"})

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return mean_over_group(layer.window_attention, layer.n_kv_heads)
