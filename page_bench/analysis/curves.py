"""Accuracy against kept-KV as broken lines: interpolation, and where one line overtakes another.

All functions work on many pairs of lines at once, one for each resample of a bootstrap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-9

Array = NDArray[np.float64]


def interpolate(x: Array, y: Array, at: Array) -> Array:
    """Values of broken lines.

    Args:
        x, y: `[m, k]`, the points of m lines, in any order. Points at the same x count as one with
            the mean of their y.
        at: `[m, j]` or `[1, j]`.

    Returns:
        `[m, j]`; NaN outside a line.
    """
    same = np.abs(x[:, :, None] - x[:, None, :]) <= _TOLERANCE
    y = (same * y[:, None, :]).sum(2) / same.sum(2)
    order = np.argsort(x, axis=1, kind="stable")
    x, y = (np.take_along_axis(own, order, axis=1) for own in (x, y))
    at = np.broadcast_to(at, (len(x), at.shape[1]))
    after = (x[:, None, :] <= at[:, :, None]).sum(2).clip(0, x.shape[1] - 1)
    before = (after - 1).clip(0)
    x0, x1, y0, y1 = (
        np.take_along_axis(own, index, axis=1) for own in (x, y) for index in (before, after)
    )
    span = x1 - x0
    weight = np.divide(at - x0, span, out=np.ones_like(span), where=span > _TOLERANCE)
    inside = (at >= x[:, :1] - _TOLERANCE) & (at <= x[:, -1:] + _TOLERANCE)
    return np.where(inside, y0 + (y1 - y0) * weight.clip(0, 1), np.nan)


def overtaking(x: Array, y: Array, other_x: Array, other_y: Array) -> Array:
    """Least x at or beyond which a line lies above another at once.

    Args:
        x, y: `[m, k]`, the points of the other lines' rivals.
        other_x, other_y: `[m, j]`, the points of the lines that are to be overtaken.

    Returns:
        `[m]`: the start of what both have in common, if the line is above there already; NaN if it
        never is.
    """
    knots = np.sort(np.hstack([x, other_x]), axis=1)
    lead = interpolate(x, y, knots) - interpolate(other_x, other_y, knots)
    ahead = lead > _TOLERANCE
    first = ahead.argmax(1)
    rows = np.arange(len(knots))
    before = (first - 1).clip(0)
    end, start = knots[rows, first], knots[rows, before]
    gained, behind = lead[rows, first], np.minimum(lead[rows, before], 0.0)
    starts_there = (first == 0) | np.isnan(behind)
    behind = np.where(starts_there, 0.0, behind)
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = start + (end - start) * -behind / (gained - behind)
    crossing = np.where(starts_there, end, crossing)
    return np.where(ahead.any(1), crossing, np.nan)
