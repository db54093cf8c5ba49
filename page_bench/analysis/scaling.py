"""ρ against headroom, and the slope of the line through the origin (paper, Eq. 4 and Figure 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.intervals import DRAWS, LEVEL, SEED, Estimate


@dataclass(frozen=True)
class Point:
    """A task of one cell.

    Attributes:
        label: what tells it from others.
        headroom: `[n]`, per document 1 − the answer from the full cache.
        gained: `[n]`, per document 1 where some budget below 1 beats the full cache; where a
            document stands there several times, the means of both.
    """

    label: str
    headroom: NDArray[np.float64]
    gained: NDArray[np.float64]

    @property
    def place(self) -> tuple[float, float]:
        """Mean headroom and ρ."""
        return float(self.headroom.mean()), float(self.gained.mean())


@dataclass(frozen=True)
class Fit:
    """The line ρ = slope · headroom.

    Attributes:
        points: how many it is laid through.
        within: slope with the interval of resampled documents, the points given; n counts them.
        across: slope with the interval of resampled points, the documents given; n counts the
            points, and the interval is NaN with fewer than three.
    """

    points: int
    within: Estimate
    across: Estimate


def slope(headroom: NDArray[np.float64], rho: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares slope through the origin, Σxy / Σx².

    Args:
        headroom, rho: `[…, points]`.

    Returns:
        `[…]`; NaN where all headroom is 0.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray((headroom * rho).sum(-1) / np.square(headroom).sum(-1))


def fit(points: Sequence[Point], draws: int = DRAWS, seed: int = SEED) -> Fit:
    """The line through some points, with two intervals that answer different questions.

    Args:
        points: those of one kind, such as all dilution-prone tasks.
        draws, seed: of the bootstraps.
    """
    n = sum(len(point.gained) for point in points)
    nothing = Estimate(np.nan, np.nan, np.nan, 0, "bootstrap")
    if not points:
        return Fit(0, nothing, nothing)
    x, y = np.array([point.place for point in points]).T
    value = float(slope(x, y))
    generator = np.random.default_rng(seed)
    drawn = np.stack([_resampled(point, draws, generator) for point in points], -1)
    within = Estimate(value, *_ends(slope(drawn[0], drawn[1])), n, "bootstrap")
    low, high = np.nan, np.nan
    if len(points) >= 3:
        chosen = generator.integers(0, len(points), (draws, len(points)))
        low, high = _ends(slope(x[chosen], y[chosen]))
    return Fit(len(points), within, Estimate(value, low, high, len(points), "bootstrap"))


def _resampled(point: Point, draws: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Means of headroom and ρ over resampled documents, `[2, draws]`.

    Documents with the same two values are drawn together: their number is all that counts.
    """
    pairs, counts = np.unique(
        np.column_stack([point.headroom, point.gained]), axis=0, return_counts=True
    )
    drawn = generator.multinomial(counts.sum(), counts / counts.sum(), draws)
    return np.asarray(pairs.T @ drawn.T / counts.sum())


def _ends(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """The interval of draws, those without headroom left out."""
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
