"""What the prefill observes equals what eager attention shows, on four architectures."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_sizes import LargestTensor
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from page_bench.evictors.base import causal
from page_bench.evictors.h2o import H2O
from page_bench.gating.signals import head_agreement, head_agreement_drop
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer

attention.register()


@pytest.mark.parametrize("implementation", attention.IMPLEMENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [40, 333])
def test_observation_equals_eager_attention(family: str, length: int, implementation: str) -> None:
    model = tiny_model(family)
    ids = random_prompt(length)
    attentions = reference.eager_attentions(model, ids)
    with torch.no_grad():
        logits = model(ids).logits[:, -1]
    model.set_attn_implementation(attention.observable_name(implementation))
    filled = prefill(model, ids, window=32, room=1, scorers=[Scorer(H2O(), 0)])
    seen = filled.observation
    for layer, expected in enumerate(attentions):
        torch.testing.assert_close(
            seen.window_attention[layer], expected[:, -32:].mean(1), atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(
            seen.recorded[layer]["attention_mass"], expected.sum(1), atol=1e-4, rtol=1e-4
        )
    torch.testing.assert_close(filled.logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [40, 500, 4096])
def test_drop_equals_the_plain_reference(family: str, length: int) -> None:
    model = tiny_model(family)
    ids = random_prompt(length, seed=length)
    window = reference.eager_attention_window(model, ids, 32)
    model.set_attn_implementation("page_sdpa")
    seen = prefill(model, ids, window=32, room=1).observation
    agreement = head_agreement(seen.window_attention, top_k=32)
    assert agreement.tolist() == pytest.approx(reference.head_agreements(window, 32), abs=1e-5)
    assert head_agreement_drop(agreement) == pytest.approx(
        reference.head_agreement_drop(window, 32), abs=1e-5
    )


def test_attention_mass_sums_to_one_per_query() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("page_sdpa")
    seen = prefill(
        model, random_prompt(300), window=8, room=1, scorers=[Scorer(H2O(), 0)]
    ).observation
    assert len(seen.recorded) == 4
    for recorded in seen.recorded:
        torch.testing.assert_close(
            recorded["attention_mass"].sum(-1), torch.full((4,), 300.0), atol=1e-3, rtol=0
        )


def test_blocks_of_query_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, 100, 16, generator=generator)
    key = torch.randn(2, 100, 16, generator=generator)
    whole = causal.attention_sums(query, key, 0.25)
    monkeypatch.setattr(causal, "_BLOCK_BYTES", 7 * 4 * 100 * 4)
    torch.testing.assert_close(causal.attention_sums(query, key, 0.25), whole)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, counts the operations that a device would launch a kernel for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        self.count += all(alias.is_write for alias in read)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("length", "most"),
    # Halves of a square of T² logits of 32 heads, 4 bytes each, in blocks of 256 MiB: 4 or 256,
    # and some more where rows are cut to whole ones; a dozen launches for each.
    [(4096, 12 * 6), (32768, 12 * 264)],
)
def test_sums_of_a_long_prompt_take_few_launches_on_a_device(
    length: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `meta` has no memory, and is no CPU; mixed precision does not know it.
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
    query = torch.empty(32, length, 128, device="meta", dtype=torch.bfloat16)
    key = torch.empty(8, length, 128, device="meta", dtype=torch.bfloat16)
    with Launches() as launched, LargestTensor() as largest:
        sums = causal.attention_sums(query, key, 0.1)
    assert sums.shape == (32, length)
    assert most / 4 < launched.count <= most
    assert largest.bytes <= 256 * 2**20


@pytest.mark.parametrize("rows", [1, 37, 100])
@pytest.mark.parametrize("block", [1, 3000, 40_000, 10**9])
def test_sums_are_those_of_the_whole_softmax(
    rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, rows, 16, generator=generator)
    key = torch.randn(2, 100, 16, generator=generator)
    logits = query @ key.repeat_interleave(2, 0).mT * 0.25
    unseen = torch.ones(100, 100, dtype=torch.bool).triu(1)[-rows:]
    expected = logits.masked_fill(unseen, -math.inf).softmax(-1).sum(1)
    monkeypatch.setattr(causal, "_BLOCK_BYTES", block)
    torch.testing.assert_close(causal.attention_sums(query, key, 0.25), expected)


def test_a_model_that_hides_its_attention_is_refused() -> None:
    model = tiny_model("llama")  # its attention is not ours
    with pytest.raises(UsageError, match="showed the attention of 0 of its 4 layers"):
        prefill(model, random_prompt(50), window=32, room=1)


@pytest.mark.parametrize(
    "other", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}, {"sliding_window": 49}]
)
def test_attention_that_is_not_plain_softmax_is_refused(other: dict[str, Any]) -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("page_sdpa")
    recorder = attention.AttentionRecorder(window=8, layers=range(4))
    with pytest.raises(UsageError, match="cannot be observed"):
        model(random_prompt(50), **recorder.as_argument(), **other)


def test_a_layer_that_attends_twice_is_refused() -> None:
    recorder = attention.AttentionRecorder(window=8, layers=range(4))
    module = tiny_model("llama").model.layers[0].self_attn
    query = torch.rand(1, 4, 20, 16)
    recorder.record(module, query, query, None)
    with pytest.raises(UsageError, match="layer 0 attends more than once"):
        recorder.record(module, query, query, None)


def test_attention_that_is_not_a_number_is_refused() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("page_sdpa")
    model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = math.inf
    with pytest.raises(UsageError, match="not a number"):
        prefill(model, random_prompt(50), window=32, room=1)


ATTENTION = st.tuples(st.integers(3, 7), st.integers(2, 5), st.integers(1, 60)).map(
    lambda shape: torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))
)


@settings(max_examples=50, deadline=None)
@given(ATTENTION, st.integers(1, 40))
def test_head_order_does_not_matter(window_attention: torch.Tensor, top_k: int) -> None:
    flipped = window_attention.flip(1)
    torch.testing.assert_close(
        head_agreement(flipped, top_k), head_agreement(window_attention, top_k)
    )


@settings(max_examples=50, deadline=None)
@given(ATTENTION, st.integers(1, 40))
def test_agreement_equals_sets_and_lies_in_the_unit_interval(
    window_attention: torch.Tensor, top_k: int
) -> None:
    agreement = head_agreement(window_attention, top_k)
    assert agreement.tolist() == pytest.approx(
        reference.head_agreements(list(window_attention), top_k), abs=1e-12
    )
    assert 0 <= agreement.min() <= agreement.max() <= 1 + 1e-12


def test_identical_heads_agree_fully_and_disjoint_heads_not_at_all() -> None:
    one = torch.rand(3, 1, 50, generator=torch.Generator().manual_seed(0))
    assert head_agreement(one.expand(3, 4, 50), 8).tolist() == [1.0, 1.0, 1.0]
    apart = torch.eye(4).repeat_interleave(8, dim=1).expand(3, 4, 32)
    assert head_agreement(apart, 8).tolist() == [0.0, 0.0, 0.0]


def test_bins_are_equal_thirds() -> None:
    agreement = torch.tensor([1.0, 1.0, 9.0, 9.0, 9.0, 0.0, 0.5], dtype=torch.float64)
    assert head_agreement_drop(agreement) == 0.75  # L = 7: two layers each, the middle unread
    assert math.isnan(head_agreement_drop(agreement[:2]))
    assert math.isnan(float(head_agreement(torch.rand(3, 1, 40))[0]))


def test_the_factor_that_the_model_gives_is_used() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, 20, 16, generator=generator)
    key = torch.randn(2, 20, 16, generator=generator)
    module = tiny_model("llama").model.layers[0].self_attn
    recorder = attention.AttentionRecorder(8, [0])
    recorder.record(module, query[None], key[None], 0.7)
    assert recorder.scaling[0] == 0.7
    expected = causal.attention_sums(query[:, -8:], key, 0.7) / 8
    assert torch.equal(recorder.window_attention[0], expected)
