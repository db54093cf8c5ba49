"""Which way D points on a model: whether it is lower where eviction breaks the answer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from page_bench.gating.rules import BOOTSTRAP_DRAWS, CONFIDENCE
from page_bench.gating.threshold import Side

LEAST = 10
"""Inputs of either kind below which nothing is said: the interval would be too narrow."""

Verdict = Literal["right", "wrong", "undecided", "n too small"]


@dataclass(frozen=True)
class Direction:
    """D where an eviction breaks a right answer, against D where it does not.

    Attributes:
        arm: the evictor and budget.
        n_broken, n_unbroken: inputs that the full cache answers rightly, the evicted one wrongly
            or rightly.
        broken, unbroken: mean D of these; None for none.
        interval: of unbroken − broken, by bootstrap within either kind; None below `LEAST`.
        side: on which side of τ the gate opens.
    """

    arm: str
    n_broken: int
    n_unbroken: int
    broken: float | None
    unbroken: float | None
    interval: tuple[float, float] | None
    side: Side

    @property
    def verdict(self) -> Verdict:
        """`right` where the gate opens for what eviction does not break."""
        if self.interval is None:
            return "n too small"
        low, high = (
            self.interval if self.side == "above" else (-self.interval[1], -self.interval[0])
        )
        return "right" if low > 0 else "wrong" if high < 0 else "undecided"

    def __str__(self) -> str:
        n = f"{self.n_unbroken} inputs that {self.arm} leaves right and {self.n_broken} it breaks"
        if self.interval is None:
            return (
                f"which way D points: n too small ({n}); {LEAST} of each are needed, so give a "
                f"larger --pilot_size or another budget."
            )
        assert self.unbroken is not None
        assert self.broken is not None
        figures = (
            f"mean D is {self.unbroken:.4f} and {self.broken:.4f} on {n}, difference "
            f"{self.unbroken - self.broken:.4f} [{self.interval[0]:.4f}, {self.interval[1]:.4f}] "
            f"({CONFIDENCE:.0%}, bootstrap)"
        )
        if self.verdict == "wrong":
            return (
                f"D points the wrong way: {figures}. This gate opens where eviction harms; use "
                f"another gate or signal on this model."
            )
        found = "points the right way" if self.verdict == "right" else "points neither way surely"
        return f"D {found}: {figures}."


def direction_of(
    arm: str,
    drops: Mapping[tuple[str, int], float],
    full: Mapping[tuple[str, int], float],
    plain: Mapping[tuple[str, int], float],
    side: Side,
    seed: int,
) -> Direction:
    """Compare D of inputs that an eviction breaks with D of those that it does not.

    Args:
        arm: names the eviction.
        drops: D by input; the others hold the same inputs, or fewer.
        full, plain: how right the answers are, 1 for right.
        side: on which side of τ the gate opens.
        seed: of the bootstrap.
    """
    right = [sample for sample in drops if full.get(sample) == 1 and sample in plain]
    broken = [drops[sample] for sample in right if plain[sample] < 1]
    unbroken = [drops[sample] for sample in right if plain[sample] == 1]
    interval = None
    if min(len(broken), len(unbroken)) >= LEAST:
        interval = _interval(unbroken, broken, seed)
    return Direction(
        arm,
        len(broken),
        len(unbroken),
        statistics.fmean(broken) if broken else None,
        statistics.fmean(unbroken) if unbroken else None,
        interval,
        side,
    )


def _interval(unbroken: Sequence[float], broken: Sequence[float], seed: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    means = []
    for values in (unbroken, broken):
        given = np.asarray(values, dtype=np.float64)
        drawn = generator.integers(0, len(given), (BOOTSTRAP_DRAWS, len(given)))
        means.append(given[drawn].mean(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means[0] - means[1], [tail, 1 - tail])
    return float(low), float(high)
