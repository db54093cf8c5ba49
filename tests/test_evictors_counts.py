"""Counts per layer and head at any length and budget: exact sums, order, never uniform unasked."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from attention_references import ada_counts, pyramid_line, pyramid_weights, within
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import keep_count
from torch import Tensor

from page_bench.evictors import make_evictor
from page_bench.evictors.base import Granularity
from page_bench.evictors.base.budget import BudgetPlan

N_SINK = 4


def a_plan(budget: float, length: int, layers: int, heads: int, granularity: str) -> BudgetPlan:
    n_keep = keep_count(budget, length)
    return BudgetPlan(length, n_keep, N_SINK, 32, layers, heads, granularity)


LENGTHS = st.integers(64, 131_072)
BUDGETS = st.floats(0.01, 1.0)


@settings(deadline=None)
@given(
    length=LENGTHS,
    budget=BUDGETS,
    layers=st.integers(1, 80),
    options=st.sampled_from([{}, {"beta": 3}, {"beta": 1000}, {"variant": "paper"}]),
    granularity=st.sampled_from(["layer", "head"]),
)
def test_pyramidkv_counts_sum_exactly_and_fall_with_depth(
    length: int, budget: float, layers: int, options: dict[str, Any], granularity: Granularity
) -> None:
    plan = a_plan(budget, length, layers, 2, granularity)
    scores = torch.zeros(1, 1, length)
    counts = make_evictor("pyramidkv", options, granularity).allocate(scores, plan)
    assert counts.dtype == torch.int64
    assert counts.shape == (layers, 2)
    assert int(counts.sum()) == layers * 2 * plan.n_keep
    assert int(counts.min()) >= plan.n_protected
    assert int(counts.max()) <= length
    per_layer = counts[:, 0].tolist()
    assert counts[:, 1].tolist() == per_layer
    assert per_layer == sorted(per_layer, reverse=True)
    if layers > 1 and plan.n_keep < length:
        # Never the uniform counts, however tight the budget.
        assert per_layer[0] > plan.n_keep > per_layer[-1]
    if "variant" in options:
        weights = pyramid_weights(layers, Fraction(2), Fraction(1, 2))
        shares = within(weights, layers * plan.n_keep, plan.n_protected, length)
    else:
        protected, beta = plan.n_protected, Fraction(options.get("beta", 20))
        line = pyramid_line(layers, plan.n_keep - protected, beta, length - protected)
        shares = [protected + share for share in line]
    assert sum(shares) == layers * plan.n_keep
    assert all(abs(n - share) < 1.001 for n, share in zip(per_layer, shares, strict=True))


def some_scores(heads: int, positions: int, levels: int, seed: int, layers: int = 1) -> Tensor:
    """fp32 `[L, H, M]`, heads of different scale; few levels make many ties."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (layers, heads, positions), generator=generator).float()
    return scores * torch.randint(1, 4, (layers, heads, 1), generator=generator)


@settings(deadline=None)
@given(
    length=LENGTHS,
    budget=BUDGETS,
    heads=st.integers(1, 5),
    levels=st.sampled_from([1, 5, 1000]),
    alpha=st.sampled_from(["0", "0.2", "0.5", "1"]),
    allocation=st.sampled_from(["adakv", "kvpress", "page"]),
    seed=st.integers(0, 99),
)
def test_adakv_counts_equal_the_reference_and_sum_exactly(
    length: int, budget: float, heads: int, levels: int, alpha: str, allocation: str, seed: int
) -> None:
    plan = a_plan(budget, length, 1, heads, "head")
    scores = some_scores(heads, length, levels, seed)
    options = {"allocation": allocation, "floor_alpha": float(alpha)}
    counts = make_evictor("adakv(snapkv)", options, "head").allocate(scores, plan)
    assert counts.shape == (1, heads)
    assert int(counts.sum()) == heads * plan.n_keep
    assert int(counts.min()) >= plan.n_protected
    assert int(counts.max()) <= length
    if alpha == "1":
        assert bool((counts == plan.n_keep).all())
    free = scores[0, :, N_SINK : length - 32].numpy()
    total = heads * (plan.n_keep - plan.n_protected)
    expected = ada_counts(free, total, allocation, Fraction(alpha), plan.n_protected)
    assert (counts[0] - plan.n_protected).tolist() == expected


@settings(deadline=None)
@given(length=LENGTHS, budget=BUDGETS, seed=st.integers(0, 99))
def test_adakv_gives_a_head_above_the_others_more(length: int, budget: float, seed: int) -> None:
    plan = a_plan(budget, length, 2, 3, "head")
    if plan.n_keep == length:
        return
    scores = some_scores(3, length, 1000, seed, layers=2)
    scores[:, 1] += 10_000
    mean, free = plan.n_keep - plan.n_protected, length - plan.n_protected
    floors = {"adakv": 0, "page": mean // 5, "kvpress": max(plan.n_keep // 5 - plan.n_protected, 0)}
    for allocation, floor in floors.items():
        options = {"allocation": allocation, "floor_alpha": 0.2}
        counts = make_evictor("adakv(snapkv)", options, "head").allocate(scores, plan)
        # All that is not promised to the other two, as far as there are positions.
        wanted = Fraction(min(3 * mean - 2 * floor, free))
        if allocation == "adakv":
            wanted = Fraction(4, 5) * wanted + Fraction(mean, 5)
        assert all(abs(n - plan.n_protected - wanted) < 1 for n in counts[:, 1].tolist())


@settings(deadline=None)
@given(
    length=LENGTHS,
    budget=BUDGETS,
    layers=st.integers(1, 6),
    levels=st.sampled_from([1, 5, 1000]),
    form=st.sampled_from(["paper", "published"]),
    seed=st.integers(0, 99),
)
def test_dynamickv_counts_sum_exactly(
    length: int, budget: float, layers: int, levels: int, form: str, seed: int
) -> None:
    plan = a_plan(budget, length, layers, 2, "layer")
    scores = some_scores(2, length, levels, seed, layers)
    evictor = make_evictor("dynamickv", {"variant": form}, "layer")
    counts = evictor.allocate(scores, plan)
    assert int(counts.sum()) == layers * 2 * plan.n_keep
    assert int(counts.min()) >= plan.n_protected
    assert int(counts.max()) <= length
    assert counts[:, 0].tolist() == counts[:, 1].tolist()
    if form == "published" and plan.n_keep < length and layers > 1:
        scores[0] += 10_000
        above = evictor.allocate(scores, plan)[:, 0]
        assert int(above[0]) == int(above.max()) > plan.n_keep


def test_adakv_pools_the_heads_by_hand() -> None:
    # Free: 6 positions per head, 2 entries each. The best four of both are 9, 8, 7 and 6.
    scores = torch.tensor([[[9.0, 8, 7, 1, 1, 1], [6.0, 5, 4, 1, 1, 1]]])
    plan = BudgetPlan(6, 2, 0, 0, 1, 2, "head")

    def counts(**options: Any) -> list[int]:
        found = make_evictor("adakv(snapkv)", options, "head").allocate(scores, plan)
        return found[0].tolist()

    # Mixtures of (3, 1) and (2, 2); a tie at (2.5, 1.5) is rounded up for the first head.
    assert counts(floor_alpha=0.0) == [3, 1]
    assert counts(floor_alpha=0.5) == [3, 1]
    assert counts(floor_alpha=0.6) == [2, 2]
    # A floor of one each takes nothing away from the first head; a floor of two does.
    assert counts(allocation="kvpress", floor_alpha=0.5) == [3, 1]
    assert counts(allocation="kvpress", floor_alpha=1.0) == [2, 2]
