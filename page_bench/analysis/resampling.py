"""How the inputs of cells are resampled, and means over parts of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate, share

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Resampling:
    """A cluster bootstrap over inputs; budgets and repeats of a document are drawn with it.

    Attributes:
        draws, seed: of the bootstrap.
        stratified: whether each task keeps its number of inputs; the paper's draws (Table 28) let
            it vary.
    """

    draws: int = DRAWS
    seed: int = SEED
    stratified: bool = True

    def of(self, rows: pd.DataFrame) -> ClusterBootstrap:
        """Resamples of one cell's rows, drawn by (task, doc_id)."""
        return self._bootstrap(_inputs(rows), rows["task"].tolist())

    def over(self, cells: Sequence[Cell]) -> tuple[pd.DataFrame, ClusterBootstrap]:
        """Resamples that draw an input for all cells alike that were asked it.

        Cells of one suite and seed share their inputs, so that what they have in common does not
        average out between them.

        Returns:
            The rows below budget 1 of all cells, with the cell's number as `cell`, and their
            resamples.
        """
        import pandas as pd

        draws_of: dict[Hashable, int] = {}
        frames = []
        for number, cell in enumerate(cells):
            draw = draws_of.setdefault((cell.suite, cell.seed), len(draws_of))
            frames.append(cell.evicted.assign(cell=number, draw=draw))
        rows = pd.concat(frames, ignore_index=True)
        inputs = rows.groupby(["draw", "task", "doc_id"]).ngroup().tolist()
        strata = rows.groupby(["draw", "task"]).ngroup().tolist()
        return rows, self._bootstrap(inputs, strata)

    def _bootstrap(
        self, inputs: Sequence[Hashable], strata: Sequence[Hashable]
    ) -> ClusterBootstrap:
        own = strata if self.stratified else [0] * len(inputs)
        return ClusterBootstrap(inputs, self.draws, self.seed, own)


def columns(parts: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Arrays `[n]` side by side: `[n, k]`."""
    return np.column_stack([np.asarray(part, dtype=np.float64) for part in parts])


def masks(parts: Sequence[ArrayLike]) -> NDArray[np.bool_]:
    """The same for flags."""
    return np.column_stack([np.asarray(part, dtype=bool) for part in parts])


def of_tasks(rows: pd.DataFrame, is_one: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Which rows are of tasks of a kind: `[n]`."""
    kinds = {task: is_one(str(task)) for task in rows["task"].unique()}
    return rows["task"].map(kinds).to_numpy(dtype=bool)


def means(
    rows: pd.DataFrame,
    boot: ClusterBootstrap,
    values: ArrayLike,
    among: ArrayLike,
    differences: int = 0,
) -> list[Estimate]:
    """Means of parts of the rows; those of zeros and ones of distinct inputs are shares.

    Args:
        rows: of one cell.
        boot: their resamples.
        values: `[n, k]`.
        among: bool `[n, k]`, the part of each column.
        differences: how many columns at the end are no shares, since they can be below 0 even
            where none is.

    Returns:
        k estimates; those of shares have Wilson intervals. NaN where a part is empty.
    """
    given, inside = np.asarray(values, dtype=np.float64), np.asarray(among, dtype=bool)
    inputs = np.array(_inputs(rows), dtype=np.intp)
    shares: dict[int, Estimate] = {}
    for i in range(given.shape[1] - differences):
        part = inside[:, i]
        own = given[part, i]
        if np.isin(own, (0.0, 1.0)).all() and len(np.unique(inputs[part])) == len(own):
            shares[i] = share(int(own.sum()), len(own))
    return _with_shares(boot, given, inside, shares)


def open_rates(rows: pd.DataFrame, boot: ClusterBootstrap, among: ArrayLike) -> list[Estimate]:
    """Share of inputs for which the gate opens.

    Args:
        rows: of one cell, below budget 1.
        boot: their resamples.
        among: bool `[n, k]`, the part of each column.

    Returns:
        k estimates. Where the gate decides alike at all budgets of an input, these are shares of
        inputs with Wilson intervals; else means of the share of budgets.
    """
    inside = np.asarray(among, dtype=bool)
    opened = rows["open"].to_numpy(dtype=np.float64)
    inputs = np.array(_inputs(rows), dtype=np.intp)
    shares: dict[int, Estimate] = {}
    for i, part in enumerate(inside.T):
        _, number, sizes = np.unique(inputs[part], return_inverse=True, return_counts=True)
        own = np.bincount(number, opened[part], minlength=len(sizes)) / sizes
        if np.isin(own, (0.0, 1.0)).all():
            shares[i] = share(int(own.sum()), len(own))
    return _with_shares(boot, np.repeat(opened[:, None], inside.shape[1], axis=1), inside, shares)


def blocks(found: Sequence[Estimate], count: int) -> list[list[Estimate]]:
    """Equal parts of a list, in order."""
    size = len(found) // count
    return [list(found[start : start + size]) for start in range(0, count * size, size)]


def _with_shares(
    boot: ClusterBootstrap,
    values: NDArray[np.float64],
    among: NDArray[np.bool_],
    shares: dict[int, Estimate],
) -> list[Estimate]:
    """The shares, and bootstrapped means of the other columns."""
    others = [i for i in range(values.shape[1]) if i not in shares]
    drawn = boot.parts(values[:, others], among[:, others]).estimates() if others else []
    found = shares | dict(zip(others, drawn, strict=True))
    return [found[i] for i in range(values.shape[1])]


def _inputs(rows: pd.DataFrame) -> list[int]:
    """A number for each row's (task, doc_id)."""
    return list(rows.groupby(["task", "doc_id"]).ngroup().tolist())
