"""No eviction: every position stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView
from page_bench.evictors.base.budget import BudgetPlan


@dataclass(frozen=True)
class NoEviction(Evictor):
    """Keeps all positions, whatever the budget."""

    name: ClassVar[str] = "none"

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return torch.zeros(layer.n_kv_heads, layer.prompt_tokens, device=layer.keys.device)

    def always_keeps(self, window: int) -> tuple[int, int]:
        return 0, 1

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        return torch.full((plan.n_layers, plan.n_kv_heads), plan.prompt_tokens)
