"""Clusters in the order of their strata, so that each stratum is a stretch of numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def by_stratum(
    of: NDArray[np.intp], strata: Sequence[Hashable]
) -> tuple[NDArray[np.intp], list[int]]:
    """Clusters numbered anew, stratum by stratum.

    Args:
        of: `[n]`, the cluster of each value, numbered from 0 on.
        strata: `[n]`, the stratum of each.

    Returns:
        The new number of each value's cluster `[n]`, and where each stratum ends.

    Raises:
        ValueError: a cluster lies in two strata.
    """
    stratum: dict[int, Hashable] = {}
    for cluster, own in zip(of.tolist(), strata, strict=True):
        if stratum.setdefault(cluster, own) != own:
            raise ValueError(f"a cluster lies in the strata {stratum[cluster]} and {own}")
    members: dict[Hashable, list[int]] = {}
    for cluster, own in stratum.items():
        members.setdefault(own, []).append(cluster)
    order = np.array([cluster for own in members.values() for cluster in own], dtype=np.intp)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return number[of], np.cumsum([len(own) for own in members.values()]).tolist()
