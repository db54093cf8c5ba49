"""Attention over caches that have lost entries: each layer, head and row by what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from page_bench.inputs.errors import UsageError
from page_bench.model.cache_layers import BatchedLayer, GroupedLayer, PromptLayer

CACHE_ARGUMENT = "page_cache"
"""Keyword under which a cache reaches the attention function."""


@dataclass
class CacheReader:
    """Lets each layer attend to what is left of it in an evicted cache, in one forward call.

    transformers makes one mask for all layers and heads; here each layer's own is used.

    Attributes:
        cache: what is read.
        attended: indices of the layers that have attended, in their order.
    """

    cache: Cache
    attended: list[int] = field(default_factory=list)

    def as_argument(self) -> dict[str, Any]:
        """Keyword arguments that carry this reader through a model's forward."""
        return {CACHE_ARGUMENT: self}

    def check(self, model: str) -> None:
        """Raise where a layer has attended to something else, or more than once.

        Args:
            model: what the message is to name.

        Raises:
            UsageError: not every layer has attended once.
        """
        layers = len(self.cache.layers)
        if sorted(self.attended) != list(range(layers)):
            once = sum(self.attended.count(i) == 1 for i in range(layers))
            raise UsageError(
                f"{model} read its cache through page_hf's attention in {once} of its {layers} "
                f"layers, so that what is left of the others was not what it attended to; use a "
                f"model that is not compiled and calls its attention through transformers' "
                f"attention interface in every layer."
            )


def attend(
    stock: Callable[..., Any],
    layer: PromptLayer,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Attention to all entries of a layer, causal among the new ones: heads `[B, n, H, d_v]`."""
    if isinstance(layer, BatchedLayer):
        rows = [
            attend(stock, row, module, query[i : i + 1], *seen, kwargs)[0]
            for i, (row, seen) in enumerate(zip(layer.rows, layer.seen, strict=True))
        ]
        return torch.cat(rows), None
    if isinstance(layer, GroupedLayer):
        return _attend_by_group(stock, layer, module, query, kwargs), None
    mask = layer.mask(query.shape[2], key.shape[2], query)
    whole: tuple[Tensor, Tensor | None] = stock(module, query, key, value, mask, **kwargs)
    return whole


def _attend_by_group(
    stock: Callable[..., Any],
    layer: GroupedLayer,
    module: nn.Module,
    query: Tensor,
    kwargs: dict[str, Any],
) -> Tensor:
    """KV heads of equal count attend together, so nothing is padded: `[1, n, H, d_v]`."""
    rows, per_head = query.shape[2], query.shape[1] // layer.n_kv_heads
    by_head = query.view(1, layer.n_kv_heads, per_head, rows, -1)
    output: Tensor | None = None
    for heads, part in zip(layer.heads, layer.parts, strict=True):
        mask = part.mask(rows, part.length, query)
        group = by_head[:, heads].flatten(1, 2)
        attended = stock(module, group, part.keys, part.values, mask, **kwargs)[0]
        attended = attended.view(1, rows, len(heads), per_head, -1)
        if output is None:
            output = attended.new_empty(1, rows, layer.n_kv_heads, per_head, attended.shape[-1])
        output[:, :, heads] = attended
    assert output is not None
    return output.flatten(2, 3)
