"""How much Δ moves between draws of the inputs (paper, Table 30)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import (
    FEW,
    FLAT,
    LEVEL,
    SAME,
    STUDENT,
    Estimate,
    without_interval,
)
from page_bench.inputs.errors import UsageError

LEAST_SHARE = 0.9
"""Of a task's inputs under the fullest seed, how many another seed must have."""


@dataclass(frozen=True)
class Spread:
    """A number under several seeds.

    Attributes:
        values: one per seed.
        mean: with Student's interval for the mean over seeds, none where they agree or there is
            one only; its n is the number of seeds.
        sd: sample standard deviation; NaN of one value.
        range: largest − smallest.
    """

    values: tuple[float, ...]
    mean: Estimate
    sd: float
    range: float


def spread(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and range of at least one number."""
    from scipy.stats import t

    given = np.asarray(values, dtype=np.float64)
    n, mean = len(given), float(given.mean())
    sd = float(given.std(ddof=1)) if n > 1 else float("nan")
    if n < 2 or sd <= SAME:
        over_seeds = without_interval(mean, n, FEW if n < 2 else FLAT)
    else:
        half = float(t.ppf((1 + LEVEL) / 2, n - 1) * sd / np.sqrt(n))
        over_seeds = Estimate(mean, mean - half, mean + half, n, STUDENT)
    return Spread(
        values=tuple(given.tolist()),
        mean=over_seeds,
        sd=sd,
        range=float(given.max() - given.min()),
    )


def replicates(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that differ in nothing but their seed, two or more, each list ordered by seed."""
    alike: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        if cell.seed is not None:
            key = cell.model, cell.suite, cell.evictor, cell.gate, cell.metric
            alike.setdefault(key, []).append(cell)
    return [sorted(own, key=lambda cell: cell.seed or 0) for own in alike.values() if len(own) > 1]


def check(cells: Sequence[Cell]) -> None:
    """Refuse replicates that are not of the same inputs' number, tasks and budgets.

    A file that was cut off spreads Δ by what is missing, not by the draw.

    Raises:
        UsageError: a seed has other budgets, or fewer than `LEAST_SHARE` of a task's inputs.
    """
    budgets = [sorted(cell.evicted["budget"].unique().tolist()) for cell in cells]
    for cell, own in zip(cells, budgets, strict=True):
        if own != budgets[0]:
            raise UsageError(
                f"{cell.label} has the budgets {_list(own)} and seed {cells[0].seed} "
                f"{_list(budgets[0])}; compare seeds over the same budgets."
            )
    for task in sorted({task for cell in cells for task in cell.tasks}):
        counts = [_inputs(cell, task) for cell in cells]
        for cell, count in zip(cells, counts, strict=True):
            if count < LEAST_SHARE * max(counts):
                raise UsageError(
                    f"{cell.label} has {count} inputs of {task} at all budgets where another seed "
                    f"has {max(counts)}; complete its run or leave it out."
                )


def _inputs(cell: Cell, task: str) -> int:
    """Inputs of a task that were answered at every budget."""
    rows = cell.evicted
    sizes = rows[rows["task"] == task].groupby("input")["budget"].nunique()
    return int((sizes == rows["budget"].nunique()).sum())


def _list(budgets: Sequence[float]) -> str:
    return ", ".join(f"{budget:g}" for budget in budgets)
