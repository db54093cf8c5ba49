"""CriticalKV (arXiv 2502.03805): half the budget by another score, half by its effect on output.

Around an evictor with head-wise counts, as in `criticalkv(adakv(expected_attention))`, each head
spends its own count this way; the counts themselves stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import LayerView, Need, Wrapper
from page_bench.evictors.base.budget import BudgetPlan, budget_share
from page_bench.evictors.base.causal import block_bytes
from page_bench.evictors.base.selection import top_k_members


@dataclass(frozen=True)
class CriticalKV(Wrapper):
    """Keeps what another evictor scores best, then what its score times ‖v·W_O‖₁ ranks best.

    A wrapped expected_attention leaves the values' norms to this method unless it is told
    otherwise (`evictor.base.use_vnorm=true`).

    Attributes:
        first_stage: share of each count that goes to the other's best positions, the protected
            ones among them.
        epsilon: added to the score before it is multiplied.
    """

    name: ClassVar[str] = "criticalkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"values", "output_projection"})

    first_stage: float = 0.5
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        self.check_options("first_stage", at_least=0, at_most=1)
        self.check_options("epsilon", at_least=0)
        object.__setattr__(self, "base", self.base.without_value_norms())

    def factor(self, layer: LayerView) -> Tensor:
        """Mean over the query heads of a group of ‖v·W_O‖₁: fp32 `[H_kv, T]`."""
        projections = torch.unflatten(layer.output_projection, 0, (layer.n_kv_heads, -1))
        # The projected values of one block of positions.
        step = max(1, block_bytes(layer.values.device) // (projections.shape[-1] * 4))
        sizes = torch.zeros(layer.n_kv_heads, layer.prompt_tokens, device=layer.values.device)
        for head, group in enumerate(projections):
            for projection in group.float():
                for start in range(0, layer.prompt_tokens, step):
                    block = slice(start, start + step)
                    projected = layer.values[head, block].float() @ projection
                    sizes[head, block] += projected.abs().sum(-1)
        return sizes / projections.shape[1]

    def refine(self, scores: Tensor, factor: Tensor, counts: Tensor, plan: BudgetPlan) -> Tensor:
        middle = slice(plan.n_sink, plan.prompt_tokens - plan.recent)
        if plan.n_protected == plan.prompt_tokens:
            return scores
        refined = torch.zeros_like(scores)
        for row, count in enumerate(counts.tolist()):
            score = scores[row, middle]
            certain = score.isposinf()
            finite = score.masked_fill(certain, 0)
            # A product with a negative score would turn the order of the sizes around.
            score_from_zero = finite - finite.min().clamp(max=0)
            products = (score_from_zero + self.epsilon) * factor[row, middle]
            first = max(0, budget_share(self.first_stage, count) - plan.n_protected)
            forced = top_k_members(score, first)
            ranked = torch.where(forced, 2 * products.max() + 1, products)
            refined[row, middle] = ranked.masked_fill(certain, torch.inf)
        return refined
