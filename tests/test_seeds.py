"""Seed replicates against the paper's Table 30, and partial runs."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from scipy.stats import ttest_1samp
from toy_cells import counted, toy_cell

from page_bench.analysis.cells import Cell
from page_bench.analysis.seeds import check, replicates, spread
from page_bench.inputs.errors import UsageError

TABLE_30 = [
    ((0.113, 0.099, 0.122), (0.111, 0.011, 0.022)),
    ((0.255, 0.267, 0.275), (0.266, 0.010, 0.019)),
    ((0.133, 0.140, 0.142), (0.138, 0.005, 0.010)),
    ((0.187, 0.194, 0.183), (0.188, 0.006, 0.011)),
    ((0.078, 0.071, 0.078), (0.076, 0.004, 0.007)),
    ((0.454, 0.398, 0.486), (0.446, 0.045, 0.089)),
    ((0.738, 0.747, 0.729), (0.738, 0.009, 0.019)),
    ((0.530, 0.559, 0.568), (0.552, 0.020, 0.037)),
    ((0.709, 0.710, 0.669), (0.696, 0.023, 0.041)),
    ((0.310, 0.282, 0.311), (0.301, 0.016, 0.029)),
]


@pytest.mark.parametrize(("seeds", "published"), TABLE_30)
def test_table_30_s_mean_and_spread(
    seeds: tuple[float, float, float], published: tuple[float, float, float]
) -> None:
    """All rows; the seeds are printed with three digits, the range of unrounded ones."""
    found = spread(seeds)
    assert (found.mean.value, found.sd, found.range) == pytest.approx(published, abs=1.1e-3)
    assert found.sd == pytest.approx(statistics.stdev(seeds))
    assert found.mean.n == 3
    theirs = ttest_1samp(seeds, 0).confidence_interval(0.95)
    assert (found.mean.low, found.mean.high) == pytest.approx((theirs.low, theirs.high))


def test_one_seed_has_no_spread() -> None:
    found = spread([0.25])
    assert (found.mean.value, found.range) == (0.25, 0)
    assert math.isnan(found.sd)
    assert math.isnan(found.mean.low)


def seeded(seed: int | None, n: int = 20, budgets: tuple[float, ...] = (0.25, 0.5)) -> Cell:
    toys = counted("mk3", [(n, 1.0, dict.fromkeys(budgets, 0.0))])
    toys += counted("vt", [(20, 1.0, dict.fromkeys(budgets, 1.0))])
    return toy_cell(toys, seed=seed)


def test_replicates_differ_in_the_seed_alone() -> None:
    third, first, no_seed = seeded(3), seeded(1), seeded(None)
    other = dataclasses.replace(seeded(2), evictor="h2o")
    alone = dataclasses.replace(seeded(1), model="alone")
    (own,) = replicates([third, no_seed, other, first, alone])
    assert [cell.seed for cell in own] == [1, 3]
    check(own)


def test_a_partial_seed_is_refused() -> None:
    """A run that was cut off once made a standard deviation of 0.246 out of 0.01."""
    with pytest.raises(UsageError, match=r"seed 2 has 12 inputs of mk3 .* another seed has 20"):
        check([seeded(1), seeded(2, n=12)])
    check([seeded(1), seeded(2, n=18)])


def test_answers_missing_at_one_budget_make_a_seed_partial() -> None:
    cell = seeded(2)
    rows = cell.rows[~((cell.rows["budget"] == 0.5) & (cell.rows["doc_id"] >= 5))]
    with pytest.raises(UsageError, match="5 inputs of mk3 at all budgets"):
        check([seeded(1), dataclasses.replace(cell, rows=rows)])


def test_seeds_are_compared_over_the_same_budgets() -> None:
    with pytest.raises(UsageError, match=r"budgets 0\.5 and seed 1 0\.25, 0\.5"):
        check([seeded(1), seeded(2, budgets=(0.5,))])
