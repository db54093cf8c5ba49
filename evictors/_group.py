"""From the query heads that share a KV head to one row for it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Reduction = Literal["mean", "max", "sum"]


def over_group(rows: Tensor, n_kv_heads: int, reduction: Reduction) -> Tensor:
    """Mean, maximum or sum over the query heads of a group: `[H, T]` → `[H_kv, T]`."""
    grouped = rows.view(n_kv_heads, rows.shape[0] // n_kv_heads, rows.shape[1])
    if reduction == "max":
        return grouped.amax(1)
    return grouped.sum(1) if reduction == "sum" else grouped.mean(1)
