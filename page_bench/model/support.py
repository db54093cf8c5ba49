"""Which models can be observed and evicted: checks that need no weights.

A model is run if every layer computes causal softmax attention over a cache of keys and values
and does so through transformers' attention interface. What follows from the configuration and
the model class is refused here; the prefill itself refuses what only shows when the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from page_bench.gating.profile import DEPLOYED, DropOptions, drop_of
from page_bench.inputs.errors import UsageError
from page_bench.model.rotation import check_rotation, rope_types

MIN_PAGE_LAYERS = 3
"""Below this the first and last third of the layers, which gate `page` compares, are empty."""
MIN_PAGE_HEADS = 2
"""Gate `page` compares pairs of query heads."""

_FULL_LAYERS = ("full_attention", "attention")
_RESTRICTED_LAYERS = ("sliding_attention", "chunked_attention")
_FAMILIES = {
    "diffllama": "calls its attention twice in each layer",
    "doge": "adds a bias of its own to the attention logits",
    "dory": "cuts the keys of its sliding-window layers itself",
    # Newer releases declare this in the layer types.
    "glm_moe_dsa": "attends to no other keys than those its indexer picks",
    "hrm_text": "runs each layer several times per token",
    "jetmoe": "attends to other keys than those it caches",
    "minimax": "accepts no cache but its own",
    "nemotron": "does not pass keyword arguments down to its attention",
}
"""Model types that neither configuration nor class flags exclude, but that fail when run."""
_ADVICE = (
    "choose a decoder-only model with full softmax attention over a KV cache in every layer, "
    "such as Llama, Qwen2 or Qwen3."
)


def layer_windows(text: PreTrainedConfig) -> list[int | None]:
    """Per layer its sliding window; None where it attends to all positions.

    A window that stands for every layer counts as none: such a model is run only where its
    prompts fit into the window (see `check_config`).

    Args:
        text: the configuration of the language model itself.
    """
    types = _layer_types(text) if _declares_layer_types(text) else []
    sliding = [kind == "sliding_attention" and _acting_window(text) is not None for kind in types]
    if not types or all(sliding):
        return [None] * text.num_hidden_layers
    return [text.sliding_window if slides else None for slides in sliding]


def check_config(config: PreTrainedConfig, max_length: int | None = None) -> None:
    """Check that a model can be observed and evicted, before any weight is loaded.

    Args:
        config: the model's configuration; nested ones (multimodal models) are looked into.
        max_length: tokens of prompt and answer; None means what the model allows.

    Raises:
        UsageError: the model cannot be run; the message says what it has and, where only some
            layers are concerned, which.
    """
    model_class = _causal_lm_class(config)
    _check(config, model_class, max_length)
    remote = "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    if model_class is None and not remote:
        raise _refusal(config, None, "is not a causal language model that transformers knows")


def check_model(model: PreTrainedModel, max_length: int | None = None) -> None:
    """Check a loaded model, whose class need not be transformers' own (`trust_remote_code`).

    Args:
        model: the model, possibly inside a PEFT wrapper.
        max_length: as for `check_config`.

    Raises:
        UsageError: as `check_config`.
    """
    if any(_is_compiled(module) for module in model.modules()):
        raise UsageError(
            f"{type(model).__name__} is compiled (torch.compile), which hides what its attention "
            f"does; give the model as it was loaded."
        )
    for adapter in getattr(model, "peft_config", {}).values():
        check_adapter_type(adapter)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    _check(inner.config, type(inner), max_length)
    check_rotation(inner, inner.config.get_text_config())


def check_adapter_type(adapter: Any) -> None:
    """Raise for an adapter of PEFT that adds entries to the KV cache."""
    if adapter.is_prompt_learning:
        raise UsageError(
            f"adapter type {adapter.peft_type.value} puts entries of its own into the KV "
            f"cache, which page_hf cannot do; use one that changes weights, such as LoRA."
        )


def _is_compiled(module: Any) -> bool:
    return (
        hasattr(module, "_orig_mod")
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        or getattr(module, "_compiled_call_impl", None) is not None
    )


def check_gate(config: PreTrainedConfig, gate: str, options: DropOptions = DEPLOYED) -> None:
    """Check that the model has the layers and heads whose agreement a gate measures.

    Args:
        config: the model's configuration.
        gate: name of the gate; only `page` needs more than any model has.
        options: how the gate takes D.

    Raises:
        UsageError: fewer than three layers or two query heads, or bins without a layer.
    """
    if gate != "page":
        return
    text = config.get_text_config()
    layers, heads = layer_windows(text).count(None), text.num_attention_heads
    if layers < MIN_PAGE_LAYERS or heads < MIN_PAGE_HEADS:
        raise UsageError(
            f"gate=page compares pairs of query heads in the first and last third of the layers, "
            f"so it needs at least {MIN_PAGE_LAYERS} layers with full attention and "
            f"{MIN_PAGE_HEADS} query heads, but model type {config.model_type!r} has {layers} and "
            f"{heads} here; use gate=open or gate=closed."
        )
    if math.isnan(drop_of([0.0] * layers, options)):
        raise UsageError(
            f"gate.bins={options.bins} and gate.layer_stride={options.layer_stride} leave no layer "
            f"to compare of the {layers} with full attention in model type {config.model_type!r}; "
            f"give larger bins, or a smaller stride."
        )


def check_length(config: PreTrainedConfig, max_length: int | None) -> None:
    """Check that a maximum length lies within the positions the model was made for.

    Args:
        config: the model's configuration.
        max_length: tokens of prompt and answer; None means what the model allows.

    Raises:
        UsageError: there are fewer positions. A model whose rotary embedding is scaled (YaRN and
            others) may go further than its configuration says, so it is not refused.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    scaled = rope_types(text) != {"default"}
    if max_length is not None and positions is not None and not scaled and max_length > positions:
        raise UsageError(
            f"max_length={max_length} exceeds the {positions} positions of model type "
            f"{config.model_type!r}; give at most {positions}, or scale the rotary embedding."
        )


def _check(config: PreTrainedConfig, model_class: type | None, max_length: int | None) -> None:
    """Raise the most lasting objection first: what the model is, then what is not done yet."""
    if config.is_encoder_decoder:
        raise _refusal(config, model_class, "is an encoder-decoder model")
    text = _text_config(config, model_class)
    objection = (
        _not_causal(text)
        or _no_kv_attention(text, model_class)
        or _unobservable_class(model_class)
        or _restricted_attention(text, max_length)
        or _FAMILIES.get(text.model_type)
    )
    if objection:
        raise _refusal(config, model_class, objection)


def _not_causal(text: PreTrainedConfig) -> str | None:
    """BERT-like models, and decoders whose configuration switches the causal mask off."""
    # GPT-NeoX declares is_decoder too and never reads it; the BERT family declares both.
    encoder = hasattr(type(text), "add_cross_attention") and (
        getattr(text, "is_decoder", None) is False
    )
    bidirectional = getattr(text, "use_bidirectional_attention", None) in (True, "all")
    if encoder or bidirectional or getattr(text, "is_causal", None) is False:
        return "has attention that is not causal"
    return None


def _no_kv_attention(text: PreTrainedConfig, model_class: type | None) -> str | None:
    """State-space, recurrent, linear-attention, convolution, hybrid and cross-attention layers."""
    types = _layer_types(text)
    known = (*_FULL_LAYERS, *_RESTRICTED_LAYERS)
    other = [i for i, kind in enumerate(types) if kind not in known]
    if other:
        kinds = ", ".join(sorted({types[i] for i in other}))
        return f"has no full softmax attention over a KV cache in {_layers(other)} ({kinds})"
    if getattr(text, "num_kv_shared_layers", 0):
        return f"lets its last {text.num_kv_shared_layers} layers read the cache of others"
    cross = getattr(text, "cross_attention_layers", None)
    if cross:
        return f"has cross-attention in {_layers(cross)}"
    # The flag belongs to the class, also where a hybrid's configuration has attention only.
    if getattr(model_class, "_is_stateful", False) and not (types and _declares_layer_types(text)):
        return "keeps a recurrent state instead of a KV cache"
    return None


def _unobservable_class(model_class: type | None) -> str | None:
    """What the model class says of itself."""
    if model_class is None:
        return None
    if not getattr(model_class, "_supports_sdpa", False):
        return (
            "cannot be computed with scaled dot-product attention (_supports_sdpa is False, as "
            "with capped logits, attention sinks or ALiBi)"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        return (
            "does not call its attention through transformers' attention interface "
            "(_supports_attention_backend is False)"
        )
    return None


def _restricted_attention(text: PreTrainedConfig, max_length: int | None) -> str | None:
    """Layers whose queries cannot see all earlier positions, where no other layers are left."""
    types = _layer_types(text)
    chunked = [i for i, kind in enumerate(types) if kind == "chunked_attention"]
    if chunked:
        return f"has chunked attention in {_layers(chunked)}, which is not supported yet"
    declared = bool(types) and _declares_layer_types(text)
    every = range(text.num_hidden_layers)
    window = _acting_window(text)
    # Mistral, Mixtral, Phi-3 …: without layer types, the window stands for every layer.
    slides = (
        types.count("sliding_attention") == len(types)
        if declared
        else getattr(text, "use_sliding_window", True)
    )
    if window and slides and (max_length is None or max_length > window):
        return (
            f"has sliding-window attention ({window} positions) in {_layers(every)}, so that no "
            f"layer is left to evict from; give max_length={window} or less, where the window "
            f"hides nothing"
        )
    if declared:
        return None
    if getattr(text, "attention_chunk_size", None):
        return f"has chunked attention in {_layers(every)}, which is not supported yet"
    return None


def _acting_window(text: PreTrainedConfig) -> int | None:
    """The sliding window, None where it is unset or spans all positions the model has."""
    window: int | None = getattr(text, "sliding_window", None)
    positions = getattr(text, "max_position_embeddings", None)
    if not window or (positions is not None and window >= positions):
        return None
    return window


def _layer_types(text: PreTrainedConfig) -> list[str]:
    """One type per layer; empty where the configuration does not tell layers apart."""
    return list(getattr(text, "layer_types", None) or [])


def _declares_layer_types(text: PreTrainedConfig) -> bool:
    """Whether the model reads `layer_types`; a stray entry in config.json proves nothing."""
    return hasattr(type(text), "layer_types") or "layer_types" in text.attribute_map


def _text_config(config: PreTrainedConfig, model_class: type | None) -> PreTrainedConfig:
    try:
        text: PreTrainedConfig = config.get_text_config()
    except ValueError:
        raise _refusal(config, model_class, "holds several language models") from None
    return text


def _causal_lm_class(config: PreTrainedConfig) -> type | None:
    """The class that transformers would load; None for classes it does not ship."""
    # The mapping goes by the class's name, which remote code may have borrowed.
    if type(config).__module__.startswith("transformers_modules"):
        return None
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return found if isinstance(found, type) else None


def _layers(indices: Iterable[int]) -> str:
    """`layers 0-2, 4`."""
    runs = groupby(enumerate(sorted(indices)), key=lambda pair: pair[1] - pair[0])
    spans = [[index for _, index in run] for _, run in runs]
    names = [f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans]
    return f"layer{'s' if len(names) > 1 or '-' in names[0] else ''} {', '.join(names)}"


def _refusal(config: PreTrainedConfig, model_class: type | None, objection: str) -> UsageError:
    class_name = f" ({model_class.__name__})" if model_class else ""
    return UsageError(f"model type {config.model_type!r}{class_name} {objection}; {_ADVICE}")
