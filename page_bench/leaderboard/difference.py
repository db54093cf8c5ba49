"""Two independent measurements of one number: how far apart, and what that can tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import norm

from page_bench.analysis.intervals import LEVEL, Estimate

AGREES, DIFFERS, TOO_FEW = "agrees", "differs", "too few to tell"
VERDICTS = (AGREES, DIFFERS, TOO_FEW)
POWER = 0.8
"""With this probability the smallest difference that is named would have been seen."""
_Z = float(norm.ppf((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Difference:
    """Ours minus theirs.

    Attributes:
        value: the difference.
        low, high: its 95 % interval.
        p: two-sided, of no difference.
        smallest: which difference would be seen, at a level of 5 %, with a probability of `POWER`.
    """

    value: float
    low: float
    high: float
    p: float
    smallest: float

    def verdict(self, margin: float) -> str:
        """One of `VERDICTS`.

        Args:
            margin: differences up to this count as none. `agrees` says that the whole interval
                lies within it, not only that no difference was found.
        """
        if self.low > 0 or self.high < 0:
            return DIFFERS
        return AGREES if -margin <= self.low and self.high <= margin else TOO_FEW


def of_shares(ours: int, n: int, theirs: int, m: int) -> Difference:
    """Successes among n and m > 0 independent outcomes: Newcombe's interval, score test's p."""
    from statsmodels.stats.proportion import confint_proportions_2indep

    def error(pooled: float) -> float:
        return math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))

    low, high = confint_proportions_2indep(ours, n, theirs, m, method="newcomb", alpha=1 - LEVEL)
    value = ours / n - theirs / m
    spread = error((ours + theirs) / (n + m))
    p = 1.0 if spread == 0 else float(2 * norm.sf(abs(value) / spread))
    # Shares of 0 and 1 would claim no spread at all.
    smallest = _seen(error((ours + theirs + 1) / (n + m + 2)))
    return Difference(value, float(low), float(high), p, smallest)


def of_means(
    ours: Estimate, value: float, low: float | None, high: float | None, m: int | None
) -> Difference:
    """Means over inputs, by the normal approximation.

    Args:
        ours: our mean, whose n counts inputs; n ≥ 2.
        value: theirs.
        low, high: their interval. Where there is none, their inputs are taken to scatter as ours
            do.
        m: their inputs; None if not reported: as many as ours.
    """
    # Inputs that are all alike say of the spread only what none of n says of a share.
    own = (ours.high - ours.low) / (2 * _Z) or _Z / (ours.n + _Z * _Z)
    their = own * math.sqrt(ours.n / (m or ours.n))
    if low is not None and high is not None and high > low:
        their = (high - low) / (2 * _Z)
    error = math.hypot(own, their)
    gap = ours.value - value
    p = float(2 * norm.sf(abs(gap) / error))
    return Difference(gap, gap - _Z * error, gap + _Z * error, p, _seen(error))


def _seen(error: float) -> float:
    return (_Z + float(norm.ppf(POWER))) * error
