"""Δ against hand-made inputs, and the paper's Tables 2, 12 and 28."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from toy_cells import Toy, counted, toy_cell

from page_bench.analysis.budgets import budgets_of
from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import grand, parts_of, survivors, without
from page_bench.analysis.estimates import FEW
from page_bench.analysis.resampling import Resampling


def is_capacity(task: str) -> bool:
    return task == "mk3"


def closed(toys: list[Toy]) -> list[Toy]:
    return [dataclasses.replace(toy, open=False) for toy in toys]


def hand_made() -> Cell:
    """Two tasks; Δ by hand in the comments."""
    return toy_cell(
        [
            Toy("mk3", 0, 1.0, {0.25: 0.0, 0.5: 0.0}, open=False),  # 1, 1
            Toy("mk3", 1, 1.0, {0.25: 0.0, 0.5: 1.0}, open=False),  # 1, 0
            Toy("mk3", 2, 1.0, {0.25: 0.0, 0.5: 0.0}, open=True),  # 0, 0
            Toy("mk3", 3, 0.0, {0.25: 0.0, 0.5: 1.0}, open=False),  # 0, -1
            Toy("vt", 0, 1.0, {0.25: 0.0, 0.5: 1.0}, open=True),
            Toy("vt", 1, 0.0, {0.25: 1.0, 0.5: 1.0}, open=True),
        ]
    )


def test_delta_by_hand() -> None:
    found = parts_of(hand_made(), is_capacity)
    # (1 + 1/2 + 0 − 1/2 + 0 + 0) / 6
    assert found.every.delta.value == pytest.approx(1 / 6)
    assert (found.every.task, found.every.budgets, found.every.delta.n) == (None, (0.25, 0.5), 6)
    assert (found.every.open.value, found.every.open.n) == (3 / 6, 6)
    assert not found.every.all_open
    others = found.others
    assert others is not None
    assert (others.delta.value, others.open.value, others.open.n, others.p) == (0, 1, 2, 1)
    low, high = proportion_confint(2, 2, method="wilson")
    assert (others.open.low, others.open.high) == pytest.approx((low, high), abs=1e-12)
    mk3, vt = found.tasks
    assert mk3.task == "mk3"
    assert (mk3.delta.value, mk3.open.value) == pytest.approx((0.25, 0.25))
    assert (vt.task, vt.is_zero, vt.all_open, mk3.is_zero, mk3.all_open) == (
        *("vt", True, True),
        *(False, False),
    )


def test_a_zero_without_open_gates_is_told_from_an_identity() -> None:
    """Closed on an input whose answers are the same: Δ is 0, though not by construction."""
    found = parts_of(toy_cell([Toy("vt", 0, 1.0, {0.5: 1.0}, open=False)]), is_capacity)
    assert found.every.is_zero
    assert not found.every.all_open


def test_budget_one_counts_for_nothing() -> None:
    """Paper, A.4.1: Δ is over budgets below 1, and there is nothing at 1."""
    inputs = [Toy("mk3", 0, 1.0, {0.5: 0.0}, open=False)]
    for with_full in (True, False):
        cell = toy_cell(inputs, with_full=with_full)
        assert parts_of(cell, is_capacity).every.delta.value == 1


def test_nothing_but_capacity_bound_tasks_has_no_others() -> None:
    found = parts_of(toy_cell([Toy("mk3", 0, 1.0, {0.5: 0.0})]), is_capacity)
    assert found.others is None
    assert [delta.task for delta in found.tasks] == ["mk3"]


def streaming(mk3: int, n: int) -> Cell:
    """A StreamingLLM cell of Table 12: closed on MK3, whose plain answers are wrong; else open."""
    budgets = (0.125, 0.25, 0.5)
    wrong, right = dict.fromkeys(budgets, 0.0), dict.fromkeys(budgets, 1.0)
    toys = closed(counted("mk3", [(mk3, 1.0, wrong), (n - mk3, 0.0, wrong)]))
    for task in ("vt", "fwe", "qa_1"):
        toys += counted(task, [(n, 1.0, right)])
    return toy_cell(toys, evictor="streamingllm")


@pytest.mark.parametrize(
    ("mk3", "n", "published"),
    [(65, 100, (0.163, 0.128, 0.200)), (50, 50, (0.250, 0.190, 0.310))],
)
def test_intervals_of_table_28_follow_from_table_12(
    mk3: int, n: int, published: tuple[float, float, float]
) -> None:
    """Qwen2.5-1.5B and -14B, StreamingLLM: MK3's Δ is 0.650 and 1.000, all others exactly 0."""
    cell = streaming(mk3, n)
    found = parts_of(cell, is_capacity).every
    assert found.delta.value == pytest.approx(published[0], abs=6e-4)
    assert (found.delta.low, found.delta.high) == pytest.approx(published[1:], abs=2.1e-3)
    share = mk3 / n / 4
    error = math.sqrt(share * (1 - share) / (4 * n))
    assert found.delta.high - found.delta.low == pytest.approx(2 * 1.96 * error, rel=0.04)
    assert found.p == pytest.approx(1 / 10_001)


def test_two_inputs_per_task_claim_nothing() -> None:
    """One task gains on both of its inputs, two on none: no interval, and p of two of two."""
    toys = closed(counted("mk3", [(2, 1.0, {0.5: 0.0})]))
    toys += [toy for task in ("vt", "fwe") for toy in counted(task, [(2, 1.0, {0.5: 1.0})])]
    found = parts_of(toy_cell(toys), is_capacity)
    assert found.every.delta.value == pytest.approx(1 / 3)
    assert (found.every.delta.has_interval, found.every.delta.method) == (False, FEW)
    assert found.every.p == 0.5
    # Both inputs of MK3 gain; Wilson's bound on a share of 2 of 2 is 0.342.
    least = proportion_confint(2, 2, method="wilson")[0]
    mk3 = next(task for task in found.tasks if task.task == "mk3").delta
    assert (mk3.low, mk3.high) == pytest.approx((2 * least - 1, 1))


def test_p_is_near_that_of_a_normal_mean() -> None:
    """Δ two standard errors from 0: 0.0455 two-sided."""
    values = np.random.default_rng(4).normal(size=400)
    values = (values - values.mean()) / values.std() + 2 / math.sqrt(400)
    boot = Resampling(20_000).of(hand_made().evicted)
    assert boot.n == 6
    toys = [Toy("vt", i, float(v), {0.5: 0.0}, open=False) for i, v in enumerate(values)]
    found = parts_of(toy_cell(toys), is_capacity, Resampling(20_000)).every
    assert found.p == pytest.approx(0.0455, abs=0.008)


def test_benjamini_and_hochberg_by_hand() -> None:
    """Sorted p are held against q·i/m, 0.01, 0.02, … here; all up to the last that fits stay."""
    assert survivors([0.5, 0.04, 0.01, 0.03, 0.02]) == [False, True, True, True, True]
    assert survivors([0.011, 0.021, 0.031, 0.041, 0.5]) == [False] * 5
    # The third is beyond its own 0.03 and stays because of the fourth.
    assert survivors([0.005, 0.015, 0.035, 0.039, 0.5]) == [True] * 4 + [False]
    assert survivors([]) == []


def test_benjamini_and_hochberg_is_that_of_statsmodels() -> None:
    p_values = np.random.default_rng(1).random(50) ** 3
    adjusted = multipletests(p_values, method="fdr_bh")[1]
    assert survivors(p_values.tolist()) == (adjusted <= 0.05).tolist()
    assert sum(survivors(p_values.tolist())) > sum(survivors(p_values.tolist(), 0.01)) > 0


def test_the_grand_mean_counts_each_cell_once() -> None:
    gaining = toy_cell(closed(counted("mk3", [(3, 1.0, {0.5: 0.0}), (1, 1.0, {0.5: 1.0})])))
    idle = toy_cell(counted("mk3", [(100, 1.0, {0.5: 0.0})]), evictor="h2o")
    losing = toy_cell(closed(counted("mk3", [(10, 0.0, {0.5: 1.0})])), evictor="pyramidkv")
    found = grand([gaining, idle, losing])
    assert found.delta.value == pytest.approx((0.75 + 0 - 1) / 3)
    assert (found.cells, found.positive, found.zero, found.delta.n) == (3, 1, 1, 100)


def test_cells_that_share_inputs_do_not_average_out() -> None:
    toys = closed(counted("mk3", [(50, 1.0, {0.5: 0.0}), (50, 1.0, {0.5: 1.0})]))
    cell = toy_cell(toys)
    alone = parts_of(cell, is_capacity).every.delta
    shared = grand([cell, toy_cell(toys, evictor="h2o"), toy_cell(toys, model="other")]).delta
    assert (shared.low, shared.high) == pytest.approx((alone.low, alone.high), abs=0.011)
    apart = grand([cell, toy_cell(toys, seed=2)]).delta
    ratio = (apart.high - apart.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(1 / math.sqrt(2), rel=0.06)
    assert (shared.n, apart.n) == (100, 200)


def test_a_cell_without_some_tasks() -> None:
    rest = without(hand_made(), is_capacity)
    assert rest is not None
    assert rest.tasks == ["vt"]
    assert without(rest, lambda task: task == "vt") is None


def test_budgets_by_hand() -> None:
    quarter, half = budgets_of(hand_made())
    assert (quarter.budget, half.budget, quarter.delta.n) == (0.25, 0.5, 6)
    assert (quarter.plain.value, quarter.gated.value, quarter.full.value) == (1 / 6, 3 / 6, 4 / 6)
    assert (half.plain.value, half.gated.value) == (4 / 6, 4 / 6)
    assert quarter.delta.value == pytest.approx(2 / 6)
    assert half.delta.value == 0
    # Three of six gates are closed and keep everything.
    assert quarter.plain_kept.value == 0.25
    assert quarter.gated_kept.value == pytest.approx((3 * 1 + 3 * 0.25) / 6)
    low, high = proportion_confint(1, 6, method="wilson")
    assert (quarter.plain.low, quarter.plain.high) == pytest.approx((low, high), abs=1e-12)
    assert quarter.delta.method == FEW
    of_vt = budgets_of(hand_made(), "vt")
    assert [(one.task, one.plain.value, one.plain.n) for one in of_vt] == [
        ("vt", 0.5, 2),
        ("vt", 1.0, 2),
    ]


def test_repeats_of_a_document_are_one_input() -> None:
    """Two answers to one document, one of them gained: no Wilson interval of two."""
    rows = [Toy("mk3", 0, 1.0, {0.5: 0.0}, open=False), Toy("mk3", 0, 0.0, {0.5: 0.0}, open=True)]
    cell = toy_cell([*rows, Toy("mk3", 1, 1.0, {0.5: 1.0})])
    found = parts_of(cell, is_capacity).every
    assert (found.delta.value, found.delta.n) == (0.25, 2)
    assert (found.open.value, found.open.method) == (0.75, FEW)
    (budget,) = budgets_of(cell)
    assert (budget.full.value, budget.full.method, budget.full.n) == (0.75, FEW, 2)
