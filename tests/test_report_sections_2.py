"""What the sections on gain and memory lay out, read back from their tables and charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
from report_reading import drawn, records, table_of, value, words
from toy_cells import Toy, toy_cell

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import ClusterBootstrap, Estimate
from page_bench.pages.section import Section
from page_bench.report.sections import (
    batching,
    budgets,
    decomposition,
    delta,
    frontier,
    mixture,
    oracle,
    seeds,
)
from page_bench.report.settings import Settings

SETTINGS = Settings(draws=200)
SECTIONS = (delta, decomposition, budgets, frontier, oracle, batching, mixture, seeds)
MK3 = "niah_multikey_3"


def cell_of(evictor: str = "snapkv", model: str = "one", seed: int | None = None) -> Cell:
    """Ten inputs of MK3, closed but for one, ruined by eviction; ten of vt, open and safe."""
    ruined, safe = {0.25: 0.0, 0.5: 0.0}, {0.25: 1.0, 0.5: 1.0}
    toys = [Toy(MK3, i, 1.0, ruined, open=i == 0) for i in range(10)]
    toys += [Toy("vt", i, float(i > 1), safe) for i in range(10)]
    return toy_cell(toys, evictor=evictor, model=model, seed=seed)


def grid() -> list[Cell]:
    cells = [cell_of(evictor, model) for model in ("one", "two") for evictor in ("snapkv", "h2o")]
    return [*cells, *(cell_of(seed=seed) for seed in (1, 2, 3))]


@pytest.fixture(scope="module")
def sections() -> dict[str, Section]:
    return {
        section.__name__.split(".")[-1]: section.section(grid(), SETTINGS) for section in SECTIONS
    }


@pytest.mark.parametrize("name", [module.__name__.split(".")[-1] for module in SECTIONS])
def test_sections_are_whole(sections: dict[str, Section], name: str) -> None:
    """Every row fills its columns and says n; names are files' and titles questions."""
    section = sections[name]
    assert section.name == name
    assert section.tables
    assert section.charts
    tables = [table.name for table in section.tables]
    charts = [chart.name for chart in section.charts]
    assert all(stem.replace("_", "").isalnum() for stem in tables + charts)
    assert (len(set(tables)), len(set(charts))) == (len(tables), len(charts))
    for table in section.tables:
        assert table.rows
        assert len(set(table.columns)) == len(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
        counted = {"n", "inputs per seed"} & set(table.columns)
        for row in table.rows:
            assert counted or any(isinstance(one, Estimate) for one in row)
    assert all("?" in chart.title for chart in section.charts)
    assert all(chart.alt.endswith(".") for chart in section.charts)


@pytest.mark.parametrize("name", [module.__name__.split(".")[-1] for module in SECTIONS])
def test_charts_can_be_drawn(sections: dict[str, Section], name: str) -> None:
    """At most six panels, each with labels, lines, and a number of inputs to be read."""
    for chart in sections[name].charts:
        figure = drawn(chart)
        assert 1 <= len(figure.axes) <= 6
        for axes in figure.axes:
            assert axes.get_xlabel()
            assert axes.lines or axes.collections
        assert "n = " in words(figure) or "inputs" in words(figure)
        figure.canvas.draw()


@pytest.mark.parametrize("module", SECTIONS)
@pytest.mark.parametrize("cells", [[], [toy_cell([Toy("vt", 0, 1.0, {})])]])
def test_a_section_without_evidence_says_why(module: ModuleType, cells: Sequence[Cell]) -> None:
    section = module.section(cells, SETTINGS)
    assert not section.tables
    assert not section.charts
    assert section.text


def test_delta_stands_beside_its_open_rate(sections: dict[str, Section]) -> None:
    """Nine of twenty inputs gain; without MK3 every gate opens and Δ is exactly 0."""
    for row in records(table_of(sections["delta"], "delta")):
        assert value(row["Δ"]) == pytest.approx(0.45)
        assert (row["n"], row["budgets"]) == (20, 2)
        assert value(row["open rate"]) == pytest.approx(11 / 20)
        assert (value(row["Δ without capacity-bound"]), value(row["open rate there"])) == (0, 1)
        assert row["p"] == pytest.approx(1 / 201, abs=2 / 201)
        assert row["stays"] is True
    means = {
        (row["evictor"], row["tasks"]): row
        for row in records(table_of(sections["delta"], "delta_mean"))
    }
    every = means["all", "all"]
    assert (every["cells"], every["positive"], every["exactly 0"]) == (7, 7, 0)
    assert value(every["mean Δ"]) == pytest.approx(0.45)
    # Twenty inputs without a seed, and twenty of each of three seeds.
    assert every["n"] == 80
    rest = means["all", "without capacity-bound"]
    assert (rest["positive"], rest["exactly 0"], value(rest["mean Δ"])) == (0, 7, 0)


def test_the_matrix_has_a_hole_where_no_cell_is(sections: dict[str, Section]) -> None:
    rows = records(table_of(sections["delta"], "delta_matrix"))
    assert [(row["model"], row["seed"]) for row in rows] == [
        ("one", None),
        ("two", None),
        *(("one", seed) for seed in (1, 2, 3)),
    ]
    assert value(rows[0]["Δ h2o"]) == pytest.approx(0.45)
    assert value(rows[0]["open h2o"]) == pytest.approx(0.55)
    assert rows[2]["Δ h2o"] is None
    assert rows[2]["open h2o"] is None


def test_delta_has_the_interval_of_regate_and_leaderboard() -> None:
    """All tasks are resampled together: nine of twenty inputs gain, whichever task they are of."""
    table = table_of(delta.section([cell_of()], Settings(draws=2000)), "delta")
    (row,) = records(table)
    gains = [0.0] + [1.0] * 9 + [0.0] * 10
    assert row["Δ"] == ClusterBootstrap(range(20), 2000).mean(gains, "change")
    assert "all tasks together" in " ".join(table.notes)


def test_zeros_by_construction_are_marked(sections: dict[str, Section]) -> None:
    rows = records(table_of(sections["decomposition"], "decomposition"))
    marks = {(row["task"], row["mark"], row["capacity-bound"]) for row in rows}
    assert marks == {(MK3, "", True), ("vt", "†", False)}
    assert {(row["task"], round(value(row["Δ"]), 3)) for row in rows} == {(MK3, 0.9), ("vt", 0)}


def test_the_budget_axis_says_what_was_kept(sections: dict[str, Section]) -> None:
    first, second = records(table_of(sections["budgets"], "budgets"))[:2]
    assert (first["budget"], second["budget"]) == (0.25, 0.5)
    assert value(first["plain kept KV"]) == 0.25
    assert value(first["gated kept KV"]) == pytest.approx((11 * 0.25 + 9) / 20)
    scores = [value(first[arm]) for arm in ("plain", "gated", "full")]
    assert scores == pytest.approx([0.5, 0.95, 0.9])
    tasks = records(table_of(sections["budgets"], "budgets_tasks"))
    assert [row["task"] for row in tasks[:4]] == [MK3, MK3, "vt", "vt"]
    assert {row["n"] for row in tasks} == {10}


def test_the_frontier_compares_at_achieved_memory(sections: dict[str, Section]) -> None:
    """Plain has 0.5 at 0.25 and 0.5 and 0.9 at 1; gated 0.95 at 0.5875 and 0.725."""
    rows = records(table_of(sections["frontier"], "frontier_matched"))
    first = rows[0]
    assert (first["compared"], first["budget"]) == ("gated at its kept KV", 0.25)
    assert value(first["kept KV"]) == pytest.approx(0.5875)
    assert value(first["plain"]) == pytest.approx(0.5 + 0.4 * 0.0875 / 0.5)
    assert value(first["advantage"]) == pytest.approx(0.45 - 0.07)
    given = [row for row in rows if row["compared"] == "given kept KV"]
    assert [row["kept KV"] for row in given[:4]] == [0.25, 0.35, 0.5, 0.75]
    assert math.isnan(value(given[0]["advantage"]))
    crossing = records(table_of(sections["frontier"], "frontier_crossover"))[0]
    assert value(crossing["crossover"]) == value(crossing["least gated kept KV"])
    assert crossing["resamples with a crossover"] == 1
    points = records(table_of(sections["frontier"], "frontier_points"))
    assert (points[2]["budget"], value(points[2]["gated kept KV"])) == ("full cache", 1)


def test_oracles_tell_recovery_and_gap(sections: dict[str, Section]) -> None:
    """MK3 has headroom 1 and vt none, so that 9 of 10 are recovered; the task oracle has all."""
    row = records(table_of(sections["oracle"], "oracle"))[0]
    assert value(row["headroom"]) == pytest.approx(0.5)
    assert value(row["recovery"]) == pytest.approx(0.9)
    assert value(row["share of Δ from capacity-bound tasks"]) == 1
    mean = records(table_of(sections["oracle"], "oracle_mean"))[0]
    assert (mean["cells"], mean["with headroom"]) == (7, 7)
    assert value(mean["mean recovery"]) == pytest.approx(0.9)
    gap = records(table_of(sections["oracle"], "oracle_task"))[0]
    assert value(gap["gated − task oracle"]) == pytest.approx(-0.05)
    assert gap["same decisions"] is False


def test_compression_is_of_the_smallest_budget(sections: dict[str, Section]) -> None:
    row = records(table_of(sections["batching"], "batching"))[0]
    assert row["budget"] == 0.25
    assert value(row["batch 1"]) == pytest.approx(1 / 0.5875)
    all_open = 0.55**4
    assert value(row["batch 4"]) == pytest.approx(1 / (all_open * 0.25 + 1 - all_open))
    mean = records(table_of(sections["batching"], "batching_mean"))[0]
    assert mean["cells"] == 7
    assert value(mean["batch 1"]) == pytest.approx(1 / 0.5875)
    achieved = records(table_of(sections["batching"], "compression"))[:3]
    assert [one["budget"] for one in achieved] == [0.25, 0.5, "mean"]


def test_the_mixture_runs_through_the_suite(sections: dict[str, Section]) -> None:
    mean = records(table_of(sections["mixture"], "mixture_mean"))[0]
    line = [value(mean[name]) for name in ("Δ at f = 0", "Δ at f = 0.5", "slope")]
    assert line == pytest.approx([0, 0.45, 0.9])
    assert mean["share as run"] == 0.5


def test_cells_of_one_kind_are_named_as_left_out() -> None:
    vt_only = toy_cell([Toy("vt", 0, 1.0, {0.5: 1.0})], evictor="h2o")
    section = mixture.section([cell_of(), vt_only], SETTINGS)
    assert "1 cells without both kinds" in " ".join(table_of(section, "mixture").notes)
    assert mixture.section([vt_only], SETTINGS).tables == ()


def test_seeds_have_mean_deviation_and_range() -> None:
    cells = []
    for seed, gaining in ((1, 4), (2, 5), (3, 9)):
        toys = [Toy(MK3, i, 1.0, {0.5: 0.0}, open=i >= gaining) for i in range(10)]
        cells.append(toy_cell([*toys, Toy("vt", 0, 1.0, {0.5: 1.0})], seed=seed))
    section = seeds.section(cells, SETTINGS)
    whole, capacity = records(table_of(section, "seeds"))
    assert (whole["tasks"], capacity["tasks"]) == ("all", "capacity-bound")
    assert (capacity["seeds"], capacity["inputs per seed"]) == (3, "10")
    assert value(capacity["mean Δ"]) == pytest.approx(0.6)
    assert capacity["SD"] == pytest.approx(np.std([0.4, 0.5, 0.9], ddof=1))
    assert capacity["range"] == pytest.approx(0.5)
    each = records(table_of(section, "seeds_each"))
    assert [(row["seed"], round(value(row["Δ"]), 3)) for row in each[3:]] == [
        (1, 0.4),
        (2, 0.5),
        (3, 0.9),
    ]


def test_partial_seeds_are_named_and_left_out() -> None:
    whole, cut = cell_of(seed=1), cell_of(seed=2)
    cut = dataclasses.replace(cut, rows=cut.rows[cut.rows["doc_id"] < 4])
    section = seeds.section([whole, cut], SETTINGS)
    assert section.tables == ()
    assert "seed 2 has 4 inputs" in section.text
    pair = [dataclasses.replace(cell_of(seed=seed), model="two") for seed in (1, 2)]
    both = seeds.section([whole, cut, *pair], SETTINGS)
    assert "seed 2 has 4 inputs" in " ".join(table_of(both, "seeds").notes)
    assert {row["model"] for row in records(table_of(both, "seeds"))} == {"two"}


def test_many_cells_spread_over_several_charts() -> None:
    cells = [cell_of(model=f"model {number}") for number in range(8)]
    charts = frontier.section(cells, SETTINGS).charts
    assert [chart.name for chart in charts] == ["frontier", "frontier_2"]
    assert [len(drawn(chart).axes) for chart in charts] == [6, 2]
    assert charts[1].title.endswith("(2 of 2)")


def test_gates_are_told_apart() -> None:
    other = dataclasses.replace(cell_of(), gate="always open")
    other = dataclasses.replace(other, rows=other.rows.assign(open=True))
    section = delta.section([cell_of(), other], SETTINGS)
    means = records(table_of(section, "delta_mean"))
    assert [
        (row["gate"], round(value(row["mean Δ"]), 3)) for row in means if row["tasks"] == "all"
    ] == [
        ("page fixed", 0.45),
        ("always open", 0.0),
    ]
    stays = [row["stays"] for row in records(table_of(section, "delta"))]
    assert stays == [True, False]
    lines = words(drawn(frontier.section([cell_of(), other], SETTINGS).charts[0]))
    assert "snapkv, always open gated" in lines
    assert len(mixture.section([cell_of(), other], SETTINGS).charts) == 2
