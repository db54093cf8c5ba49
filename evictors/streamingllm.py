"""StreamingLLM (arXiv 2309.17453): sinks and the most recent tokens, at original positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView
from page_bench.evictors.base.budget import BudgetPlan


@dataclass(frozen=True)
class StreamingLLM(Evictor):
    """Keeps the first and the last positions, whatever they say.

    Attributes:
        fill: whether recent tokens fill the budget; false keeps the protected positions alone
            at every budget, as the PAGE paper ran it.
    """

    name: ClassVar[str] = "streamingllm"

    fill: bool = True

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        recency = torch.arange(layer.prompt_tokens, dtype=torch.float32, device=layer.keys.device)
        if self.fill:
            recency[-1] = torch.inf
        return recency.expand(layer.n_kv_heads, -1)

    def always_keeps(self, window: int) -> tuple[int, int]:
        return 0, int(self.fill)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        count = plan.n_keep if self.fill else plan.n_protected
        return torch.full((plan.n_layers, plan.n_kv_heads), count)
