"""The line of ρ over headroom, against closed forms and the paper's Table 25."""

from __future__ import annotations

import math

import numpy as np
import pytest
from statsmodels.api import OLS

from page_bench.analysis.estimates import FEW, FLAT
from page_bench.analysis.scaling import Point, fit, slope

# Headroom and ρ of Table 25: VT of Qwen2.5-1.5B and 3B at 4K and 16K, FWE of 3B at both, and the
# capacity-bound task of 1.5B at both.
VT = [(0.18, 0.06), (0.75, 0.19), (0.00, 0.00), (0.09, 0.05)]
FWE_4K, FWE_16K = (0.24, 0.01), (0.62, 0.32)
MK3 = [(0.35, 0.01), (0.74, 0.00)]


def point(headroom: float, rho: float, n: int = 100) -> Point:
    """A task with that headroom and ρ: inputs that recover are wrong with the full cache."""
    wrong = np.arange(n) < round(headroom * n)
    return Point("", wrong.astype(float), (np.arange(n) < round(rho * n)).astype(float))


def test_the_paper_s_slopes() -> None:
    """0.34 holds all of the dilution-prone rows, the one with a ratio of 0.04 too.

    The text says that this row is left out; without it the slope is 0.36.
    """
    dilution = [point(*place) for place in [*VT, FWE_4K, FWE_16K]]
    assert fit(dilution, 200).across.value == pytest.approx(0.3432, abs=5e-5)
    with_mk3 = [*dilution, *(point(*place) for place in MK3)]
    assert fit(with_mk3, 200).across.value == pytest.approx(0.2111, abs=5e-5)
    without = [point(*place) for place in [*VT, FWE_16K]]
    assert fit(without, 200).across.value == pytest.approx(0.3607, abs=5e-5)


def test_the_slope_is_that_of_least_squares() -> None:
    x, y = np.random.default_rng(1).random((2, 12))
    assert float(slope(x, y)) == pytest.approx(float(OLS(y, x).fit().params[0]), abs=1e-12)
    assert np.isnan(slope(np.zeros(3), np.zeros(3)))


def test_the_interval_of_one_point_is_that_of_a_share() -> None:
    """All wrong, a third recovered: headroom is 1 in every draw, and the slope a plain share."""
    found = fit([point(1.0, 1 / 3, n=300)], 20_000)
    error = math.sqrt(1 / 3 * 2 / 3 / 300)
    assert found.within.value == pytest.approx(1 / 3)
    assert found.within.low == pytest.approx(1 / 3 - 1.96 * error, abs=0.004)
    assert found.within.high == pytest.approx(1 / 3 + 1.96 * error, abs=0.004)
    assert (found.points, found.within.n, found.across.n) == (1, 300, 1)
    assert math.isnan(found.across.low)


def test_grouped_documents_are_drawn_as_single_ones() -> None:
    """Against a resampling that draws every document by its index."""
    points = [point(0.5, 0.2), point(0.8, 0.5)]
    random = np.random.default_rng(3)
    drawn = []
    for _ in range(4000):
        places = []
        for one in points:
            chosen = random.integers(0, 100, 100)
            places.append((one.headroom[chosen].mean(), one.gained[chosen].mean()))
        x, y = np.array(places).T
        drawn.append((x * y).sum() / (x * x).sum())
    found = fit(points, 4000)
    assert (found.within.low, found.within.high) == pytest.approx(
        tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.012
    )


def test_points_that_lie_on_a_line_leave_no_doubt_across() -> None:
    """None that an interval could tell: three points are too few, and thirty do not vary."""
    found = fit([point(h, h / 2) for h in (0.2, 0.4, 0.8)], 500)
    assert found.across.value == pytest.approx(0.5)
    assert found.across.method == FEW
    many = fit([point(h, h / 2) for h in (0.2, 0.4, 0.8) * 10], 500)
    assert (many.across.n, many.across.method) == (30, FLAT)
    assert found.within.low < 0.5 < found.within.high


def test_nothing_to_fit() -> None:
    assert fit([], 100).points == 0
    assert math.isnan(fit([], 100).within.value)
    saturated = fit([point(0.0, 0.0)], 100)
    assert math.isnan(saturated.within.value)
    assert math.isnan(saturated.within.low)
