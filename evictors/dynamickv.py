"""DynamicKV (arXiv 2412.14838): layers compete for the entries, the heads of a layer do not.

`variant=published` is the closed form of the authors' method: where they update their counts
every few layers of the pass, and not at all after the last multiple, here all layers are looked
at once. `variant=paper` is what the PAGE paper ran in its name: layers share by how little of
their attention falls on their best positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.budget import BudgetPlan, budget_share, largest_remainder, share_out
from page_bench.errors import UsageError
from page_bench.evictors._checks import check_option
from page_bench.evictors._window import WindowAttention
from page_bench.evictors.base import Granularity
from page_bench.selection import top_k_members


@dataclass(frozen=True)
class DynamicKV(WindowAttention):
    """Keeps what the last w query rows attend to, more of it where a layer's scores are higher.

    All KV heads of a layer keep equally many. Neither protected positions nor those of the window
    in `published` compete; at equal scores the lower position goes first, then the lower layer.

    Attributes: those of `WindowAttention`, and
        max_ratio: `published`: a head enters the competition with this many times the mean
            number of free entries, 10.
        best: `paper`: the number of best positions whose part of the layer's attention counts, 64.
        floor: `paper`: the part of the mean number of free entries that each layer has for
            certain, 0.2.
    """

    name: ClassVar[str] = "dynamickv"
    granularities: ClassVar[tuple[Granularity, ...]] = ("layer", "head")
    refusal: ClassVar[str] = (
        "it gives each layer its own count; give granularity=layer or head, or evictor=snapkv."
    )
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"kernel_size": 1, "best": 64, "floor": 0.2},
        "published": {"kernel_size": 7, "max_ratio": 10},
    }

    max_ratio: int | None = None
    best: int | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("max_ratio", "best"):
            if getattr(self, option) is not None:
                check_option(option, getattr(self, option), at_least=1)
        if self.floor is not None:
            check_option("floor", self.floor, at_least=0, at_most=1)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        form = self.resolved("head")
        if plan.n_protected == plan.prompt_tokens:
            return super().allocate(scores, plan)
        middle = scores[..., plan.n_sink : plan.prompt_tokens - plan.recent]
        shares = form._by_need if form.variant == "paper" else form._by_competition
        counts = shares(middle, plan.n_keep - plan.n_protected) + plan.n_protected
        return counts[:, None].repeat(1, plan.n_kv_heads)

    def _by_competition(self, scores: Tensor, mean: int) -> Tensor:
        """Free entries per head of each layer, int64 `[L]`: 1/H_kv of the layer's best.

        Args:
            scores: fp32 `[L, H_kv, M]`, of the positions that compete.
            mean: free entries per head on average.
        """
        layers, heads, positions = scores.shape
        assert self.max_ratio is not None
        certain = int(scores.isposinf().sum(-1).max())
        free = self.max_ratio * max(mean - certain, 0)
        entered = top_k_members(scores, min(free + certain, positions))
        entries = scores.masked_fill(~entered, -torch.inf)
        # Positions outermost, so that ties go to the lower position whichever layer it is in.
        members = top_k_members(entries.permute(2, 0, 1).reshape(-1), layers * heads * mean)
        counts = members.view(positions, layers, heads).sum((0, 2))
        return largest_remainder(counts.double() / heads, layers * mean)

    def _by_need(self, scores: Tensor, mean: int) -> Tensor:
        """Free entries per head of each layer, int64 `[L]`: a floor, the rest by need."""
        layers, _, positions = scores.shape
        assert self.best is not None
        assert self.floor is not None
        if bool((scores < 0).any()):
            raise UsageError(
                "evictor.variant=paper of dynamickv reads parts of a sum, which scores below 0 do "
                "not have; give score_norm=none, sum or rank."
            )
        attention = scores.mean(1).double()
        total = attention.sum(-1)
        best = attention.topk(min(self.best, positions), dim=-1).values.sum(-1)
        # A layer without any score needs all there is.
        need = (1 - best / total.clamp_min(torch.finfo(total.dtype).tiny)).clamp_min(0)
        floor = budget_share(self.floor, mean)
        return floor + share_out(need, layers * (mean - floor), 0, positions - floor)
