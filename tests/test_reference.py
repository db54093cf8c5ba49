"""The references of `reference.py`, held against each other and against cases done by hand."""

from __future__ import annotations

import pytest
import torch
from reference import (
    eager_attention_window,
    eager_attentions,
    forward,
    greedy_with_mask,
    head_agreement_drop,
    head_agreements,
    keep_count,
    keep_positions,
    top_keys,
)
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch import Tensor
from transformers import DynamicCache

EVICTORS = ("snapkv", "h2o", "pyramidkv", "streamingllm")


def random_attentions(layers: int, heads: int, length: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(layers, heads, length, length, generator=generator)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return list(logits.masked_fill(future, -torch.inf).softmax(-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_window_attention_equals_a_second_pass_over_the_last_rows(family: str) -> None:
    model, ids, window = tiny_model(family), random_prompt(150), 32
    found = eager_attention_window(model, ids, window)
    model.set_attn_implementation("eager")
    cache = DynamicCache()
    with torch.no_grad():
        forward(model, ids[:, :-window], cache)
        last = forward(model, ids[:, -window:], cache, output_attentions=True)
    assert len(found) == model.config.num_hidden_layers
    for layer, expected in zip(found, last.attentions, strict=True):
        assert layer.shape == (model.config.num_attention_heads, 150)
        torch.testing.assert_close(layer, expected[0].mean(1), atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.sum(-1), torch.ones(len(layer)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_attention_is_far_from_uniform(family: str) -> None:
    for attention in eager_attentions(tiny_model(family), random_prompt(300)):
        assert attention[:, 200:].max(-1).values.mean() > 0.1


def test_short_prompt_averages_the_rows_there_are() -> None:
    model, ids = tiny_model("llama"), random_prompt(7)
    for row, attention in zip(
        eager_attention_window(model, ids, 32), eager_attentions(model, ids), strict=True
    ):
        torch.testing.assert_close(row, attention.mean(1))


def test_top_keys_prefers_the_lower_position_at_a_tie() -> None:
    assert top_keys(torch.tensor([0.1, 0.3, 0.2, 0.2, 0.2]), 3) == {1, 2, 3}


def test_agreement_by_hand() -> None:
    # Top-2 sets {0,1}, {0,1}, {1,2}: Jaccard 1, 1/3, 1/3.
    layer = torch.tensor([[5.0, 4, 1, 0], [4.0, 5, 1, 0], [0.0, 5, 4, 1]])
    assert head_agreements([layer], 2) == [pytest.approx(5 / 9)]


def test_drop_takes_equal_thirds_and_leaves_the_middle_out() -> None:
    same = torch.tensor([[2.0, 1, 0, 0], [2.0, 1, 0, 0]])
    apart = torch.tensor([[2.0, 1, 0, 0], [0.0, 0, 2, 1]])
    # Eight layers: thirds of two. A late bin from ⌊2L/3⌋ on would hold a third layer.
    layers = [same, apart, apart, apart, apart, same, apart, apart]
    assert head_agreement_drop(layers, 2) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("length", "counts"),
    [
        (4042, [3536, 3031, 2526, 2021, 1515, 1010, 505, 252]),
        (3959, [3464, 2969, 2474, 1979, 1484, 989, 494, 247]),
        (4046, [3540, 3034, 2528, 2023, 1517, 1011, 505, 252]),
        (4045, [3539, 3033, 2528, 2022, 1516, 1011, 505, 252]),
        (4023, [3520, 3017, 2514, 2011, 1508, 1005, 502, 251]),
    ],
)
def test_keep_counts_of_the_published_logs(length: int, counts: list[int]) -> None:
    budgets = [0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0625]
    assert [keep_count(b, length) for b in budgets] == counts


@pytest.mark.parametrize("name", EVICTORS)
def test_keep_sets_have_the_count_and_hold_the_protected(name: str) -> None:
    attentions = random_attentions(layers=4, heads=2, length=160)
    kept = keep_positions(name, attentions, 0.5)
    assert kept == sorted(set(kept))
    assert len(kept) == 80
    assert {*range(4), *range(128, 160)} <= set(kept)


def test_evictors_differ_where_their_definitions_do() -> None:
    attentions = random_attentions(layers=4, heads=2, length=160)
    sets = {name: keep_positions(name, attentions, 0.5) for name in EVICTORS}
    assert len({tuple(kept) for kept in sets.values()}) == len(EVICTORS)
    # Over all rows the window's sum is H2O's, and with equal layers no weighting matters.
    assert keep_positions("snapkv", attentions, 0.5, window=160) == sets["h2o"]
    repeated = attentions[:1] * 4
    assert keep_positions("pyramidkv", repeated, 0.5) == keep_positions("snapkv", repeated, 0.5)


def test_streamingllm_with_and_without_filling() -> None:
    attentions = random_attentions(layers=1, heads=1, length=160)
    filled = keep_positions("streamingllm", attentions, 0.5)
    assert filled == [0, 1, 2, 3, *range(84, 160)]
    fixed = keep_positions("streamingllm", attentions, 0.5, fill=False)
    assert fixed == [0, 1, 2, 3, *range(128, 160)]


def test_a_position_that_only_early_rows_attend_to_is_kept_by_h2o_alone() -> None:
    attentions = random_attentions(layers=3, heads=2, length=160)
    for attention in attentions:
        attention[:, :100, 60] += 10
        attention[:, -32:, 60] = 0
    assert 60 in keep_positions("h2o", attentions, 0.25)
    assert 60 not in keep_positions("snapkv", attentions, 0.25)


def test_pyramidkv_listens_most_to_the_first_layer() -> None:
    attentions = random_attentions(layers=4, heads=2, length=160)
    for attention in attentions:
        attention[:, -32:, 4:128] = 0
    # Weighted 2.0 · 0.3 against 0.5 · 0.9; budget 0.25 leaves four positions to choose.
    attentions[0][:, -32:, 50:54] = 0.3
    attentions[3][:, -32:, 90:94] = 0.9
    protected = {*range(4), *range(128, 160)}
    assert {*keep_positions("pyramidkv", attentions, 0.25)} == protected | {50, 51, 52, 53}
    assert {*keep_positions("snapkv", attentions, 0.25)} == protected | {90, 91, 92, 93}


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_everything_is_plain_greedy_generation(family: str) -> None:
    model, ids = tiny_model(family), random_prompt(120)
    tokens, _ = greedy_with_mask(model, ids, range(120), 12)
    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=12,
        min_new_tokens=12,
        eos_token_id=None,
    )
    assert tokens == generated[0, 120:].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_decoding_equals_full_passes_without_any_cache(family: str) -> None:
    model, length, n_new = tiny_model(family), 120, 8
    ids = random_prompt(length)
    keep = keep_positions("snapkv", eager_attentions(model, ids), 0.4)
    tokens, logits = greedy_with_mask(model, ids, keep, n_new)
    assert torch.equal(logits.argmax(-1), torch.tensor(tokens))

    total = length + n_new - 1
    allowed = torch.ones(total, total, dtype=torch.bool).tril()
    evicted = sorted(set(range(length - 1)) - set(keep))
    allowed[length - 1 :, evicted] = False
    mask = torch.zeros(total, total).masked_fill(~allowed, torch.finfo(torch.float32).min)
    answered = torch.cat([ids, torch.tensor([tokens[:-1]])], 1)
    with torch.no_grad():
        expected = model(answered, attention_mask=mask[None, None]).logits[0, length - 1 :]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_masking_equals_removing(family: str) -> None:
    model, length, n_new = tiny_model(family), 120, 8
    ids = random_prompt(length)
    keep = keep_positions("h2o", eager_attentions(model, ids), 0.4)
    tokens, logits = greedy_with_mask(model, ids, keep, n_new)

    full, small = DynamicCache(), DynamicCache()
    kept = torch.tensor(keep[:-1])
    step, found = ids[:, -1:], []
    with torch.no_grad():
        forward(model, ids, full)
        for index, layer in enumerate(full.layers):
            small.update(layer.keys[:, :, kept], layer.values[:, :, kept], index)
        for position in range(length - 1, length - 1 + n_new):
            position_ids = torch.tensor([[position]])
            output = forward(model, step, small, position_ids=position_ids)
            found.append(output.logits[0, -1])
            step = found[-1].argmax().view(1, 1)
    assert [int(row.argmax()) for row in found] == tokens
    torch.testing.assert_close(torch.stack(found), logits, atol=1e-4, rtol=0)
    _, full_logits = greedy_with_mask(model, ids, range(length), n_new)
    assert (full_logits[0] - logits[0]).abs().max() > 0.1, "this eviction changes nothing"
