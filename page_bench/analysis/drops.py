"""D by task, and how well it tells apart the inputs that eviction harms (paper, Figure 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate
from page_bench.analysis.pools import inputs


@dataclass(frozen=True)
class Separation:
    """D on inputs that are to stay closed, against all others.

    Attributes:
        closed: which inputs are to stay closed.
        n_closed, n_others: inputs of either class, those without D left out.
        auc: probability that D of a closed one lies below D of another; NaN if a class is empty.
    """

    closed: str
    n_closed: int
    n_others: int
    auc: Estimate


def separations(
    cell: Cell,
    is_capacity_bound: Callable[[str], bool],
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[Separation]:
    """AUC of D for capacity-bound tasks and for harmed inputs, each against all others.

    Args:
        cell: one evictor.
        is_capacity_bound: whether a task is to stay closed.
        draws, seed: of the bootstrap over documents.

    Returns:
        By task, by harm at the smallest budget, and by harm at any budget below 1.
    """
    rows = cell.evicted.groupby("input", sort=True)
    frame = inputs(cell)
    worst = rows["plain"].min().to_numpy()
    full = frame["full"].to_numpy()
    smallest = float(cell.evicted["budget"].min()) if len(frame) else float("nan")
    known = ~np.isnan(frame["drop"].to_numpy())
    classes = {
        "capacity-bound tasks": np.array([is_capacity_bound(task) for task in frame["task"]]),
        f"harmed at budget {smallest:g}": frame["lowest"].to_numpy() < full,
        "harmed at some budget": worst < full,
    }
    kept = frame[known]
    boot = ClusterBootstrap(list(kept["unit"]), draws, seed)
    found = []
    for name, flags in classes.items():
        low = flags[known].astype(bool)
        auc = boot.auc(kept["drop"].to_numpy(), low)
        found.append(Separation(name, int(low.sum()), int((~low).sum()), auc))
    return found
