"""Keep sets per layer and per KV head: removal equals masking, counts are exact, memory drops."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from page_bench.config import PageConfig
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan, kept_members, share_out
from page_bench.model import attention
from page_bench.model.cache import allocated_bytes, entry_count, kv_bytes
from page_bench.model.cache_layers import GroupedLayer
from page_bench.model.keep_plan import KeepPlan, evict, positions_to_keep, scores_of
from page_bench.model.prefill import forward, prefill
from page_bench.model.scoring import normalised

attention.register()

LENGTH = 90
NEW = 5


@dataclass(frozen=True)
class Uneven(Evictor):
    """Random scores and random counts, different in every layer and head."""

    name: ClassVar[str] = "uneven"
    seed: int = 0
    by_head: bool = True

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 100 + layer.index)
        return torch.rand(layer.n_kv_heads, layer.prompt_tokens, generator=generator)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        sets = plan.n_layers * plan.n_kv_heads if self.by_head else plan.n_layers
        counts = share_out(
            torch.rand(sets, generator=generator) ** 3,
            sets * plan.n_keep,
            plan.n_protected,
            plan.prompt_tokens,
        )
        return counts.view(plan.n_layers, -1).expand(plan.n_layers, plan.n_kv_heads)


def _masked_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """Softmax attention over all keys that `hidden[layer]` `[H_kv, n, n]` does not hide."""
    hidden = kwargs["hidden"][module.layer_idx]
    group = query.shape[1] // key.shape[1]
    keys, values = (t[0].repeat_interleave(group, 0) for t in (key, value))
    logits = query[0] @ keys.mT * kwargs["scaling"]
    logits = logits.masked_fill(hidden.repeat_interleave(group, 0), -torch.inf)
    return (logits.softmax(-1) @ values).transpose(0, 1)[None], None


def logits_with_hidden(model: PreTrainedModel, ids: Tensor, keep: Tensor, tokens: int) -> Tensor:
    """Logits `[1 + n, vocab]` of the last prompt token and n more, evicted positions hidden.

    Args:
        ids: `[1, T + n]`.
        keep: bool `[L, H_kv, T]`; the last T-1 … tokens see these alone of the prompt.
        tokens: T.
    """
    AttentionInterface.register("test_granularity", _masked_attention)
    AttentionMaskInterface.register("test_granularity", eager_mask)
    total = ids.shape[1]
    future = torch.ones(total, total, dtype=torch.bool).triu(1)
    hidden = future.expand(*keep.shape[:2], total, total).clone()
    hidden[:, :, tokens - 1 :, :tokens] |= ~keep[:, :, None]
    hidden[:, :, tokens - 1, tokens - 1] = False
    model.set_attn_implementation("test_granularity")
    with torch.no_grad():
        logits: Tensor = model(ids, hidden=hidden).logits[0, tokens - 1 :]
    return logits


@pytest.mark.parametrize("implementation", attention.IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("granularity", "by_head"), [("head", True), ("layer", False)])
def test_removal_equals_masking_with_unequal_counts(
    family: str, granularity: Granularity, by_head: bool, implementation: str
) -> None:
    model, ids = tiny_model(family), random_prompt(LENGTH + NEW)
    config = PageConfig(budget=0.3, window=8, granularity=granularity)
    model.set_attn_implementation(attention.observable_name(implementation))
    filled = prefill(model, ids[:, :LENGTH], window=8, room=1)
    keep = positions_to_keep(Uneven(3, by_head), filled, config)
    assert isinstance(keep, KeepPlan)
    members = keep.members.expand(-1, model.config.num_key_value_heads, -1)
    assert len(set(members.sum(-1).flatten().tolist())) > 1
    cache = evict(filled, keep, NEW + 1, without_last=True)
    expected = logits_with_hidden(tiny_model(family), ids, members, LENGTH)
    # First the last prompt token alone, then two together, then one by one.
    for start, end in ((-1, 0), (0, 2), (2, 3), (3, 4), (4, 5)):
        part = ids[:, LENGTH + start : LENGTH + end]
        positions = torch.arange(LENGTH + start, LENGTH + end)[None]
        logits = forward(model, part, cache, positions)[:, -1]
        torch.testing.assert_close(logits[0], expected[end], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_each_granularity_keeps_what_its_averaged_score_says(granularity: Granularity) -> None:
    model = tiny_model("llama")
    config = PageConfig(budget=0.3, window=8, n_sink=2, recent=5, granularity=granularity)
    with attention.observing(model):
        filled = prefill(model, random_prompt(LENGTH), window=8, room=1)
    scores = [Uneven(7).score(filled.view(i)) for i in range(4)]
    even = type("Even", (Uneven,), {"allocate": Evictor.allocate})(7)
    keep = positions_to_keep(even, filled, config)
    assert isinstance(keep, KeepPlan)
    count = 27
    for layer in range(4):
        for head in range(2):
            rows = {
                "head": [scores[layer][head]],
                "layer": list(scores[layer]),
                "shared": [row for rows in scores for row in rows],
            }[granularity]
            mean = [sum(float(row[i]) for row in rows) / len(rows) for i in range(LENGTH)]
            middle = sorted(range(2, LENGTH - 5), key=lambda i: (-mean[i], i))[: count - 7]
            expected = [0, 1, *sorted(middle), *range(LENGTH - 5, LENGTH)]
            members = keep.of_layer(layer)
            row = members[head if len(members) > 1 else 0]
            assert row.nonzero().squeeze(-1).tolist() == expected


def test_bytes_are_those_of_the_kept_entries_and_nothing_is_padded() -> None:
    model = tiny_model("llama")
    config = PageConfig(budget=0.3, window=8, granularity="head")
    with attention.observing(model):
        filled = prefill(model, random_prompt(LENGTH), window=8, room=1)
        keep = positions_to_keep(Uneven(3), filled, config)
        assert isinstance(keep, KeepPlan)
        cache = evict(filled, keep, 2, without_last=False)
    assert any(isinstance(layer, GroupedLayer) for layer in cache.layers)
    layers, heads, dim, size = 4, 2, 16, 4
    kept = layers * heads * 27
    assert entry_count(cache) == kept
    assert kv_bytes(cache) == kept * dim * 2 * size
    # Two more entries of room per head, and no head is padded to the longest.
    assert allocated_bytes(cache) == (kept + layers * heads * 2) * dim * 2 * size
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for layer in cache.layers
        for part in (layer.parts if isinstance(layer, GroupedLayer) else [layer])
        for t in (part.keys, part.values)
    }
    assert sum(storages.values()) == allocated_bytes(cache)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_streamingllm_is_the_same_at_every_granularity(
    family: str, granularity: Granularity
) -> None:
    model = tiny_model(family)
    config = PageConfig(evictor="streamingllm", budget=0.4, window=8, granularity=granularity)
    with attention.observing(model):
        filled = prefill(model, random_prompt(LENGTH), window=8, room=1)
    keep = positions_to_keep(config.make_evictor(), filled, config)
    assert isinstance(keep, KeepPlan)
    for row in keep.members.flatten(0, 1):
        assert row.nonzero().squeeze(-1).tolist() == [*range(4), *range(LENGTH - 32, LENGTH)]


@pytest.mark.parametrize("norm", ["none", "sum", "zscore", "rank"])
def test_normalised_scores_are_what_they_say(norm: str) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(3, 2, 50, generator=generator) * torch.tensor([1.0, 100.0])[:, None]
    scores[0, 0, 5:9] = scores[0, 0, 5]
    result = normalised(scores, norm, n_sink=3, recent=7)
    if norm == "none":
        assert torch.equal(result, scores)
        return
    assert not result[..., :3].any()
    assert not result[..., 43:].any()
    for row, before in zip(result.flatten(0, 1), scores.flatten(0, 1), strict=True):
        free, values = row[3:43].tolist(), before[3:43].tolist()
        if norm == "sum":
            low = min(0.0, *values)
            expected = [(v - low) / sum(u - low for u in values) for v in values]
        elif norm == "zscore":
            mean = sum(values) / 40
            sd = (sum((v - mean) ** 2 for v in values) / 40) ** 0.5
            expected = [(v - mean) / sd for v in values]
        else:
            expected = [
                (sum(u < v for u in values) + (sum(u == v for u in values) - 1) / 2) / 40
                for v in values
            ]
        assert free == pytest.approx(expected, abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.integers(0, 50),
    st.integers(0, 200),
    st.data(),
)
def test_shares_sum_exactly_and_keep_their_bounds(
    weights: list[float], least: int, spread: int, data: st.DataObject
) -> None:
    n, most = len(weights), least + spread
    total = data.draw(st.integers(n * least, n * most))
    counts = share_out(torch.tensor(weights, dtype=torch.float64), total, least, most)
    assert int(counts.sum()) == total
    assert least <= int(counts.min()) <= int(counts.max()) <= most
    pairs = zip(weights, counts.tolist(), strict=True)
    ordered = [count for _, count in sorted(pairs, key=lambda pair: pair[0])]
    # Heavier entries never get fewer, up to the unit that rounding gives to one of equals.
    assert all(b >= a - 1 for a, b in itertools.pairwise(ordered))


@dataclass(frozen=True)
class LoudHead(Evictor):
    """Random scores, those of each head a thousand times those of the one before."""

    name: ClassVar[str] = "loud"

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(layer.index)
        scores = torch.rand(layer.n_kv_heads, layer.prompt_tokens, generator=generator)
        return scores * 1000.0 ** torch.arange(layer.n_kv_heads)[:, None]


@pytest.mark.parametrize("norm", ["sum", "zscore", "rank"])
@pytest.mark.parametrize("granularity", ["layer", "shared"])
def test_votes_are_normalised_before_they_are_averaged(granularity: Granularity, norm: str) -> None:
    config = PageConfig(
        budget=0.3, window=8, n_sink=2, recent=5, granularity=granularity, score_norm=norm
    )
    model = tiny_model("llama")
    with attention.observing(model):
        filled = prefill(model, random_prompt(90), window=8, room=1)
    keep = positions_to_keep(LoudHead(), filled, config)
    assert isinstance(keep, KeepPlan)
    votes = normalised(scores_of(LoudHead(), filled, 27), norm, 2, 5).mean(1)
    votes = votes if granularity == "layer" else votes.mean(0, keepdim=True)
    expected = kept_members(votes, torch.full((len(votes),), 27), 2, 5)
    assert torch.equal(keep.members[:, 0], expected)


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 1, 15)])
def test_plans_that_differ_in_one_entry_are_told_apart(place: tuple[int, int, int]) -> None:
    members = torch.zeros(2, 2, 16, dtype=torch.bool)
    other = members.clone()
    other[place] = True
    assert KeepPlan(members).key() == KeepPlan(members.clone()).key()
    assert KeepPlan(members).key() != KeepPlan(other).key()
