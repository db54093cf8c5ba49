"""Answers that eviction loses at a fixed budget, with and without the gate (paper, Table 27)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import inverse
from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.pools import rate, units

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Harm:
    """A task at one nominal budget below 1.

    Attributes:
        task: its name.
        budget: nominal.
        n: inputs.
        gated, plain: share of inputs that are right with the full cache and wrong under the gate,
            or without one; for a metric that is no 0/1, share that scores less.
        left: of the inputs that eviction harms, the share that the gate lets it harm. Since a
            gated answer is the plain or the full one, this is gated / plain.
    """

    task: str
    budget: float
    n: int
    gated: Estimate
    plain: Estimate
    left: Estimate

    @property
    def factor(self) -> Estimate:
        """plain / gated, how many times rarer the gate makes harm; infinite where it leaves none.

        Its n is the number of inputs that eviction harms; NaN where it harms none.
        """
        return inverse(self.left)


def harms(cells: Sequence[Cell], draws: int = DRAWS, seed: int = SEED) -> list[Harm]:
    """Harm by task and budget, the inputs of all cells taken together.

    Args:
        cells: one, or several of one evictor and gate that share no input.
        draws, seed: of the bootstrap where a document stands there several times.

    Returns:
        By task, then budget, ascending.
    """
    import pandas as pd

    frames = []
    for cell in cells:
        rows = cell.evicted[["task", "doc_id", "budget", "plain", "gated", "full"]]
        frames.append(rows.assign(unit=units(cell, rows)))
    found = []
    for (task, budget), rows in pd.concat(frames).groupby(["task", "budget"], sort=True):
        found.append(_harm(str(task), float(budget), rows, draws, seed))
    return found


def _harm(task: str, budget: float, rows: pd.DataFrame, draws: int, seed: int) -> Harm:
    clusters: list[Hashable] = list(rows["unit"])
    gated = (rows["gated"] < rows["full"]).to_numpy()
    plain = (rows["plain"] < rows["full"]).to_numpy()
    harmed = [cluster for cluster, is_in in zip(clusters, plain, strict=True) if is_in]
    return Harm(
        task=task,
        budget=budget,
        n=len(rows),
        gated=rate(gated, clusters, draws, seed),
        plain=rate(plain, clusters, draws, seed),
        left=rate(gated[plain], harmed, draws, seed),
    )
