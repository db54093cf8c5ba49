"""ρ against headroom, and the slope of the line through the origin (paper, Eq. 4 and Figure 9)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.estimates import without_interval
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Draws, Estimate


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
            The point with the fewest carries it.
        across: slope with the interval of resampled points, the documents given; n counts the
            points, which carry it.
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
    if not points:
        nothing = without_interval(np.nan, 0)
        return Fit(0, nothing, nothing)
    n = sum(len(point.gained) for point in points)
    (within,) = _documents(points, draws, seed).map(_slope_of_means).estimates()
    x, y = np.array([point.place for point in points]).T
    boot = ClusterBootstrap(range(len(points)), draws, seed)
    products = boot.parts(np.column_stack([x * y, x * x]), np.ones((len(points), 2)))
    (across,) = products.map(_ratio).estimates()
    return Fit(len(points), dataclasses.replace(within, n=n), across)


def _documents(points: Sequence[Point], draws: int, seed: int) -> Draws:
    """Means of headroom and ρ of each point, the documents of all points drawn together.

    Documents of a point with the same two values are drawn as one: their number is all that counts.

    Returns:
        `[2 points]`: headroom of each point, then ρ.
    """
    kinds = [
        np.unique(np.column_stack([p.headroom, p.gained]), axis=0, return_counts=True)
        for p in points
    ]
    counts = np.concatenate([count for _, count in kinds])
    sums = np.zeros((len(counts), 3, len(points)))
    start = 0
    for i, (pairs, count) in enumerate(kinds):
        sums[start : start + len(count), :, i] = np.column_stack([pairs, np.ones(len(count))])
        start += len(count)
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(counts.sum(), counts / counts.sum(), draws)
    totals = np.tensordot(drawn, sums, 1)
    with np.errstate(invalid="ignore"):
        means = totals[:, :2] / totals[:, 2:]
    n = np.array([len(p.gained) for p in points] * 2, dtype=np.intp)
    value = np.array([p.place for p in points]).T
    return Draws(value.ravel(), means.reshape(draws, -1), n, n)


def _slope_of_means(means: NDArray[np.float64]) -> NDArray[np.float64]:
    headroom, rho = np.hsplit(means, 2)
    return slope(headroom, rho)[:, None]


def _ratio(products: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return products[:, :1] / products[:, 1:]
