"""How often each cluster is drawn in each resample of a bootstrap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CHUNK = 1_000_000
"""Counts that are held as numbers at once."""
_REMEMBERED = 20_000_000
"""Counts of one bootstrap, two bytes each, that are kept for the next one of the same inputs."""


def drawn_counts(n: int, draws: int, seed: int) -> Iterable[NDArray[np.uint16]]:
    """How often each of n clusters is drawn: chunks of `[draws, clusters]`.

    Args:
        n: clusters.
        draws, seed: of the resamples.
    """
    return [_remembered(n, draws, seed)] if n * draws <= _REMEMBERED else _drawn(n, draws, seed)


@lru_cache(maxsize=4)
def _remembered(n: int, draws: int, seed: int) -> NDArray[np.uint16]:
    """All in one; many statistics of a report are of the same inputs."""
    found = list(_drawn(n, draws, seed))
    return np.concatenate(found) if found else np.empty((0, n), dtype=np.uint16)


def _drawn(n: int, draws: int, seed: int) -> Iterator[NDArray[np.uint16]]:
    """See `drawn_counts`."""
    generator = np.random.default_rng(seed)
    chunk = max(1, CHUNK // n)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        # Indices are several times faster to draw than counts.
        drawn = generator.integers(0, n, size=(size, n))
        drawn += np.arange(size)[:, None] * n
        counts = np.bincount(drawn.ravel(), minlength=size * n)
        yield counts.reshape(size, n).astype(np.uint16)
