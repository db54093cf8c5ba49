"""Scores made comparable across heads and layers, before they are averaged or compete."""

from __future__ import annotations

import torch
from torch import Tensor


def normalised(scores: Tensor, norm: str, n_sink: int, recent: int) -> Tensor:
    """Scores after normalisation, each row over the positions that can be evicted.

    Args:
        scores: fp32 `[L, H_kv, T]`, higher = keep.
        norm: `none` leaves them as they are; `sum` divides by the row's sum, after a shift to
            non-negative values where some are negative; `zscore` subtracts the mean and divides
            by the standard deviation; `rank` gives a position's share of positions below it, ties
            the mean of their ranks.
        n_sink: first positions, which cannot be evicted.
        recent: last positions, which cannot be evicted.

    Returns:
        fp32 `[L, H_kv, T]`; positions that cannot be evicted are 0 unless `norm` is `none`.
    """
    length = scores.shape[-1]
    if norm == "none" or n_sink + recent >= length:
        return scores
    free = scores[..., n_sink : length - recent]
    result = scores.new_zeros(scores.shape)
    result[..., n_sink : length - recent] = _NORMS[norm](free)
    return result


def _sum(rows: Tensor) -> Tensor:
    shifted = rows - rows.amin(-1, keepdim=True).clamp(max=0)
    return shifted / shifted.sum(-1, keepdim=True).clamp(min=1e-30)


def _zscore(rows: Tensor) -> Tensor:
    deviation = rows.std(-1, correction=0, keepdim=True)
    return (rows - rows.mean(-1, keepdim=True)) / deviation.clamp(min=1e-30)


def _rank(rows: Tensor) -> Tensor:
    ordered = rows.sort(dim=-1).values.contiguous()
    below = torch.searchsorted(ordered, rows.contiguous())
    up_to = torch.searchsorted(ordered, rows.contiguous(), right=True)
    return (below + up_to - 1).float() / (2 * rows.shape[-1])


_NORMS = {"sum": _sum, "zscore": _zscore, "rank": _rank}
