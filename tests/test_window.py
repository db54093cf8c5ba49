"""Attention, entropy and margin of the observation window, against loops over whole matrices."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from reference_inputs import LayerInputs, layer_inputs
from tensor_sizes import LargestTensor
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch import Tensor

from page_bench.evictors.base import causal
from page_bench.evictors.base.causal import attention_sums
from page_bench.model.window import required_margin, window_statistics


def mean_entropy(layer: LayerInputs, head: int, rows: int) -> float:
    """Mean over the last rows of −Σ p·ln p, in nats."""
    last = layer.attention[head, -rows:].double().tolist()
    return statistics.fmean(-sum(p * math.log(p) for p in row if p > 0) for row in last)


def margins(layer: LayerInputs, head: int, rows: int, top_k: int) -> list[float]:
    """κ of each of the last rows: top-k logits against the rest of what the row may see."""
    length = layer.q.shape[1]
    keys = layer.k[layer.kv_head(head)].double()
    found = []
    for position in range(length - rows, length):
        seen = keys[: position + 1] @ layer.q[head, position].double() * layer.scaling
        logits = sorted(seen.tolist(), reverse=True)
        top, rest = logits[:top_k], logits[top_k:]
        if len(rest) > 1:
            distance = statistics.fmean(top) - statistics.fmean(rest)
            found.append(distance / statistics.stdev(rest))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("length", "rows"), [(40, 32), (333, 32), (50, 50)])
def test_statistics_equal_loops_over_eager_attention(family: str, length: int, rows: int) -> None:
    for layer in layer_inputs(tiny_model(family), random_prompt(length)):
        seen = window_statistics(layer.q[:, -rows:], layer.k, layer.scaling, top_k=8)
        torch.testing.assert_close(
            seen.mean_attention, layer.attention[:, -rows:].mean(1), atol=1e-5, rtol=1e-4
        )
        assert seen.row_entropy is not None
        assert seen.margin is not None
        heads = range(len(layer.q))
        assert seen.row_entropy.tolist() == pytest.approx(
            [mean_entropy(layer, head, rows) for head in heads], abs=1e-4
        )
        assert seen.margin.tolist() == pytest.approx(
            [statistics.median(margins(layer, head, rows, 8)) for head in heads], rel=1e-4
        )


def row(*logits: float) -> tuple[Tensor, Tensor, float]:
    """Query, keys and factor of one head whose last row has these logits."""
    return torch.full((1, 1, 1), 2.0), torch.tensor(logits)[None, :, None], 0.5


def test_margin_of_a_row_computed_by_hand() -> None:
    # Top two: mean 4.5. The rest: 0, 1, 2 with mean 1 and sample standard deviation 1.
    margin = window_statistics(*row(1, 5, 0, 4, 2), top_k=2).margin
    assert margin is not None
    assert margin.tolist() == pytest.approx([3.5])


@pytest.mark.parametrize(
    ("logits", "nats"),
    [
        ([7.0] * 4, math.log(4)),
        # Probabilities 1/2, 1/4, 1/4.
        ([math.log(2), 0.0, 0.0], 1.5 * math.log(2)),
        ([0.0, 200.0], 0.0),
        ([3.0], 0.0),
    ],
)
def test_entropy_of_a_row_computed_by_hand(logits: list[float], nats: float) -> None:
    entropy = window_statistics(*row(*logits), top_k=2).row_entropy
    assert entropy is not None
    assert entropy.tolist() == pytest.approx([nats], abs=1e-6)


def test_a_row_counts_only_the_keys_it_may_see() -> None:
    # Rows at positions 2, 3 and 4. The last key would change the first two rows' rest.
    query = torch.ones(1, 3, 1)
    key = torch.tensor([3.0, 0.0, 1.0, 2.0, 100.0])[None, :, None]
    margin = window_statistics(query, key, 1.0, top_k=1).margin
    assert margin is not None
    # 3 over {0, 1}; 3 over {0, 1, 2}; 100 over {3, 0, 1, 2}.
    by_row = [2.5 / math.sqrt(0.5), 2.0, 98.5 / math.sqrt(5 / 3)]
    assert margin.tolist() == pytest.approx([statistics.median(by_row)])


def test_margin_is_the_median_over_rows_that_have_a_rest() -> None:
    # Row 0 sees one key, rows 1 and 2 leave fewer than two besides the top two.
    key = torch.tensor([4.0, 5.0, 0.0, 1.0, 2.0])[None, :, None]
    margin = window_statistics(torch.ones(1, 5, 1), key, 1.0, top_k=2).margin
    assert margin is not None
    by_row = [4.0 / math.sqrt(0.5), 3.5]
    assert margin.tolist() == pytest.approx([statistics.fmean(by_row)])


@pytest.mark.parametrize("top_k", [3, 4, 5, 99])
def test_margin_without_two_keys_in_the_rest_is_not_a_number(top_k: int) -> None:
    margin = window_statistics(*row(1, 5, 0, 4), top_k=top_k).margin
    assert margin is not None
    assert margin.isnan().all()


@pytest.mark.parametrize("offset", [0.0, 300.0, -5000.0])
def test_an_offset_of_all_logits_changes_little(offset: float) -> None:
    """Some models have one; what rounding of the logits themselves does is not ours to mend."""
    generator = torch.Generator().manual_seed(0)
    # Multiples of 1/64 stay exact beside the offset.
    logits = (torch.randn(500, generator=generator) * 192).round() / 64
    key = torch.stack([logits, torch.full((500,), offset)], 1)[None]
    plain = window_statistics(torch.ones(1, 1, 2), key * torch.tensor([1.0, 0.0]), 1.0)
    moved = window_statistics(torch.ones(1, 1, 2), key, 1.0)
    torch.testing.assert_close(moved.row_entropy, plain.row_entropy, atol=2e-5, rtol=0)
    torch.testing.assert_close(moved.margin, plain.margin, atol=0, rtol=1e-4)


def random_heads(rows: int, length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (4, rows, 16), (2, length, 16)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("rows", [32, 100])
def test_blocks_of_rows_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = random_heads(rows, 100)
    whole = window_statistics(query, key, 0.25, top_k=8)
    monkeypatch.setattr(causal, "_BLOCK_BYTES", 7 * 4 * 100 * 4)
    parts = window_statistics(query, key, 0.25, top_k=8)
    torch.testing.assert_close(parts.mean_attention, whole.mean_attention)
    torch.testing.assert_close(parts.row_entropy, whole.row_entropy)
    torch.testing.assert_close(parts.margin, whole.margin)


def test_no_more_than_a_block_of_rows_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = random_heads(1000, 1000)
    block = 9 * 4 * 1000 * 4
    monkeypatch.setattr(causal, "_BLOCK_BYTES", block)
    for computation in (window_statistics, attention_sums):
        with LargestTensor() as largest:
            computation(query, key, 0.25)
        # All rows together would take 16,000,000 bytes.
        assert 0 < largest.bytes <= max(block, query.numel() * 4)


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("with_margin", [True, False])
def test_what_is_asked_does_not_change_the_attention(with_entropy: bool, with_margin: bool) -> None:
    query, key = random_heads(32, 100)
    seen = window_statistics(query, key, 0.25, with_entropy=with_entropy, with_margin=with_margin)
    # To the last bit: the gate's decision must not depend on what else is recorded.
    assert torch.equal(seen.mean_attention, attention_sums(query, key, 0.25) / 32)
    assert (seen.row_entropy is not None) == with_entropy
    assert (seen.margin is not None) == with_margin
    whole = window_statistics(query, key, 0.25)
    if seen.row_entropy is not None:
        torch.testing.assert_close(seen.row_entropy, whole.row_entropy)
    if seen.margin is not None:
        torch.testing.assert_close(seen.margin, whole.margin)


def test_half_precision_and_autocast_leave_the_statistics_in_fp32() -> None:
    query, key = random_heads(32, 100, torch.bfloat16)
    expected = window_statistics(query.float(), key.float(), 0.3)
    before = query.clone(), key.clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = window_statistics(query, key, 0.3)
    assert torch.equal(seen.mean_attention, expected.mean_attention)
    torch.testing.assert_close(seen.row_entropy, expected.row_entropy, atol=0, rtol=0)
    torch.testing.assert_close(seen.margin, expected.margin, atol=0, rtol=0)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


def test_inputs_in_fp32_are_left_as_they_were() -> None:
    query, key = random_heads(32, 100)
    before = query.clone(), key.clone()
    window_statistics(query, key, 1.0)
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


def test_the_bound_needs_the_margin_that_the_paper_names() -> None:
    assert required_margin(layers=28, heads=12, tokens=3956) == pytest.approx(10.11, abs=0.005)
    assert required_margin(28, 16, 4096) == pytest.approx(10.2, abs=0.05)
    # Eq. 27 turned round: β = 2·H²·L·T²·exp(−κ²/4).
    kappa = required_margin(28, 12, 3956, beta=0.01)
    assert 2 * 12**2 * 28 * 3956**2 * math.exp(-(kappa**2) / 4) == pytest.approx(0.01)
