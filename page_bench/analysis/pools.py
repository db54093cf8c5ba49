"""Cells put together: which of them show the same, and shares and means over their inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import Kind
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate
from page_bench.analysis.pairs import DROP_TOLERANCE

if TYPE_CHECKING:
    import pandas as pd

Unit = tuple[str, str, int | None, str, int]
"""Model, suite, seed, task and document: what is drawn as a whole."""


def arms(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each model, suite, evictor and seed, since plain and full know no gate."""
    first: dict[Hashable, Cell] = {}
    for cell in cells:
        first.setdefault((cell.model, cell.suite, cell.evictor, cell.seed), cell)
    return list(first.values())


def prefills(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells whose inputs have the same D: those of one model, suite and seed.

    Cells of one prefill stand together whatever their evictor and gate; those that were given
    other inputs or read them otherwise, such as with another top-k, stand apart.
    """
    together: list[tuple[Cell, pd.DataFrame, list[Cell]]] = []
    for cell in cells:
        read = inputs(cell)
        for first, known, own in together:
            place = first.model, first.suite, first.seed
            if place == (cell.model, cell.suite, cell.seed) and _same_drop(known, read):
                own.append(cell)
                break
        else:
            together.append((cell, read, [cell]))
    return [own for *_, own in together]


def inputs(cell: Cell) -> pd.DataFrame:
    """What the evicted answers of each input come to.

    Returns:
        One row per input with a budget below 1, ordered by `input`, columns: `input`, `task`,
        `doc_id`, `unit` (see `Unit`), `drop`; `budgets` int, how many below 1; `full`, and
        `best`, `best_gated` and `lowest`: the largest plain and gated value below 1, and the plain
        one at the smallest budget; `open` float, the share of these budgets at which the gate
        opens.
    """
    import pandas as pd

    rows = cell.evicted.sort_values(["input", "budget"], kind="stable")
    grouped = rows.groupby("input", sort=True)
    frame = pd.DataFrame(
        {
            "task": grouped["task"].first(),
            "doc_id": grouped["doc_id"].first(),
            "drop": grouped["drop"].first(),
            "budgets": grouped["budget"].nunique(),
            "full": grouped["full"].first(),
            "best": grouped["plain"].max(),
            "best_gated": grouped["gated"].max(),
            "lowest": grouped["plain"].first(),
            "open": grouped["open"].mean(),
        }
    ).reset_index()
    return frame.assign(unit=units(cell, frame))


def units(cell: Cell, rows: pd.DataFrame) -> list[Unit]:
    """What each row belongs to; a document's repeats and budgets belong together."""
    return [
        (cell.model, cell.suite, cell.seed, str(task), int(doc_id))
        for task, doc_id in zip(rows["task"], rows["doc_id"], strict=True)
    ]


def is_binary(values: NDArray[np.float64]) -> bool:
    """Whether all values are 0 or 1, so that they are right or wrong."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def rate(
    flags: Sequence[bool] | NDArray[np.bool_],
    clusters: Sequence[Hashable],
    draws: int = DRAWS,
    seed: int = SEED,
) -> Estimate:
    """Share of rows that are set.

    Args:
        flags: `[n]`.
        clusters: `[n]`, what each row belongs to.
        draws, seed: of the bootstrap, where rows of a cluster are not alike.

    Returns:
        An estimate whose n is the number of clusters.
    """
    set_ = np.asarray(flags, dtype=bool)
    return ClusterBootstrap(clusters, draws, seed).ratios(set_[:, None], np.ones(len(set_)))[0]


def means(
    values: NDArray[np.float64],
    clusters: Sequence[Hashable],
    draws: int = DRAWS,
    seed: int = SEED,
    kind: Kind = "free",
) -> list[Estimate]:
    """Means of the values that are numbers, one for each column.

    Args:
        values: `[n, k]`.
        clusters: `[n]`, what each row belongs to.
        draws, seed: of the bootstrap.
        kind: of the values.

    Returns:
        Estimates whose n is the number of clusters.
    """
    boot = ClusterBootstrap(clusters, draws, seed)
    return boot.means(values, kind, ~np.isnan(values))


def mean(
    values: Sequence[float] | NDArray[np.float64],
    clusters: Sequence[Hashable],
    draws: int = DRAWS,
    seed: int = SEED,
    kind: Kind = "free",
) -> Estimate:
    """The same for one column `[n]`."""
    given = np.asarray(values, dtype=np.float64)
    return means(given[:, None], clusters, draws, seed, kind)[0]


def _same_drop(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two cells hold the same inputs with the same D."""
    return one[["task", "doc_id"]].equals(other[["task", "doc_id"]]) and bool(
        np.allclose(one["drop"], other["drop"], rtol=0, atol=DROP_TOLERANCE, equal_nan=True)
    )
