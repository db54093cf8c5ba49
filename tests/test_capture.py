"""What evictors read besides queries and keys, against hooks on a plain model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from reference_inputs import layer_inputs
from tiny_models import random_prompt, randomised, small_config
from torch import Tensor
from transformers import PreTrainedModel

from page_bench import attention
from page_bench.errors import UsageError
from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.prefill import prefill

LENGTH = 70

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"sliding_window": None},
    "gemma3_text": {"layer_types": ["full_attention"] * 4},
    "olmo2": {},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
}


@dataclass(frozen=True)
class Curious(Evictor):
    """Reads everything, and hands it to the test."""

    name: ClassVar[str] = "curious"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            "attention_mass",
            "queries_before_rotation",
            "keys_before_rotation",
            "future_rotation",
            "hidden_states",
            "output_projection",
        }
    )
    seen: list[LayerView]

    @property
    def query_rows(self) -> int:
        return 5

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        self.seen.append(layer)
        return torch.zeros(layer.n_kv_heads, layer.prompt_tokens)


def seen_by(model: PreTrainedModel, ids: Tensor) -> list[LayerView]:
    evictor = Curious([])
    with attention.observing(model):
        prefill(model, ids, window=8, room=1, evictor=evictor)
    return evictor.seen


@pytest.mark.parametrize("family", FAMILIES)
def test_all_that_is_read_equals_what_a_plain_model_computes(family: str) -> None:
    model = randomised(small_config(family, num_key_value_heads=2, **FAMILIES[family]))
    ids = random_prompt(LENGTH) % 90 + 5
    views = seen_by(model, ids)
    expected = layer_inputs(model, ids)
    assert [view.index for view in views] == list(range(len(expected))) == [0, 1, 2, 3]
    for view, layer in zip(views, expected, strict=True):
        for given, wanted in (
            (view.keys, layer.k),
            (view.values, layer.v),
            (view.hidden_states, layer.x),
            (view.queries_before_rotation, layer.q_pre),
            (view.keys_before_rotation, layer.k_pre),
            (view.window_queries, layer.q[:, -5:]),
            (view.output_projection, layer.w_o),
            (view.attention_mass, layer.attention.sum(1)),
            (view.attention_of_last(8), layer.attention[:, -8:].mean(1)),
            (view.attention_of_last(5), layer.attention[:, -5:].mean(1)),
            (view.attention_of_last(1), layer.attention[:, -1]),
        ):
            torch.testing.assert_close(given, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "phi3", "smollm3", "glm"])
@pytest.mark.parametrize("length", [5, LENGTH, 700])
def test_the_future_rotation_is_that_of_the_next_positions(family: str, length: int) -> None:
    """A rotated future query is the query under one rotation, so their mean shows the average."""
    changes = {"head_dim": 16, "max_position_embeddings": 4096, **FAMILIES.get(family, {})}
    model = randomised(small_config(family, **changes))
    views = seen_by(model, random_prompt(length) % 90 + 5)
    rotary = model.model.rotary_emb
    positions = torch.arange(length, length + 512)[None]
    cos, sin = rotary(torch.zeros(1), positions)
    module = __import__(type(model).__module__, fromlist=["apply_rotary_pos_emb"])
    queries = torch.randn(1, 3, 1, 16, generator=torch.Generator().manual_seed(0))
    many = queries.expand(-1, -1, 512, -1)
    rotated = module.apply_rotary_pos_emb(many, many, cos, sin)[0].mean(2)[0]
    for view in views:
        still = family == "smollm3" and view.index in (1, 3)
        expected = queries[0, :, 0] if still else rotated
        torch.testing.assert_close(
            queries[0, :, 0] @ view.future_rotation, expected, atol=1e-4, rtol=1e-3
        )


def test_a_scaled_rotation_keeps_its_factor() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    model = randomised(small_config("llama", rope_parameters=scaling))
    (view, *_) = seen_by(model, random_prompt(LENGTH) % 90 + 5)
    cos, _ = model.model.rotary_emb(torch.zeros(1), torch.arange(LENGTH, LENGTH + 512)[None])
    assert cos.max() > 1.01
    one = torch.zeros(16)
    one[0] = 1
    rotated = one @ view.future_rotation
    torch.testing.assert_close(rotated[0], cos[0, :, 0].mean(), atol=1e-4, rtol=1e-3)


def test_hooks_are_gone_after_the_pass() -> None:
    model = randomised(small_config("llama"))
    seen_by(model, random_prompt(20) % 90 + 5)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_only_one_layer_is_held_at_a_time() -> None:
    model = randomised(small_config("llama"))
    ids = random_prompt(LENGTH) % 90 + 5
    evictor = Curious([])
    with attention.observing(model):
        filled = prefill(model, ids, window=8, room=1, evictor=evictor)
    assert all(not recorded for recorded in filled.observation.recorded)
    assert filled.scores is not None
    assert len(filled.scores) == 4


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt2"])
def test_a_model_that_cannot_give_it_is_named(model_type: str) -> None:
    model = randomised(small_config(model_type))
    with pytest.raises(UsageError, match=r"the evictor reads .* choose an(other)? evictor"):
        seen_by(model, random_prompt(20) % 90 + 5)
