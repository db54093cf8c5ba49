"""LagKV (arXiv 2504.04704): entries that stand out against the positions that follow them.

The form of ranks: scores are ranks within a partition, so that each partition keeps about the
same share of its positions, as the authors' own code keeps exactly the same share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need

_SMALLEST_RANGE = 1e-6
"""Keeps a channel that is constant over a partition from dividing by zero."""


@dataclass(frozen=True)
class LagKV(Evictor):
    """Keeps keys and values unlike the partition of positions after theirs.

    Ranks lie in [0, 1). Of positions at the same rank in their partitions the one that stands out
    more comes first, so that no partition is preferred for its place. Positions without a full
    partition after them, the tail, score between 1 and 2, the latest highest, so they are preferred
    to all others, and take part in `score_norm` like these. A prompt of fewer than n_sink + 2·lag
    tokens is all tail. Where a budget is no more than n_sink + lag + remainder, the remainder being
    the positions after the last partition, it goes to the first and the latest positions alone, as
    with streamingllm.

    Attributes:
        n_sink: first positions, which belong to no partition and always stay.
        lag: positions per partition.
        ranked: whether partitions keep equal shares; if not, the scores themselves, which sum to
            1 in every partition, compete across partitions.
    """

    name: ClassVar[str] = "lagkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys", "values"})
    note: ClassVar[str] = "keeps what streamingllm does up to n_sink + lag + remainder positions"

    n_sink: int = 4
    lag: int = 128
    ranked: bool = True

    def __post_init__(self) -> None:
        self.check_options("n_sink", at_least=0)
        self.check_options("lag", at_least=1)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        length, heads = layer.prompt_tokens, layer.n_kv_heads
        recency = 1 + torch.arange(length, device=layer.keys.device) / length
        score = recency.repeat(heads, 1)
        score[:, : self.n_sink] = torch.inf
        full = (length - self.n_sink) // self.lag
        if full < 2:
            return score
        end = self.n_sink + full * self.lag
        parts = [
            _standing_out(
                torch.unflatten(states[:, self.n_sink : end].float(), 1, (full, self.lag))
            )
            for states in (layer.keys, layer.values)
        ]
        scores = (parts[0] + parts[1]) / 2
        if self.ranked:
            scores = _ranked(scores)
        score[:, self.n_sink : end - self.lag] = scores.flatten(1)
        return score

    def always_keeps(self, window: int) -> tuple[int, int]:
        return self.n_sink, 0


def _ranked(scores: Tensor) -> Tensor:
    """Rank of each score in its partition over the partition's size, equal ranks told apart.

    Where scores of a partition are equal, the lower position ranks higher. A rank is raised by the
    share of partitions whose score of that rank is lower. fp32 `[H_kv, P, lag]`, each in [0, 1).
    """
    partitions, lag = scores.shape[1:]
    best = scores.sort(dim=-1, descending=True, stable=True)
    of_rank = best.values.mT.contiguous()
    lower = torch.searchsorted(of_rank.sort(dim=-1).values, of_rank).mT
    ranks = lag - 1 - torch.arange(lag, device=scores.device)
    return torch.empty_like(scores).scatter_(-1, best.indices, (ranks + lower / partitions) / lag)


def _standing_out(states: Tensor) -> Tensor:
    """Softmax, within each partition, of how far channels lie apart in the next one's ranges.

    From `[H_kv, P, lag, d]` to `[H_kv, P - 1, lag]`: the last partition has none after it.
    """
    following = states[:, 1:]
    low = following.amin(2, keepdim=True)
    high = following.amax(2, keepdim=True)
    scaled = (states[:, :-1] - low) / (high - low).clamp_min(_SMALLEST_RANGE)
    return scaled.std(-1).softmax(-1)
