"""Seconds per input with and without the gate, and the gate's share of the prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.pools import mean, units

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Times:
    """Means over inputs at one budget, or over inputs and budgets.

    Attributes:
        budget: nominal; None for all below 1 together.
        n: documents whose times are all recorded.
        prefill, gate: seconds of the prefill and of reading the signal.
        share: gate / prefill, input by input.
        plain, gated, full: seconds per input: the prefill and what follows it; the gated one
            reads the signal besides, whether it opens or not.
    """

    budget: float | None
    n: int
    prefill: Estimate
    gate: Estimate
    share: Estimate
    plain: Estimate
    gated: Estimate
    full: Estimate


def times(cell: Cell, draws: int = DRAWS, seed: int = SEED) -> list[Times]:
    """One row per budget below 1 and, if there are several, one for all of them.

    Args:
        cell: one evictor and gate.
        draws, seed: of the bootstrap where a document stands there several times.

    Returns:
        Ascending in the budget; nothing where no input has all its times.
    """
    rows = cell.evicted.dropna(subset=["prefill_s", "gate_s", "plain_s", "full_s"])
    if rows.empty:
        return []
    groups: list[tuple[float | None, pd.DataFrame]] = [
        (float(budget), own) for budget, own in rows.groupby("budget", sort=True)
    ]
    if len(groups) > 1:
        groups.append((None, rows))
    return [_times(cell, budget, own, draws, seed) for budget, own in groups]


def _times(cell: Cell, budget: float | None, rows: pd.DataFrame, draws: int, seed: int) -> Times:
    prefill, gate = rows["prefill_s"], rows["gate_s"]
    after = np.where(rows["open"], rows["plain_s"], rows["full_s"])
    columns = rows[["task", "doc_id", "input"]].assign(
        prefill=prefill,
        gate=gate,
        share=(gate / prefill).where(prefill > 0),
        plain=prefill + rows["plain_s"],
        gated=prefill + gate + after,
        full=prefill + rows["full_s"],
    )
    # Budgets of an input are no independent measurements: its mean over them counts once.
    together = columns.groupby("input").agg(
        {"task": "first", "doc_id": "first"}
        | dict.fromkeys(("prefill", "gate", "share", "plain", "gated", "full"), "mean")
    )
    clusters = units(cell, together)
    found = {
        name: mean(together[name].to_numpy(), clusters, draws, seed)
        for name in ("prefill", "gate", "share", "plain", "gated", "full")
    }
    return Times(budget=budget, n=len(set(clusters)), **found)
