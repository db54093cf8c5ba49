"""Estimates with their intervals: shares, means over clusters of inputs, and AUC."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.draws import CHUNK, drawn_counts
from page_bench.analysis.strata import by_stratum

DRAWS = 10_000
SEED = 20260702
"""The paper's seed, for its cluster bootstrap (appendix, Table 28)."""
LEVEL = 0.95
"""Values held at a time: what fits a processor's cache is drawn and summed fastest."""


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


@cache
def share(successes: int, n: int) -> Estimate:
    """A share of independent outcomes with its Wilson interval."""
    from statsmodels.stats.proportion import proportion_confint

    if n == 0:
        return Estimate(np.nan, np.nan, np.nan, 0, "wilson")
    low, high = proportion_confint(successes, n, alpha=1 - LEVEL, method="wilson")
    return Estimate(successes / n, float(low), float(high), n, "wilson")


@dataclass(frozen=True)
class Draws:
    """Statistics and what they come to in each resample.

    Attributes:
        value: `[k]`; NaN where there is nothing to take a mean of.
        drawn: `[draws, k]`; NaN likewise.
        n: int `[k]`, clusters behind each.
    """

    value: NDArray[np.float64]
    drawn: NDArray[np.float64]
    n: NDArray[np.intp]

    def map(self, statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Draws:
        """What is computed of all k, in each resample anew.

        Args:
            statistic: from `[m, k]` to `[m, j]`, row by row.

        Returns:
            j statistics, whose n is the largest of the k.
        """
        value = statistic(self.value[None])[0]
        n = self.n.max(initial=0)
        return Draws(value, statistic(self.drawn), np.full(len(value), n, dtype=np.intp))

    def estimates(self) -> list[Estimate]:
        """One for each statistic; the interval is of the draws in which it is a number."""
        found = []
        for value, drawn, n in zip(self.value, self.drawn.T, self.n, strict=True):
            known = drawn[~np.isnan(drawn)]
            low, high = _percentiles(known) if len(known) else (np.nan, np.nan)
            if np.isnan(value):
                low = high = np.nan
            found.append(Estimate(float(value), float(low), float(high), int(n), "bootstrap"))
        return found


class ClusterBootstrap:
    """Resamples clusters of values that belong together, such as one input under many budgets.

    Clusters are drawn with replacement, by default without strata as in the paper; intervals are
    percentiles. All estimates of one object use the same draws.

    Args:
        clusters: `[n]`, the cluster of each value, such as (task, doc_id).
        draws: resamples.
        seed: of the resamples.
        strata: `[n]`, the stratum of each value's cluster, such as its task. Each draw then holds
            as many clusters of a stratum as there are; None draws from all clusters alike.

    Raises:
        ValueError: a cluster lies in two strata.
    """

    def __init__(
        self,
        clusters: Sequence[Hashable],
        draws: int = DRAWS,
        seed: int = SEED,
        strata: Sequence[Hashable] | None = None,
    ) -> None:
        number: dict[Hashable, int] = {}
        self._of = np.array([number.setdefault(c, len(number)) for c in clusters], dtype=np.intp)
        self._ends: list[int] | None = None
        if strata is not None:
            self._of, self._ends = by_stratum(self._of, strata)
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
        own = self._sums(columns) / self._sizes[:, None]
        drawn = self._drawn_sums(own) / self.n
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
        drawn = self._drawn_sums(self._sums(np.column_stack([columns, base])))
        drawn = drawn[drawn[:, -1] > 0]
        lows, highs = _percentiles(drawn[:, :-1] / drawn[:, -1:])
        return [
            Estimate(float(value), float(low), float(high), int(total), "bootstrap")
            for value, low, high in zip(columns.sum(0) / total, lows, highs, strict=True)
        ]

    def parts(self, values: ArrayLike, among: ArrayLike) -> Draws:
        """Means of parts of the clusters, such as one task or budget each, from the same draws.

        Args:
            values: `[n, k]`; what `among` leaves out may be NaN.
            among: bool `[n, k]`, which values belong to the part of each column.

        Returns:
            For each column, the mean over the clusters that have values of its part, of the mean
            of these in each.
        """
        inside = np.asarray(among, dtype=bool)
        columns = np.where(inside, np.asarray(values, dtype=np.float64), 0.0)
        sums, sizes = self._sums(columns), self._sums(inside.astype(np.float64))
        has = sizes > 0
        own = np.divide(sums, sizes, out=np.zeros_like(sums), where=has)
        # Many columns are of the same part, which is counted once.
        distinct, which = np.unique(has, axis=1, return_inverse=True)
        drawn = self._drawn_sums(np.hstack([own, distinct.astype(np.float64)]))
        n, k = has.sum(0), has.shape[1]
        with np.errstate(invalid="ignore"):
            return Draws(own.sum(0) / n, drawn[:, :k] / drawn[:, k:][:, which], n)

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
        order = np.argsort(signal, kind="stable")
        tie_starts = np.flatnonzero(np.diff(signal[order], prepend=-np.inf))
        of, low_class = self._of[order], low_class[order]
        drawn = []
        for counts in self._counts(len(signal)):
            weights = counts[:, of]
            lows, others = (
                np.add.reduceat(weights * kind, tie_starts, axis=1)
                for kind in (low_class, ~low_class)
            )
            above = others.sum(1, keepdims=True) - np.cumsum(others, axis=1)
            wins = (lows * (above + others / 2)).sum(1)
            pairs = lows.sum(1) * others.sum(1)
            drawn.append(wins[pairs > 0] / pairs[pairs > 0])
        low, high = _percentiles(np.concatenate(drawn))
        value = float(roc_auc_score(~np.asarray(is_low, dtype=bool), values))
        return Estimate(value, float(low), float(high), len(signal), "bootstrap")

    def _sums(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of each column in each cluster: `[clusters, k]`."""
        sums = [np.bincount(self._of, column, minlength=self.n) for column in columns.T]
        return np.stack(sums, -1) if sums else np.zeros((self.n, 0))

    def _drawn_sums(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over the clusters of each draw: `[draws, k]`."""
        return np.concatenate([counts @ own for counts in self._counts(self.n)])

    def _counts(self, width: int) -> Iterator[NDArray[np.float64]]:
        """How often each cluster is drawn: chunks of `[draws, clusters]`.

        Args:
            width: how many values a caller holds for each draw; the chunks are the smaller.
        """
        chunk = max(1, CHUNK // max(1, width, self.n))
        ends = None if self._ends is None else tuple(self._ends)
        for counts in drawn_counts(self.n, ends, self._draws, self._seed):
            for start in range(0, len(counts), chunk):
                yield counts[start : start + chunk].astype(np.float64)


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
