"""How much of what a perfect gate could gain a gate does gain (paper, §4.1 and Table 14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import Kind
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.resampling import Resampling, columns, masks, of_tasks

_ZERO = 1e-12


@dataclass(frozen=True)
class Oracle:
    """Two perfect gates over budgets below 1, and what the gate of a cell makes of them.

    The input oracle takes the better of the plain and the full answer of each input and budget.
    The task oracle closes on the capacity-bound tasks and opens on the others.

    Attributes:
        plain, oracle: mean of the metric without gate and under the input oracle; n inputs.
        headroom: oracle − plain.
        delta: gated − plain.
        recovery: delta / headroom, at most 1; NaN where there is no headroom. Inputs with headroom
            carry it.
        from_capacity: share of `delta` that the capacity-bound tasks bring; NaN where `delta` is 0.
        task_delta: task oracle − plain.
        task_gap: gated − task oracle; above 0 only where decisions differ within a task.
        same_decisions: whether the gate decides on every row as the task oracle does.
        by_task: headroom of each task.
    """

    plain: Estimate
    oracle: Estimate
    headroom: Estimate
    delta: Estimate
    recovery: Estimate
    from_capacity: Estimate
    task_delta: Estimate
    task_gap: Estimate
    same_decisions: bool
    by_task: dict[str, Estimate]


def oracle_of(
    cell: Cell, is_capacity: Callable[[str], bool], resampling: Resampling | None = None
) -> Oracle:
    """Both oracles of a cell with rows below budget 1.

    Args:
        cell: one evictor and gate.
        is_capacity: whether a task is capacity-bound.
        resampling: of its inputs.
    """
    rows = cell.evicted
    boot = (resampling or Resampling()).of(rows)
    task = rows["task"].to_numpy()
    capacity = of_tasks(rows, is_capacity)
    gated, plain, full = (rows[name].to_numpy() for name in ("gated", "plain", "full"))
    best = np.maximum(plain, full)
    by_label = np.where(capacity, full, plain)
    gain = gated - plain
    everything = np.ones(len(rows), dtype=bool)
    # Differences are taken input by input, so that what is 0 stays exactly 0.
    means = [plain, best, best - plain, gain, by_label - plain, gated - by_label]
    means += [np.where(capacity, gain, 0.0)]
    kinds: list[Kind] = ["share", "share", "share", "change", "change", "change", "change"]
    among = masks([everything] * len(means) + [task == name for name in cell.tasks])
    headrooms = [best - plain] * len(cell.tasks)
    kinds += ["share"] * len(cell.tasks)
    draws = boot.parts(columns([*means, *headrooms]), among, kinds)
    estimates = draws.estimates()
    carried = [boot.carrying(best - plain), boot.carrying(gain)]
    recovered, from_capacity = draws.map(_ratios, carried).estimates()
    return Oracle(
        plain=estimates[0],
        oracle=estimates[1],
        headroom=estimates[2],
        delta=estimates[3],
        recovery=recovered,
        from_capacity=from_capacity,
        task_delta=estimates[4],
        task_gap=estimates[5],
        same_decisions=bool((rows["open"].to_numpy() == ~capacity).all()),
        by_task=dict(zip(cell.tasks, estimates[len(means) :], strict=True)),
    )


@dataclass(frozen=True)
class Recovery:
    """What some cells recover of their headroom.

    Attributes:
        cells: how many have headroom.
        mean: of their recoveries; its n is the number of distinct inputs.
        of_means: mean Δ / mean headroom, in which cells with more headroom weigh more.
    """

    cells: int
    mean: Estimate
    of_means: Estimate


def recovery(cells: Sequence[Cell], resampling: Resampling | None = None) -> Recovery:
    """Recovery in the mean of at least one cell, each with rows below budget 1."""
    rows, boot = (resampling or Resampling()).over(cells)
    gated, plain, full = (rows[name].to_numpy() for name in ("gated", "plain", "full"))
    own = [rows["cell"].to_numpy() == number for number in range(len(cells))]
    values = [gated - plain] * len(cells) + [np.maximum(plain, full) - plain] * len(cells)
    draws = boot.parts(columns(values), masks([*own, *own]))
    with_headroom = [boot.carrying(np.where(part, values[-1], 0.0)) for part in own]
    # A cell without any takes no part.
    carried = min(filter(None, with_headroom), default=0)

    def recover(means: NDArray[np.float64]) -> NDArray[np.float64]:
        delta, headroom = np.hsplit(means, 2)
        ratios = _ratio(delta, headroom)
        known = ~np.isnan(ratios)
        mean = _ratio(np.where(known, ratios, 0.0).sum(1), known.sum(1).astype(np.float64))
        return np.column_stack([mean, _ratio(delta.sum(1), headroom.sum(1))])

    mean, of_means = (
        dataclasses.replace(estimate, n=boot.n)
        for estimate in draws.map(recover, carried).estimates()
    )
    return Recovery(int((draws.value[len(cells) :] > _ZERO).sum()), mean, of_means)


def _ratios(means: NDArray[np.float64]) -> NDArray[np.float64]:
    headroom, delta, capacity_gain = means[:, 2], means[:, 3], means[:, 6]
    return np.column_stack([_ratio(delta, headroom), _ratio(capacity_gain, delta)])


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN where the whole is 0 up to rounding."""
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=np.abs(whole) > _ZERO)
