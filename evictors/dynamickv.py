"""DynamicKV (arXiv 2412.14838): layers compete for the entries, the heads of a layer do not.

`variant=published` is the closed form of the authors' method: where they update their counts
every few layers of the pass, and not at all after the last multiple, here all layers are looked
at once. `variant=paper` is what the PAGE paper ran in its name: layers share by how little of
their attention, that on protected positions included, falls on their best positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Granularity
from page_bench.evictors.base.budget import (
    BudgetPlan,
    budget_share,
    largest_remainder,
    shares_within,
)
from page_bench.evictors.base.precision import double
from page_bench.evictors.base.selection import top_k_members, top_k_of_all
from page_bench.evictors.snapkv import SnapKV
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class DynamicKV(SnapKV):
    """Keeps what the last w query rows attend to, more of it where a layer's scores are higher.

    All KV heads of a layer keep equally many. Neither protected positions nor those of the window
    in `published` compete; at equal scores the lower position goes first, then the lower layer.

    Attributes: those of `SnapKV`, and
        max_ratio: `published`: a head enters the competition with this many times the mean
            number of free entries, 10.
        best: `paper`: the number of best positions whose part of the layer's attention counts, 64,
            protected ones among them. A `score_norm` leaves these out.
        floor: `paper`: the part of the mean number of free entries that each layer has for
            certain, 0.2.
        fill: `paper`: whether the other layers get what a layer has no positions for; false keeps
            less than the budget there, as the PAGE paper ran it.
    """

    name: ClassVar[str] = "dynamickv"
    granularities: ClassVar[tuple[Granularity, ...]] = ("layer", "head")
    refusal: ClassVar[str] = (
        "it gives each layer its own count; give granularity=layer or head, or evictor=snapkv."
    )
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"kernel_size": 1, "best": 64, "floor": 0.2, "fill": True},
        "published": {"kernel_size": 7, "max_ratio": 10},
    }

    max_ratio: int | None = None
    best: int | None = None
    floor: float | None = None
    fill: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_options("max_ratio", "best", at_least=1)
        self.check_options("floor", at_least=0, at_most=1)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        form = self.resolved("head")
        if plan.n_protected == plan.prompt_tokens:
            return super().allocate(scores, plan)
        mean = plan.n_keep - plan.n_protected
        if form.variant == "paper":
            counts = form._by_need(scores, mean, plan.prompt_tokens - plan.n_protected)
        else:
            middle = scores[..., plan.n_sink : plan.prompt_tokens - plan.recent]
            counts = form._by_competition(middle, mean)
        return (counts + plan.n_protected)[:, None].repeat(1, plan.n_kv_heads)

    def _by_competition(self, scores: Tensor, mean: int) -> Tensor:
        """Free entries per head of each layer, int64 `[L]`: 1/H_kv of the layer's best.

        Scores are fp32 `[L, H_kv, M]`, of the positions that compete; `mean` is the average count.
        """
        layers, heads, positions = scores.shape
        assert self.max_ratio is not None
        certain = int(scores.isposinf().sum(-1).max())
        free = self.max_ratio * max(mean - certain, 0)
        entered = top_k_members(scores, min(free + certain, positions))
        entries = scores.masked_fill(~entered, -torch.inf)
        counts = top_k_of_all(entries, layers * heads * mean).sum((1, 2))
        return largest_remainder(counts.cpu().double() / heads, layers * mean)

    def _by_need(self, scores: Tensor, mean: int, most: int) -> Tensor:
        """Free entries per head of each layer, int64 `[L]`: a floor, the rest by need; `most` each.

        Scores are fp32 `[L, H_kv, T]`, of all positions.
        """
        assert self.best is not None
        assert self.floor is not None
        if bool((scores < 0).any()):
            raise UsageError(
                "evictor.variant=paper of dynamickv reads parts of a sum, which scores below 0 do "
                "not have; give score_norm=none, sum or rank."
            )
        attention = double(scores.mean(1))
        mass = attention.sum(-1)
        best = attention.topk(min(self.best, scores.shape[-1]), dim=-1).values.sum(-1)
        # A layer without any score needs all there is.
        need = (1 - best / mass.clamp_min(torch.finfo(mass.dtype).tiny)).clamp_min(0)
        floor = budget_share(self.floor, mean)
        total, room = len(scores) * (mean - floor), most - floor
        if not self.fill:
            return floor + _to_the_nearest(need, total, total).clamp(max=room)
        return floor + _to_the_nearest(need, total, room)


def _to_the_nearest(need: Tensor, total: int, most: int) -> Tensor:
    """Whole counts in proportion to needs that sum exactly to a total, as the PAGE paper rounds.

    Each share goes to the nearest whole number. The neediest layers then get what is missing, one
    each, and the least needy ones give what is too much; of equal needs the earlier comes first.
    """
    shares = shares_within(need.cpu(), total, 0, most)
    counts = shares.round().long()
    missing = total - int(counts.sum())
    order = need.cpu().sort(descending=missing > 0, stable=True).indices
    able = order[counts[order] < most if missing > 0 else counts[order] > 0]
    counts[able[: abs(missing)]] += 1 if missing > 0 else -1
    return counts
