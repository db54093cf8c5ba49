"""TOVA (arXiv 2401.06104), on the prompt: it is not applied again while the answer is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView


@dataclass(frozen=True)
class TOVA(Evictor):
    """Keeps what the last token attends to, averaged over all query heads of a layer.

    All KV heads of a layer get the same scores, so that they keep the same positions. The method
    itself protects nothing.
    """

    name: ClassVar[str] = "tova"
    needs_in_words: ClassVar[tuple[str, ...]] = ("last query",)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return layer.attention_of_last(1).mean(0).repeat(layer.n_kv_heads, 1)

    @property
    def query_rows(self) -> int:
        return 1
