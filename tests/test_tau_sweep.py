"""A sweep over τ against hand-computed cases, with its plateaus and figure."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from stored_traces import pair

from page_bench.analysis.notes import plateau_notes
from page_bench.analysis.outcomes import Outcomes, summarise
from page_bench.analysis.tau_sweep import draw, figure_path, grid, sweep
from page_bench.inputs.errors import UsageError

# Eviction ruins the two inputs with the least D; the full cache is wrong on the one with the most.
CASES = [(0.1, 0.0, 1.0), (0.2, 0.0, 1.0), (0.5, 1.0, 1.0), (0.6, 1.0, 1.0), (0.9, 1.0, 0.0)]
PAIRS = [pair("vt", i, *case) for i, case in enumerate(CASES)]
COLUMNS = Outcomes.of(PAIRS)
DROPS = [drop for drop, *_ in CASES]


def test_a_hand_computed_sweep() -> None:
    found = sweep(COLUMNS, DROPS, tau=0.3)
    points = {round(point.tau, 3): point for point in found.points}
    # One below all D, one between each two, one above all, and the given one.
    assert list(points) == [0.0, 0.15, 0.3, 0.35, 0.55, 0.75, 1.0]
    assert [p.open.value for p in found.points] == [1.0, 0.8, 0.6, 0.6, 0.4, 0.2, 0.0]
    assert [p.delta.value for p in found.points] == pytest.approx([0, 0.2, 0.4, 0.4, 0.4, 0.4, 0.2])
    assert [p.false_positive.value for p in found.points] == [1, 0.5, 0, 0, 0, 0, 0]
    assert [p.false_negative.value for p in found.points] == pytest.approx(
        [0, 0, 0, 0, 1 / 3, 2 / 3, 1]
    )
    assert [p.kept_kv.value for p in found.points] == pytest.approx(
        [0.25, 0.4, 0.55, 0.55, 0.7, 0.85, 1.0]
    )
    first = found.points[0]
    assert (first.open.n, first.delta.n) == (5, 5)
    assert (first.false_positive.n, first.false_negative.n) == (2, 3)


def test_every_point_is_the_summary_of_its_decisions() -> None:
    for point in sweep(COLUMNS, DROPS, tau=0.3).points:
        (row,) = summarise(PAIRS, [drop >= point.tau for drop in DROPS])
        assert (row.open, row.delta, row.kept_kv) == (point.open, point.delta, point.kept_kv)


def test_a_gate_that_opens_below() -> None:
    found = sweep(COLUMNS, DROPS, tau=0.2, side="below", taus=[0.2])
    (point,) = found.points
    assert point.open.value == 0.4  # τ itself included
    assert (point.false_positive.value, point.false_negative.value) == (1.0, 1.0)


def test_nan_keeps_the_gate_closed_at_every_tau() -> None:
    for side in ("above", "below"):
        found = sweep(COLUMNS, [math.nan, *DROPS[1:]], tau=0.3, side=side)
        assert max(point.open.value for point in found.points) == 0.8
    with pytest.raises(UsageError, match="not a number on any input"):
        sweep(COLUMNS, [math.nan] * 5, tau=0.3)


def test_the_plateau_is_the_longest_stretch_that_the_best_delta_s_interval_holds() -> None:
    # 40 inputs: Δ rises from 0 to 0.5 where the ruined half closes, then stays.
    pairs = [pair("vt", i, i / 40, float(i >= 20), 1.0) for i in range(40)]
    found = sweep(Outcomes.of(pairs), [i / 40 for i in range(40)], tau=0.5)
    best = max(found.points, key=lambda p: p.delta.value)
    assert found.plateau is not None
    low, high = found.plateau
    assert best.delta.value == 0.5
    assert found.best == best.tau
    inside = [p for p in found.points if low <= p.tau <= high]
    outside = [p for p in found.points if not low <= p.tau <= high]
    assert all(best.delta.low <= p.delta.value <= best.delta.high for p in inside)
    assert all(p.delta.value < best.delta.low for p in outside)
    assert high == found.points[-1].tau  # closing more costs no Δ, only memory


def test_the_paper_s_plateau_stands_around_tau_and_bounds_the_false_rates() -> None:
    pairs = [pair("vt", i, i / 40, float(i >= 20), 1.0) for i in range(40)]
    found = sweep(Outcomes.of(pairs), [i / 40 for i in range(40)], tau=0.5)
    assert found.around is not None
    inside = [p for p in found.points if found.around[0] <= p.tau <= found.around[1]]
    # Up to two of twenty good inputs closed; one more harmed one open costs 0.025 of Δ.
    assert [round(p.open.value * 40) for p in inside] == [20, 20, 19, 18]
    assert sweep(Outcomes.of(pairs), [i / 40 for i in range(40)], tau=0.8).around is None


def test_a_grid_is_thinned_evenly_and_keeps_its_ends() -> None:
    values = np.arange(1000) / 1000
    full, thin = grid(values, 5000), grid(values, 200)
    assert len(full) == 1001
    assert len(thin) == 200
    assert (thin[0], thin[-1]) == (full[0], full[-1])
    assert set(thin) <= set(full)
    assert len(sweep(COLUMNS, DROPS, tau=0.3).points) <= 200


def test_each_tau_of_the_grid_decides_differently() -> None:
    near = float(np.nextafter(0.5, 1))
    for values in ([0.5, near], [0.5], [0.1, 0.1, 0.7]):
        read = np.array(values)
        decisions = [tuple((read >= tau).tolist()) for tau in grid(read)]
        assert len(set(decisions)) == len(decisions) == len(set(values)) + 1


def test_budgets_are_pooled_by_input() -> None:
    twice = PAIRS * 2
    found = sweep(Outcomes.of(twice), DROPS * 2, tau=0.3)
    once = sweep(COLUMNS, DROPS, tau=0.3)
    for point, single in zip(found.points, once.points, strict=True):
        assert point.delta == single.delta
        assert point.open == single.open
        assert (point.open.n, point.open.method) == (5, "wilson")


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_figure_is_written(suffix: str, magic: bytes, tmp_path: Path) -> None:
    path = figure_path(str(tmp_path / f"sweep.{suffix}"))
    draw(sweep(COLUMNS, DROPS, tau=0.3), path, "snapkv")
    content = path.read_bytes()
    assert content.startswith(magic)
    if suffix == "svg":
        for words in ("false positives", "open rate", "kept KV", "plateau", "n = 5"):
            assert words in content.decode()


def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file name in \.png or \.svg"):
        figure_path(str(tmp_path / "sweep.pdf"))
    with pytest.raises(UsageError, match="there is no folder"):
        figure_path(str(tmp_path / "none" / "sweep.png"))


# As in the paper's Figure 6, where the class of an input is its task's.
BY_TASK = [
    ("niah_multikey_3", 0.1),
    ("niah_multikey_3", 0.6),
    ("vt", 0.5),
    ("vt", 0.7),
    ("fwe", 0.05),
]


def test_false_rates_by_task() -> None:
    """All answers are right, so by outcome there are no false positives at all."""
    pairs = [pair(task, i, drop, 1.0, 1.0) for i, (task, drop) in enumerate(BY_TASK)]
    values = [drop for _, drop in BY_TASK]
    capacity = [task == "niah_multikey_3" for task, _ in BY_TASK]
    found = sweep(Outcomes.of(pairs), values, tau=0.3, taus=[0.0, 0.3, 0.65], is_capacity=capacity)
    opened = [point.capacity_open for point in found.points]
    closed = [point.others_closed for point in found.points]
    assert [rate and rate.value for rate in opened] == [1.0, 0.5, 0.0]
    assert [rate and rate.value for rate in closed] == pytest.approx([0.0, 1 / 3, 2 / 3])
    assert [rate and rate.n for rate in (opened[0], closed[0])] == [2, 3]
    assert all(point.by_task for point in found.points)
    assert [point.false_negative.value for point in found.points] == pytest.approx([0, 0.4, 0.8])


def test_the_paper_s_plateau_goes_by_task_where_tasks_are_named() -> None:
    pairs = [pair("vt" if i >= 20 else "mk3", i, i / 40, 1.0, 1.0) for i in range(40)]
    values = [i / 40 for i in range(40)]
    found = sweep(Outcomes.of(pairs), values, tau=0.49, is_capacity=[i < 20 for i in range(40)])
    assert found.around is not None
    inside = [p for p in found.points if found.around[0] <= p.tau <= found.around[1]]
    # Two of twenty on either side.
    assert sorted({round(p.open.value * 40) for p in inside}) == [18, 19, 20, 21, 22]
    assert (
        sweep(Outcomes.of(pairs), values, tau=0.49).around is None
    )  # no input can be a false positive


def test_without_harmed_inputs_no_plateau_is_claimed() -> None:
    """A false-positive rate of no inputs is not 0."""
    pairs = [pair("vt", i, i / 40, 1.0, 1.0) for i in range(40)]
    found = sweep(Outcomes.of(pairs), [i / 40 for i in range(40)], tau=0.0)
    assert math.isnan(found.points[0].false_positive.value)
    assert found.points[0].false_negative.value == 0
    assert found.around is None
    (*_, note) = plateau_notes(found)
    assert note.startswith("no input can be a false positive, so nothing can be said of")


def test_the_figure_shows_the_rates_by_task(tmp_path: Path) -> None:
    path = figure_path(str(tmp_path / "sweep.svg"))
    draw(sweep(COLUMNS, DROPS, tau=0.3, is_capacity=[True, True, False, False, False]), path, "x")
    for words in ("capacity-bound tasks open", "other tasks closed"):
        assert words in path.read_text()
