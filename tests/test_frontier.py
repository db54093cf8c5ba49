"""Curves over achieved kept-KV against hand-made ones and the paper's published points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap
from toy_cells import Toy, counted, toy_cell

from page_bench.analysis.cells import Cell
from page_bench.analysis.curves import interpolate, overtaking
from page_bench.analysis.frontier import frontier
from page_bench.analysis.resampling import Resampling

FEW = Resampling(500)


def line(*points: tuple[float, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.array(points).T
    return x[None], y[None]


def test_interpolation_by_hand() -> None:
    x, y = line((1.0, 0.9), (0.25, 0.3), (0.5, 0.5))
    found = interpolate(x, y, np.array([[0.25, 0.375, 0.5, 0.75, 1.0, 0.2, 1.1]]))[0]
    assert found[:5] == pytest.approx([0.3, 0.4, 0.5, 0.7, 0.9])
    assert np.isnan(found[5:]).all()


def test_points_at_the_same_kept_kv_are_one() -> None:
    x, y = line((0.01, 0.2), (0.01, 0.4), (1.0, 0.8))
    assert interpolate(x, y, np.array([[0.01, 0.505]]))[0] == pytest.approx([0.3, 0.55])
    flipped = interpolate(x[:, ::-1], y[:, ::-1], np.array([[0.01, 0.505]]))[0]
    assert flipped == pytest.approx([0.3, 0.55])


def test_interpolation_is_numpy_s_on_many_lines() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.random((50, 6)), generator.random((50, 6))
    at = generator.random((50, 9))
    found = interpolate(x, y, at)
    for own_x, own_y, own_at, own in zip(x, y, at, found, strict=True):
        order = np.argsort(own_x)
        expected = np.interp(own_at, own_x[order], own_y[order], left=np.nan, right=np.nan)
        assert own == pytest.approx(expected, nan_ok=True)


def test_overtaking_by_hand() -> None:
    rival = line((0.0, 0.0), (1.0, 1.0))
    # From 0.2 at 0.5 up to 1 at 0.9: y = 0.2 + 2 (x − 0.5) meets y = x at 0.8.
    late = line((0.5, 0.2), (0.9, 1.0), (1.0, 1.0))
    assert overtaking(*late, *rival) == pytest.approx([0.8])
    above = line((0.5, 0.7), (1.0, 1.0))
    assert overtaking(*above, *rival) == pytest.approx([0.5])
    below = line((0.5, 0.2), (1.0, 1.0))
    assert math.isnan(overtaking(*below, *rival)[0])
    assert math.isnan(overtaking(*rival, *rival)[0])
    # Equal up to 0.6, above from there.
    fork = line((0.5, 0.5), (0.6, 0.6), (0.8, 0.9), (1.0, 1.0))
    assert overtaking(*fork, *rival) == pytest.approx([0.6])


def test_overtaking_is_where_a_fine_grid_finds_it() -> None:
    generator = np.random.default_rng(3)
    met = 0
    for _ in range(60):
        x, other_x = (np.sort(np.append(generator.random(4), 1.0))[None] for _ in range(2))
        y, other_y = (np.append(generator.random(4), 0.9)[None] for _ in range(2))
        grid = np.linspace(max(x.min(), other_x.min()), 1, 200_001)
        lead = np.interp(grid, x[0], y[0]) - np.interp(grid, other_x[0], other_y[0])
        found = overtaking(x, y, other_x, other_y)[0]
        if (lead > 1e-6).any():
            met += 1
            assert found == pytest.approx(grid[np.argmax(lead > 1e-6)], abs=1e-3)
        else:
            assert math.isnan(found)
    assert met > 30


def hand_made() -> Cell:
    """Four inputs, one of them closed: kept 0.25 becomes 0.4375, kept 0.5 becomes 0.625."""
    return toy_cell(
        [
            Toy("mk3", 0, 1.0, {0.25: 0.0, 0.5: 0.0}, open=False),
            Toy("vt", 0, 1.0, {0.25: 0.0, 0.5: 1.0}),
            Toy("vt", 1, 1.0, {0.25: 0.0, 0.5: 1.0}),
            Toy("vt", 2, 1.0, {0.25: 1.0, 0.5: 1.0}),
        ]
    )


def test_matched_memory_by_hand() -> None:
    """Plain 0.25, 0.75 and 1 at 0.25, 0.5 and 1; gated 0.5, 1 and 1 at 0.4375, 0.625 and 1."""
    found = frontier(hand_made(), FEW, kept=(0.5, 0.3))
    quarter, half = found.points
    assert (quarter.plain.value, quarter.gated.value) == (0.25, 0.5)
    assert (quarter.gated_kept.value, half.gated_kept.value) == (0.4375, 0.625)
    assert (found.full.value, found.full_kept.value, found.full.n) == (1, 1, 4)
    first, second = found.gated_against_plain
    # Plain at 0.4375: 0.25 + 0.5·0.1875/0.25; at 0.625: 0.75 + 0.25·0.125/0.5.
    assert (first.plain.value, first.advantage.value) == pytest.approx((0.625, -0.125))
    assert (second.plain.value, second.advantage.value) == pytest.approx((0.8125, 0.1875))
    low, high = found.plain_against_gated
    # The gate never keeps as little as 0.25; at 0.5 it has 0.5 + 0.5·0.0625/0.1875.
    assert math.isnan(low.gated.value)
    assert math.isnan(low.advantage.value)
    assert (high.gated.value, high.advantage.value) == pytest.approx((2 / 3, 2 / 3 - 0.75))
    both, beyond = found.at_kept
    assert (both.kept.value, both.advantage.value) == (0.5, high.advantage.value)
    assert math.isnan(beyond.advantage.value)
    # Lead −1/12 at 0.5 and 3/16 at 0.625, straight between.
    crossing = 0.5 + 0.125 * (1 / 12) / (1 / 12 + 3 / 16)
    assert found.crossover.value == pytest.approx(crossing)
    assert found.crossover.n == 4


def test_a_gate_that_always_opens_never_overtakes() -> None:
    toys = [dataclasses.replace(toy, open=True) for toy in hand_opened()]
    found = frontier(toy_cell(toys), FEW)
    assert math.isnan(found.crossover.value)
    assert math.isnan(found.crossover.low)
    assert found.overtakes == 0
    assert [matched.advantage.value for matched in found.gated_against_plain] == [0, 0]


def hand_opened() -> list[Toy]:
    return counted("vt", [(3, 1.0, {0.25: 0.0, 0.5: 1.0}), (2, 1.0, {0.25: 1.0, 0.5: 1.0})])


PLAIN_15B = {
    "mk3": (0, 0, 2, 7, 14, 27, 36, 47, 65),
    "vt": (3, 75, 82, 81, 80, 79, 81, 80, 82),
    "fwe": (11, 12, 18, 20, 21, 23, 23, 22, 22),
    "qa_1": (60, 67, 71, 74, 73, 70, 72, 71, 74),
}
PLAIN_14B = {
    "mk3": (0, 0, 0, 11, 30, 37, 44, 49, 50),
    "vt": (1, 39, 48, 50, 50, 50, 50, 50, 50),
    "fwe": (7, 30, 33, 41, 42, 42, 43, 45, 46),
    "qa_1": (42, 43, 44, 44, 42, 43, 43, 42, 42),
}
PLAIN_H2O = {
    "mk3": (0, 0, 1, 65),
    "vt": (4, 41, 66, 82),
    "fwe": (12, 20, 23, 22),
    "qa_1": (15, 24, 29, 74),
}
GRID = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)


def published(right: Mapping[str, tuple[int, ...]], n: int, budgets: tuple[float, ...]) -> Cell:
    """A cell with so many right plain answers by budget, the last with the full cache.

    As in the paper's runs of these models, the gate closes on every MK3 input and on no other.
    """
    toys = []
    for task, counts in right.items():
        for i in range(n):
            plain = {b: float(i < count) for b, count in zip(budgets, counts[:-1], strict=True)}
            toys.append(Toy(task, i, float(i < counts[-1]), plain, open=task != "mk3"))
    return toy_cell(toys)


@pytest.mark.parametrize(
    ("right", "n", "advantages", "kept_035", "kept_050", "crossover"),
    [
        (PLAIN_15B, 100, (-0.093, 0.098, 0.127, 0.100, 0.031), 0.100, 0.127, 0.320),
        (PLAIN_14B, 50, (-0.164, 0.106, 0.100, 0.060, 0.003), 0.105, 0.088, 0.325),
    ],
    ids=["Qwen2.5-1.5B", "Qwen2.5-14B"],
)
def test_published_advantages_follow_from_published_curves(
    right: Mapping[str, tuple[int, ...]],
    n: int,
    advantages: tuple[float, ...],
    kept_035: float,
    kept_050: float,
    crossover: float,
) -> None:
    """SnapKV at 4K, mixed suite: matched-memory values of the paper's released reports."""
    found = frontier(published(right, n, GRID), FEW, kept=(0.35, 0.5))
    by_budget = {one.budget: one.advantage.value for one in found.gated_against_plain}
    mine = [by_budget[budget] for budget in (0.0625, 0.125, 0.25, 0.5, 0.875)]
    assert mine == pytest.approx(advantages, abs=6e-4)
    assert found.points[0].gated_kept.value == pytest.approx(0.297, abs=5e-4)
    at = [one.advantage.value for one in found.at_kept]
    assert at == pytest.approx((kept_035, kept_050), abs=6e-4)
    assert found.crossover.value == pytest.approx(crossover, abs=5e-4)


def test_published_crossover_of_h2o_follows_from_its_curve() -> None:
    """Qwen2.5-1.5B at 4K, three budgets."""
    cell = published(PLAIN_H2O, 100, (0.125, 0.25, 0.5))
    found = frontier(cell, FEW, kept=(0.35, 0.5))
    assert [one.advantage.value for one in found.at_kept] == pytest.approx((0.003, 0.105), abs=6e-4)
    assert found.crossover.value == pytest.approx(0.348, abs=5e-4)


def test_intervals_of_advantages_are_those_of_scipy() -> None:
    """Whole inputs redrawn, both curves rebuilt, and compared at the gated kept-KV."""
    generator = np.random.default_rng(6)
    full = (generator.random(60) < 0.9).astype(float)
    low, half = ((generator.random(60) < p).astype(float) for p in (0.3, 0.6))
    opened = generator.random(60) < 0.7
    toys = [
        Toy("vt", i, full[i], {0.25: low[i], 0.5: half[i]}, open=bool(opened[i])) for i in range(60)
    ]
    found = frontier(toy_cell(toys), Resampling(8_000))

    def advantage(drawn: NDArray[np.intp]) -> float:
        gate = opened[drawn]
        gated = np.where(gate, low[drawn], full[drawn]).mean()
        kept = np.where(gate, 0.25, 1.0).mean()
        plain = [low[drawn].mean(), half[drawn].mean(), full[drawn].mean()]
        return float(gated - np.interp(kept, [0.25, 0.5, 1.0], plain))

    theirs = bootstrap(
        (np.arange(60),),
        advantage,
        vectorized=False,
        n_resamples=8_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    mine = found.gated_against_plain[0].advantage
    assert mine.value == pytest.approx(advantage(np.arange(60)))
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_how_often_the_gate_overtakes_is_counted_over_the_draws() -> None:
    closed = [
        Toy("vt", i, float(i < 3), {0.25: float(i >= 3), 0.5: float(i >= 3)}, open=False)
        for i in range(5)
    ]
    opened = [Toy("vt", 5 + i, 1.0, {0.25: 0.0, 0.5: 1.0}) for i in range(3)]
    assert 0 < frontier(toy_cell([*closed, *opened]), FEW).overtakes < 1
