"""One dense pass over a prompt: its cache, its next-token logits and what was observed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.attention import AttentionRecorder
from page_bench.cache import empty_cache
from page_bench.errors import UsageError


@dataclass(frozen=True)
class Observation:
    """What the prefill showed.

    Attributes:
        window_attention: fp32 `[L, H, T]`, per query head the attention averaged over the last
            w query rows.
        attention_mass: fp32 `[L, H, T]`, summed over all query rows; None unless asked for.
    """

    window_attention: Tensor
    attention_mass: Tensor | None


@dataclass(frozen=True)
class Prefill:
    """A prompt after its dense pass.

    Attributes:
        prompt_tokens: T.
        cache: all T entries of each layer, with room for the answer.
        logits: `[1, vocab]`, for the first answer token under the full cache.
        observation: see `Observation`.
    """

    prompt_tokens: int
    cache: Cache
    logits: Tensor
    observation: Observation


def prefill(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    window: int,
    room: int,
    wants_mass: bool = False,
) -> Prefill:
    """Run the prompt through the model once.

    Args:
        model: a model whose attention implementation is one of `attention.register`.
        input_ids: int64 `[1, T]`.
        window: observation window w.
        room: entries the cache must have room for besides the prompt's.
        wants_mass: whether to record attention mass over all query rows.

    Raises:
        UsageError: the model does not hand its attention's inputs to the observing function in
            every layer, or its attention is not a number.
    """
    n_layers = text_config(model).num_hidden_layers
    recorder = AttentionRecorder(window, wants_mass)
    cache = empty_cache(n_layers, input_ids.shape[1] + room)
    logits = forward(model, input_ids, cache, **recorder.as_argument())
    if sorted(recorder.window_attention) != list(range(n_layers)):
        raise UsageError(
            f"{type(model).__name__} showed the attention of {len(recorder.window_attention)} of "
            f"its {n_layers} layers; only models with softmax attention over a KV cache in every "
            f"layer, called through transformers' attention interface, can be run."
        )
    return Prefill(
        prompt_tokens=input_ids.shape[1],
        cache=cache,
        logits=logits,
        observation=Observation(
            window_attention=_stack(recorder.window_attention),
            attention_mass=_stack(recorder.attention_mass) if wants_mass else None,
        ),
    )


def forward(
    model: PreTrainedModel,
    input_ids: Tensor,
    cache: Cache,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Next-token logits `[B, vocab]` after `input_ids` `[B, n]`; the cache grows by n entries.

    Args:
        model: the model.
        input_ids: int64 `[B, n]`.
        cache: filled in place.
        position_ids: int64 `[B, n]`, true positions; None means 0 … n-1.
        kwargs: passed on to the attention function.
    """
    # The argument was renamed in transformers 5.24.
    accepted = inspect.signature(base_model(model).forward).parameters
    kwargs["cache" if "cache" in accepted else "past_key_values"] = cache
    if position_ids is not None:
        kwargs["position_ids"] = position_ids
    if "logits_to_keep" in accepted:
        kwargs["logits_to_keep"] = 1
    with torch.inference_mode():
        logits: Tensor = model(input_ids=input_ids, use_cache=True, **kwargs).logits
    return logits[:, -1]


def base_model(model: Any) -> PreTrainedModel:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    inner: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the language model, also where it is nested (multimodal models)."""
    return model.config.get_text_config()


def _stack(by_layer: dict[int, Tensor]) -> Tensor:
    """One tensor `[L, H, T]` on the first layer's device, checked for NaN."""
    stacked = torch.stack([by_layer[i].to(by_layer[0].device) for i in range(len(by_layer))])
    # A sum is not finite if any of its terms is not: one pass, no mask.
    if not torch.isfinite(stacked.sum()):
        raise UsageError(
            "the model's attention is not a number on this prompt; some models overflow in half "
            "precision: try dtype=float32."
        )
    return stacked
