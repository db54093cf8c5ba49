"""Head agreement layer by layer, and D read from it by both conventions (paper, A.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.pools import inputs, means
from page_bench.gating.profile import DropOptions, drop_of

STRICT = DropOptions(late_bin="strict")
"""D with the paper's strict thirds (Table 24)."""
TOLERANCE = 1e-6
"""Agreement is recorded in full, so D computed from it again differs by rounding alone."""


@dataclass(frozen=True)
class TaskProfile:
    """Head agreement of a task's inputs.

    Attributes:
        task: its name.
        n: inputs.
        layers: one estimate per layer, the mean agreement over inputs.
        early: mean over the first ⌊L/3⌋ layers.
        late, strict_late: mean over the last ⌊L/3⌋ layers, and over those from ⌊2L/3⌋ on.
        drop, strict_drop: D by both; the first is that of the deployed gate.
        apart: inputs whose recorded D is not that of the deployed gate, by more than `TOLERANCE`.
        largest: of the differences; NaN where no D is recorded.
        flipped: inputs that `strict_drop` would decide otherwise at the cell's τ; None without τ.
    """

    task: str
    n: int
    layers: tuple[Estimate, ...]
    early: Estimate
    late: Estimate
    strict_late: Estimate
    drop: Estimate
    strict_drop: Estimate
    apart: int
    largest: float
    flipped: int | None


def profiles(cell: Cell, draws: int = DRAWS, seed: int = SEED) -> list[TaskProfile]:
    """One profile per task; none where the cell holds no agreement or fewer than three layers.

    Args:
        cell: any of the prefill.
        draws, seed: of the bootstrap where a document stands there several times.
    """
    if cell.agreement is None or cell.agreement.shape[1] < 3:
        return []
    frame = inputs(cell)
    agreement = cell.agreement[frame["input"].to_numpy()]
    found = []
    for task, places in frame.groupby("task", sort=True).indices.items():
        rows = frame.iloc[places]
        recorded, clusters = rows["drop"].to_numpy(), list(rows["unit"])
        found.append(
            _profile(str(task), agreement[places], recorded, clusters, cell.tau, draws, seed)
        )
    return found


def thirds(layers: int) -> tuple[int, int, int]:
    """Where the early bin ends, and where the late one begins by equal bins and by strict thirds.

    Args:
        layers: L.
    """
    return layers // 3, layers - layers // 3, 2 * layers // 3


def _profile(
    task: str,
    agreement: NDArray[np.float64],
    recorded: NDArray[np.float64],
    clusters: list[tuple[object, ...]],
    tau: float | None,
    draws: int,
    seed: int,
) -> TaskProfile:
    end, start, strict_start = thirds(agreement.shape[1])
    drops = np.array([drop_of(row) for row in agreement])
    strict = np.array([drop_of(row, STRICT) for row in agreement])

    bins = (agreement[:, :end], agreement[:, start:], agreement[:, strict_start:])
    shares = np.column_stack([agreement, *(own.mean(1) for own in bins)])
    *layers, early, late, strict_late = means(shares, clusters, draws, seed, "share")
    both = np.column_stack([drops, strict])
    drop, strict_drop = means(both, clusters, draws, seed, "change")
    gaps = np.abs(drops - recorded)
    known = gaps[~np.isnan(gaps)]
    return TaskProfile(
        task=task,
        n=len(agreement),
        layers=tuple(layers),
        early=early,
        late=late,
        strict_late=strict_late,
        drop=drop,
        strict_drop=strict_drop,
        apart=int((known > TOLERANCE).sum()),
        largest=float(known.max()) if len(known) else float("nan"),
        flipped=None if tau is None else int(((drops >= tau) != (strict >= tau)).sum()),
    )
