"""What an evictor makes of a layer, and scores made comparable across heads and layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView
from page_bench.evictors.base.foreign import blaming, lent_view


class Scorer(NamedTuple):
    """An evictor whose scores will be asked for, and the positions it will keep per KV head."""

    evictor: Evictor
    n_keep: int

    @property
    def key(self) -> tuple[Evictor, int | None]:
        """Equal where the scores are."""
        return self.evictor, self.n_keep if self.evictor.reads_budget else None


@dataclass(frozen=True)
class LayerScores:
    """What an evictor made of one layer.

    Attributes:
        score: fp32 `[H_kv, T]`.
        factor: fp32 `[H_kv, T]` for a second stage; None without one.
    """

    score: Tensor
    factor: Tensor | None


def score_layer(evictor: Evictor, view: LayerView, n_keep: int | None) -> LayerScores:
    """What an evictor makes of one layer, in fp32.

    Raises:
        UsageError: it failed.
    """
    # Mixed precision is for the model.
    with torch.autocast(view.keys.device.type, enabled=False), torch.inference_mode():
        own = lent_view(evictor, view)
        with blaming(evictor.title, "failed in score"):
            score = evictor.score(own, n_keep)
        with blaming(evictor.title, "failed in factor"):
            return LayerScores(score, evictor.factor(own))


def normalised(scores: Tensor, norm: str, n_sink: int, recent: int) -> Tensor:
    """Scores after normalisation, each row over the positions that can be evicted.

    Args:
        scores: fp32 `[L, H_kv, T]`, higher = keep, +inf = always.
        norm: `none` leaves them as they are; `sum` divides by the row's sum, after a shift to
            non-negative values where some are negative; `zscore` subtracts the mean and divides
            by the standard deviation; `rank` gives a position's share of positions below it, ties
            the mean of their ranks.
        n_sink: first positions, which cannot be evicted.
        recent: last positions, which cannot be evicted.

    Returns:
        fp32 `[L, H_kv, T]`; positions that cannot be evicted are 0 unless `norm` is `none`. +inf
        stays +inf, and the other positions are normalised among themselves.
    """
    length = scores.shape[-1]
    if norm == "none" or n_sink + recent >= length:
        return scores
    free = scores[..., n_sink : length - recent]
    certain = free.isposinf()
    result = scores.new_zeros(scores.shape)
    result[..., n_sink : length - recent] = _NORMS[norm](free, certain).masked_fill(
        certain, torch.inf
    )
    return result


def _sum(rows: Tensor, certain: Tensor) -> Tensor:
    shifted = (rows - rows.amin(-1, keepdim=True).clamp(max=0)).masked_fill(certain, 0)
    return shifted / shifted.sum(-1, keepdim=True).clamp(min=1e-30)


def _zscore(rows: Tensor, certain: Tensor) -> Tensor:
    count = (~certain).sum(-1, keepdim=True).clamp(min=1)
    mean = rows.masked_fill(certain, 0).sum(-1, keepdim=True) / count
    centred = (rows - mean).masked_fill(certain, 0)
    deviation = (centred.square().sum(-1, keepdim=True) / count).sqrt()
    return centred / deviation.clamp(min=1e-30)


def _rank(rows: Tensor, certain: Tensor) -> Tensor:
    ordered = rows.sort(dim=-1).values.contiguous()
    below = torch.searchsorted(ordered, rows.contiguous())
    up_to = torch.searchsorted(ordered, rows.contiguous(), right=True)
    count = (~certain).sum(-1, keepdim=True).clamp(min=1)
    return (below + up_to - 1).float() / (2 * count)


_NORMS = {"sum": _sum, "zscore": _zscore, "rank": _rank}
