"""Expected attention (arXiv 2510.00636): attention of queries to come, estimated from those seen.

Queries before the rotation are taken as normally distributed and rotated to the positions after
the prompt; the attention logit's mean and variance then give the expected weight of each key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, Granularity, LayerView, Need


@dataclass(frozen=True)
class ExpectedAttention(Evictor):
    """Keeps what queries distributed like the prompt's are expected to attend to.

    Attributes:
        n_sink: first positions that the method keeps itself and leaves out of all statistics.
        epsilon: added to the expected attention before it is weighted by the values' norms.
        use_covariance: whether the spread of the queries counts, besides their mean.
        use_vnorm: whether scores are weighted by the L2 norms of the values; None means yes, but
            no inside criticalkv, which weighs by the values itself.
    """

    name: ClassVar[str] = "expected_attention"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {"keys", "values", "queries_before_rotation", "future_rotation"}
    )
    defaults_in_words: ClassVar[Mapping[str, str]] = {"use_vnorm": "true, false inside criticalkv"}

    n_sink: int = 4
    epsilon: float = 0.0
    use_covariance: bool = True
    use_vnorm: bool | None = None

    def __post_init__(self) -> None:
        self.check_options("n_sink", "epsilon", at_least=0)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        sinks = min(self.n_sink, layer.prompt_tokens)
        score = layer.keys.new_full(layer.keys.shape[:2], torch.inf, dtype=torch.float32)
        if sinks < layer.prompt_tokens:
            score[:, sinks:] = self._score_after_sinks(layer, sinks)
        return score

    def always_keeps(self, window: int) -> tuple[int, int]:
        return self.n_sink, 0

    def without_value_norms(self) -> Self:
        return dataclasses.replace(self, use_vnorm=bool(self.use_vnorm))

    def resolved(self, granularity: Granularity) -> Self:
        return dataclasses.replace(self, use_vnorm=self.use_vnorm is not False)

    def _score_after_sinks(self, layer: LayerView, sinks: int) -> Tensor:
        queries = layer.queries_before_rotation[:, sinks:]
        group = len(queries) // layer.n_kv_heads
        keys = layer.keys[:, sinks:].float()
        # One query head at a time: the covariance term needs copies of the keys.
        expected = torch.stack(
            [self._expected_logits(head, keys[j // group], layer) for j, head in enumerate(queries)]
        )
        attention = layer.per_kv_head(expected.softmax(-1))
        if self.use_vnorm is False:
            return attention
        return (attention + self.epsilon) * layer.values[:, sinks:].float().norm(dim=-1)

    def _expected_logits(self, queries: Tensor, keys: Tensor, layer: LayerView) -> Tensor:
        """Logarithm of E[exp(logit)] per key: fp32 `[n]`, from queries and keys `[n, d]`."""
        rotation = layer.future_rotation
        queries = queries.float()
        mean = queries.mean(0)
        logits = keys @ (mean @ rotation) * layer.scaling
        if self.use_covariance:
            centred = queries - mean
            covariance = rotation.mT @ (centred.mT @ centred / len(queries)) @ rotation
            logits += ((keys @ covariance) * keys).sum(-1) * layer.scaling**2 / 2
        return logits
