"""What a perfect gate could gain, and how much of that the gate gains."""

from __future__ import annotations

from collections.abc import Sequence

from page_bench.analysis.cells import Cell
from page_bench.analysis.oracle import Oracle, oracle_of, recovery
from page_bench.pages.charts import Row, row_charts
from page_bench.pages.palette import FULL, GATED
from page_bench.pages.panels import identity
from page_bench.pages.section import Section, Table, Value
from page_bench.pages.values import shown
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

_QUESTION = "How much of what a perfect gate could gain does the gate gain?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Headroom and recovery against the input oracle, and the gap to the task oracle."""
    text = (
        "The input oracle takes, for each input and budget, the better of the plain and the full "
        "answer; its headroom is oracle − plain, and recovery is (gated − plain) / headroom. The "
        "task oracle knows the task: it closes on the capacity-bound ones "
        f"({settings.capacity_bound}) and opens on all others. A gap above 0 needs decisions that "
        "differ within a task. Neither oracle pays for the cache that it keeps."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("oracle", "Oracles", "There is no budget below 1 to decide on.")
    resampling = resampling_of(settings)
    found = [oracle_of(cell, settings.is_capacity_bound, resampling) for cell in own]
    names, values = identity(own)
    tables = [
        Table(
            "oracle",
            _QUESTION,
            [
                *names,
                "n",
                "plain",
                "oracle",
                "headroom",
                "Δ",
                "recovery",
                "share of Δ from capacity-bound tasks",
            ],
            [[*values(cell), *_row(one)] for cell, one in zip(own, found, strict=True)],
            [how(settings), "Recovery is left open where there is no headroom."],
        ),
        Table(
            "oracle_mean",
            f"{_QUESTION[:-1]} in the mean of the cells?",
            ["gate", "cells", "with headroom", "n", "mean recovery", "mean Δ / mean headroom"],
            [
                _mean_row(gate, [cell for cell in own if cell.gate == gate], settings)
                for gate in dict.fromkeys(cell.gate for cell in own)
            ],
            [how(settings), "Inputs are drawn for all cells of a suite alike."],
        ),
        Table(
            "oracle_task",
            "Does the gate do better than one that knows the task?",
            [*names, "n", "Δ", "task oracle − plain", "gated − task oracle", "same decisions"],
            [
                [
                    *values(cell),
                    one.delta.n,
                    one.delta,
                    one.task_delta,
                    one.task_gap,
                    one.same_decisions,
                ]
                for cell, one in zip(own, found, strict=True)
            ],
            [how(settings)],
        ),
        Table(
            "oracle_headroom",
            "On which tasks could a perfect gate gain?",
            [*names, "task", "n", "headroom"],
            [
                [*values(cell), task, headroom.n, headroom]
                for cell, one in zip(own, found, strict=True)
                for task, headroom in one.by_task.items()
            ],
            [how(settings)],
        ),
    ]
    charts = row_charts(
        "oracle",
        _QUESTION,
        "Δ of the gate and headroom of the input oracle for each cell, with 95 % intervals; n and "
        "the recovery stand in the row's name.",
        "gain over plain eviction, mean over budgets below 1",
        [
            Row(
                f"{cell.label}\nn = {one.delta.n}, recovery {shown(one.recovery.value)}",
                [one.delta, one.headroom],
            )
            for cell, one in zip(own, found, strict=True)
        ],
        [("Δ, gated − plain", GATED), ("headroom, oracle − plain", FULL)],
    )
    return Section("oracle", "Oracles", text, tables, charts)


def _row(one: Oracle) -> list[Value]:
    return [
        one.delta.n,
        one.plain,
        one.oracle,
        one.headroom,
        one.delta,
        one.recovery,
        one.from_capacity,
    ]


def _mean_row(gate: str, cells: Sequence[Cell], settings: Settings) -> list[Value]:
    found = recovery(cells, resampling_of(settings))
    return [gate, len(cells), found.cells, found.mean.n, found.mean, found.of_means]
