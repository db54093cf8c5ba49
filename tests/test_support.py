"""Which models are refused by their configuration, and that the accepted ones really work.

"Really" means, on a tiny random model of each type: the attention function sees every layer once
and what it sees is the model's whole attention; removing cache entries equals masking them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from reference import forward
from test_sliding_windows import SLIDING
from tiny_models import random_prompt, randomised, small_config, tiny_model
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AttentionInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from page_bench.gating.profile import DropOptions
from page_bench.inputs.errors import UsageError
from page_bench.model.support import check_config, check_gate, check_model

FULL = {"layer_types": ["full_attention"] * 4}

OBSERVABLE: dict[str, dict[str, Any]] = {
    "apertus": {},
    "apertus1p5_text": {},
    "arcee": {},
    "aria_text": {},
    "axk1": {},
    "bitnet": {},
    "codegen": {},
    "cohere": {},
    "ctrl": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone4": {"sliding_window": 256},
    "flex_olmo": {},
    "gemma": {},
    "gemma3_text": FULL,
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gptj": {},
    "granite": {"attention_multiplier": 0.25},
    "granitemoe": {"attention_multiplier": 0.25},
    "granitemoehybrid": {**FULL, "attention_multiplier": 0.25},
    "granitemoeshared": {"attention_multiplier": 0.25},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "hyperclovax": {},
    "jais2": {},
    "laguna": {},
    "lfm2": FULL,
    "lfm2_moe": FULL,
    "llama": {},
    "longcat_flash": {"num_layers": 2},
    "mellum": {},
    "minicpm3": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "ministral": FULL,
    "ministral3": {},
    # A window that spans all positions hides nothing.
    "mistral": {"sliding_window": 256},
    "mixtral": {},
    "nanochat": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 256},
    "olmoe": {},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {"sliding_window": 300},
    "phimoe": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "starcoder2": {},
    "youtu": {},
}
"""Model types that a tiny model of each proves, with what differs from its small configuration."""

SAME_AS = {
    "exaone": "llama",
    "internlm3": "llama",
    "iquestcoder": "llama",
    "exaone_moe": "exaone4",
    "gpt-sw3": "gpt2",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "glm4_moe",
}
"""Model types that use another's model class or attention."""

WITH_WINDOWS = {"gemma3_text", *SLIDING}
"""Model types with sliding-window layers beside full ones: see `test_sliding_windows`."""

LEFT_TO_THE_PREFILL = {
    "cohere_compass_text",
    "dbrx",
    "emu3",
    "fuyu",
    "gemma3",
    "gemma4",
    "gemma4_unified",
    "gemma4_unified_assistant",
    "moshi",
    "moss_transcribe_diarize",
    "phi4_multimodal",
}
"""Accepted unproven: no usual names in the configuration, or more than text in the model."""

FAILS_WHEN_RUN = {
    "diffllama": "twice",
    "doge": "bias",
    "hrm_text": "several times",
    "jetmoe": "other keys",
    "minimax": "no cache but its own",
    "nemotron": "keyword arguments",
}


@dataclass
class Seen:
    """What the attention function was shown in one pass, layer by layer."""

    layers: list[int] = field(default_factory=list)
    attentions: list[Tensor] = field(default_factory=list)
    key_heads: list[int] = field(default_factory=list)


def observing_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> Any:
    seen: Seen | None = kwargs.pop("test_seen", None)
    if seen is not None:
        heads, length = query.shape[1], query.shape[2]
        keys = key[0].repeat_interleave(heads // key.shape[1], 0)
        logits = query[0] @ keys.mT * kwargs["scaling"]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        seen.layers.append(module.layer_idx)  # type: ignore[arg-type]
        seen.attentions.append(logits.masked_fill(future, -torch.inf).softmax(-1))
        seen.key_heads.append(key.shape[1])
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    AttentionInterface.register("test_support", observing_attention)
    AttentionMaskInterface.register("test_support", sdpa_mask)


def removed(cache: DynamicCache, keep: Tensor) -> DynamicCache:
    smaller = DynamicCache()
    for index, layer in enumerate(cache.layers):
        smaller.update(layer.keys[:, :, keep], layer.values[:, :, keep], index)
    return smaller


def assert_observable(model: PreTrainedModel) -> None:
    """All that the engine relies on, on a prompt of 48 tokens."""
    layers, ids = model.config.get_text_config().num_hidden_layers, random_prompt(48) % 90 + 5
    cache, seen = DynamicCache(), Seen()
    output = forward(model, ids, cache, test_seen=seen)
    assert seen.layers == list(range(layers))

    model.set_attn_implementation("eager")
    eager = model(ids, output_attentions=True)
    torch.testing.assert_close(output.logits, eager.logits, atol=1e-4, rtol=0)
    for attention, expected in zip(seen.attentions, eager.attentions, strict=True):
        torch.testing.assert_close(attention, expected[0], atol=1e-5, rtol=0)
    model.set_attn_implementation("test_support")

    # One cached head per key head, or one latent for all heads.
    for key_heads, layer in zip(seen.key_heads, cache.layers, strict=True):
        assert layer.keys.shape[1] in (key_heads, 1)
        assert layer.keys.shape[2] == layer.values.shape[2] == 48

    last, position = ids[:, -1:], torch.tensor([[47]])
    again = forward(model, last, removed(cache, torch.arange(47)), position_ids=position)
    torch.testing.assert_close(again.logits[:, -1], output.logits[:, -1], atol=1e-4, rtol=0)
    keep = torch.tensor([0, 1, 2, 3, *range(9, 30, 3), *range(38, 47)])
    small = forward(model, last, removed(cache, keep), position_ids=position)
    mask = torch.full((1, 1, 1, 48), torch.finfo(torch.float32).min)
    mask[..., [*keep.tolist(), 47]] = 0
    masked = forward(
        model,
        last,
        removed(cache, torch.arange(47)),
        position_ids=position,
        attention_mask=mask,
    )
    torch.testing.assert_close(small.logits, masked.logits, atol=1e-4, rtol=0)
    assert (small.logits - again.logits).abs().max() > 1e-3


@pytest.mark.parametrize("model_type", OBSERVABLE)
def test_accepted_models_can_be_observed_and_evicted(model_type: str) -> None:
    config = small_config(model_type, **OBSERVABLE[model_type])
    check_config(config)
    model = randomised(config, attn_implementation="test_support")
    check_model(model)
    with torch.no_grad():
        assert_observable(model)


@pytest.mark.parametrize("model_type", FAILS_WHEN_RUN)
def test_models_refused_by_name_do_fail(model_type: str) -> None:
    config = small_config(model_type, **(FULL if model_type == "minimax" else {}))
    with pytest.raises(UsageError, match=FAILS_WHEN_RUN[model_type]):
        check_config(config)
    model = randomised(config, attn_implementation="test_support")
    with torch.no_grad(), pytest.raises((AssertionError, ValueError)):
        assert_observable(model)


def default_configs() -> Iterator[tuple[str, PreTrainedConfig]]:
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        # Some have no defaults that pass their own validation.
        with contextlib.suppress(Exception):
            yield model_type, CONFIG_MAPPING[model_type]()


def test_every_accepted_model_type_is_accounted_for() -> None:
    """A model type that a newer transformers adds belongs in one of the lists above."""
    accepted = set()
    for model_type, config in default_configs():
        with contextlib.suppress(UsageError):
            check_config(config)
            accepted.add(model_type)
    known = {*OBSERVABLE, *SAME_AS, *WITH_WINDOWS, *LEFT_TO_THE_PREFILL}
    assert accepted - known == set()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (T5Config(), "encoder-decoder"),
        (CONFIG_MAPPING["bart"](), "encoder-decoder"),
        (CONFIG_MAPPING["whisper"](), "encoder-decoder"),
        (CONFIG_MAPPING["bert"](), "not causal"),
        (CONFIG_MAPPING["gemma"](use_bidirectional_attention=True), "not causal"),
        (CONFIG_MAPPING["mamba"](num_hidden_layers=5), r"in layers 0-4 \(linear_attention\)"),
        (CONFIG_MAPPING["mamba2"](), "KV cache in layers 0-63"),
        (CONFIG_MAPPING["falcon_mamba"](), "KV cache in layers"),
        (CONFIG_MAPPING["rwkv"](), "recurrent state"),
        (CONFIG_MAPPING["xlstm"](), "recurrent state"),
        (CONFIG_MAPPING["jamba"](num_hidden_layers=8), r"in layers 0-3, 5-7 \(linear"),
        (CONFIG_MAPPING["bamba"](), "KV cache in layers"),
        (CONFIG_MAPPING["falcon_h1"](), r"\(hybrid\)"),
        (CONFIG_MAPPING["zamba2"](), r"\(hybrid, linear_attention\)"),
        (CONFIG_MAPPING["qwen3_next"](num_hidden_layers=4), r"in layers 0-2 \(linear"),
        (CONFIG_MAPPING["qwen3_5"](), "KV cache in layers 0-2, 4-6"),
        (CONFIG_MAPPING["recurrent_gemma"](), "KV cache in layers"),
        (CONFIG_MAPPING["minimax"](), "KV cache in layers 1, 3"),
        (CONFIG_MAPPING["granitemoehybrid"](), "KV cache in layers"),
        (
            CONFIG_MAPPING["lfm2"](
                num_hidden_layers=3, layer_types=["full_attention", "conv", "full_attention"]
            ),
            r"in layer 1 \(conv\)",
        ),
        (CONFIG_MAPPING["deepseek_v32"](), "indexed_attention"),
        (CONFIG_MAPPING["mllama"](), "cross-attention in layers 3, 8"),
        (CONFIG_MAPPING["gemma2"](), "_supports_sdpa is False"),
        (CONFIG_MAPPING["gpt_oss"](), "_supports_sdpa is False"),
        (CONFIG_MAPPING["bloom"](), "_supports_sdpa is False"),
        (CONFIG_MAPPING["mpt"](), "_supports_sdpa is False"),
        (CONFIG_MAPPING["falcon"](), "_supports_attention_backend is False"),
        (CONFIG_MAPPING["stablelm"](), "_supports_attention_backend is False"),
        (CONFIG_MAPPING["gemma3_text"](num_hidden_layers=5), "sliding-window .* in layers 0-4, so"),
        (CONFIG_MAPPING["gemma3n_text"](), "last 15 layers read the cache of others"),
        (CONFIG_MAPPING["llama4"](), "chunked attention in layers 0-2"),
        (MistralConfig(), r"\(4096 positions\) in layers 0-31, so .* max_length=4096 or less"),
        (CONFIG_MAPPING["mixtral"](sliding_window=4096), "sliding-window"),
        (CONFIG_MAPPING["phi3"](sliding_window=2047), "sliding-window"),
        (CONFIG_MAPPING["starcoder2"](sliding_window=1024), "sliding-window"),
        (CONFIG_MAPPING["qwen3_moe"](use_sliding_window=True), "sliding-window"),
        (CONFIG_MAPPING["llava"](), "not a causal language model that transformers knows"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_refused_models_are_told_why(config: PreTrainedConfig, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        check_config(config)
    message = str(refused.value)
    assert repr(config.model_type) in message
    assert "choose a decoder-only model" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "config",
    [
        CONFIG_MAPPING["qwen2"](use_sliding_window=False, sliding_window=4096),
        CONFIG_MAPPING["qwen2"](use_sliding_window=True, max_window_layers=32),
        CONFIG_MAPPING["qwen2_moe"](use_sliding_window=False),
        CONFIG_MAPPING["qwen3_moe"](use_sliding_window=False, sliding_window=4096),
        CONFIG_MAPPING["qwen2"](use_sliding_window=True, max_window_layers=28),
        CONFIG_MAPPING["gemma3"](),
        CONFIG_MAPPING["cohere2"](),
        MistralConfig(sliding_window=None),
        MistralConfig(sliding_window=131072, max_position_embeddings=131072),
        CONFIG_MAPPING["phi3"](sliding_window=262144, max_position_embeddings=131072),
    ],
)
def test_windows_that_hide_nothing_are_accepted(config: PreTrainedConfig) -> None:
    check_config(config)


def test_a_stray_entry_does_not_switch_a_window_off() -> None:
    """Mistral reads `sliding_window` alone, whatever `layer_types` a config.json holds."""
    config = MistralConfig(num_hidden_layers=2, layer_types=["full_attention"] * 2)
    with pytest.raises(UsageError, match="sliding-window"):
        check_config(config)


def test_multimodal_configurations_are_looked_into() -> None:
    text = small_config("gemma3_text", **FULL)
    check_config(CONFIG_MAPPING["gemma3"](text_config=text))
    windowed = small_config("gemma3_text", sliding_window=16)
    with pytest.raises(UsageError, match="sliding-window"):
        check_config(CONFIG_MAPPING["gemma3"](text_config=windowed))


class RemoteConfig(LlamaConfig):
    """A configuration that comes with its own code."""


def test_remote_code_is_judged_by_its_loaded_class() -> None:
    config = RemoteConfig(num_hidden_layers=3)
    with pytest.raises(UsageError, match="that transformers knows"):
        check_config(config)
    config.auto_map = {"AutoModelForCausalLM": "modeling.RemoteForCausalLM"}
    check_config(config)

    model = tiny_model("llama")
    check_model(model)
    remote = type("RemoteForCausalLM", (LlamaForCausalLM,), {"_supports_attention_backend": False})
    model.__class__ = remote
    with pytest.raises(UsageError, match=r"\(RemoteForCausalLM\) does not call its attention"):
        check_model(model)


def test_a_borrowed_class_name_is_not_taken_for_the_original() -> None:
    """Remote code may call its configuration MambaConfig; ours knows nothing of its model."""
    borrowed = type("BloomConfig", (LlamaConfig,), {"__module__": "transformers_modules.x"})
    config = borrowed(auto_map={"AutoModelForCausalLM": "modeling.BloomForCausalLM"})
    check_config(config)


def test_models_inside_an_adapter_are_checked() -> None:
    class Adapter(nn.Module):
        def __init__(self, inner: PreTrainedModel) -> None:
            super().__init__()
            self.inner = inner

        def get_base_model(self) -> PreTrainedModel:
            return self.inner

    check_model(Adapter(tiny_model("llama")))
    windowed = tiny_model("mistral", sliding_window=16)
    with pytest.raises(UsageError, match="sliding-window"):
        check_model(Adapter(windowed))


def test_gate_page_needs_three_layers_and_two_heads() -> None:
    three = small_config("llama", num_hidden_layers=3)
    check_gate(three, "page")
    for options in (DropOptions(bins="quarter"), DropOptions(layer_stride=3)):
        with pytest.raises(UsageError, match="leave no layer to compare of the 3 with full"):
            check_gate(three, "page", options)
    shallow = small_config("llama", num_hidden_layers=2)
    with pytest.raises(
        UsageError, match=r"at least 3 layers with full attention and 2 query heads, but .* 2 and 4"
    ):
        check_gate(shallow, "page")
    single = small_config("llama", num_attention_heads=1, num_key_value_heads=1)
    with pytest.raises(UsageError, match="has 4 and 1 here"):
        check_gate(single, "page")
    for gate in ("open", "closed"):
        check_gate(shallow, gate)
        check_gate(single, gate)
