"""Harm at a fixed budget, against hand-made inputs and the paper's Table 27."""

from __future__ import annotations

import dataclasses
import math

import pytest
from statsmodels.stats.proportion import proportion_confint
from toy_cells import Toy, counted, toy_cell

from page_bench.analysis.harm import harms
from page_bench.analysis.intervals import share


def test_harm_by_hand() -> None:
    """Of eight inputs 0.25 harms four, of which the gate opens on one; 0.5 harms one, closed."""
    toys = [
        Toy("mk3", 0, 1.0, {0.25: 0.0, 0.5: 1.0}, open=True),
        Toy("mk3", 1, 1.0, {0.25: 0.0, 0.5: 1.0}, open=False),
        Toy("mk3", 2, 1.0, {0.25: 0.0, 0.5: 0.0}, open=False),
        Toy("mk3", 3, 1.0, {0.25: 0.0, 0.5: 1.0}, open=False),
        Toy("mk3", 4, 0.0, {0.25: 0.0, 0.5: 0.0}, open=True),
        Toy("mk3", 5, 0.0, {0.25: 1.0, 0.5: 0.0}, open=True),
        Toy("mk3", 6, 1.0, {0.25: 1.0, 0.5: 1.0}, open=True),
        Toy("mk3", 7, 1.0, {0.25: 1.0, 0.5: 1.0}, open=True),
    ]
    quarter, half = harms([toy_cell(toys)])
    assert (quarter.budget, half.budget) == (0.25, 0.5)
    assert (quarter.n, quarter.gated.value, quarter.plain.value) == (8, 1 / 8, 4 / 8)
    assert (quarter.left.value, quarter.left.n) == (0.25, 4)
    assert (quarter.factor.value, quarter.factor.n) == (4, 4)
    assert (half.gated.value, half.plain.value) == (0, 1 / 8)
    low, high = proportion_confint(1, 8, method="wilson")
    assert (half.plain.low, half.plain.high) == pytest.approx((low, high), abs=1e-12)
    assert half.factor.value == math.inf
    assert half.factor.low == pytest.approx(1 / proportion_confint(0, 1, method="wilson")[1])


def test_without_harm_no_factor_is_claimed() -> None:
    (found,) = harms([toy_cell(counted("vt", [(5, 1.0, {0.5: 1.0})]))])
    assert (found.plain.value, found.gated.value) == (0, 0)
    assert math.isnan(found.factor.value)
    assert found.factor.n == 0


def test_the_paper_s_29_fold_reduction() -> None:
    """Table 27 at budget 0.0625: 0.750 of 500 inputs are 375, 0.026 are 13."""
    toys = counted("mk3", [(375, 1.0, {0.0625: 0.0}), (125, 1.0, {0.0625: 1.0})])
    toys = [dataclasses.replace(toy, open=toy.doc_id < 13) for toy in toys]
    (found,) = harms([toy_cell(toys)])
    assert (found.plain.value, found.gated.value) == (0.750, 0.026)
    assert round(found.factor.value) == 29
    low, high = proportion_confint(13, 375, method="wilson")
    assert (found.factor.low, found.factor.high) == pytest.approx((1 / high, 1 / low))


def test_cells_are_pooled_by_counts() -> None:
    one = toy_cell(counted("vt", [(3, 1.0, {0.5: 0.0}), (1, 1.0, {0.5: 1.0})]), model="a")
    other = toy_cell(counted("vt", [(16, 1.0, {0.5: 1.0})]), model="b")
    (found,) = harms([one, other])
    assert (found.n, found.plain.value, found.plain.method) == (20, 3 / 20, "wilson")


def test_repeats_of_a_document_are_drawn_whole() -> None:
    toys = counted("vt", [(20, 1.0, {0.5: 0.0}), (20, 1.0, {0.5: 1.0})])
    twice = [dataclasses.replace(toy, doc_id=toy.doc_id // 2) for toy in toys]
    (found,) = harms([toy_cell(twice)])
    assert found.plain == share(10, 20)
    assert (found.plain.value, found.plain.method, found.n) == (0.5, "wilson", 40)
    assert found.plain.high - found.plain.low == pytest.approx(0.44, abs=0.05)
