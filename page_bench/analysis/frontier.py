"""Accuracy against the cache that is really kept, with and without gate (paper, Figure 4).

A gate that closes keeps the full cache, so a gated answer at some nominal budget holds more than
a plain one; the fair comparison is at the same achieved kept-KV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.curves import Array, interpolate, overtaking
from page_bench.analysis.estimates import EXACT, Kind, kept_kind
from page_bench.analysis.intervals import Draws, Estimate
from page_bench.analysis.resampling import Resampling, blocks, columns, masks

KEPT = (0.25, 0.35, 0.5, 0.75)
"""Kept-KV at which both curves are compared; the paper's are 0.35 and 0.5."""


@dataclass(frozen=True)
class Point:
    """Both arms at one nominal budget.

    Attributes:
        budget: nominal.
        plain_kept, gated_kept: mean achieved kept-KV.
        plain, gated: mean of the metric.
    """

    budget: float
    plain_kept: Estimate
    plain: Estimate
    gated_kept: Estimate
    gated: Estimate


@dataclass(frozen=True)
class Matched:
    """Both curves at the same kept-KV.

    Attributes:
        budget: of the arm that is not interpolated; None where both are.
        kept: kept-KV; without an interval where it is given.
        gated, plain: mean of the metric; NaN outside the curve.
        advantage: gated − plain.
    """

    budget: float | None
    kept: Estimate
    gated: Estimate
    plain: Estimate
    advantage: Estimate


@dataclass(frozen=True)
class Frontier:
    """Both curves, each with the full cache as its last point.

    Attributes:
        points: by budget below 1, ascending.
        full_kept, full: kept-KV and mean of the metric with the full cache.
        gated_against_plain: gated at each budget, plain interpolated at the gated kept-KV.
        plain_against_gated: plain at each budget, gated interpolated at the plain kept-KV; NaN
            below the least that the gate keeps.
        at_kept: both interpolated, see `KEPT`.
        crossover: least kept-KV at which the gated curve begins to lie above; the least that the
            gate keeps if it lies above there; NaN if it never does.
        overtakes: share of resamples in which it does. `crossover` has no interval: it jumps from
            one stretch of the curves to another, and its percentiles held it in 74 of 100 cases
            even at 400 inputs (benchmarks/coverage.py).
    """

    points: tuple[Point, ...]
    full_kept: Estimate
    full: Estimate
    gated_against_plain: tuple[Matched, ...]
    plain_against_gated: tuple[Matched, ...]
    at_kept: tuple[Matched, ...]
    crossover: Estimate
    overtakes: float


def frontier(
    cell: Cell, resampling: Resampling | None = None, kept: Sequence[float] = KEPT
) -> Frontier:
    """Both curves of a cell with rows below budget 1.

    Args:
        cell: one evictor and gate.
        resampling: of its inputs.
        kept: where both curves are compared.
    """
    rows = cell.evicted
    boot = (resampling or Resampling()).of(rows)
    budgets = np.unique(rows["budget"].to_numpy())
    at = [(rows["budget"] == budget).to_numpy() for budget in budgets]
    everything = np.ones(len(rows), dtype=bool)
    names = ["plain_kept", "plain", "gated_kept", "gated"]
    kinds: list[Kind] = ["fixed", "share", kept_kind(cell.gate), "share"]
    # Four blocks of one column for each budget and, as last point, the full cache.
    values, among, every = [], [], list[Kind]()
    for name, kind in zip(names, kinds, strict=True):
        values += [*[rows[name]] * len(budgets), rows["full_kept" if "kept" in name else "full"]]
        among += [*at, everything]
        every += [*[kind] * len(budgets), "fixed" if "kept" in name else "share"]
    draws = boot.parts(columns(values), masks(among), every)
    plain_kept, plain, gated_kept, gated = blocks(draws.estimates(), 4)
    crossing = draws.map(lambda means: _crossover(means)[:, None], 0)
    return Frontier(
        points=tuple(
            Point(float(budget), *(block[i] for block in (plain_kept, plain, gated_kept, gated)))
            for i, budget in enumerate(budgets)
        ),
        full_kept=plain_kept[-1],
        full=plain[-1],
        gated_against_plain=_matched(draws, budgets, gated_kept[:-1], "gated"),
        plain_against_gated=_matched(draws, budgets, plain_kept[:-1], "plain"),
        at_kept=_at(draws, kept),
        crossover=crossing.estimates()[0],
        overtakes=float(np.mean(~np.isnan(crossing.drawn))),
    )


def _matched(
    draws: Draws, budgets: Array, kept: Sequence[Estimate], own: str
) -> tuple[Matched, ...]:
    def both(means: Array) -> Array:
        plain_kept, plain, gated_kept, gated = np.array_split(means, 4, axis=1)
        where = (gated_kept if own == "gated" else plain_kept)[:, :-1]
        return _compare(
            interpolate(gated_kept, gated, where), interpolate(plain_kept, plain, where)
        )

    found = blocks(draws.map(both).estimates(), 3)
    return tuple(
        Matched(float(budget), *estimates)
        for budget, *estimates in zip(budgets, kept, *found, strict=True)
    )


def _at(draws: Draws, kept: Sequence[float]) -> tuple[Matched, ...]:
    def both(means: Array) -> Array:
        plain_kept, plain, gated_kept, gated = np.array_split(means, 4, axis=1)
        where = np.asarray(kept, dtype=np.float64)[None]
        return _compare(
            interpolate(gated_kept, gated, where), interpolate(plain_kept, plain, where)
        )

    found = blocks(draws.map(both).estimates(), 3)
    n = int(draws.n.max(initial=0))
    return tuple(
        Matched(None, Estimate(value, value, value, n, EXACT), *estimates)
        for value, *estimates in zip(kept, *found, strict=True)
    )


def _compare(gated: Array, plain: Array) -> Array:
    return np.hstack([gated, plain, gated - plain])


def _crossover(means: Array) -> Array:
    plain_kept, plain, gated_kept, gated = np.array_split(means, 4, axis=1)
    return overtaking(gated_kept, gated, plain_kept, plain)
