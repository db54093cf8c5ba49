"""r(x) with and without b = 1, against hand-made inputs."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint
from toy_cells import Toy, toy_cell

from page_bench.analysis.pools import inputs
from page_bench.analysis.recovery import recoveries, signs

# (full, plain, open, r below 1, r with b = 1)
CASES = [
    (1.0, {0.25: 0.0, 0.5: 0.0}, True, -1, 0),
    (1.0, {0.25: 0.0, 0.5: 0.0}, False, 0, 0),
    (1.0, {0.25: 0.0, 0.5: 1.0}, True, 0, 0),
    (0.0, {0.25: 1.0, 0.5: 0.0}, True, 1, 1),
    (0.0, {0.25: 1.0, 0.5: 0.0}, False, 0, 0),
    (0.0, {0.25: 0.0, 0.5: 0.0}, True, 0, 0),
]
TOYS = [Toy("vt", i, full, plain, open=open_) for i, (full, plain, open_, *_) in enumerate(CASES)]


@pytest.mark.parametrize("with_full", [True, False])
def test_r_of_each_input(with_full: bool) -> None:
    """Whether the rows hold b = 1 makes no difference to either form."""
    frame = inputs(toy_cell(TOYS, with_full=with_full))
    assert signs(frame, False).tolist() == [r for *_, r, _ in CASES]
    assert signs(frame, True).tolist() == [r for *_, r in CASES]


def test_shares_by_task() -> None:
    below, with_one = recoveries([inputs(toy_cell(TOYS))])
    assert (below.with_full, with_one.with_full) == (False, True)
    assert [e.value for e in (below.lost, below.same, below.gained)] == [1 / 6, 4 / 6, 1 / 6]
    assert [e.value for e in (with_one.lost, with_one.same, with_one.gained)] == [0, 5 / 6, 1 / 6]
    ends = proportion_confint(1, 6, method="wilson")
    assert (below.lost.low, below.lost.high) == pytest.approx(ends, abs=1e-12)


def test_with_b_1_no_gate_can_lose() -> None:
    """The identity that the section warns of, on answers drawn at random."""
    random = np.random.default_rng(0)
    toys = [
        Toy("vt", i, full, {0.25: a, 0.5: b}, open=bool(o))
        for i, (full, a, b, o) in enumerate(random.integers(0, 2, (200, 4)).tolist())
    ]
    frame = inputs(toy_cell(toys))
    assert (signs(frame, False) == -1).sum() > 10
    assert signs(frame, True).min() == 0
    # What is gained is the same in both forms.
    assert ((signs(frame, False) == 1) == (signs(frame, True) == 1)).all()
