"""Layers with a sliding window stay as they are; the full-attention layers between are evicted."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from tiny_models import random_prompt, randomised, small_config, tiny_tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.engine.decode_batches import CacheSize
from page_bench.engine.engine import Engine
from page_bench.engine.prompt import Prompt
from page_bench.evictors.base import Granularity
from page_bench.gating.signals import keynorm_disp
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.cache import entry_count
from page_bench.model.decode import AnswerRequest
from page_bench.model.keep_plan import KeepPlan, evict, positions_to_keep
from page_bench.model.prefill import forward, prefill
from page_bench.model.support import check_config, check_model, layer_windows

attention.register()

WINDOW = 16
LENGTH = 60
_TWO_OF_FOUR = ["sliding_attention", "full_attention"] * 2

SLIDING: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "beam": {},
    "cohere2": {},
    "cohere2_moe": {},
    "cwm": {},
    "exaone4": {"layer_types": _TWO_OF_FOUR},
    "gemma3_text": {"layer_types": _TWO_OF_FOUR},
    "gemma4_text": {},
    "gemma4_unified_text": {},
    "kolibri1": {"layer_types": _TWO_OF_FOUR},
    "modernbert-decoder": {},
    "olmo3": {"layer_types": _TWO_OF_FOUR},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 2},
}
"""Model types with sliding-window layers, with what differs from their small configuration."""


def model_of(model_type: str) -> PreTrainedModel:
    config = small_config(model_type, sliding_window=WINDOW, **SLIDING[model_type])
    check_config(config)
    model = randomised(config)
    check_model(model)
    return model


def prompt_of(length: int) -> Tensor:
    return random_prompt(length) % 90 + 5


def masked(model: PreTrainedModel, ids: Tensor, keep: Tensor, tokens: int) -> Tensor:
    """Logits `[1 + n, vocab]` of the last prompt token and of the n tokens after it, with evicted
    positions hidden from these in the full-attention layers: one pass, no cache.

    Args:
        ids: `[1, T + n]`, prompt and answer.
        keep: bool `[L, H, T]` for full-attention layers, equal over heads.
        tokens: T.
    """
    total = ids.shape[1]
    visible = torch.ones(total, total, dtype=torch.bool).tril()
    window = visible & ~torch.ones(total, total, dtype=torch.bool).tril(-WINDOW)
    visible[tokens - 1 :, :tokens] &= keep
    visible[range(tokens - 1, tokens), range(tokens - 1, tokens)] = True
    masks = {
        "full_attention": torch.zeros(1, 1, total, total).masked_fill(~visible, -1e9),
        "sliding_attention": torch.zeros(1, 1, total, total).masked_fill(~window, -1e9),
    }
    with torch.no_grad():
        logits: Tensor = model(ids, attention_mask=masks).logits
    return logits[0, tokens - 1 :]


@pytest.mark.parametrize("model_type", SLIDING)
def test_the_full_layers_are_observed_as_in_eager_attention(model_type: str) -> None:
    model, ids = model_of(model_type), prompt_of(LENGTH)
    windows = layer_windows(model.config.get_text_config())
    full = [i for i, window in enumerate(windows) if window is None]
    assert 0 < len(full) < 4
    attentions = reference.eager_attentions(model, ids)
    with torch.no_grad():
        logits = model(ids).logits[:, -1]
    model.set_attn_implementation("page_sdpa")
    filled = prefill(model, ids, window=8, room=1)
    assert filled.observation.layers == tuple(full)
    for row, layer in zip(filled.observation.window_attention, full, strict=True):
        torch.testing.assert_close(row, attentions[layer][:, -8:].mean(1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(filled.logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model_type", SLIDING)
@pytest.mark.parametrize("length", [12, LENGTH])
def test_a_full_cache_goes_on_like_the_model_without_one(model_type: str, length: int) -> None:
    model, ids = model_of(model_type), prompt_of(length + 20)
    with torch.no_grad():
        expected = model(ids).logits[0]
    model.set_attn_implementation("page_sdpa")
    cache = prefill(model, ids[:, :length], window=8, room=20).cache
    # A question of several tokens, then one token at a time.
    parts = [length, *range(length + 7, length + 20)]
    for start, end in zip(parts, [*parts[1:], length + 20], strict=True):
        logits = forward(model, ids[:, start:end], cache, torch.arange(start, end)[None])[:, -1]
        torch.testing.assert_close(logits[0], expected[end - 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model_type", SLIDING)
@pytest.mark.parametrize("length", [14, 16, 17, LENGTH])
def test_eviction_leaves_sliding_layers_alone(model_type: str, length: int) -> None:
    model, ids = model_of(model_type), prompt_of(length + 6)
    config = PageConfig(budget=0.3, window=4, n_sink=2, recent=3, granularity="layer")
    model.set_attn_implementation("page_sdpa")
    filled = prefill(model, ids[:, :length], window=4, room=1)
    keep = positions_to_keep(config.make_evictor(), filled, config)
    assert isinstance(keep, KeepPlan)
    # Every layer its own set, but masks can differ by kind of layer only.
    keep = KeepPlan(keep.members[:1])
    cache = evict(filled, keep, 7, without_last=True)
    model.set_attn_implementation("sdpa")
    expected = masked(model, ids, keep.members[0, 0], length)
    model.set_attn_implementation("page_sdpa")
    for step in range(7):
        at = length - 1 + step
        logits = forward(model, ids[:, at : at + 1], cache, torch.tensor([[at]]))[:, -1]
        torch.testing.assert_close(logits[0], expected[step], atol=1e-4, rtol=1e-4)
        if step == 0:
            windows = layer_windows(model.config.get_text_config())
            heads = [layer.keys.shape[1] for layer in cache.layers]
            n = int(keep.members.sum())
            kept = [
                h * (n if w is None else min(w, length))
                for h, w in zip(heads, windows, strict=True)
            ]
            full = [
                h * (length if w is None else min(w, length))
                for h, w in zip(heads, windows, strict=True)
            ]
            assert entry_count(cache) == sum(kept)
            assert CacheSize.of(filled.cache, length).entries == sum(full)


def test_a_window_in_every_layer_is_run_where_it_hides_nothing() -> None:
    config = small_config("mistral", sliding_window=WINDOW)
    with pytest.raises(UsageError, match="no layer is left to evict from; give max_length=16"):
        check_config(config)
    with pytest.raises(UsageError, match="max_length=16"):
        check_config(config, max_length=17)
    check_config(config, max_length=16)
    assert layer_windows(config) == [None] * 4
    model = randomised(config)
    model.set_attn_implementation("page_sdpa")
    filled = prefill(model, prompt_of(12), window=4, room=4)
    assert filled.observation.layers == (0, 1, 2, 3)


@pytest.mark.parametrize("granularity", ["shared", "head"])
def test_kept_kv_is_reported_over_both_kinds_of_layers(granularity: Granularity) -> None:
    model = randomised(
        small_config(
            "gemma3_text",
            sliding_window=WINDOW,
            num_hidden_layers=8,
            vocab_size=300,
            layer_types=_TWO_OF_FOUR * 2,
            max_position_embeddings=1024,
        )
    )
    model.set_attn_implementation("page_sdpa")
    config = PageConfig(budget=0.25, window=16, gate="open", granularity=granularity)
    request = AnswerRequest(8, (), {"do_sample": False})
    prompt = Prompt("task", 0, 0, None, "text", tuple(prompt_of(220)[0].tolist()), None, 0, request)
    (outcome,), _ = Engine(model, tiny_tokenizer(False), config).run([prompt])
    assert outcome.seen.full_attention_layers == [1, 3, 5, 7]
    assert len(outcome.seen.agreement) == 4
    full, sliding = 220, 16
    assert outcome.answer.kept_kv == (55 + sliding) / (full + sliding)


def test_keys_are_those_of_the_layers_that_are_observed() -> None:
    model, ids = model_of("olmo3"), prompt_of(LENGTH)
    config = PageConfig(window=8, signals="all", gate="open")
    request = AnswerRequest(2, ("<|im_end|>",), {"do_sample": False})
    asked = Prompt("t", 0, 0, None, "p", tuple(ids[0].tolist()), None, 0, request)
    with attention.observing(model):
        filled = prefill(model, ids, window=8, room=1)
        (outcome,), _ = Engine(model, tiny_tokenizer(False), config).run([asked])
    keys = [filled.cache.layers[i].keys[0] for i in filled.observation.layers]
    assert filled.observation.layers != tuple(range(len(keys)))
    assert outcome.seen.signals["keynorm_disp"] == pytest.approx(keynorm_disp(keys), rel=1e-5)
