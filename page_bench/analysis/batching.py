"""How much smaller the cache is, and what batching leaves of that (paper, Tables 22 and 23)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import Kind, inverse, kept_kind
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.resampling import Resampling, blocks, columns, masks

BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""The paper's batch sizes."""


@dataclass(frozen=True)
class Achieved:
    """The cache that a gate leaves at one nominal budget.

    Attributes:
        budget: nominal; None for the mean of all below 1.
        plain_kept, kept: mean kept-KV without gate and under it.
        compression: 1 / `kept`: full cache over the mean kept cache.
    """

    budget: float | None
    plain_kept: Estimate
    kept: Estimate
    compression: Estimate


@dataclass(frozen=True)
class Decay:
    """Compression where a batch is given the memory of its largest cache.

    Attributes:
        budget: nominal.
        open: share of inputs for which the gate opens; for several cells, their mean.
        kept_open: mean kept-KV of these; NaN where the gate never opens.
        compression: by batch size.
        cells: of how many it is the mean.
    """

    budget: float
    open: Estimate
    kept_open: Estimate
    compression: dict[int, Estimate]
    cells: int


def static_compression(
    open_rate: ArrayLike, kept_open: ArrayLike, batch: ArrayLike
) -> NDArray[np.float64]:
    """Full cache over the expected cache per sequence, of a batch drawn at random.

    All gates of a batch open with probability pᴮ, and then kept-KV k is enough; else one closed
    gate costs every sequence the full cache: E = pᴮ·k + 1 − pᴮ, and compression is 1 / E.

    Args:
        open_rate: p.
        kept_open: k, kept-KV of an input with an open gate.
        batch: B, sequences.

    Returns:
        The compression, of the shape that the three have together.
    """
    all_open = np.asarray(open_rate, dtype=np.float64) ** np.asarray(batch)
    return 1 / (all_open * np.asarray(kept_open) + 1 - all_open)


def achieved(cell: Cell, resampling: Resampling | None = None) -> list[Achieved]:
    """The cache kept at each budget below 1, and last at their mean."""
    rows = cell.evicted
    boot = (resampling or Resampling()).of(rows)
    budgets = np.unique(rows["budget"].to_numpy())
    parts = [*(rows["budget"] == budget for budget in budgets), np.ones(len(rows))]
    kept = [rows["plain_kept"]] * len(parts) + [rows["gated_kept"]] * len(parts)
    kinds: list[Kind] = ["fixed", kept_kind(cell.gate)]
    every = [kind for kind in kinds for _ in parts]
    found = boot.means(columns(kept), every, masks([*parts, *parts]))
    return [
        Achieved(None if budget is None else float(budget), plain, gated, inverse(gated))
        for budget, plain, gated in zip([*budgets, None], *blocks(found, 2), strict=True)
    ]


def decay(
    cells: Sequence[Cell],
    budget: float,
    resampling: Resampling | None = None,
    batches: Sequence[int] = BATCHES,
) -> Decay:
    """Compression under static batches, cell by cell, then averaged.

    The expected cache is no linear function of p, so that averaging p or kept-KV over cells first
    gives another number.

    Args:
        cells: at least one, each with rows at the budget.
        budget: nominal.
        resampling: of the inputs, which are drawn for all cells alike.
        batches: sizes.
    """
    rows, boot = (resampling or Resampling()).over(cells)
    at = rows["budget"].to_numpy() == budget
    opened = rows["open"].to_numpy(dtype=bool)
    own = [(rows["cell"].to_numpy() == number) & at for number in range(len(cells))]
    values = [opened] * len(cells) + [rows["plain_kept"]] * len(cells)
    among = masks([*own, *(part & opened for part in own)])
    kinds: list[Kind] = ["share", "fixed"]
    every = [kind for kind in kinds for _ in cells]
    draws = boot.parts(columns(values), among, every)
    carried = draws.n[: len(cells)].min()

    def compress(means: NDArray[np.float64]) -> NDArray[np.float64]:
        open_rate, kept_open = np.hsplit(means, 2)
        # Where no gate opens, kept-KV of open ones is no number and counts with weight 0.
        kept = np.where(open_rate > 0, kept_open, 1.0)
        by_batch = [static_compression(open_rate, kept, batch).mean(1) for batch in batches]
        return np.column_stack([open_rate.mean(1), kept_open.mean(1), *by_batch])

    means = draws.map(compress, [carried, draws.n[len(cells) :].min(), *[carried] * len(batches)])
    rate, kept_open, *compression = (
        dataclasses.replace(estimate, n=boot.n) for estimate in means.estimates()
    )
    if len(cells) == 1:
        rate, kept_open = draws.estimates()
    return Decay(budget, rate, kept_open, dict(zip(batches, compression, strict=True)), len(cells))
