"""Δ against the capacity-bound share, by hand and against the paper's Figure 7."""

from __future__ import annotations

import math

import pytest
from toy_cells import Toy, toy_cell

from page_bench.analysis.cells import Cell
from page_bench.analysis.mixture import can_mix, mixture
from page_bench.analysis.resampling import Resampling

FEW = Resampling(500)


def is_capacity(task: str) -> bool:
    return task == "mk3"


def cell_of(deltas: dict[str, int], n: int, **names: str) -> Cell:
    """A cell in which so many of n inputs of each task gain by a closed gate."""
    toys = [
        Toy(task, i, 1.0, {0.5: float(i >= gaining)}, open=i >= gaining)
        for task, gaining in deltas.items()
        for i in range(n)
    ]
    return toy_cell(toys, **names)  # type: ignore[arg-type]


def test_the_line_by_hand() -> None:
    """MK3 gains 8 of 10, the two others 2 and 0 of 10."""
    found = mixture([cell_of({"mk3": 8, "vt": 2, "qa_1": 0}, 10)], is_capacity, FEW, (0, 0.5, 1))
    assert [delta.value for delta in found.deltas] == pytest.approx([0.1, 0.45, 0.8])
    assert found.slope.value == pytest.approx(0.7)
    assert found.share == pytest.approx(1 / 3)
    assert (found.cells, found.slope.n) == (1, 30)


def test_at_its_own_share_the_line_has_the_suite_s_delta() -> None:
    cell = cell_of({"mk3": 8, "vt": 2, "qa_1": 0}, 10)
    share = mixture([cell], is_capacity, FEW).share
    (delta,) = mixture([cell], is_capacity, FEW, (share,)).deltas
    assert delta.value == pytest.approx(10 / 30)


def test_figure_7_follows_from_table_12() -> None:
    """Mean Δ of the 16 cells by task: 0.780 on MK3, and 0.003, 0.129 and 0.002."""
    cell = cell_of({"mk3": 780, "vt": 3, "fwe": 129, "qa_1": 2}, 1000)
    published = {
        0.0: 0.045,
        0.05: 0.081,
        0.1: 0.118,
        0.15: 0.155,
        0.2: 0.192,
        0.25: 0.229,
        0.5: 0.412,
        0.75: 0.596,
        1.0: 0.780,
    }
    found = mixture([cell], is_capacity, FEW, list(published))
    mine = dict(zip(found.shares, (delta.value for delta in found.deltas), strict=True))
    assert mine == pytest.approx(published, abs=1e-3)
    assert found.slope.value == pytest.approx(0.7354, abs=5e-4)
    assert found.share == 0.25


def test_each_cell_counts_once_in_the_mean() -> None:
    small = cell_of({"mk3": 2, "vt": 0}, 2)
    large = cell_of({"mk3": 0, "vt": 50}, 100, evictor="h2o")
    found = mixture([small, large], is_capacity, FEW, (0, 1))
    assert [delta.value for delta in found.deltas] == pytest.approx([0.25, 0.5])
    assert (found.cells, found.slope.n) == (2, 200)


def test_bands_are_those_of_the_parts() -> None:
    """At either end only one kind of inputs counts: √(p (1 − p) / n)."""
    found = mixture([cell_of({"mk3": 100, "vt": 40}, 200)], is_capacity, Resampling(), (0, 1))
    for delta, p in zip(found.deltas, (0.2, 0.5), strict=True):
        width = 2 * 1.96 * math.sqrt(p * (1 - p) / 200)
        assert delta.high - delta.low == pytest.approx(width, rel=0.06)
    width = 2 * 1.96 * math.sqrt((0.2 * 0.8 + 0.5 * 0.5) / 200)
    assert found.slope.high - found.slope.low == pytest.approx(width, rel=0.06)


def test_only_cells_with_both_kinds_can_be_mixed() -> None:
    assert can_mix(cell_of({"mk3": 1, "vt": 1}, 2), is_capacity)
    assert not can_mix(cell_of({"mk3": 1}, 2), is_capacity)
    assert not can_mix(cell_of({"vt": 1}, 2), is_capacity)
