"""The threshold τ: known beforehand, or measured on a pilot of unlabelled prompts."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from page_bench.inputs.errors import UsageError

PILOT_SEED = 1234
SMALL_PILOT = 20
"""A threshold from fewer prompts than this comes with a warning and without an interval: of so few,
a bootstrap covers too little (`analysis.estimates.LEAST`)."""

Side = Literal["above", "below"]
"""On which side of τ, τ included, a gate opens."""


@dataclass(frozen=True)
class Threshold:
    """τ and where it comes from.

    Attributes:
        tau: threshold on the signal.
        rule: `zscore`, `midpoint`, `quantile`, `fixed` or `number`.
        mu: mean of the signal over the pilot; None without a pilot.
        sigma: its population standard deviation over the pilot; None without a pilot.
        theta_z: θ_z; None for other rules than `zscore`.
        pilot_n: prompts of the pilot; 0 without a pilot.
        signal: what is compared with τ, `drop` for D.
        side: see `Side`.
        open_rate: share of the pilot that was to open; None for other rules than `quantile`.
        pilot_open: share of the pilot that opens at τ, ties included; None where not counted.
        interval: bootstrap interval of τ (see `rules.with_interval`); None where not measured, or
            where the pilot is too small.
        undecided: share of the pilot that opens at one end of the interval and not at the other;
            None without one.
    """

    tau: float
    rule: str
    mu: float | None = None
    sigma: float | None = None
    theta_z: float | None = None
    pilot_n: int = 0
    signal: str = "drop"
    side: Side = "above"
    open_rate: float | None = None
    pilot_open: float | None = None
    interval: tuple[float, float] | None = None
    undecided: float | None = None

    def z(self, value: float) -> float | None:
        """(value − μ)/σ; None without μ and σ, or where all values of the pilot are equal."""
        if self.mu is None or not self.sigma:
            return None
        return (value - self.mu) / self.sigma


def select_pilot(
    samples: Sequence[tuple[str, int]], size: int, seed: int = PILOT_SEED
) -> list[int]:
    """Choose pilot prompts without looking at labels or at the order of the requests.

    A sample's place in the draw depends on nothing but itself, so that the pilots of two
    overlapping sets of samples overlap as well.

    Args:
        samples: (task, doc_id) of each prompt, distinct.
        size: prompts wanted.
        seed: another seed, another pilot.

    Returns:
        Indices into `samples`, in random order; all of them if there are fewer.
    """

    def place(i: int) -> tuple[bytes, tuple[str, int]]:
        task, doc_id = samples[i]
        return hashlib.sha256(f"{seed}/{task}/{doc_id}".encode()).digest(), samples[i]

    return sorted(range(len(samples)), key=place)[:size]


def zscore_threshold(
    values: Sequence[float], theta_z: float, signal: str = "drop", side: Side = "above"
) -> Threshold:
    """τ = μ + θ_z·σ over the pilot's D (paper, section 3 and appendix A.3).

    A gate that opens below τ reads the signal with the opposite sign, so that there τ = μ − θ_z·σ
    and θ_z keeps its meaning: the lower, the more inputs open.

    Raises:
        UsageError: fewer than two prompts, or a signal that is not a number.
    """
    if len(values) < 2:
        raise UsageError(
            f"tau=zscore needs a pilot of at least 2 prompts, but this run has {len(values)}; "
            f"run more prompts, or give tau a number."
        )
    mu, sigma = moments(values, signal)
    tau = mu + (theta_z if side == "above" else -theta_z) * sigma
    return Threshold(tau, "zscore", mu, sigma, theta_z, len(values), signal, side)


def moments(values: Sequence[float], signal: str = "drop") -> tuple[float, float]:
    """μ and the population's σ.

    Raises:
        UsageError: a value is not a number.
    """
    nans = sum(value != value for value in values)
    if nans:
        raise UsageError(
            f"{signal} is not a number on {nans} of {len(values)} pilot prompts, so no threshold "
            f"on it can be measured; choose another gate."
        )
    # The mean of equal numbers need not be that number, and the gate compares with it.
    mu = values[0] if min(values) == max(values) else statistics.fmean(values)
    return mu, statistics.pstdev(values)
