"""Both arms along the budget axis (paper, Table 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import Kind, kept_kind
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.resampling import Resampling, blocks, columns, masks


@dataclass(frozen=True)
class Budget:
    """Inputs of a task, or of all, at one nominal budget below 1.

    Attributes:
        task: its name; None for all.
        budget: nominal.
        open: share for which the gate opens.
        plain_kept, gated_kept: mean achieved kept-KV.
        plain, gated, full: mean of the metric; Wilson intervals where it is 0 or 1.
        delta: gated − plain, input by input.
    """

    task: str | None
    budget: float
    open: Estimate
    plain_kept: Estimate
    gated_kept: Estimate
    plain: Estimate
    gated: Estimate
    full: Estimate
    delta: Estimate


def budgets_of(
    cell: Cell, task: str | None = None, resampling: Resampling | None = None
) -> list[Budget]:
    """Both arms at each budget below 1, ascending.

    Args:
        cell: one evictor and gate.
        task: one of its tasks; None for all.
        resampling: of its inputs.
    """
    rows = cell.evicted
    if task is not None:
        rows = rows[rows["task"] == task]
    boot = (resampling or Resampling()).of(rows)
    budgets = np.unique(rows["budget"].to_numpy())
    at = masks([rows["budget"] == budget for budget in budgets])
    names = ["open", "plain_kept", "gated_kept", "plain", "gated", "full"]
    values = [*(rows[name] for name in names), rows["gated"] - rows["plain"]]
    kinds: list[Kind] = ["share", "fixed", kept_kind(cell.gate), "share", "share", "share"]
    found = boot.means(
        columns([value for value in values for _ in budgets]),
        [kind for kind in [*kinds, "change"] for _ in budgets],
        np.tile(at, len(values)),
    )
    return [
        Budget(task, float(budget), *own)
        for budget, *own in zip(budgets, *blocks(found, len(values)), strict=True)
    ]
