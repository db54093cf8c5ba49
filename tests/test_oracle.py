"""Oracles against hand-made inputs and the paper's Tables 12 and 14."""

from __future__ import annotations

import math

import pytest
from statsmodels.stats.proportion import proportion_confint
from toy_cells import Toy, counted, toy_cell

from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import parts_of
from page_bench.analysis.oracle import oracle_of, recovery
from page_bench.analysis.resampling import Resampling

FEW = Resampling(500)


def is_capacity(task: str) -> bool:
    return task == "mk3"


def opened(toys: list[Toy], number: int) -> list[Toy]:
    """The first so many of them open, all others closed."""
    return [
        Toy(toy.task, toy.doc_id, toy.full, toy.plain, open=i < number)
        for i, toy in enumerate(toys)
    ]


def test_both_oracles_by_hand() -> None:
    cell = toy_cell(
        [
            Toy("mk3", 0, 1.0, {0.25: 0.0, 0.5: 0.0}, open=False),
            Toy("mk3", 1, 1.0, {0.25: 0.0, 0.5: 1.0}, open=True),
            Toy("vt", 0, 1.0, {0.25: 0.0, 0.5: 1.0}, open=False),
            Toy("vt", 1, 0.0, {0.25: 1.0, 0.5: 0.0}, open=False),
        ]
    )
    found = oracle_of(cell, is_capacity, FEW)
    # Over the eight rows: plain 0 0 | 0 1 | 0 1 | 1 0, full 1 1 | 1 1 | 1 1 | 0 0.
    assert (found.plain.value, found.oracle.value) == (3 / 8, 7 / 8)
    assert (found.headroom.value, found.headroom.n) == (4 / 8, 4)
    # Gated 1 1 | 0 1 | 1 1 | 0 0.
    assert found.delta.value == pytest.approx(2 / 8)
    assert found.recovery.value == pytest.approx(0.5)
    # MK3 brings 2, vt 1 − 1.
    assert found.from_capacity.value == pytest.approx(1)
    # The task oracle has 1 1 | 1 1 | 0 1 | 1 0.
    assert found.task_delta.value == pytest.approx(3 / 8)
    assert found.task_gap.value == pytest.approx(-1 / 8)
    assert not found.same_decisions
    assert {task: one.value for task, one in found.by_task.items()} == {"mk3": 0.75, "vt": 0.25}


def test_a_gate_that_decides_as_the_task_oracle_has_no_gap() -> None:
    toys = opened(counted("mk3", [(5, 1.0, {0.5: 0.0})]), 0)
    toys += opened(counted("vt", [(3, 1.0, {0.5: 0.0}), (2, 0.0, {0.5: 1.0})]), 5)
    found = oracle_of(toy_cell(toys), is_capacity, FEW)
    assert found.same_decisions
    # Alike on all ten inputs: on others they may differ, by Wilson's bound of 0 of 10.
    reach = proportion_confint(0, 10, method="wilson")[1]
    assert found.task_gap.value == 0
    assert (found.task_gap.low, found.task_gap.high) == pytest.approx((-reach, reach))
    assert found.recovery.value == pytest.approx(5 / 8)
    assert found.from_capacity.value == 1


def test_no_headroom_is_no_recovery() -> None:
    found = oracle_of(toy_cell(counted("vt", [(4, 0.0, {0.5: 0.0})])), is_capacity, FEW)
    assert found.headroom.value == 0
    assert math.isnan(found.recovery.value)
    assert math.isnan(found.from_capacity.value)


def test_table_14_follows_from_table_12() -> None:
    """Qwen2.5-3B, StreamingLLM: Δ 0.930, 0.030, 0.760 and 0 by task, 65.3 % open but on MK3."""
    budgets = (0.125, 0.25, 0.5)
    wrong, right = dict.fromkeys(budgets, 0.0), dict.fromkeys(budgets, 1.0)
    toys = opened(counted("mk3", [(93, 1.0, wrong), (7, 0.0, wrong)]), 0)
    toys += opened(counted("vt", [(97, 1.0, right), (3, 1.0, wrong)]), 97)
    # 104 of 300 are closed: 3 of vt, and 101 here and below, of which 76 gain.
    toys += opened(counted("fwe", [(1, 1.0, wrong), (23, 1.0, right), (76, 1.0, wrong)]), 1)
    toys += opened(counted("qa_1", [(98, 0.0, wrong), (2, 1.0, right)]), 98)
    cell = toy_cell(toys, evictor="streamingllm")
    delta = parts_of(cell, is_capacity, FEW)
    assert delta.every.delta.value == pytest.approx(0.430, abs=5e-4)
    assert delta.others is not None
    assert delta.others.delta.value == pytest.approx(0.263, abs=5e-4)
    assert delta.others.open.value == pytest.approx(0.653, abs=5e-4)
    found = oracle_of(cell, is_capacity, FEW)
    assert found.task_delta.value == pytest.approx(0.232, abs=6e-4)
    assert found.task_gap.value == pytest.approx(0.198, abs=6e-4)
    assert found.from_capacity.value == pytest.approx(0.2325 / 0.430, abs=2e-3)


def with_headroom(delta: int, headroom: int, model: str) -> Cell:
    """Of 1,000 inputs so many gain by a closed gate, and so many could."""
    harmed = [(headroom, 1.0, {0.5: 0.0}), (1000 - headroom, 1.0, {0.5: 1.0})]
    toys = counted("vt", harmed)
    toys = [Toy(t.task, t.doc_id, t.full, t.plain, open=t.doc_id >= delta) for t in toys]
    return toy_cell(toys, model=model)


def test_published_mean_recovery_follows_from_the_cells() -> None:
    """Δ and headroom of the four SnapKV cells: recoveries average 0.689, means give 0.700."""
    cells = [
        with_headroom(121, 186, "Qwen2.5-1.5B"),
        with_headroom(259, 306, "Qwen2.5-3B"),
        with_headroom(143, 238, "Qwen2.5-14B"),
        with_headroom(187, 285, "Mistral-7B"),
    ]
    each = [oracle_of(cell, is_capacity, FEW).recovery.value for cell in cells]
    assert each == pytest.approx((0.650, 0.848, 0.603, 0.656), abs=3e-3)
    found = recovery(cells, FEW)
    assert found.mean.value == pytest.approx(0.689, abs=1e-3)
    assert found.of_means.value == pytest.approx(0.700, abs=1e-3)
    assert (found.cells, found.mean.n) == (4, 1000)
    assert found.mean.low < found.mean.value < found.mean.high


def test_cells_without_headroom_have_no_part_in_the_mean() -> None:
    idle = toy_cell(counted("vt", [(4, 1.0, {0.5: 1.0})]), model="idle")
    found = recovery([with_headroom(50, 100, "one"), idle], FEW)
    assert (found.mean.value, found.of_means.value, found.cells) == (0.5, 0.5, 1)
