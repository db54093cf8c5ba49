"""Colours, markers and dashes that stay apart for colour-blind eyes and in print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Okabe and Ito's colours, without the yellow that white paper swallows.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


class Look(NamedTuple):
    """How a series is drawn."""

    color: str
    marker: str


PLAIN = Look("#D55E00", "s")
GATED = Look("#0072B2", "o")
FULL = Look("#000000", "D")
"""The three answers of an input look the same in every chart."""


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, the same in all charts that are given the same names."""
    distinct = sorted(set(names))
    return {
        name: Look(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(distinct)
    }
