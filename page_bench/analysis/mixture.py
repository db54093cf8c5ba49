"""Δ against the capacity-bound share of the traffic (paper, Figure 7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.resampling import Resampling, columns, masks, of_tasks

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Mixture:
    """A straight line: Δ(f) = f·Δ of the capacity-bound inputs + (1 − f)·Δ of the others.

    Attributes:
        shares: f.
        deltas: Δ at each; n is the number of distinct inputs.
        slope: Δ of the capacity-bound inputs − Δ of the others.
        share: of the inputs, how many are capacity-bound as they were run; the mean of the cells.
        cells: of how many it is the mean.
    """

    shares: tuple[float, ...]
    deltas: tuple[Estimate, ...]
    slope: Estimate
    share: float
    cells: int


def can_mix(cell: Cell, is_capacity: Callable[[str], bool]) -> bool:
    """Whether a cell holds evicted inputs of both kinds."""
    return len({is_capacity(str(task)) for task in cell.evicted["task"].unique()}) == 2


def mixture(
    cells: Sequence[Cell],
    is_capacity: Callable[[str], bool],
    resampling: Resampling | None = None,
    shares: Sequence[float] = SHARES,
) -> Mixture:
    """The mean line of some cells, each of which holds both kinds of inputs (see `can_mix`).

    Args:
        cells: at least one; each counts once.
        is_capacity: whether a task is capacity-bound.
        resampling: of the inputs, which are drawn for all cells alike.
        shares: where to take Δ.
    """
    rows, boot = (resampling or Resampling()).over(cells)
    capacity = of_tasks(rows, is_capacity)
    own = [rows["cell"].to_numpy() == number for number in range(len(cells))]
    among = masks([part & kind for kind in (capacity, ~capacity) for part in own])
    difference = (rows["gated"] - rows["plain"]).to_numpy()
    draws = boot.parts(columns([difference] * among.shape[1]), among, "change")
    inputs = draws.n.reshape(2, -1)
    line = draws.map(lambda deltas: deltas.reshape(len(deltas), 2, -1).mean(2))
    *deltas, slope = line.map(lambda ends: _line(ends, shares)).estimates()
    if len(cells) == 1:
        ends = dict(zip((1.0, 0.0), draws.estimates(), strict=True))
        deltas = [ends.get(f, delta) for f, delta in zip(shares, deltas, strict=True)]
    return Mixture(
        shares=tuple(shares),
        deltas=tuple(dataclasses.replace(delta, n=boot.n) for delta in deltas),
        slope=dataclasses.replace(slope, n=boot.n),
        share=float((inputs[0] / inputs.sum(0)).mean()),
        cells=len(cells),
    )


def _line(ends: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """Δ at each share, and the slope, from Δ of both kinds `[m, 2]`."""
    capacity, others = ends[:, :1], ends[:, 1:]
    given = np.asarray(shares)
    return np.hstack([given * capacity + (1 - given) * others, capacity - others])
