"""ManifoldKV (arXiv 2602.08343): keys far from their centroid stay.

The publication and the PAGE paper score alike; the authors pair it with Ada-KV, as in
`adakv(manifoldkv)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need


@dataclass(frozen=True)
class ManifoldKV(Evictor):
    """Keeps keys far from the mean key of their head.

    Attributes:
        rope: whether keys are taken after (`post`) or before (`pre`) the rotary embedding.
        centroid_window: consecutive positions that share a centroid, the last ones possibly
            fewer (the authors' windowed form: 4096); 0 has one centroid for all positions.
    """

    name: ClassVar[str] = "manifoldkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys"})
    needs_in_words: ClassVar[tuple[str, ...]] = ("keys before rotation with rope=pre",)

    rope: Literal["post", "pre"] = "post"
    centroid_window: int = 0

    def __post_init__(self) -> None:
        self.check_options("centroid_window", at_least=0)

    @property
    def all_needs(self) -> frozenset[Need]:
        before: frozenset[Need] = frozenset({"keys_before_rotation"})
        return super().all_needs | (before if self.rope == "pre" else frozenset())

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        keys = layer.keys if self.rope == "post" else layer.keys_before_rotation
        windows = torch.split(keys, self.centroid_window or layer.prompt_tokens, dim=1)
        return torch.cat([_distance_to_mean(window.float()) for window in windows], dim=1)


def _distance_to_mean(keys: Tensor) -> Tensor:
    """L2 distance of each key to the mean key: `[H_kv, n, d]` → `[H_kv, n]`."""
    return (keys - keys.mean(1, keepdim=True)).norm(dim=-1)
