"""Sections of a report: their numbers are those of the statistics, and their figures are drawn."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from toy_cells import Toy, counted, toy_cell
from toy_grid import BUDGETS, TASKS, grid

from page_bench.analysis.cell_sweep import sweep_cell
from page_bench.analysis.cells import Cell
from page_bench.analysis.drops import separations
from page_bench.analysis.harm import harms
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.partition import parts
from page_bench.analysis.pools import inputs
from page_bench.analysis.times import times
from page_bench.gating.rules import midpoint_threshold
from page_bench.pages.section import Section, Table
from page_bench.report.sections import cost, drop, harm, layers, partition, recovery, scaling, tau
from page_bench.report.settings import Settings

SETTINGS = Settings(draws=400)
MODULES = (partition, harm, recovery, drop, tau, layers, scaling, cost)
GRID = grid()
SECTIONS = {module.__name__.split(".")[-1]: module.section(GRID, SETTINGS) for module in MODULES}
TABLES = [table for section in SECTIONS.values() for table in section.tables]
CHARTS = [chart for section in SECTIONS.values() for chart in section.charts]


def column(table: Table, name: str) -> list[object]:
    """The values under a heading."""
    return [row[list(table.columns).index(name)] for row in table.rows]


def rows(table: Table) -> list[dict[str, object]]:
    """Rows by heading."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def table(section: Section, name: str) -> Table:
    """A table by its name."""
    (found,) = (one for one in section.tables if one.name == name)
    return found


@pytest.mark.parametrize("one", TABLES, ids=lambda table: table.name)
def test_tables_are_rectangular_carry_n_and_ask(one: Table) -> None:
    assert one.rows
    assert all(len(row) == len(one.columns) for row in one.rows)
    assert len(set(one.columns)) == len(one.columns)
    assert one.title.endswith("?")
    assert "n" in one.columns
    estimates = [value for row in one.rows for value in row if isinstance(value, Estimate)]
    assert estimates
    plain = [value for row in one.rows for value in row if isinstance(value, np.generic)]
    assert plain == []  # numpy's numbers would not go into JSON


def test_names_are_those_of_one_file_each() -> None:
    for things in (TABLES, CHARTS):
        names = [thing.name for thing in things]
        assert len(set(names)) == len(names)
        assert all(name.isascii() and name.replace("_", "").isalnum() for name in names)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_charts_are_drawn_the_same_each_time(chart: object) -> None:
    from page_bench.pages.section import Chart

    assert isinstance(chart, Chart)
    assert "?" in chart.title
    assert chart.alt
    pictures = []
    for _ in range(2):
        figure = Figure(figsize=chart.size, layout="constrained")
        chart.draw(figure)
        assert 1 <= len(figure.axes) <= 6
        for axes in figure.axes:
            assert axes.get_xlabel()
            assert axes.has_data()
            assert "n = " in axes.get_title() + "".join(
                label.get_text() for label in axes.get_yticklabels()
            )
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
        pictures.append(file.getvalue())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_section_with_nothing_to_say_says_why(module: object) -> None:
    make: Callable[[Sequence[Cell], Settings], Section] = vars(module)["section"]
    toys = [Toy("vt", 0, 1.0, {}, drop=math.nan)]
    for cells in ([], [toy_cell(toys, tau=None)]):
        found = make(cells, SETTINGS)
        assert (list(found.tables), list(found.charts)) == ([], [])
        assert found.text.endswith(".")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_one_small_cell_of_scores_is_shown(module: object) -> None:
    """One input per task, a score that is no 0/1, no times, no agreement, no τ."""
    make: Callable[[Sequence[Cell], Settings], Section] = vars(module)["section"]
    toys = [Toy("qa", 0, 0.4, {0.5: 0.5}), Toy("sum", 0, 0.2, {0.5: 0.1}, open=False)]
    found = make([toy_cell(toys, metric="score", gate="random", tau=None)], SETTINGS)
    for chart in found.charts:
        chart.draw(Figure(layout="constrained"))
    assert found.tables or found.text.endswith(".")


def test_many_places_are_drawn_on_several_pages() -> None:
    cells = grid([f"m{i}" for i in range(4)], ["a", "b"], ["snapkv"], [("page", 0.07)], n=4)
    for name in ("partition", "drop", "tau", "layers", "cost"):
        (module,) = (one for one in MODULES if one.__name__.endswith(name))
        charts = module.section(cells, SETTINGS).charts
        drawn = []
        for chart in charts:
            figure = Figure(layout="constrained")
            chart.draw(figure)
            drawn.append(len(figure.axes))
        assert drawn == [6, 2] * (len(charts) // 2)
        assert charts[1].title.endswith("(2 of 2)")


def test_the_partition_s_rows_are_its_statistics() -> None:
    found = rows(table(SECTIONS["partition"], "partition"))
    assert len(found) == 8 * len(TASKS)  # arms, each once whatever its gates
    (part,) = (p for p in parts([inputs(GRID[0])], 0.05) if p.task == "vt")
    (row,) = (r for r in found if (r["model"], r["suite"], r["evictor"], r["task"]) == (
        "toy-1B", "ruler_4k", "snapkv", "vt"))  # fmt: skip
    assert (row["ρ"], row["full accuracy"], row["n"]) == (part.rho, part.full, 30)
    pooled = rows(table(SECTIONS["partition"], "partition_pooled"))
    assert [pooled[0][name] for name in ("evictor", "cells", "n")] == ["snapkv", 4, 120]
    (mk3,) = (r for r in pooled if (r["evictor"], r["task"]) == ("snapkv", "niah_multikey_3"))
    assert mk3["class"] == "capacity-bound"
    gates = rows(table(SECTIONS["partition"], "partition_gate"))
    assert len(gates) == 16 * len(TASKS)
    assert {r["gate"] for r in gates} == {"page fixed", "page zscore"}
    assert {r["gate's call"] for r in gates} == {"mostly open", "mostly closed"}
    (mk3,) = (
        r
        for r in gates
        if r["task"] == "niah_multikey_3"
        and [r[name] for name in ("model", "suite", "evictor", "gate")]
        == ["toy-7B", "ruler_4k", "snapkv", "page zscore"]
    )
    assert (mk3["gate's call"], mk3["τ"]) == ("mostly closed", 0.09)


def test_d_is_said_over_how_many_layers_it_is_taken() -> None:
    drop = table(SECTIONS["drop"], "drop")
    for row in rows(drop):
        (layers,) = {
            c.agreement.shape[1]
            for c in GRID
            if c.model == row["model"] and c.agreement is not None
        }
        assert row["layers per third"] == layers // 3
        few = any(note.startswith(f"{row['model']}: D compares") for note in drop.notes)
        assert few == (layers < 9)


def test_harm_is_pooled_over_models_and_suites() -> None:
    found = rows(table(SECTIONS["harm"], "harm"))
    assert len(found) == 4 * len(TASKS) * len(BUDGETS)
    together = [c for c in GRID if (c.evictor, c.gate) == ("snapkv", "page fixed")]
    frame = pd.concat(cell.evicted for cell in together)
    frame = frame[(frame["task"] == "niah_multikey_3") & (frame["budget"] == 0.0625)]
    row = next(r for r in found if r["task"] == "niah_multikey_3")
    assert (row["evictor"], row["gate"], row["budget"]) == ("snapkv", "page fixed", 0.0625)
    lost = (frame["plain"] < frame["full"]).to_numpy()
    opened = frame["open"].to_numpy()
    assert isinstance(row["plain harm"], Estimate)
    assert isinstance(row["gated harm"], Estimate)
    assert row["plain harm"].value == lost.mean()
    assert row["gated harm"].value == (lost & opened).mean()
    assert row["n"] == len(frame) == 120
    cells = rows(table(SECTIONS["harm"], "harm_cells"))
    assert cells[0]["plain harm"] == harms([GRID[0]], SETTINGS.draws)[0].plain


def test_auc_counts_pairs() -> None:
    """Against sklearn, and against every pair of one closed and one other input."""
    cell = GRID[0]
    frame = inputs(cell)
    found = {one.closed: one for one in separations(cell, SETTINGS.is_capacity_bound, 400)}
    smallest = cell.rows[cell.rows["budget"] == 0.0625]
    rest = cell.rows[cell.rows["budget"] < 1]
    some = (rest["plain"] < rest["full"]).groupby(rest["input"]).any().to_numpy()
    for name, closed in (
        ("capacity-bound tasks", (frame["task"] == "niah_multikey_3").to_numpy()),
        ("harmed at budget 0.0625", (smallest["plain"] < smallest["full"]).to_numpy()),
        ("harmed at some budget", some),
    ):
        drops = frame["drop"].to_numpy()
        pairs = list(itertools.product(drops[closed], drops[~closed]))
        by_hand = sum((a < b) + (a == b) / 2 for a, b in pairs) / len(pairs)
        assert found[name].auc.value == pytest.approx(by_hand, abs=1e-12)
        assert by_hand == pytest.approx(roc_auc_score(~closed, drops))
        assert (found[name].n_closed, found[name].n_others) == (closed.sum(), (~closed).sum())
        assert found[name].auc.low <= by_hand <= found[name].auc.high
    assert found["capacity-bound tasks"].auc.value > 0.99


def test_auc_of_one_class_is_no_number() -> None:
    cell = toy_cell(counted("vt", [(3, 1.0, {0.5: 1.0})]))
    assert all(math.isnan(one.auc.value) for one in separations(cell, lambda task: False, 100))


def test_the_drop_s_rows_stand_once_for_all_evictors_and_gates() -> None:
    found = rows(table(SECTIONS["drop"], "drop"))
    assert len(found) == 4 * len(TASKS)
    frame = inputs(GRID[0])
    values = frame.loc[frame["task"] == "fwe", "drop"]
    assert found[0]["task"] == "fwe"
    assert isinstance(found[0]["mean D"], Estimate)
    assert found[0]["mean D"].value == pytest.approx(values.mean())
    assert found[0]["standard deviation"] == pytest.approx(values.std())
    assert (found[0]["lowest"], found[0]["highest"]) == (values.min(), values.max())


def test_a_cell_s_sweep_at_its_tau_is_the_cell() -> None:
    cell = GRID[0]
    assert cell.tau is not None
    frame = cell.evicted
    bound = [SETTINGS.is_capacity_bound(task) for task in frame["task"]]
    found = sweep_cell(cell, SETTINGS.is_capacity_bound, draws=400)
    (here,) = (point for point in found.points if point.tau == cell.tau)
    assert here.open.value == pytest.approx(frame["open"].mean())
    assert here.delta.value == pytest.approx((frame["gated"] - frame["plain"]).mean())
    assert here.kept_kv.value == pytest.approx(frame["gated_kept"].mean())
    assert here.capacity_open is not None
    assert here.capacity_open.value == pytest.approx(frame["open"][bound].mean())
    lost = frame["plain"] < frame["full"]
    assert here.false_positive.value == pytest.approx(frame["open"][lost].mean())
    assert (here.open.n, here.delta.n, here.capacity_open.n) == (120, 120, 30)
    assert {point.capacity_open.method for point in found.points if point.capacity_open} == {
        "wilson"
    }
    last = found.points[-1].capacity_open
    assert last is not None
    assert last.value == 0 < last.high  # none of 30 is no proof of none at all
    (row,) = (r for r in rows(table(SECTIONS["tau"], "tau")) if (
        r["model"], r["suite"], r["evictor"], r["gate"]
    ) == (cell.model, cell.suite, cell.evictor, cell.gate))  # fmt: skip
    assert isinstance(row["Δ at τ"], Estimate)
    assert row["Δ at τ"].value == pytest.approx(here.delta.value)


def test_gates_that_do_not_compare_d_are_left_out_of_the_sweep() -> None:
    flipped = GRID[0].rows.assign(open=~GRID[0].rows["open"])
    other = dataclasses.replace(GRID[0], gate="entropy", rows=flipped)
    found = tau.section([GRID[0], other], SETTINGS)
    assert {row["gate"] for row in rows(table(found, "tau"))} == {"page fixed"}
    assert any("Left out: 1 " in note for note in table(found, "tau").notes)
    assert not tau.section([other], SETTINGS).tables


@pytest.mark.parametrize(
    ("capacity", "dilution", "tau_cal"),
    [(0.045, 0.161, 0.103), (-0.002, 0.076, 0.037), (-0.021, 0.068, 0.024), (0.060, 0.096, 0.078)],
)
def test_the_paper_s_table_7_holds_midpoints(
    capacity: float, dilution: float, tau_cal: float
) -> None:
    """τ from the published pilot means, which are rounded to 0.001."""
    found = midpoint_threshold([capacity] * 20, [dilution] * 20)
    assert found.tau == pytest.approx(tau_cal, abs=1.01e-3)


def test_layers_give_the_recorded_d_again() -> None:
    found = rows(table(SECTIONS["layers"], "layers"))
    assert len(found) == 4 * len(TASKS)
    assert {row["inputs whose recorded D is another"] for row in found} == {0}
    assert len(table(SECTIONS["layers"], "layers_profile").rows) == 4 * len(TASKS) * 10


def test_the_fit_leaves_capacity_bound_tasks_out() -> None:
    found = rows(table(SECTIONS["scaling"], "scaling_fit"))
    assert [(row["evictor"], row["tasks"], row["points"]) for row in found[:3]] == [
        ("snapkv", "not capacity-bound", 12),
        ("snapkv", "capacity-bound", 4),
        ("snapkv", "all", 16),
    ]
    points = [
        row for row in rows(table(SECTIONS["scaling"], "scaling"))
        if (row["evictor"], row["capacity-bound"]) == ("snapkv", "no")
    ]  # fmt: skip
    x = np.array([row["headroom"] for row in points], dtype=float)
    y = np.array([row["ρ"].value for row in points if isinstance(row["ρ"], Estimate)])
    slope = found[0]["slope"]
    assert isinstance(slope, Estimate)
    assert slope.value == pytest.approx(np.linalg.lstsq(x[:, None], y, rcond=None)[0][0])
    assert slope.low < slope.value < slope.high


def test_times_by_hand() -> None:
    seconds = {"prefill_s": 2.0, "gate_s": 0.5, "plain_s": 1.0, "full_s": 3.0}
    toys = [
        Toy("vt", 0, 1.0, {0.25: 1.0, 0.5: 1.0}, open=True, others=seconds),
        Toy("vt", 1, 1.0, {0.25: 1.0, 0.5: 1.0}, open=False, others=seconds | {"prefill_s": 4.0}),
        Toy("vt", 2, 1.0, {0.25: 1.0, 0.5: 1.0}, open=False, others=seconds | {"gate_s": math.nan}),
    ]
    quarter, half, together = times(toy_cell(toys))
    assert (quarter.budget, half.budget, together.budget) == (0.25, 0.5, None)
    for one in (quarter, half, together):
        assert one.n == 2
        assert (one.prefill.value, one.gate.value) == (3.0, 0.5)
        assert one.share.value == pytest.approx((0.25 + 0.125) / 2)
        assert one.plain.value == ((2 + 1) + (4 + 1)) / 2
        assert one.gated.value == ((2 + 0.5 + 1) + (4 + 0.5 + 3)) / 2
        assert one.full.value == ((2 + 3) + (4 + 3)) / 2
    assert together.prefill.n == 2  # documents, not documents times budgets
    assert times(toy_cell(toys[2:])) == []


def test_the_cost_says_that_answers_share_their_batch() -> None:
    assert "decoded together share" in SECTIONS["cost"].text
    assert set(column(SECTIONS["cost"].tables[0], "budget")) == {*BUDGETS, "all"}


def test_r_of_x_says_that_it_is_an_identity() -> None:
    assert "r(x) ≥ 0 is an identity" in SECTIONS["recovery"].text
    with_one = [r for r in rows(SECTIONS["recovery"].tables[0]) if r["b = 1 counted"] == "yes"]
    lost = [row["r = −1"] for row in with_one]
    assert all(isinstance(one, Estimate) and one.value == 0 for one in lost)
