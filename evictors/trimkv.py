"""TrimKV (arXiv 2512.03324), as its authors run it: the same number of entries in every head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors._retention import RetentionEvictor
from page_bench.evictors.base import LayerView


@dataclass(frozen=True)
class TrimKV(RetentionEvictor):
    """Keeps what a learned gate per KV head expects to be of use for longest.

    Attributes:
        sliding_window_size: last positions that are kept whatever the gate says.
    """

    name: ClassVar[str] = "trimkv"

    sliding_window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_options("sliding_window_size", at_least=0)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        scores = super().score(layer, n_keep)
        window = min(self.sliding_window_size, layer.prompt_tokens)
        if window:
            scores[..., -window:] = torch.inf
        return scores

    def always_keeps(self, window: int) -> tuple[int, int]:
        return 0, self.sliding_window_size
