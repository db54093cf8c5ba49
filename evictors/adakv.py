"""Ada-KV (arXiv 2407.11550): the KV heads of a layer compete for the layer's entries.

All forms pool the scores of a layer's heads, take as many of the best as the layer may keep and
count them per head; they differ in what each head has for certain. `allocation=adakv`, the
authors' code, mixes the counts with the uniform share; `kvpress`, that library's, gives each head
a floor; `page` is the floor of the PAGE paper's arm, which ran with `evictor.base.variant=paper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from page_bench.evictors.base import Granularity, Wrapper
from page_bench.evictors.base.budget import BudgetPlan, budget_share, largest_remainder
from page_bench.evictors.base.selection import top_k_members, top_k_of_all
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class AdaKV(Wrapper):
    """Keeps what another evictor keeps, more of it in heads with higher scores.

    A layer keeps as many entries as it would have without this wrapper, protected positions do
    not compete, those that the other one always keeps win, and at equal scores the lower position
    goes first, then the lower head. With `score_norm` heads compete after it.

    Attributes:
        variant: `published`, the authors' allocation and floor; `paper`, those of the PAGE paper.
        allocation: with B free entries per head on average and c of the layer's best in a head,
            `adakv` gives it (1-α)·c + α·B; `kvpress` at least ⌊α·n⌋ of the n positions it keeps
            on average, protected ones included; `page` at least ⌊α·B⌋ besides these.
        floor_alpha: α, 0 to 1; 0.2 in `published`, 0.5 in `paper`.
        normalise: weigh each head, before it competes, by the part of its scores that its best B
            positions hold.
    """

    name: ClassVar[str] = "adakv"
    granularities: ClassVar[tuple[Granularity, ...]] = ("head",)
    refusal: ClassVar[str] = (
        "it shares a layer's entries out among its KV heads; give granularity=head."
    )
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"allocation": "page", "floor_alpha": 0.5},
        "published": {"allocation": "adakv", "floor_alpha": 0.2},
    }

    variant: Literal["paper", "published"] | None = None
    allocation: Literal["adakv", "kvpress", "page"] | None = None
    floor_alpha: float | None = None
    normalise: bool = False

    def __post_init__(self) -> None:
        self.check_options("floor_alpha", at_least=0, at_most=1)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        form = self.resolved("head")
        counts = self.base.allocate(scores, plan)
        if plan.n_protected == plan.prompt_tokens:
            return counts
        middle = scores[..., plan.n_sink : plan.prompt_tokens - plan.recent]
        free = (counts - plan.n_protected).sum(1).tolist()
        shares = [
            form._shares(heads, total, plan.n_protected)
            for heads, total in zip(middle, free, strict=True)
        ]
        return torch.stack(shares) + plan.n_protected

    def _shares(self, scores: Tensor, total: int, n_protected: int) -> Tensor:
        """Free entries per head, int64 `[H_kv]` on the CPU, summing to `total`, those of the layer.

        Scores are fp32 `[H_kv, M]`, of the positions that compete.
        """
        heads, alpha = len(scores), self.floor_alpha
        assert alpha is not None
        mean = total // heads
        if self.normalise:
            scores = _weighed_by_best(scores, total)
        if self.allocation == "adakv":
            counts = top_k_of_all(scores, total).sum(-1).cpu().double()
            return largest_remainder((1 - alpha) * counts + alpha * total / heads, total)
        if self.allocation == "kvpress":
            floor = max(budget_share(alpha, mean + n_protected) - n_protected, 0)
        else:
            floor = budget_share(alpha, mean)
        certain = top_k_members(scores, floor)
        rest = scores.masked_fill(certain, -torch.inf)
        return floor + top_k_of_all(rest, total - heads * floor).sum(-1).cpu()


def _weighed_by_best(scores: Tensor, total: int) -> Tensor:
    """Scores `[H_kv, M]` times the part of a head's sum that its best hold; 1 if the sum is 0.

    Positions that are always kept count neither among a head's entries nor among its best.
    """
    if bool((scores < 0).any()):
        raise UsageError(
            "evictor.normalise=true weighs heads by parts of a sum, which scores below 0 do not "
            "have; leave it out, or give score_norm=rank."
        )
    certain = scores.isposinf()
    finite = scores.masked_fill(certain, 0)
    k = max(total - int(certain.sum()), 0) // len(scores)
    mass = finite.sum(-1, keepdim=True)
    best = finite.topk(k, dim=-1).values.sum(-1, keepdim=True)
    part = torch.where(mass > 0, best / mass.clamp_min(torch.finfo(mass.dtype).tiny), 1.0)
    return (finite * part).masked_fill(certain, torch.inf)
