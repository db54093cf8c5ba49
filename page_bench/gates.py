"""The decision, input by input: evict or keep the full cache."""

from __future__ import annotations

from page_bench.calibration import Threshold


def opens(gate: str, drop: float, threshold: Threshold | None) -> bool:
    """Whether the gate opens, that is, whether this input's cache is evicted (paper, Eq. 2).

    Args:
        gate: `page`, `open` or `closed`.
        drop: D of the input.
        threshold: τ; only `page` reads it.
    """
    if gate != "page":
        return gate == "open"
    if threshold is None:
        raise ValueError("gate=page needs a threshold")
    return drop >= threshold.tau
