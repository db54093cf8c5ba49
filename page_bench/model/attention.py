"""An attention function that observes: the model's own computation, plus what a gate and the
evictors read of it, inside the same pass.

The function is registered with transformers under a name of ours for each implementation it
wraps. What it observes goes to the `AttentionRecorder` that travels through the keyword
arguments of one forward call; without a recorder it does nothing but compute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from page_bench.evictors.base.causal import attention_sums, mean_attention
from page_bench.evictors.base.layer_view import Need
from page_bench.inputs.errors import UsageError
from page_bench.model.capture import PROBE_ARGUMENT, Calls, Probed, captured
from page_bench.model.evicted_attention import CACHE_ARGUMENT, CacheReader, attend
from page_bench.model.window import window_statistics

IMPLEMENTATIONS = ("sdpa", "eager")
"""Attention implementations that can be observed; each is registered as `page_NAME`."""

_RECORDER_ARGUMENT = "page_recorder"
_CANNOT_OBSERVE = "which cannot be observed; choose a model with plain causal attention."
_QUERY_NEEDS: frozenset[Need] = frozenset(
    {
        "keys",
        "values",
        "queries_before_rotation",
        "keys_before_rotation",
        "output_projection",
    }
)
"""Needs that speak of the cached keys and have no meaning where the cache holds latents."""


@dataclass(frozen=True)
class SpreadOptions:
    """What is measured of the observation window's rows besides their mean.

    Attributes:
        entropy: whether the entropy of the rows is.
        margin: whether κ is.
        top_k: size of κ's key sets.
    """

    entropy: bool = False
    margin: bool = False
    top_k: int = 32


MEAN_ALONE = SpreadOptions()
"""Nothing besides the mean is measured."""


class AttentionRecorder:
    """Collects, layer by layer, what one prefill shows of its attention.

    Attributes:
        window: observation window w, the number of last query rows that are averaged.
        layers: indices of the layers to observe.
        needs: what else an evictor reads.
        query_rows: numbers of last queries that evictors ask for; the most are recorded.
        scored: called with the recorder and a layer's index once all of it is recorded.
        calls: what the layers are called with, see `capture.calls_of`.
        spread: see `SpreadOptions`.
        window_attention: layer index → fp32 `[H, T]`, mean over the window's rows.
        row_entropy, margin: layer index → fp32 `[H]`, see `window.WindowStatistics`; empty unless
            `spread` asks for them.
        recorded: layer index → by need, see `layer_view.LayerView`.
        attention_of_rows: layer index → by number of last query rows, for those of `query_rows`,
            fp32 `[H, T]`, mean attention over them. Filled where the cache holds latents, which
            cannot be asked for it later.
        scaling: layer index → factor of the logits.
        latent: whether the cache holds latents that the model unfolds before it attends.
    """

    def __init__(
        self,
        window: int,
        layers: Collection[int],
        needs: frozenset[Need] = frozenset(),
        query_rows: Collection[int] = (),
        cache: Cache | None = None,
        scored: Callable[[AttentionRecorder, int], None] = lambda recorder, layer: None,
        spread: SpreadOptions = MEAN_ALONE,
    ) -> None:
        self.window = window
        self.layers = layers
        self.needs = needs
        self.query_rows = query_rows
        self.cache = cache
        self.scored = scored
        self.spread = spread
        self.row_entropy: dict[int, Tensor] = {}
        self.margin: dict[int, Tensor] = {}
        self.calls: Calls = {}
        self.window_attention: dict[int, Tensor] = {}
        self.recorded: dict[int, dict[Need, Tensor]] = {}
        self.attention_of_rows: dict[int, dict[int, Tensor]] = {}
        self.scaling: dict[int, float] = {}
        self.latent = False

    def as_argument(self) -> dict[str, Any]:
        """Keyword arguments that carry this recorder through a model's forward."""
        return {_RECORDER_ARGUMENT: self}

    def record(self, module: nn.Module, query: Tensor, key: Tensor, scaling: float | None) -> None:
        """Observe one layer's attention over a whole prompt.

        Args:
            module: the attention layer.
            query: `[1, H, T, d]`, after the rotary embedding.
            key: `[1, H_kv, T, d]`, after the rotary embedding.
            scaling: factor of the logits; None means 1/√d.
        """
        layer = _index_of(module)
        if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
            raise RuntimeError(
                f"only the prefill of one whole prompt can be observed, not queries of shape "
                f"{tuple(query.shape)} on keys of shape {tuple(key.shape)}"
            )
        if layer in self.window_attention:
            raise UsageError(f"layer {layer} attends more than once, {_CANNOT_OBSERVE}")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        rows = min(self.window, query.shape[2])
        self.scaling[layer] = scaling
        seen = window_statistics(
            query[0, :, -rows:],
            key[0],
            scaling,
            self.spread.top_k,
            with_entropy=self.spread.entropy,
            with_margin=self.spread.margin,
        )
        self.window_attention[layer] = seen.mean_attention
        if seen.row_entropy is not None:
            self.row_entropy[layer] = seen.row_entropy
        if seen.margin is not None:
            self.margin[layer] = seen.margin
        self.recorded[layer] = self._needed(module, query, key, scaling)
        self.scored(self, layer)
        self.calls.clear()

    def _needed(
        self, module: nn.Module, query: Tensor, key: Tensor, scaling: float
    ) -> dict[Need, Tensor]:
        needs = set(self.needs)
        if self.cache is not None:
            self.latent |= self.cache.layers[_index_of(module)].keys.shape[1] != key.shape[1]
        if self.latent and needs & _QUERY_NEEDS:
            raise UsageError(
                f"the evictor reads {', '.join(sorted(needs & _QUERY_NEEDS))}, but the cache of "
                f"{type(module).__name__} holds latents of all heads together; choose an evictor "
                f"that reads attention, such as snapkv."
            )
        found = captured(module, self.calls.get(module), query, key, needs)
        if "attention_mass" in needs:
            found["attention_mass"] = attention_sums(query[0], key[0], scaling)
        at_once: dict[int, Tensor] = {}
        if "window_queries" in needs and self.latent:
            for rows in self.query_rows:
                at_once[rows] = mean_attention(query[0, :, -rows:], key[0], scaling)
        elif "window_queries" in needs:
            # A copy: a view would keep all queries alive.
            found["window_queries"] = query[0, :, -max(self.query_rows) :].clone()
        self.attention_of_rows[_index_of(module)] = at_once
        return found


def _index_of(module: nn.Module) -> int:
    index = module.layer_idx
    assert isinstance(index, int)
    return index


def observable_name(implementation: str) -> str:
    """The registered name of the observing function that wraps `implementation`."""
    return f"page_{implementation}"


OBSERVABLE = frozenset(map(observable_name, IMPLEMENTATIONS))
"""Names of all observing functions."""


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
        if kwargs.pop(PROBE_ARGUMENT, False):
            raise Probed(query, key)
        recorder = kwargs.pop(_RECORDER_ARGUMENT, None)
        reader: CacheReader | None = kwargs.pop(CACHE_ARGUMENT, None)
        if recorder is not None and module.layer_idx in recorder.layers:
            _refuse_other_attention(kwargs, key.shape[2])
            recorder.record(module, query, key, kwargs.get("scaling"))
        stock = _stock_forward(implementation, module)
        if reader is None:
            output: tuple[Tensor, Tensor | None] = stock(
                module, query, key, value, attention_mask, **kwargs
            )
            return output
        layer = _index_of(module)
        reader.attended.append(layer)
        return attend(stock, reader.cache.layers[layer], module, query, key, value, kwargs)

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
