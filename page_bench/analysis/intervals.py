"""Means over clusters of inputs, AUC, and what is computed of them, in each resample anew.

Which quantity gets which interval stands in `estimates`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.draws import CHUNK, drawn_counts
from page_bench.analysis.estimates import (
    DRAWS,
    LEAST,
    LEVEL,
    SAME,
    SEED,
    Estimate,
    Kind,
    p_of_no_difference,
    percentiles,
    settled,
    share,
    without_interval,
)

__all__ = ["DRAWS", "LEVEL", "SEED", "ClusterBootstrap", "Draws", "Estimate", "share"]


@dataclass(frozen=True)
class Draws:
    """Statistics and what they come to in each resample.

    Attributes:
        value: `[k]`; NaN where there is nothing to take a mean of.
        drawn: `[draws, k]`; NaN likewise.
        n: int `[k]`, clusters behind each.
        carried: int `[k]`, the clusters that decide whether a bootstrap is of use, see `LEAST`.
        known: `[k]`, estimates that need no draws (see `settled`); empty for none.
    """

    value: NDArray[np.float64]
    drawn: NDArray[np.float64]
    n: NDArray[np.intp]
    carried: NDArray[np.intp]
    known: Sequence[Estimate | None] = ()

    def map(
        self,
        statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        carried: ArrayLike | None = None,
    ) -> Draws:
        """What is computed of all k, in each resample anew.

        Args:
            statistic: from `[m, k]` to `[m, j]`, row by row.
            carried: of each of the j, or of all; None for the least of the k.

        Returns:
            j statistics, whose n is the largest of the k.
        """
        value = statistic(self.value[None])[0]
        least = self.carried.min(initial=np.iinfo(np.intp).max) if carried is None else carried
        n = np.full(len(value), self.n.max(initial=0), dtype=np.intp)
        own = np.broadcast_to(np.asarray(least, dtype=np.intp), len(value))
        return Draws(value, statistic(self.drawn), n, own)

    def estimates(self) -> list[Estimate]:
        """One for each statistic; the interval is of the draws in which it is a number."""
        return [
            known or percentiles(float(value), drawn, int(n), int(carried))
            for known, value, drawn, n, carried in zip(
                self.known or [None] * len(self.value),
                self.value,
                self.drawn.T,
                self.n,
                self.carried,
                strict=True,
            )
        ]


class ClusterBootstrap:
    """Resamples clusters of values that belong together, such as one input under many budgets.

    Clusters are drawn with replacement, without strata as in the paper; intervals are
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
        self._draws, self._seed = draws, seed

    def means(
        self,
        values: ArrayLike,
        kinds: Kind | Sequence[Kind] = "free",
        among: ArrayLike | None = None,
    ) -> list[Estimate]:
        """Means over clusters of the mean in each cluster, one for every column.

        Args:
            values: `[n]` or `[n, k]`, without NaN in what is averaged.
            kinds: of each column, or of all.
            among: bool `[n, k]`, as in `parts`; None for all values.

        Returns:
            k estimates (1 for `[n]`), whose n is the number of clusters.
        """
        columns = np.asarray(values, dtype=np.float64)
        columns = columns[:, None] if columns.ndim == 1 else columns
        own, has = self._own(columns, np.ones(columns.shape) if among is None else among)
        found = _settled(own, has, kinds)
        left = [i for i, one in enumerate(found) if one is None]
        if left:
            n, value = has.sum(0), own.sum(0) / np.maximum(has.sum(0), 1)
            drawn = self._drawn_means(own[:, left], has[:, left])
            for i, column in zip(left, drawn.T, strict=True):
                found[i] = percentiles(float(value[i]), column, int(n[i]))
        return [one for one in found if one is not None]

    def mean(self, values: ArrayLike, kind: Kind = "free") -> Estimate:
        """The mean over clusters of one column `[n]`."""
        return self.means(values, kind)[0]

    def ratios(self, counted: ArrayLike, among: ArrayLike) -> list[Estimate]:
        """Shares of rows: sum of each column over the sum of `among`, clusters drawn whole.

        Args:
            counted: `[n, k]`, 1 where a row counts, 0 elsewhere.
            among: `[n]`, 1 for the rows that are looked at; all others count for nothing.

        Returns:
            k estimates, whose n is the number of clusters with rows that are looked at.
        """
        columns, base = np.asarray(counted, dtype=np.float64), np.asarray(among, dtype=np.float64)
        sums = self._sums(np.column_stack([columns, base]))
        there = sums[:, -1] > 0
        sizes, n = sums[there, -1], int(there.sum())
        values = sums[:, :-1].sum(0) / sizes.sum() if n else np.full(columns.shape[1], np.nan)
        found: list[Estimate | None] = []
        for column, value in zip(sums[there, :-1].T, values, strict=True):
            own = column / sizes
            # Clusters that are of one mind are like inputs, if none weighs more.
            alike = n and (np.ptp(sizes) == 0 or np.ptp(own) == 0)
            known = settled(own, "share") if alike or n == 0 else None
            found.append(known or (without_interval(value, n) if n < LEAST else None))
        left = [i for i, one in enumerate(found) if one is None]
        if left:
            drawn = self._drawn_sums(sums[:, [*left, -1]])
            drawn = drawn[drawn[:, -1] > 0]
            for i, column in zip(left, drawn[:, :-1].T, strict=True):
                found[i] = percentiles(float(values[i]), column / drawn[:, -1], n)
        return [one for one in found if one is not None]

    def parts(
        self, values: ArrayLike, among: ArrayLike, kinds: Kind | Sequence[Kind] = "free"
    ) -> Draws:
        """Means of parts of the clusters, such as one task or budget each, from the same draws.

        Args:
            values: `[n, k]`; what `among` leaves out may be NaN.
            among: bool `[n, k]`, which values belong to the part of each column.
            kinds: of each column, or of all.

        Returns:
            For each column, the mean over the clusters that have values of its part, of the mean
            of these in each.
        """
        own, has = self._own(values, among)
        n = has.sum(0)
        with np.errstate(invalid="ignore"):
            value = own.sum(0) / n
        return Draws(value, self._drawn_means(own, has), n, n, _settled(own, has, kinds))

    def p_values(self, values: ArrayLike, among: ArrayLike) -> list[float]:
        """For the parts of `parts`, p of no difference; see `p_of_no_difference`."""
        own, has = self._own(values, among)
        return [
            p_of_no_difference(column[part], self._draws, self._seed)
            for column, part in zip(own.T, has.T, strict=True)
        ]

    def carrying(self, values: ArrayLike) -> int:
        """How many clusters hold a value other than 0, such as something that can be recovered."""
        other = np.abs(np.asarray(values, dtype=np.float64)) > SAME
        return len(set(self._of[other].tolist()))

    def auc(self, values: ArrayLike, is_low: ArrayLike) -> Estimate:
        """Probability that a value of the low class lies below one of the other; ties count half.

        Args:
            values: `[n]`, without NaN.
            is_low: bool `[n]`, which values belong to the class that is expected to be low.

        Returns:
            An estimate whose n is the number of values; no number if a class is empty. Draws in
            which a class is empty are left out of the interval.
        """
        from sklearn.metrics import roc_auc_score

        signal, low_class = np.asarray(values, dtype=np.float64), np.asarray(is_low, dtype=bool)
        if low_class.all() or not low_class.any():
            return without_interval(np.nan, len(signal))
        value = float(roc_auc_score(~low_class, signal))
        smaller = min(len(set(self._of[kind].tolist())) for kind in (low_class, ~low_class))
        if smaller < LEAST:
            return without_interval(value, len(signal))
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
        return percentiles(value, np.concatenate(drawn), len(signal), smaller)

    def _own(
        self, values: ArrayLike, among: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Means of each cluster's values in a part, 0 without any, and whether it has some."""
        inside = np.asarray(among, dtype=bool)
        columns = np.where(inside, np.asarray(values, dtype=np.float64), 0.0)
        sums, sizes = self._sums(columns), self._sums(inside.astype(np.float64))
        has = sizes > 0
        return np.divide(sums, sizes, out=np.zeros_like(sums), where=has), has

    def _sums(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of each column in each cluster: `[clusters, k]`."""
        sums = [np.bincount(self._of, column, minlength=self.n) for column in columns.T]
        # Without values, numpy counts in integers.
        return np.stack(sums, -1).astype(np.float64) if sums else np.zeros((self.n, 0))

    def _drawn_means(self, own: NDArray[np.float64], has: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Means over the clusters of each draw that have values of a part: `[draws, k]`."""
        # Many columns are of the same part, which is counted once.
        distinct, which = np.unique(has, axis=1, return_inverse=True)
        k = own.shape[1]
        drawn = self._drawn_sums(np.hstack([own, distinct.astype(np.float64)]))
        with np.errstate(invalid="ignore"):
            return np.asarray(drawn[:, :k] / drawn[:, k:][:, which])

    def _drawn_sums(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over the clusters of each draw: `[draws, k]`."""
        return np.concatenate([counts @ own for counts in self._counts(self.n)])

    def _counts(self, width: int) -> Iterator[NDArray[np.float64]]:
        """How often each cluster is drawn: chunks of `[draws, clusters]`.

        Args:
            width: how many values a caller holds for each draw; the chunks are the smaller.
        """
        chunk = max(1, CHUNK // max(1, width, self.n))
        for counts in drawn_counts(self.n, self._draws, self._seed):
            for start in range(0, len(counts), chunk):
                yield counts[start : start + chunk].astype(np.float64)


def _settled(
    own: NDArray[np.float64], has: NDArray[np.bool_], kinds: Kind | Sequence[Kind]
) -> list[Estimate | None]:
    """What needs no draws, see `settled`: one for each column."""
    every = [kinds] * own.shape[1] if isinstance(kinds, str) else kinds
    return [
        settled(column[part], kind) for column, part, kind in zip(own.T, has.T, every, strict=True)
    ]
