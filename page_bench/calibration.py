"""The threshold τ: known beforehand, or measured on a pilot of unlabelled prompts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from page_bench.errors import UsageError

PILOT_SEED = 1234
SMALL_PILOT = 20
"""A z-score threshold from fewer prompts than this comes with a warning."""


@dataclass(frozen=True)
class Threshold:
    """τ and where it comes from.

    Attributes:
        tau: threshold on D.
        rule: `zscore`, `fixed` or `number`.
        mu: mean of D over the pilot; None without a pilot.
        sigma: population standard deviation of D over the pilot; None without a pilot.
        theta_z: θ_z; None without a pilot.
        pilot_n: prompts of the pilot; 0 without a pilot.
    """

    tau: float
    rule: str
    mu: float | None = None
    sigma: float | None = None
    theta_z: float | None = None
    pilot_n: int = 0

    def z(self, drop: float) -> float | None:
        """(D − μ)/σ; None without a pilot, or where all its D are equal."""
        if self.mu is None or not self.sigma:
            return None
        return (drop - self.mu) / self.sigma


def select_pilot(samples: Sequence[tuple[str, int]], size: int) -> list[int]:
    """Choose pilot prompts without looking at labels or at the order of the requests.

    Args:
        samples: (task, doc_id) of each prompt, distinct.
        size: prompts wanted.

    Returns:
        Indices into `samples`, in random order (fixed seed); all of them if there are fewer.
    """
    ordered = sorted(range(len(samples)), key=lambda i: samples[i])
    return random.Random(PILOT_SEED).sample(ordered, min(size, len(ordered)))


def zscore_threshold(drops: Sequence[float], theta_z: float) -> Threshold:
    """τ = μ + θ_z·σ over the pilot's D (paper, section 3 and appendix A.3).

    Raises:
        UsageError: fewer than two prompts.
    """
    if len(drops) < 2:
        raise UsageError(
            f"tau=zscore needs a pilot of at least 2 prompts, but this run has {len(drops)}; "
            f"run more prompts, or give tau a number."
        )
    # The mean of equal numbers need not be that number, and the gate compares with it.
    mu = drops[0] if min(drops) == max(drops) else statistics.fmean(drops)
    sigma = statistics.pstdev(drops)
    return Threshold(mu + theta_z * sigma, "zscore", mu, sigma, theta_z, len(drops))
