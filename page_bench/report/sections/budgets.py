"""Both arms along the budget axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.budgets import Budget, budgets_of
from page_bench.analysis.cells import Cell
from page_bench.pages.charts import line, place_charts
from page_bench.pages.palette import Look
from page_bench.pages.panels import identity
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUESTION = "How do gated and plain answers fare as the budget shrinks?"
_COLUMNS = (
    "budget",
    "n",
    "open rate",
    "plain kept KV",
    "gated kept KV",
    "plain",
    "gated",
    "full",
    "Δ",
)
TASK_CHARTS = 8
"""Tasks that have a chart of their own; all have rows in the table."""


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Plain, gated and full by nominal budget, beside the cache that was really kept."""
    text = (
        "Budgets are nominal. Kept KV is what was achieved: a gate that closes keeps the whole "
        "cache, so that gated answers at a budget hold more than plain ones. With the budget the "
        "open rate stays as it is where the gate reads the prefill alone."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("budgets", "Budgets", "There is no budget below 1.")
    resampling = resampling_of(settings)
    pooled = {id(cell): budgets_of(cell, None, resampling) for cell in own}
    by_task = {
        (id(cell), task): budgets_of(cell, task, resampling)
        for cell in own
        for task in sorted(cell.evicted["task"].unique())
    }
    names, values = identity(own)
    tables = [
        Table(
            "budgets",
            _QUESTION,
            [*names, *_COLUMNS],
            [[*values(cell), *_row(budget)] for cell in own for budget in pooled[id(cell)]],
            [how(settings)],
        ),
        Table(
            "budgets_tasks",
            f"{_QUESTION[:-1]}, task by task?",
            [*names, "task", *_COLUMNS],
            [
                [*values(cell), task, *_row(budget)]
                for cell in own
                for task in cell.tasks
                for budget in by_task.get((id(cell), task), [])
            ],
            [how(settings)],
        ),
    ]
    charts = _charts("budgets", _QUESTION, own, pooled)
    tasks = sorted({task for _, task in by_task})
    if len(tasks) > 1:
        for number, task in enumerate(tasks[:TASK_CHARTS]):
            having = [cell for cell in own if (id(cell), task) in by_task]
            found = {id(cell): by_task[id(cell), task] for cell in having}
            question = f"{_QUESTION[:-1]} on {task}?"
            charts += _charts(f"budgets_{stem(task, number)}", question, having, found)
    return Section("budgets", "The budget axis", text, tables, charts)


def stem(task: str, number: int) -> str:
    """A task's part of a file's name; a name with other than word characters has its number."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", task)
    return task if plain == task else f"{plain}_{number}"


def _row(budget: Budget) -> list[Value]:
    return [
        budget.budget,
        budget.delta.n,
        budget.open,
        budget.plain_kept,
        budget.gated_kept,
        budget.plain,
        budget.gated,
        budget.full,
        budget.delta,
    ]


def _charts(
    stem: str, question: str, cells: Sequence[Cell], found: dict[int, list[Budget]]
) -> list[Chart]:
    return place_charts(
        stem,
        question,
        "Metric over the nominal budget with 95 % intervals, one panel per model and suite and one "
        "colour per evictor: dashed and hollow without gate, solid with it, dotted with the full "
        "cache.",
        ("budget, nominal share of the prompt kept", cells[0].metric),
        cells,
        partial(_draw, found),
    )


def _draw(found: dict[int, list[Budget]], axes: Axes, cell: Cell, look: Look, name: str) -> int:
    own = found[id(cell)]
    budgets = [budget.budget for budget in own]
    line(axes, budgets, [budget.plain for budget in own], look, f"{name} plain", plain=True)
    line(axes, budgets, [budget.gated for budget in own], look, f"{name} gated")
    full = [budget.full.value for budget in own]
    axes.plot(budgets, full, color="black", ls=":", lw=1.2, label="full cache")
    return max(budget.delta.n for budget in own)
