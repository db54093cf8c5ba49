"""The rules for τ, what labels each needs, and how far a pilot settles it (bootstrap)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.gating.threshold import PILOT_SEED, SMALL_PILOT, Side, Threshold, moments
from page_bench.inputs.errors import UsageError

FIXED_TAU = 0.07
"""The paper's threshold on D, chosen on the Qwen2.5 and Mistral families."""
THETA_Z = -0.69
"""The paper's θ_z, fitted on five cells of the same families."""
OPEN_RATE = 0.75
"""Share that `quantile` opens unless told otherwise: what θ_z = −0.69 opens of normal values."""

CAPACITY_BOUND, DILUTION_PRONE = "niah_multikey_3", "vt"
"""The RULER tasks whose means the midpoint lies between (paper, Eq. 5)."""
MIDPOINT_SIZE = 20
"""Inputs of each of them."""

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True)
class LabelNeeds:
    """What a rule for τ must know of its inputs (paper, Table 8).

    Attributes:
        accuracy: whether it must know which answers are correct.
        task: whether it must know which task a pilot prompt belongs to.
        note: what stands behind this.
    """

    accuracy: bool
    task: bool
    note: str

    def __str__(self) -> str:
        words = [f"{k} {'yes' if v else 'no'}" for k, v in vars(self).items() if k != "note"]
        return f"{', '.join(words)}: {self.note}"


LABEL_NEEDS: Mapping[str, LabelNeeds] = {
    "number": LabelNeeds(False, False, "chosen by the user"),
    "fixed": LabelNeeds(False, False, "the paper's constant, for D of Qwen2.5 and Mistral"),
    "zscore": LabelNeeds(
        False, False, "unlabelled pilot; the paper fitted θ_z by task on other models"
    ),
    "midpoint": LabelNeeds(False, True, f"inputs of {CAPACITY_BOUND} and {DILUTION_PRONE}"),
    "quantile": LabelNeeds(False, False, "unlabelled pilot; the open rate is asked for"),
}
"""By rule; the first two need no pilot."""


def known_threshold(tau: float | str, signal: str = "drop", side: Side = "above") -> Threshold:
    """τ without a pilot: a number, or `fixed`.

    Raises:
        UsageError: the fixed value on another signal than D.
    """
    if not isinstance(tau, str):
        return Threshold(float(tau), "number", signal=signal, side=side)
    if signal != "drop":
        raise UsageError(
            f"tau=fixed is a threshold on D, but the gate reads {signal}; give tau a number, "
            f"zscore, midpoint or quantile."
        )
    return Threshold(FIXED_TAU, "fixed", signal=signal, side=side)


def midpoint_threshold(
    capacity_bound: Sequence[float],
    dilution_prone: Sequence[float],
    signal: str = "drop",
    side: Side = "above",
) -> Threshold:
    """τ halfway between two task means (paper, Eq. 5).

    Args:
        capacity_bound: the signal on inputs of a task that eviction ruins.
        dilution_prone: the signal on inputs of a task that it does not.
        signal, side: see `Threshold`.

    Raises:
        UsageError: one of them is empty, or not a number.
    """
    if not capacity_bound or not dilution_prone:
        raise UsageError(
            f"tau=midpoint needs inputs of {CAPACITY_BOUND} and of {DILUTION_PRONE}; give both, or "
            f"use tau=zscore."
        )
    low, high = moments(capacity_bound, signal)[0], moments(dilution_prone, signal)[0]
    count = len(capacity_bound) + len(dilution_prone)
    return Threshold((low + high) / 2, "midpoint", pilot_n=count, signal=signal, side=side)


def quantile_threshold(
    values: Sequence[float], open_rate: float, signal: str = "drop", side: Side = "above"
) -> Threshold:
    """τ at which this share of the pilot opens.

    The share is rounded up to whole prompts, and τ stands halfway between the last prompt that is
    to open and the next. Equal values cannot be told apart: where that next one is tied with the
    last, all that are tied open, and `pilot_open` exceeds `open_rate`.

    Raises:
        UsageError: no values, some that are not numbers, or an open rate outside [0, 1].
    """
    if not 0 <= open_rate <= 1:
        raise UsageError(f"open_rate={open_rate} is not allowed; give a number in [0, 1].")
    if not values:
        raise UsageError("tau=quantile needs a pilot of at least 1 prompt; run more prompts.")
    mu, sigma = moments(values, signal)
    ordered = np.sort(np.asarray(values, dtype=np.float64))[None]
    sign = 1.0 if side == "above" else -1.0
    tau = sign * float(_quantile_taus(np.sort(sign * ordered), open_rate)[0])
    return Threshold(
        tau, "quantile", mu, sigma, None, len(values), signal, side, open_rate=open_rate
    )


def opens_at(value: float, tau: float, side: Side) -> bool:
    """Whether a gate opens, τ included; what is not a number does not open it."""
    return value >= tau if side == "above" else value <= tau


def with_interval(
    threshold: Threshold, *strata: Sequence[float], seed: int = PILOT_SEED
) -> Threshold:
    """The threshold with its bootstrap interval, and what of the pilot it opens and leaves open.

    The interval holds the middle `CONFIDENCE` of τ over `BOOTSTRAP_DRAWS` pilots drawn from this
    one with replacement, each stratum by itself. There is none, and `undecided` stays None, where
    a stratum has fewer than `SMALL_PILOT` prompts, of which a bootstrap covers too little, or where
    τ is the same in all draws.

    Args:
        threshold: what one of the rules made of these values.
        strata: the pilot; two of them for `midpoint`, in its order.
        seed: of the draws.
    """
    side = threshold.side
    everything = [value for values in strata for value in values]
    opens = [opens_at(value, threshold.tau, side) for value in everything]
    threshold = dataclasses.replace(threshold, pilot_open=statistics.fmean(opens))
    generator = np.random.default_rng(seed)
    drawn = []
    for values in strata:
        pilot = np.asarray(values, dtype=np.float64)
        drawn.append(pilot[generator.integers(0, len(pilot), (BOOTSTRAP_DRAWS, len(pilot)))])
    sign = 1.0 if threshold.side == "above" else -1.0
    rules: Mapping[str, Callable[[], NDArray[np.float64]]] = {
        "zscore": lambda: (
            drawn[0].mean(1) + sign * _given(threshold.theta_z) * drawn[0].std(axis=1)
        ),
        "midpoint": lambda: (drawn[0].mean(1) + drawn[1].mean(1)) / 2,
        "quantile": lambda: (
            sign * _quantile_taus(np.sort(sign * drawn[0]), _given(threshold.open_rate))
        ),
    }
    if threshold.rule not in rules:
        raise ValueError(f"a {threshold.rule} threshold has no pilot")
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(rules[threshold.rule](), [tail, 1 - tail], method="nearest")
    # Sums of equal numbers in another order may differ by rounding.
    alike = low == high or all(min(values) == max(values) for values in strata)
    if alike or min(map(len, strata)) < SMALL_PILOT:
        return threshold
    return dataclasses.replace(
        threshold,
        interval=(float(low), float(high)),
        undecided=statistics.fmean(
            opens_at(v, float(low), side) != opens_at(v, float(high), side) for v in everything
        ),
    )


def _quantile_taus(ordered: NDArray[np.float64], open_rate: float) -> NDArray[np.float64]:
    """Per row, τ at and above which that share lies: ascending `[R, n]` → `[R]`."""
    n = ordered.shape[1]
    count = math.ceil(round(open_rate * n, 9))  # 0.07 * 100 is a little more than 7
    if count == n:
        lowest: NDArray[np.float64] = ordered[:, 0]
        return lowest
    after = ordered[:, n - count - 1]
    if count == 0:
        return np.nextafter(after, np.inf)
    last = ordered[:, n - count]
    middle = (last + after) / 2
    # Neighbours among the floats have nothing between them.
    return np.where(middle > after, middle, last)


def _given(value: float | None) -> float:
    assert value is not None
    return value
