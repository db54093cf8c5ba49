"""What the gate of a cell comes to at every τ on D (paper, Figure 6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.outcomes import Outcomes
from page_bench.analysis.pools import inputs, rate
from page_bench.analysis.tau_sweep import Sweep, around, grid, sweep

POINTS = 40
"""τ of a sweep."""


def compares_drop(cell: Cell) -> bool:
    """Whether the gate opens exactly where D ≥ τ, so that another τ says what else it could do."""
    rows = cell.evicted
    if cell.tau is None or not rows["drop"].notna().any():
        return False
    return bool(((rows["drop"] >= cell.tau) == rows["open"]).all())


def sweep_cell(
    cell: Cell,
    is_capacity_bound: Callable[[str], bool],
    draws: int = DRAWS,
    seed: int = SEED,
) -> Sweep:
    """Let the gate of a cell decide at every τ, over all budgets below 1.

    Args:
        cell: one of `compares_drop`.
        is_capacity_bound: whether a task is to stay closed.
        draws, seed: of the bootstrap over documents.

    Returns:
        A sweep of `POINTS` τ at most, evenly thinned. D opens an input at all budgets or at none,
        so that the rates of opening are shares of inputs with Wilson's interval, which has a width
        at 0 and 1 as well.
    """
    assert cell.tau is not None
    values = cell.evicted["drop"].to_numpy(dtype=np.float64)
    found = sweep(
        Outcomes.of_cell(cell),
        values,
        cell.tau,
        taus=grid(values, POINTS - 1),
        draws=draws,
        seed=seed,
    )
    frame = inputs(cell)
    drops = frame["drop"].to_numpy(dtype=np.float64)
    bound = np.array([is_capacity_bound(task) for task in frame["task"]], dtype=bool)
    everything = np.ones(len(frame), dtype=bool)

    def among(flags: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> Estimate:
        return rate(flags[chosen], list(frame["unit"][chosen]), draws, seed)

    points = []
    for point in found.points:
        opened = drops >= point.tau
        points.append(
            dataclasses.replace(
                point,
                open=among(opened, everything),
                capacity_open=among(opened, bound),
                others_closed=among(~opened, ~bound),
            )
        )
    return dataclasses.replace(found, points=tuple(points), around=around(points, cell.tau))
