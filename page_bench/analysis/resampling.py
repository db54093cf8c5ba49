"""How the inputs of cells are resampled, and means over parts of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Resampling:
    """A cluster bootstrap over inputs; budgets and repeats of a document are drawn with it.

    Attributes:
        draws, seed: of the bootstrap.
    """

    draws: int = DRAWS
    seed: int = SEED

    def of(self, rows: pd.DataFrame) -> ClusterBootstrap:
        """Resamples of one cell's rows, drawn by (task, doc_id)."""
        return ClusterBootstrap(_inputs(rows), self.draws, self.seed)

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
        return rows, ClusterBootstrap(inputs, self.draws, self.seed)


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


def blocks(found: Sequence[Estimate], count: int) -> list[list[Estimate]]:
    """Equal parts of a list, in order."""
    size = len(found) // count
    return [list(found[start : start + size]) for start in range(0, count * size, size)]


def _inputs(rows: pd.DataFrame) -> list[int]:
    """A number for each row's (task, doc_id)."""
    return list(rows.groupby(["task", "doc_id"]).ngroup().tolist())
