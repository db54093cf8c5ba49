"""From a budget to the prompt positions that stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from page_bench.selection import top_k_members

FREE_MINIMUM = 4
"""Positions that an evictor may choose freely even at the smallest budget (the paper's rule)."""


@dataclass(frozen=True)
class BudgetPlan:
    """What an evictor is given to share out for one prompt.

    Attributes:
        prompt_tokens: T.
        n_keep: positions to keep per layer and KV head, protected ones included.
        n_sink: first positions, always kept.
        recent: last positions, always kept.
        n_layers: L.
        n_kv_heads: KV heads per layer.
    """

    prompt_tokens: int
    n_keep: int
    n_sink: int
    recent: int
    n_layers: int
    n_kv_heads: int

    @property
    def n_protected(self) -> int:
        """Positions that no evictor may drop."""
        return min(self.n_sink + self.recent, self.prompt_tokens)


def keep_count(budget: float, prompt_tokens: int, n_sink: int, recent: int) -> int:
    """Positions kept per layer and KV head: max(⌊b·T⌋, n_sink + recent + 4), at most T."""
    least = n_sink + recent + FREE_MINIMUM
    return min(max(budget_share(budget, prompt_tokens), least), prompt_tokens)


def budget_share(budget: float, prompt_tokens: int) -> int:
    """⌊b·T⌋, the product taken in decimal, as the budget was written.

    0.29 of 100 is 29, which binary floating point rounds down to 28.
    """
    return int(Decimal(repr(budget)) * prompt_tokens)


def is_too_short(prompt_tokens: int, n_sink: int, recent: int) -> bool:
    """Whether the smallest cache the rule allows already holds the whole prompt."""
    return prompt_tokens <= n_sink + recent + FREE_MINIMUM


def kept_positions(score: Tensor, n_keep: int, n_sink: int, recent: int) -> Tensor:
    """Positions to keep: the protected ones and the best-scored of the rest.

    Args:
        score: fp32 `[T]`, higher = keep.
        n_keep: positions to keep, protected ones included.
        n_sink: first positions, always kept.
        recent: last positions, always kept.

    Returns:
        int64 `[n_keep]`, ascending.
    """
    length = score.shape[-1]
    if not min(n_sink + recent, length) <= n_keep <= length:
        raise ValueError(
            f"cannot keep {n_keep} of {length} positions with {n_sink} + {recent} protected"
        )
    keep = torch.ones(length, dtype=torch.bool, device=score.device)
    if n_sink + recent < length:
        middle = slice(n_sink, length - recent)
        keep[middle] = top_k_members(score[middle], n_keep - n_sink - recent)
    return keep.nonzero().squeeze(-1)
