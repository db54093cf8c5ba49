"""Knorm (arXiv 2406.11430): keys of small norm draw attention, so they stay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.budget import BudgetPlan, share_out
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class Knorm(Evictor):
    """Keeps keys of small L2 norm.

    The rotary embedding changes no norm. Models that normalise their keys (Qwen3) have nearly
    equal norms, and the score says little there.

    Attributes:
        skip_layers: first layers that keep every position, as the authors' examples do with 2;
            the other layers keep fewer, so that the budget holds.
    """

    name: ClassVar[str] = "knorm"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys"})

    skip_layers: int = 0

    def __post_init__(self) -> None:
        self.check_options("skip_layers", at_least=0)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return -layer.keys.float().norm(dim=-1)

    def least_on_average(self, plan: BudgetPlan) -> int:
        skipped, rest = self.skip_layers, plan.n_layers - self.skip_layers
        # Where skipped layers take the whole budget, no longer prompt would have more.
        if skipped == 0 or plan.n_layers * plan.n_keep <= skipped * plan.prompt_tokens:
            return 0
        least = skipped * plan.prompt_tokens + rest * plan.n_protected
        return math.ceil(least / plan.n_layers)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        if self.skip_layers == 0:
            return super().allocate(scores, plan)
        if plan.granularity == "shared":
            raise UsageError(
                f"evictor.skip_layers={self.skip_layers} keeps more in some layers than in others, "
                f"which granularity=shared cannot; choose granularity=layer or head."
            )
        rest = plan.n_layers - self.skip_layers
        left = plan.n_layers * plan.n_keep - self.skip_layers * plan.prompt_tokens
        if rest < 1 or left < rest * plan.n_protected:
            raise UsageError(
                f"evictor.skip_layers={self.skip_layers} of {plan.n_layers} layers leaves too "
                f"little of the budget for the others; skip fewer layers or raise budget."
            )
        counts = share_out(torch.ones(rest), left, plan.n_protected, plan.prompt_tokens)
        skipped = torch.full((self.skip_layers,), plan.prompt_tokens)
        return torch.cat([skipped, counts])[:, None].repeat(1, plan.n_kv_heads)
