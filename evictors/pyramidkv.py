"""PyramidKV (arXiv 2406.02069): the lower a layer, the more it keeps.

`variant=published` is the authors' linear schedule of counts with SnapKV's pooled scores: what is
always kept comes on top in every layer. Their code rounds each step down and so spends more than
its budget; here the counts sum to it exactly.
`variant=paper` is what the PAGE paper ran with one shared keep set, where counts per layer are
void: layers vote with a weight that falls with depth. With a keep set per layer or head the same
weights share out the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from page_bench.evictors.base import Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan, largest_remainder, share_out
from page_bench.evictors.snapkv import SnapKV
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """Keeps what the last w query rows attend to, more of it in lower layers.

    Attributes: those of `SnapKV`, and
        bottom: `paper`: weight of the first layer, 2.
        top: `paper`: weight of the last layer, 0.5; the layers between lie on a line.
        beta: `published`: with B positions per layer on average besides those that are always
            kept, the last layer has B/β of them and the first 2·B - B/β, at most all; 20.
    """

    name: ClassVar[str] = "pyramidkv"
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"kernel_size": 1, "bottom": 2.0, "top": 0.5},
        "published": {"kernel_size": 5, "beta": 20.0},
    }

    bottom: float | None = None
    top: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_options("bottom", "top", above=0)
        # At 1 all layers keep equally many; below, the pyramid would be upside down.
        self.check_options("beta", at_least=1)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        scores = super().score(layer, n_keep)
        if self.variant == "published":
            return scores
        return self.weight(layer.index, layer.n_layers) * scores

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        if plan.granularity == "shared":
            return super().allocate(scores, plan)
        form = self.resolved("head")
        if form.variant == "published":
            counts = form._pyramid(scores, plan)
        else:
            weights = [form.weight(i, plan.n_layers) for i in range(plan.n_layers)]
            shares = torch.tensor(weights, dtype=torch.float64)
            total = plan.n_layers * plan.n_keep
            counts = share_out(shares, total, plan.n_protected, plan.prompt_tokens)
        return counts[:, None].repeat(1, plan.n_kv_heads)

    def _pyramid(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        """Counts on a line over the layers, what is always kept on top of it: int64 `[L]`."""
        assert self.beta is not None
        middle = scores[..., plan.n_sink : plan.prompt_tokens - plan.recent]
        window = int(middle.isposinf().sum(-1).max()) if middle.numel() else 0
        on_top = plan.n_protected + window
        mean = max(plan.n_keep - on_top, 0)
        # Where the first layers would keep more than there is, the line is flatter.
        bottom = min(2 * mean - mean / self.beta, plan.prompt_tokens - on_top)
        top = 2 * mean - bottom
        share = torch.linspace(bottom, top, plan.n_layers, dtype=torch.float64)
        if plan.n_layers == 1:
            share[0] = mean
        return largest_remainder(share, plan.n_layers * mean) + plan.n_keep - mean

    def resolved(self, granularity: Granularity) -> Self:
        form = super().resolved(granularity)
        if granularity == "shared" and form.variant == "published":
            raise UsageError(
                "evictor=pyramidkv with evictor.variant=published gives each layer its own count, "
                "which one shared keep set cannot have; give granularity=layer or head, or "
                "evictor.variant=paper."
            )
        return form

    def weight(self, index: int, n_layers: int) -> float:
        """`paper`: a layer's weight in the vote or, with counts per layer, its part of them."""
        bottom = 2.0 if self.bottom is None else self.bottom
        top = 0.5 if self.top is None else self.top
        return bottom + (top - bottom) * index / max(n_layers - 1, 1)
