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

from page_bench.config import PageConfig
from page_bench.evictors import make_evictor
from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.inputs.errors import UsageError
from page_bench.model import attention, capture
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer

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


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class ReadsAllQueries(Curious):
    @property
    def query_rows(self) -> int:
        return 10_000


def seen_by(model: PreTrainedModel, ids: Tensor, of: type[Curious] = Curious) -> list[LayerView]:
    evictor = of([])
    with attention.observing(model):
        prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, 0)])
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
        filled = prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, 0)])
    assert all(not recorded for recorded in filled.observation.recorded)
    (scores,) = filled.scores.values()
    assert len(scores) == 4


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma4_unified_text"])
def test_asking_a_layer_again_leaves_the_cache_and_its_arguments_alone(family: str) -> None:
    model = randomised(small_config(family))
    ids = random_prompt(20) % 90 + 5
    with attention.observing(model):
        plain = prefill(model, ids, window=8, room=30)
        filled = prefill(model, ids, window=8, room=30, scorers=[Scorer(Curious([]), 0)])
    assert torch.equal(filled.logits, plain.logits)
    for layer, expected in zip(filled.cache.layers, plain.cache.layers, strict=True):
        assert layer.keys.shape == expected.keys.shape
        assert torch.equal(layer.keys, expected.keys)
        assert torch.equal(layer.values, expected.values)


@pytest.mark.parametrize("family", ["phi", "persimmon", "gpt_neox", "gemma4_unified_text", "glm"])
def test_families_rotate_as_their_own_next_positions(family: str) -> None:
    """Partly rotated heads, and functions that take queries alone: R is the mean of the next."""
    length = 40
    model = randomised(small_config(family))
    # All tokens are equal, so that the first layer's queries differ by their rotation alone.
    ids = torch.full((1, length + 512), 7)
    (before, *_), (longer, *_) = (
        seen_by(model, ids[:, :length]),
        seen_by(model, ids, ReadsAllQueries),
    )
    expected = longer.window_queries[:, length:].mean(1)
    found = before.queries_before_rotation[:, 0] @ before.future_rotation
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(found, before.queries_before_rotation[:, 0], atol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [300, 3000])
def test_the_future_rotation_is_close_in_half_precision(dtype: torch.dtype, length: int) -> None:
    changes = {"num_hidden_layers": 1, "max_position_embeddings": 4096}
    model = randomised(small_config("llama", **changes))
    ids = random_prompt(length) % 90 + 5
    (exact,) = seen_by(model, ids)
    inverse = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    # As where weights are loaded in this dtype: the frequencies stay what they are.
    model.model.rotary_emb.inv_freq = inverse
    (found,) = seen_by(model, ids)
    torch.testing.assert_close(found.future_rotation, exact.future_rotation, atol=0.02, rtol=0)


def test_a_rotation_that_does_not_make_the_attended_queries_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = randomised(small_config("llama"))
    ids = random_prompt(20) % 90 + 5
    right = capture._before_rotation

    def other(module: Any, call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = right(module, call)
        return query.roll(1, -1), key

    monkeypatch.setattr(capture, "_before_rotation", other)
    with pytest.raises(UsageError, match="a rotation of its queries that can be continued"):
        seen_by(model, ids)


@pytest.mark.parametrize("family", ["gptj", "codegen", "hunyuan_v1_dense"])
def test_a_rotation_that_cannot_be_continued_is_one_sentence(family: str) -> None:
    """Tables in another order, and norms after the rotation that do not commute with it."""
    model = randomised(small_config(family))
    with pytest.raises(UsageError, match=r"the evictor reads .* choose another evictor"):
        seen_by(model, random_prompt(20) % 90 + 5)


@pytest.mark.parametrize("title", ["gptj", "codegen"])
def test_keys_before_a_rotation_of_another_form_are_refused(title: str) -> None:
    model = randomised(small_config(title))
    evictor = make_evictor("leverage", {}, "head")
    with attention.observing(model), pytest.raises(UsageError, match="its rotary embedding"):
        prefill(model, random_prompt(20) % 90 + 5, window=8, room=1, scorers=[Scorer(evictor, 9)])


@pytest.mark.parametrize("title", ["knorm", "keydiff", "manifoldkv", "lagkv", "adakv(knorm)"])
def test_latents_are_not_read_as_keys(title: str) -> None:
    model = randomised(small_config("deepseek_v3"))
    evictor = make_evictor(title, {}, "head")
    ids = random_prompt(20) % 90 + 5
    with attention.observing(model):
        with pytest.raises(UsageError, match=r"reads keys.*holds latents.* such as snapkv"):
            prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, 9)])
        for other in ("snapkv", "h2o", "tova", "streamingllm", "random"):
            allowed = make_evictor(other, {}, "head")
            filled = prefill(model, ids, window=8, room=1, scorers=[Scorer(allowed, 9)])
            assert len(filled.scored_by(allowed, 9)) == 4


@dataclass(frozen=True)
class MultipliesQueries(Evictor):
    """Takes the cache for keys."""

    name: ClassVar[str] = "multiplies"

    @property
    def query_rows(self) -> int:
        return 3

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return (layer.window_queries @ layer.keys.mT).mean((0, 1))[None]


def test_queries_are_not_multiplied_with_latents() -> None:
    model = randomised(small_config("deepseek_v3"))
    evictor = MultipliesQueries()
    with attention.observing(model):
        ids = random_prompt(20) % 90 + 5
        filled = prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, 9)])
    with pytest.raises(UsageError, match=r"reads window_queries, but the cache .* holds latents"):
        filled.scored_by(evictor, 9)


def test_attention_of_any_last_rows_is_read_where_the_cache_holds_latents() -> None:
    model = randomised(small_config("deepseek_v3"))
    ids = random_prompt(40) % 90 + 5
    titles: dict[str, dict[str, object]] = {
        "tova": {},
        "snapkv": {"variant": "paper", "window": 5},
        "adakv(tova)": {},
    }
    evictors = [make_evictor(title, options, "head") for title, options in titles.items()]
    model.set_attn_implementation("eager")
    expected = model(ids, output_attentions=True).attentions
    with attention.observing(model):
        scorers = [Scorer(evictor, 30) for evictor in evictors]
        filled = prefill(model, ids, window=8, room=1, scorers=scorers)
    assert filled.observation.latent
    for evictor, rows in zip(evictors, (1, 5, 1), strict=True):
        for found, (weights,) in zip(filled.scored_by(evictor, 30), expected, strict=True):
            # One latent serves all heads.
            wanted = weights[:, -rows:].mean((0, 1))[None]
            torch.testing.assert_close(found.score, wanted, atol=1e-6, rtol=0)
    page = PageConfig(evictor="tova", granularity="layer", budget=0.5, n_sink=2, recent=3, window=8)
    plan = positions_to_keep(evictors[0], filled, page)
    assert isinstance(plan, KeepPlan)
    for members, (weights,) in zip(plan.members, expected, strict=True):
        last_row = weights[:, -1].mean(0).tolist()
        middle = sorted(range(2, 37), key=lambda i: -last_row[i])[: 20 - 5]
        assert members[0].nonzero().flatten().tolist() == sorted([0, 1, *middle, 37, 38, 39])


def test_the_output_projection_does_not_see_a_bias() -> None:
    model = randomised(small_config("starcoder2", num_hidden_layers=1, use_bias=True))
    model = model.bfloat16()
    projection = model.model.layers[0].self_attn.o_proj
    projection.bias.data.fill_(100.0)
    (view,) = seen_by(model, random_prompt(20) % 90 + 5)
    heads = len(view.output_projection)
    assert torch.equal(view.output_projection.flatten(0, 1), projection.weight.T)
    assert heads == model.config.num_attention_heads


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt2"])
def test_a_model_that_cannot_give_it_is_named(model_type: str) -> None:
    model = randomised(small_config(model_type))
    with pytest.raises(UsageError, match=r"the evictor reads .* choose an(other)? evictor"):
        seen_by(model, random_prompt(20) % 90 + 5)
