"""Nothing of a pass outlives its result, and nothing waits for Python's cycle collector."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from evictor_arms import CHECKPOINT_EVICTORS, titles
from test_engine import observed, prompt
from tiny_models import FAMILIES, random_prompt, randomised, small_config, tiny_tokenizer
from torch import Tensor

from page_bench.config import PageConfig
from page_bench.engine.engine import Engine
from page_bench.evictors import evictor_class, make_evictor
from page_bench.model import capture
from page_bench.model.cache import allocated_bytes
from page_bench.model.prefill import forward, prefill
from page_bench.model.scoring import Scorer

LENGTH, ROOM = 400, 8
TITLES = [*titles(), "criticalkv(adakv(expected_attention))", "adakv(compactor)"]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def storages() -> dict[int, int]:
    """Bytes of the storages of young plain tensors on the CPU, by their place.

    While the collector is off, all that is new stays young.
    """
    tensors = [one for one in gc.get_objects(generation=0) if type(one) is Tensor]
    found = [t.untyped_storage() for t in tensors if t.layout == torch.strided and t.is_cpu]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def options(title: str, checkpoints: dict[str, str]) -> dict[str, Any]:
    return {"checkpoint": checkpoints[title]} if title in CHECKPOINT_EVICTORS else {}


@pytest.mark.parametrize("title", TITLES)
def test_a_prefill_leaves_its_result_alone(title: str, checkpoints: dict[str, str]) -> None:
    model = observed("llama")
    text, ids = model.config, random_prompt(LENGTH)
    allowed = evictor_class(title.partition("(")[0]).granularities
    granularity = "head" if "head" in allowed else allowed[0]
    evictor = make_evictor(title, options(title, checkpoints), granularity)
    # Gates and what libraries set up for themselves come once.
    prefill(model, ids, window=32, room=ROOM, scorers=[Scorer(evictor, 100)])
    before = storages()
    filled = prefill(model, ids, window=32, room=ROOM, scorers=[Scorer(evictor, 100)])
    held = sum(size for place, size in storages().items() if place not in before)
    # Per layer the window's attention and at most one sum of the same size; scores and factors;
    # the logits and a few rows of queries for whoever scores later.
    heads, kv_heads = text.num_attention_heads, text.num_key_value_heads
    seen = text.num_hidden_layers * 4 * LENGTH * 2 * (heads + kv_heads)
    queries = text.num_hidden_layers * 4 * 64 * heads * text.head_dim
    above = held - allocated_bytes(filled.cache)
    assert 0 < above <= seen + queries + 4 * text.vocab_size
    # What one layer alone works with is more: its own queries, keys and hidden states.
    del filled
    assert set(storages()) <= set(before)


@pytest.mark.parametrize("title", ["snapkv", "expected_attention", "compactor"])
@pytest.mark.parametrize("gate", ["open", "retry"])
def test_a_run_leaves_nothing(title: str, gate: str) -> None:
    model, tokenizer = observed("llama"), tiny_tokenizer(FAMILIES["llama"].with_bos)
    config = PageConfig(evictor=title, budget=0.3, window=16, gate=gate)
    engine = Engine(model, tokenizer, config)
    engine.run([prompt(0)])
    before = set(storages())
    outcomes, _ = engine.run([prompt(1), prompt(2)])
    assert len(outcomes) == 2
    assert set(storages()) <= before


def test_what_sliding_layers_are_called_with_does_not_wait_for_others() -> None:
    kinds = ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]
    model = randomised(small_config("gemma3_text", sliding_window=16, layer_types=kinds))
    calls = capture.calls_of(model, frozenset({"hidden_states"}), [2])
    with torch.no_grad(), calls as collected:
        model(random_prompt(30) % 90 + 5)
        assert {getattr(module, "layer_idx", None) for module in collected} == {2}


def test_logits_of_a_whole_prompt_are_let_go_of() -> None:
    model = observed("llama")
    ids, original = random_prompt(LENGTH), model.forward
    signature = inspect.signature(original)
    parameters = [p for p in signature.parameters.values() if p.name != "logits_to_keep"]

    def whole(**kwargs: Any) -> Any:
        return original(**kwargs)

    whole.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expected = prefill(model, ids, window=32, room=ROOM).logits
    model.forward = whole
    filled = prefill(model, ids, window=32, room=ROOM)
    torch.testing.assert_close(filled.logits, expected)
    assert filled.logits.untyped_storage().nbytes() == 4 * model.config.vocab_size
    last_two = forward(model, ids[:, :9], prefill(model, ids[:, :1], window=8, room=20).cache)
    assert last_two.shape[1] == 1
