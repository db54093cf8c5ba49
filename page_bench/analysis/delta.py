"""What a gate gains over plain eviction at matched nominal budget (paper, Tables 2, 12 and 28)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.resampling import Resampling, columns, masks, of_tasks

Q = 0.05
"""Share of false discoveries that Benjamini and Hochberg's procedure allows, the paper's."""

_ZERO = 1e-12


@dataclass(frozen=True)
class Delta:
    """Mean gated − mean plain over budgets below 1, of a task or a whole cell.

    Attributes:
        task: its name; None for the cell.
        budgets: over which it is taken.
        delta: its n is the number of inputs.
        p: two-sided, of no difference, see `estimates.p_of_no_difference`.
        open: share of inputs for which the gate opens.
        all_open: whether it opens on every row, so that gated and plain are the same answers.
    """

    task: str | None
    budgets: tuple[float, ...]
    delta: Estimate
    p: float
    open: Estimate
    all_open: bool

    @property
    def is_zero(self) -> bool:
        """Whether it is exactly 0."""
        return abs(self.delta.value) < _ZERO


@dataclass(frozen=True)
class Parts:
    """Δ of a cell, and where it comes from.

    Attributes:
        every: over all tasks.
        others: without the capacity-bound tasks; None where there is nothing else.
        tasks: task by task.
    """

    every: Delta
    others: Delta | None
    tasks: tuple[Delta, ...]


@dataclass(frozen=True)
class Grand:
    """Mean Δ of some cells, each counting once.

    Attributes:
        delta: its n is the number of distinct inputs; the interval is for these cells, with
            inputs drawn for all of them alike.
        cells: how many.
        positive, zero: in how many Δ is above 0, and exactly 0.
    """

    delta: Estimate
    cells: int
    positive: int
    zero: int


def parts_of(
    cell: Cell, is_capacity: Callable[[str], bool], resampling: Resampling | None = None
) -> Parts:
    """Δ of a cell with rows below budget 1.

    Args:
        cell: one evictor and gate.
        is_capacity: whether a task is capacity-bound.
        resampling: of its inputs.
    """
    rows = cell.evicted
    boot = (resampling or Resampling()).of(rows)
    task = rows["task"].to_numpy()
    capacity = of_tasks(rows, is_capacity)
    own_tasks = cell.tasks
    among = masks([np.ones(len(rows)), ~capacity, *(task == name for name in own_tasks)])
    difference = (rows["gated"] - rows["plain"]).to_numpy()
    opened = rows["open"].to_numpy(dtype=bool)
    differences, opens = (columns([own] * among.shape[1]) for own in (difference, opened))
    deltas = boot.means(differences, "change", among)
    rates = boot.means(opens, "share", among)
    p_values = boot.p_values(differences, among)
    names = [None, None, *own_tasks]
    found = [
        Delta(
            task=name,
            budgets=tuple(np.unique(rows["budget"].to_numpy()[part]).tolist()),
            delta=estimate,
            p=p,
            open=rate,
            all_open=bool(opened[part].all()),
        )
        for name, estimate, p, rate, part in zip(
            names, deltas, p_values, rates, among.T, strict=True
        )
        if part.any()
    ]
    others = None if capacity.all() else found.pop(1)
    return Parts(found[0], others, tuple(found[1:]))


def grand(cells: Sequence[Cell], resampling: Resampling | None = None) -> Grand:
    """Mean Δ of at least one cell, each with rows below budget 1."""
    rows, boot = (resampling or Resampling()).over(cells)
    difference = (rows["gated"] - rows["plain"]).to_numpy()
    among = masks([rows["cell"] == number for number in range(len(cells))])
    draws = boot.parts(columns([difference] * len(cells)), among, "change")
    mean = draws if len(cells) == 1 else draws.map(lambda deltas: deltas.mean(1, keepdims=True))
    (estimate,) = mean.estimates()
    zero = int((np.abs(draws.value) < _ZERO).sum())
    return Grand(
        delta=dataclasses.replace(estimate, n=boot.n),
        cells=len(cells),
        positive=int((draws.value >= _ZERO).sum()),
        zero=zero,
    )


def without(cell: Cell, is_left_out: Callable[[str], bool]) -> Cell | None:
    """A cell without the rows of some tasks; None where nothing below budget 1 is left."""
    kept = cell.rows[~of_tasks(cell.rows, is_left_out)]
    rest = dataclasses.replace(cell, rows=kept, agreement=None)
    return rest if (rest.rows["budget"] < 1).any() else None


def survivors(p_values: Sequence[float], q: float = Q) -> list[bool]:
    """Which differences remain when false discoveries are held to a share q (Benjamini-Hochberg).

    Args:
        p_values: one for each of the differences that are looked at together.
        q: the share.
    """
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return []
    return [bool(kept) for kept in multipletests(p_values, alpha=q, method="fdr_bh")[0]]
