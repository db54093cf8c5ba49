"""Estimates with their intervals: shares, means over clusters of inputs, and AUC."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 10_000
SEED = 20260702
"""The paper's seed, for its cluster bootstrap (appendix, Table 28)."""
LEVEL = 0.95

_CHUNK = 2_000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval.

    Attributes:
        value, low, high: NaN where nothing can be said, n = 0 included.
        n: how many outcomes a share, clusters a mean, or values an AUC is taken over.
        method: `wilson` or `bootstrap`.
    """

    value: float
    low: float
    high: float
    n: int
    method: str

    def __str__(self) -> str:
        if np.isnan(self.value):
            return f"– (n={self.n})"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(successes: int, n: int) -> Estimate:
    """A share of independent outcomes with its Wilson interval."""
    from statsmodels.stats.proportion import proportion_confint

    if n == 0:
        return Estimate(np.nan, np.nan, np.nan, 0, "wilson")
    low, high = proportion_confint(successes, n, alpha=1 - LEVEL, method="wilson")
    return Estimate(successes / n, float(low), float(high), n, "wilson")


class ClusterBootstrap:
    """Resamples clusters of values that belong together, such as one input under many budgets.

    Clusters are drawn with replacement and without strata, as in the paper; intervals are
    percentiles. All estimates of one object use the same draws.

    Args:
        clusters: `[n]`, the cluster of each value, such as (task, doc_id).
        draws: resamples.
        seed: of the resamples.
    """

    def __init__(self, clusters: Sequence[Hashable], draws: int = DRAWS, seed: int = SEED) -> None:
        number: dict[Hashable, int] = {}
        self._of = np.array([number.setdefault(c, len(number)) for c in clusters], dtype=np.intp)
        self.n = len(number)
        self._sizes = np.bincount(self._of, minlength=self.n)
        self._draws, self._seed = draws, seed

    def means(self, values: ArrayLike) -> list[Estimate]:
        """Means over clusters of the mean in each cluster, one for every column.

        Args:
            values: `[n]` or `[n, k]`, without NaN.

        Returns:
            k estimates (1 for `[n]`), whose n is the number of clusters.
        """
        columns = np.asarray(values, dtype=np.float64)
        columns = columns[:, None] if columns.ndim == 1 else columns
        if self.n == 0:
            return [Estimate(np.nan, np.nan, np.nan, 0, "bootstrap")] * columns.shape[1]
        own = np.zeros((self.n, columns.shape[1]))
        np.add.at(own, self._of, columns)
        own /= self._sizes[:, None]
        drawn = np.concatenate([counts @ own / self.n for counts in self._counts()])
        lows, highs = _percentiles(drawn)
        return [
            Estimate(float(value), float(low), float(high), self.n, "bootstrap")
            for value, low, high in zip(own.mean(0), lows, highs, strict=True)
        ]

    def mean(self, values: ArrayLike) -> Estimate:
        """The mean over clusters of one column `[n]`."""
        return self.means(values)[0]

    def ratios(self, counted: ArrayLike, among: ArrayLike) -> list[Estimate]:
        """Sum of each column over the sum of `among`, clusters drawn whole.

        Args:
            counted: `[n, k]`.
            among: `[n]`, such as 1 where a row counts.

        Returns:
            k estimates, whose n is the sum of `among`; NaN if that is 0. Draws in which it is 0
            are left out.
        """
        columns, base = np.asarray(counted, dtype=np.float64), np.asarray(among, dtype=np.float64)
        total = base.sum()
        if total == 0:
            return [Estimate(np.nan, np.nan, np.nan, 0, "bootstrap")] * columns.shape[1]
        own = np.zeros((self.n, columns.shape[1] + 1))
        np.add.at(own, self._of, np.column_stack([columns, base]))
        drawn = np.concatenate([counts @ own for counts in self._counts()])
        drawn = drawn[drawn[:, -1] > 0]
        lows, highs = _percentiles(drawn[:, :-1] / drawn[:, -1:])
        return [
            Estimate(float(value), float(low), float(high), int(total), "bootstrap")
            for value, low, high in zip(columns.sum(0) / total, lows, highs, strict=True)
        ]

    def auc(self, values: ArrayLike, is_low: ArrayLike) -> Estimate:
        """Probability that a value of the low class lies below one of the other; ties count half.

        Args:
            values: `[n]`, without NaN.
            is_low: bool `[n]`, which values belong to the class that is expected to be low.

        Returns:
            An estimate whose n is the number of values; all NaN if a class is empty. Draws in
            which a class is empty are left out of the interval.
        """
        from sklearn.metrics import roc_auc_score

        signal, low_class = np.asarray(values, dtype=np.float64), np.asarray(is_low, dtype=bool)
        if low_class.all() or not low_class.any():
            return Estimate(np.nan, np.nan, np.nan, len(signal), "bootstrap")
        below = signal[low_class, None] < signal[None, ~low_class]
        tied = signal[low_class, None] == signal[None, ~low_class]
        kernel = below + tied / 2
        drawn = []
        for counts in self._counts():
            weights = counts[:, self._of]
            lows, others = weights[:, low_class], weights[:, ~low_class]
            pairs = lows.sum(1) * others.sum(1)
            wins = ((lows @ kernel) * others).sum(1)
            drawn.append(wins[pairs > 0] / pairs[pairs > 0])
        low, high = _percentiles(np.concatenate(drawn))
        value = float(roc_auc_score(~low_class, signal))
        return Estimate(value, float(low), float(high), len(signal), "bootstrap")

    def _counts(self) -> list[NDArray[np.float64]]:
        """How often each cluster is drawn: chunks of `[draws, clusters]`."""
        generator = np.random.default_rng(self._seed)
        even = np.full(self.n, 1 / self.n)
        sizes = [min(_CHUNK, self._draws - start) for start in range(0, self._draws, _CHUNK)]
        return [generator.multinomial(self.n, even, size).astype(np.float64) for size in sizes]


def gap(
    low: NDArray[np.float64],
    others: Sequence[NDArray[np.float64]],
    draws: int = DRAWS,
    seed: int = SEED,
) -> Estimate:
    """Least mean of the other groups minus the mean of one; each group is resampled by itself.

    Args:
        low: values of the group whose mean is expected to be the lowest.
        others: values of the other groups.
        draws, seed: of the bootstrap.

    Returns:
        An estimate whose n is the number of all values; NaN if there is nothing to compare.
    """
    n = len(low) + sum(map(len, others))
    if not len(low) or not others:
        return Estimate(np.nan, np.nan, np.nan, n, "bootstrap")
    generator = np.random.default_rng(seed)

    def means(values: NDArray[np.float64]) -> NDArray[np.float64]:
        even = np.full(len(values), 1 / len(values))
        return generator.multinomial(len(values), even, draws) @ values / len(values)

    value = min(float(group.mean()) for group in others) - float(low.mean())
    below = means(low)
    drawn = np.min([means(group) for group in others], axis=0) - below
    lower, upper = _percentiles(drawn)
    return Estimate(value, float(lower), float(upper), n, "bootstrap")


def _percentiles(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = (1 - LEVEL) / 2
    return np.quantile(drawn, [tail, 1 - tail], axis=0)
