"""An attention function that observes: the model's own computation, plus what a gate and the
evictors read of it, inside the same pass.

The function is registered with transformers under a name of ours for each implementation it
wraps. What it observes goes to the `AttentionRecorder` that travels through the keyword
arguments of one forward call; without a recorder it does nothing but compute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from page_bench.errors import UsageError

IMPLEMENTATIONS = ("sdpa", "eager")
"""Attention implementations that can be observed; each is registered as `page_NAME`."""

_RECORDER_ARGUMENT = "page_recorder"
_CANNOT_OBSERVE = "which cannot be observed; choose a model with plain causal attention."
_BLOCK_BYTES = 32 * 2**20
"""Upper bound for the attention logits of one block of query rows."""


class AttentionRecorder:
    """Collects, layer by layer, what one prefill shows of its attention.

    Attributes:
        window: observation window w, the number of last query rows that are averaged.
        wants_mass: whether the sums over all query rows are recorded as well (H2O).
        window_attention: layer index → fp32 `[H, T]`, mean over the window's rows.
        attention_mass: layer index → fp32 `[H, T]`, sum over all query rows.
    """

    def __init__(self, window: int, wants_mass: bool = False) -> None:
        self.window = window
        self.wants_mass = wants_mass
        self.window_attention: dict[int, Tensor] = {}
        self.attention_mass: dict[int, Tensor] = {}

    def as_argument(self) -> dict[str, Any]:
        """Keyword arguments that carry this recorder through a model's forward."""
        return {_RECORDER_ARGUMENT: self}

    def record(self, layer: int, query: Tensor, key: Tensor, scaling: float | None) -> None:
        """Observe one layer's attention over a whole prompt.

        Args:
            layer: layer index.
            query: `[1, H, T, d]`, after the rotary embedding.
            key: `[1, H_kv, T, d]`, after the rotary embedding.
            scaling: factor of the logits; None means 1/√d.
        """
        if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
            raise RuntimeError(
                f"only the prefill of one whole prompt can be observed, not queries of shape "
                f"{tuple(query.shape)} on keys of shape {tuple(key.shape)}"
            )
        if layer in self.window_attention:
            raise UsageError(f"layer {layer} attends more than once, {_CANNOT_OBSERVE}")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        length = query.shape[2]
        rows = min(self.window, length)
        self.window_attention[layer] = (
            attention_sums(query[0], key[0], length - rows, scaling) / rows
        )
        if self.wants_mass:
            self.attention_mass[layer] = attention_sums(query[0], key[0], 0, scaling)


def attention_sums(query: Tensor, key: Tensor, first_row: int, scaling: float) -> Tensor:
    """Causal softmax attention, summed over query rows; never more than a block of rows alive.

    Args:
        query: `[H, T, d]`.
        key: `[H_kv, T, d]`; query head j reads KV head ⌊j·H_kv/H⌋.
        first_row: rows `first_row … T-1` are summed.
        scaling: factor of the logits.

    Returns:
        fp32 `[H, T]`.
    """
    heads, length, dim = query.shape
    kv_heads = key.shape[0]
    keys = key.float().mT
    sums = torch.zeros(kv_heads, heads // kv_heads, length, device=query.device)
    step = max(1, _BLOCK_BYTES // (heads * length * 4))
    # Mixed precision is for the model; what is observed stays in fp32.
    with torch.autocast(query.device.type, enabled=False):
        for start in range(first_row, length, step):
            end = min(start + step, length)
            rows = (query[:, start:end].float() * scaling).reshape(kv_heads, -1, dim)
            logits = (rows @ keys[..., :end]).view(kv_heads, -1, end - start, end)
            # Keys before the block are visible to all its rows.
            future = torch.ones(end - start, end - start, dtype=torch.bool, device=query.device)
            logits[..., start:].masked_fill_(future.triu(1), -torch.inf)
            sums[..., :end] += logits.softmax(-1).sum(-2)
    return sums.view(heads, length)


def observable_name(implementation: str) -> str:
    """The registered name of the observing function that wraps `implementation`."""
    return f"page_{implementation}"


@contextmanager
def observing(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's attention be observed while the context lasts; then it is as before.

    Args:
        model: a model whose attention implementation is one of `IMPLEMENTATIONS`.
    """
    register()
    stock = model.config._attn_implementation
    model.set_attn_implementation(observable_name(stock))
    try:
        yield
    finally:
        model.set_attn_implementation(stock)


def register() -> None:
    """Make the observing functions known to transformers; calling it again changes nothing."""
    masks: dict[str, Callable[..., Any]] = {"sdpa": sdpa_mask, "eager": eager_mask}
    for implementation in IMPLEMENTATIONS:
        name = observable_name(implementation)
        AttentionInterface.register(name, _observing(implementation))
        # Without a mask function of that name, transformers passes no mask at all.
        AttentionMaskInterface.register(name, masks[implementation])


def _observing(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        recorder = kwargs.pop(_RECORDER_ARGUMENT, None)
        if recorder is not None:
            _refuse_other_attention(kwargs, key.shape[2])
            recorder.record(module.layer_idx, query, key, kwargs.get("scaling"))
        forward = _stock_forward(implementation, module)
        output: tuple[Tensor, Tensor | None] = forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return output

    return attention


def _stock_forward(implementation: str, module: nn.Module) -> Callable[..., Any]:
    """What the model itself would call; eager attention is defined beside each model."""
    if implementation == "eager":
        forward: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
    else:
        forward = ALL_ATTENTION_FUNCTIONS[implementation]
    return forward


def _refuse_other_attention(kwargs: dict[str, Any], length: int) -> None:
    """Raise where attention is more than a causal softmax of scaled products."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise UsageError(f"the model's attention uses {name}, {_CANNOT_OBSERVE}")
    # A window that spans the prompt masks nothing.
    if (kwargs.get("sliding_window") or length) < length:
        window = kwargs["sliding_window"]
        raise UsageError(f"the model attends to the last {window} keys only, {_CANNOT_OBSERVE}")
