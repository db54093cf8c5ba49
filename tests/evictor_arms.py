"""Every evictor at every granularity it can have, as model arguments."""

from __future__ import annotations

from page_bench.evictors import evictor_class, own_names
from page_bench.evictors.base import GRANULARITIES, Granularity, Wrapper

CHECKPOINT_EVICTORS = ("trimkv", "dbtrimkv")
"""They read trained gates, which a test must write first: `evictor.checkpoint`."""


def titles() -> list[str]:
    """One title per evictor of this package; wrappers stand around SnapKV."""
    return [
        f"{name}(snapkv)" if issubclass(evictor_class(name), Wrapper) else name
        for name in own_names()
    ]


def arms() -> list[tuple[str, Granularity]]:
    """All pairs of title and granularity that have a meaning."""
    return [
        (title, granularity)
        for title in titles()
        for granularity in GRANULARITIES
        if granularity in evictor_class(title.partition("(")[0]).granularities
    ]
