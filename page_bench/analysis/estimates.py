"""Estimates with their intervals: one estimator for each quantity, whatever command prints it.

| quantity | 95 % interval |
|---|---|
| share of distinct inputs: correct, open, harm, ρ, r(x); a metric of zeros and ones | Wilson |
| other means over inputs; Δ; what is pooled over budgets, arms or repeats; D, kept KV, seconds | \
percentiles of a bootstrap over (task, document), all tasks together, as in the paper's Table 28 |
| what follows from such means (compression, recovery, curves, slopes, mixtures), and AUC | \
percentiles of the same draws |
| a bounded mean whose inputs all agree | Wilson's bound on the share of inputs that do not |
| kept KV that settings and length fix | exact: no width |
| a mean over seeds | Student |
| p of Δ | sign flips of the inputs' differences, exact for few of them |

A bootstrap of few inputs covers less than it says: of 8 it holds the truth in 75 to 90 of 100
cases where it claims 95, of 2 in half. So fewer than `LEAST` inputs have no interval but the words
`FEW`, and statistics that do not vary over the draws have `FLAT`. benchmarks/coverage.py
simulates how often each kind of interval holds the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.draws import CHUNK

DRAWS = 10_000
SEED = 20260702
"""The paper's seed, for its cluster bootstrap (appendix, Table 28)."""
LEVEL = 0.95
LEAST = 20
"""Inputs that a bootstrap needs: behind each mean, in the smaller class of an AUC, above 0 in what
a ratio is divided by. Of fewer, some population's mean is covered in less than 90 of 100 cases."""

WILSON, BOOTSTRAP, STUDENT, EXACT = "wilson", "bootstrap", "student", "exact"
FEW, FLAT, UNDEFINED = "n too small", "no spread", "not defined"

Kind = Literal["share", "change", "fixed", "free"]
"""What is averaged: a number in [0, 1] or in [−1, 1], one that nothing but settings and length
decide, so that equal values are no chance, or any other."""
_BOUNDS: dict[Kind, tuple[float, float]] = {"share": (0.0, 1.0), "change": (-1.0, 1.0)}
SAME = 1e-12
"""Means of equal numbers differ by rounding alone."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval.

    Attributes:
        value: NaN where nothing can be said, n = 0 included.
        low, high: ends of the interval; NaN where there is none.
        n: how many inputs, or values for an AUC, it is taken over.
        method: `WILSON`, `BOOTSTRAP`, `STUDENT` or `EXACT`; where there is no interval, why:
            `FEW`, `FLAT` or `UNDEFINED`.
    """

    value: float
    low: float
    high: float
    n: int
    method: str

    @property
    def has_interval(self) -> bool:
        """Whether something is known of how far the value may be off."""
        return not np.isnan(self.low)

    def __str__(self) -> str:
        if np.isnan(self.value):
            return f"– (n={self.n})"
        if self.method == EXACT or not self.has_interval:
            return f"{self.value:.3f} ({self.method})"
        return with_ends(self.value, self.low, self.high)


def with_ends(value: float, low: float, high: float, sign: str = "") -> str:
    """A value and its interval in words, with digits enough that the ends differ.

    Args:
        value, low, high: numbers; equal ends are left as they are.
        sign: `+` to write that of numbers above 0 too.
    """
    digits, most = 3, 9
    while f"{low:.{digits}f}" == f"{high:.{digits}f}" and digits < most and low < high:
        digits += 1
    return f"{value:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def kept_kind(gate: str) -> Kind:
    """What kept KV under a gate is: settings and length decide it where the gate decides nothing.

    Args:
        gate: its name, with or without its options behind it.
    """
    return "fixed" if gate.split(" ")[0] in ("open", "closed") else "share"


def without_interval(value: float, n: int, method: str = FEW) -> Estimate:
    """A value of which no interval can be given.

    Args:
        value: NaN for none.
        n: see `Estimate`.
        method: why; of no value, `UNDEFINED` whatever is given.
    """
    return Estimate(float(value), np.nan, np.nan, n, UNDEFINED if np.isnan(value) else method)


def inverse(estimate: Estimate) -> Estimate:
    """1 / a number that is not negative, infinite for 0; the interval's ends change places."""
    ends = np.array([estimate.value, estimate.low, estimate.high])
    ends[np.abs(ends) <= SAME] = 0  # what rounding leaves of it
    with np.errstate(divide="ignore"):
        value, high, low = (float(end) for end in 1 / ends)
    return Estimate(value, low, high, estimate.n, estimate.method)


@cache
def share(successes: int, n: int) -> Estimate:
    """A share of independent outcomes with its Wilson interval."""
    from statsmodels.stats.proportion import proportion_confint

    if n == 0:
        return without_interval(np.nan, 0)
    low, high = proportion_confint(successes, n, alpha=1 - LEVEL, method="wilson")
    # Rounding may leave the ends of none and all a little off.
    low, high = (0.0 if successes == 0 else low), (1.0 if successes == n else high)
    return Estimate(successes / n, float(low), float(high), n, WILSON)


def settled(values: NDArray[np.float64], kind: Kind) -> Estimate | None:
    """The mean of some inputs, where no bootstrap is wanted or of use; None where one is.

    Args:
        values: `[n]`, one per input.
        kind: what they are. Values beyond its bounds are taken as `free`.
    """
    n = len(values)
    if n == 0:
        return without_interval(np.nan, 0)
    if kind == "share" and np.isin(values, (0.0, 1.0)).all():
        return share(int(values.sum()), n)
    value = float(values.mean())
    if np.ptp(values) <= SAME:
        value = float(values[0])
        low, high = _BOUNDS.get(kind, (np.nan, np.nan))
        if kind == "fixed":
            return Estimate(value, value, value, n, EXACT)
        if low <= value <= high:
            # Others may have any value within the bounds, but are at most so many.
            alike = share(n, n).low
            least, most = (alike * value + (1 - alike) * end for end in (low, high))
            return Estimate(value, least, most, n, WILSON)
        return without_interval(value, n, FEW if n < LEAST else FLAT)
    return without_interval(value, n) if n < LEAST else None


def p_of_no_difference(
    differences: NDArray[np.float64], draws: int = DRAWS, seed: int = SEED
) -> float:
    """Two-sided p of a mean difference of 0: how often flipped signs give as large a mean.

    Were there no difference, the sign of each input's would be as likely the other one. All ways
    to flip are tried where they are no more than the draws, else so many at random. k inputs that
    differ cannot give less than 2 / 2^k.

    Args:
        differences: `[n]`, one per input.
        draws, seed: of the random flips.
    """
    sizes = np.abs(differences[np.abs(differences) > SAME])
    found = abs(float(differences.sum())) - SAME * max(1, len(sizes))
    if len(sizes) < 2 or 2 ** len(sizes) <= draws:
        flips = np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes)) & 1
        return float((np.abs((2.0 * flips - 1) @ sizes) >= found).mean())
    generator = np.random.default_rng(seed)
    chunk, beyond = max(1, CHUNK // len(sizes)), 0
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start), len(sizes)
        flips = generator.integers(0, 2, size, dtype=np.int8)
        beyond += int((np.abs((2.0 * flips - 1) @ sizes) >= found).sum())
    return (beyond + 1) / (draws + 1)


def percentiles(
    value: float, drawn: NDArray[np.float64], n: int, carried: int | None = None
) -> Estimate:
    """A statistic with the middle `LEVEL` of its draws, if they are of use.

    Args:
        value: the statistic.
        drawn: `[draws]`; those that are no number are left out.
        n: see `Estimate`.
        carried: see `Draws`; None for n.
    """
    known = drawn[~np.isnan(drawn)]
    if np.isnan(value) or len(known) == 0 or (n if carried is None else carried) < LEAST:
        return without_interval(value, n)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    if high - low <= SAME + 1e-9 * abs(value):
        return without_interval(value, n, FLAT)
    return Estimate(value, float(low), float(high), n, BOOTSTRAP)
