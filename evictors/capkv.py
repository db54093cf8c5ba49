"""CapKV (arXiv 2604.25975): entries whose values carry most information, given the queries.

Per position a weight w from its key and the mean query, and the ridge leverage of √w·v:
s = w·vᵀA⁻¹v with A = I + Σ w·v·vᵀ. Scores lie between 0 and 1 and sum to at most d_v per head.
Three forms of the weight exist:

- `paper`, as the PAGE paper ran it: exp(β·⟨k, μ⟩/√d - max), μ the mean of the observation window's
  queries before the rotary embedding, over all query heads that share the KV head.
- `published`, the publication's formula: exp(β·⟨k, μ⟩/√d), not normalised, per query head.
- `kvpress`, the form contributed to kvpress: exp(β·cos(k, μ) - max), per query head.

In the last two μ is the mean of all queries, rotated to the positions after the prompt. Exponents
of `published` are capped at 20, above which its weights leave fp64; on SmolLM2-135M that is one in
300 on a prompt of 1,000 tokens, in most layers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.precision import double

_log = logging.getLogger(__name__)

_LARGEST_EXPONENT = 20.0
"""Weights up to e²⁰ keep A invertible in fp64 beside the identity, for any prompt length."""
_EPSILON = 1e-6
"""Added to the weights inside A, in the form of kvpress alone."""


@dataclass(frozen=True)
class CapKV(Evictor):
    """Keeps values that add most to the information capacity of the cache.

    Attributes:
        variant: `paper`, `published` or `kvpress`; the form of the weight.
        temperature: β of the weight.
        n_sink: first positions that the method keeps itself and leaves out of all sums.
    """

    name: ClassVar[str] = "capkv"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {"keys", "values", "queries_before_rotation", "future_rotation"}
    )
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"n_sink": 0},
        "published": {"n_sink": 0},
        "kvpress": {"n_sink": 4},
    }

    variant: Literal["paper", "published", "kvpress"] | None = None
    temperature: float = 5.0
    n_sink: int | None = None

    def __post_init__(self) -> None:
        self.check_options("temperature", "n_sink", at_least=0)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        if self.variant is None or self.n_sink is None:
            return self.resolved("shared").score(layer, n_keep)
        sinks = min(self.n_sink, layer.prompt_tokens)
        score = layer.keys.new_full(layer.keys.shape[:2], torch.inf, dtype=torch.float32)
        if sinks == layer.prompt_tokens:
            return score
        anchors = self._anchors(layer, sinks)
        capped = False
        for head in range(layer.n_kv_heads):
            keys, values = layer.keys[head, sinks:].float(), double(layer.values[head, sinks:])
            logits = self.temperature * self._alignment(keys, anchors[head], layer.scaling)
            if self.variant == "published":
                capped |= bool((logits > _LARGEST_EXPONENT).any())
                logits = logits.clamp(max=_LARGEST_EXPONENT)
            else:
                logits = logits - logits.amax(1, keepdim=True)
            shift = _EPSILON if self.variant == "kvpress" else 0.0
            scores = [_leverage(values, w, shift) for w in double(logits).exp()]
            score[head, sinks:] = torch.stack(scores).mean(0).float().to(score.device)
        if capped:
            _say_capped()
        return score

    def always_keeps(self, window: int) -> tuple[int, int]:
        return self.n_sink or 0, 0

    def _anchors(self, layer: LayerView, sinks: int) -> Tensor:
        """Mean queries, fp32 `[H_kv, A, d]`: one per KV head, or one per query head."""
        queries = layer.queries_before_rotation
        if self.variant == "paper":
            means = queries[:, -layer.window :].float().mean(1)
            return torch.unflatten(means, 0, (layer.n_kv_heads, -1)).mean(1, keepdim=True)
        means = queries[:, sinks:].float().mean(1) @ layer.future_rotation
        return torch.unflatten(means, 0, (layer.n_kv_heads, -1))

    def _alignment(self, keys: Tensor, anchors: Tensor, scaling: float) -> Tensor:
        """How well keys `[n, d]` fit mean queries `[A, d]`: `[A, n]`."""
        if self.variant == "kvpress":
            fit = F.normalize(anchors, dim=-1) @ F.normalize(keys, dim=-1).mT
            return fit.clamp(-1, 1)
        return anchors @ keys.mT * scaling


@cache  # said once, not in every layer of every prompt
def _say_capped() -> None:
    _log.warning(
        "capkv caps exponents of its published weights above %g, said once for this run; "
        "evictor.variant=kvpress needs no cap.",
        _LARGEST_EXPONENT,
    )


def _leverage(values: Tensor, weights: Tensor, shift: float) -> Tensor:
    """w·vᵀA⁻¹v per position, A = I + Σ (w + shift)·v·vᵀ: fp64 `[n]`, each in [0, 1).

    Values are fp64 `[n, d_v]`, weights fp64 `[n]` and not negative.
    """
    identity = torch.eye(values.shape[1], dtype=values.dtype, device=values.device)
    scaled = values * (weights + shift).sqrt()[:, None]
    factor = torch.linalg.cholesky(identity + scaled.mT @ scaled)
    whitened = torch.linalg.solve_triangular(factor, values.mT, upper=False)
    return weights * whitened.square().sum(0)
