"""DBTrimKV (arXiv 2605.09649): TrimKV's score, one budget for all layers and heads together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors._retention import RetentionEvictor
from page_bench.evictors.base import Granularity
from page_bench.evictors.base.budget import BudgetPlan, share_out
from page_bench.evictors.base.selection import top_k_members, top_k_of_all
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class DBTrimKV(RetentionEvictor):
    """Keeps what learned gates rank highest over all layers and KV heads at once.

    In granularity `layer` a layer's heads share what they won together. At equal scores the lower
    position goes first, then the lower layer and head.

    Attributes:
        min_tokens_per_head: positions that each head has for certain; the others are won in
            the competition, on top. Never less than the protected positions.
    """

    name: ClassVar[str] = "dbtrimkv"
    granularities: ClassVar[tuple[Granularity, ...]] = ("layer", "head")
    refusal: ClassVar[str] = (
        "with one keep set for all there is nothing to share out; use granularity=head or layer, "
        "or evictor=trimkv, which ranks by the same gates."
    )
    kinds: ClassVar[tuple[str, ...]] = ("rg10",)

    min_tokens_per_head: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_options("min_tokens_per_head", at_least=0)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        if self.min_tokens_per_head > plan.n_keep:
            raise UsageError(
                f"evictor.min_tokens_per_head={self.min_tokens_per_head} is more than the "
                f"{plan.n_keep} positions that the budget leaves each head of a prompt of "
                f"{plan.prompt_tokens} tokens; lower it or raise the budget."
            )
        floor = max(self.min_tokens_per_head, plan.n_protected)
        rows = plan.n_layers * plan.n_kv_heads
        # A head can win as many entries as it has besides the floor, its best ones first.
        contested = plan.prompt_tokens - floor
        entries = scores[..., plan.n_sink : plan.prompt_tokens - plan.recent].flatten(0, 1)
        if contested < entries.shape[-1]:
            entries = entries.masked_fill(~top_k_members(entries, contested), -torch.inf)
        won = top_k_of_all(entries, rows * (plan.n_keep - floor))
        counts = won.sum(-1).view(plan.n_layers, plan.n_kv_heads).cpu()
        if plan.granularity == "layer":
            free = plan.n_layers * (plan.n_keep - floor)
            shares = share_out(counts.sum(-1).double(), free, 0, contested)
            counts = shares[:, None].expand(-1, plan.n_kv_heads)
        return counts + floor
