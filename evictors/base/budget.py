"""From a budget to the prompt positions that stay in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from page_bench.evictors.base.selection import top_k_members

FREE_MINIMUM = 4
"""Positions that an evictor may choose freely even at the smallest budget (the paper's rule)."""

_NOISE = 1e-6
"""Far above what fp64 loses on counts of positions; smaller differences are ties."""


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
        granularity: `shared`, `layer` or `head`, see `evictors.base.Granularity`.
    """

    prompt_tokens: int
    n_keep: int
    n_sink: int
    recent: int
    n_layers: int
    n_kv_heads: int
    granularity: str = "shared"

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


def kept_members(scores: Tensor, counts: Tensor, n_sink: int, recent: int) -> Tensor:
    """Positions to keep: the protected ones and the best-scored of the rest.

    Args:
        scores: fp32 `[R, T]`, one row per keep set, higher = keep.
        counts: int64 `[R]`, positions to keep per row, protected ones included.
        n_sink, recent: first and last positions, always kept.

    Returns:
        bool `[R, T]`; where scores are equal at the cut, the lower position is kept.
    """
    length = scores.shape[-1]
    least = min(n_sink + recent, length)
    if int(counts.min()) < least or int(counts.max()) > length:
        raise ValueError(
            f"cannot keep {counts.tolist()} of {length} positions with {n_sink} + {recent} "
            f"protected"
        )
    keep = torch.ones(scores.shape, dtype=torch.bool, device=scores.device)
    if n_sink + recent >= length:
        return keep
    middle = slice(n_sink, length - recent)
    free = (counts - n_sink - recent).to(scores.device)
    # Rows that keep equally many are cut together.
    for count in sorted(set(free.tolist())):
        rows = (free == count).nonzero().squeeze(-1)
        keep[rows, middle] = top_k_members(scores[rows, middle], count)
    return keep


def share_out(weights: Tensor, total: int, least: int, most: int) -> Tensor:
    """Whole counts in proportion to weights that sum exactly to a total, by largest remainder.

    What the bounds cut off or add is shared out among the rest in the same proportion.

    Args:
        weights: `[N]`, not negative.
        total: sum of the counts, N·least to N·most.
        least, most: bounds of each count.

    Returns:
        int64 `[N]` on the CPU; where remainders are equal the earlier entry gets the unit.
    """
    n = len(weights)
    if not n * least <= total <= n * most:
        raise ValueError(f"cannot share out {total} among {n} with {least} to {most} each")
    shares = shares_within(weights.detach().cpu().double(), total, least, most)
    return largest_remainder(shares, total)


def largest_remainder(shares: Tensor, total: int) -> Tensor:
    """Shares, fp64 `[N]`, rounded down or up so that they sum exactly to a total: int64 on the CPU.

    They are not negative and sum to `total` but for rounding errors. Where remainders are equal
    the earlier entry is rounded up.
    """
    shares = shares.cpu()
    # A share that misses a whole number by a rounding error is that number.
    near = shares.round()
    shares = torch.where((shares - near).abs() < _NOISE, near, shares)
    counts = shares.floor()
    fractions = ((shares - counts) / _NOISE).round()
    up = fractions.sort(descending=True, stable=True).indices[: total - int(counts.sum())]
    counts[up] += 1
    return counts.long()


def shares_within(weights: Tensor, total: int, least: int, most: int) -> Tensor:
    """Real shares, fp64 `[N]`, with this sum: c·weights, clipped to the bounds.

    Weights are fp64 on the CPU and not negative; the total is N·least to N·most.
    """
    # Where all others are full, even a weight of zero must give way.
    weights = (weights / weights.max()).clamp(min=1e-15) if weights.any() else weights + 1
    # The sum of the clipped shares grows with c, and bends where a share reaches a bound.
    bends = torch.cat([least / weights, most / weights]).sort().values
    sums = (bends[:, None] * weights).clamp(least, most).sum(-1)
    at = min(int(torch.searchsorted(sums, total)), len(bends) - 1)
    shares = (bends[at] * weights).clamp(least, most)
    if at > 0 and sums[at] > sums[at - 1]:
        below = (bends[at - 1] * weights).clamp(least, most)
        shares = below + (shares - below) * ((total - sums[at - 1]) / (sums[at] - sums[at - 1]))
    return shares
