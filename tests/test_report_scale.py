"""The grid that the benchmark of large reports makes up, and what is read of it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from page_bench.analysis.gate_choice import Choice
from page_bench.report.sources import read

BENCHMARK = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "report_scale.py"))
BUDGETS, EVICTORS, SUITES, TASKS = (
    BENCHMARK[name] for name in ("BUDGETS", "EVICTORS", "SUITES", "TASKS")
)
write_grid = BENCHMARK["write_grid"]

ROWS = 3000


def test_no_trace_of_a_large_grid_is_lost(tmp_path: Path) -> None:
    rows = write_grid(tmp_path / "runs", ROWS)
    arms = len(EVICTORS) * len(BUDGETS) + 1
    inputs = rows // arms
    assert rows == inputs * arms
    found = read([str(tmp_path / "runs")], Choice())
    assert len(found.cells) == len(EVICTORS) * len(SUITES)
    assert {cell.rows["input"].nunique() for cell in found.cells} == {inputs // len(SUITES)}
    assert sum(len(cell.rows) for cell in found.cells) == inputs * len(EVICTORS) * len(BUDGETS)


def test_the_made_up_needles_break(tmp_path: Path) -> None:
    write_grid(tmp_path / "runs", 100 * len(TASKS) * len(SUITES))
    cell = read([str(tmp_path / "runs")], Choice()).cells[0]
    drops = cell.rows.groupby("task")["drop"].max()
    assert drops.idxmin() == TASKS[0]
    assert drops[TASKS[0]] == pytest.approx(0.0, abs=0.05)
