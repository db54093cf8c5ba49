"""What the gate gains at matched nominal budget."""

from __future__ import annotations

from collections.abc import Sequence

from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import (
    Delta,
    Grand,
    Parts,
    Q,
    grand,
    parts_of,
    survivors,
    without,
)
from page_bench.analysis.resampling import Resampling
from page_bench.pages.charts import Row, row_charts
from page_bench.pages.palette import FULL, GATED
from page_bench.pages.panels import identity
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

_QUESTION = "What does the gate gain at matched nominal budget?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Δ of each cell, with and without the capacity-bound tasks, and their mean."""
    text = (
        "Δ is the mean of gated − plain over inputs and budgets below 1, at matched nominal "
        "budget: a closed gate keeps the whole cache, so that Δ is no gain at matched memory, and "
        "the open rate belongs to it. Where the gate opens on every input, both arms give the same "
        "answers and Δ is 0 here; the interval bounds what inputs on which it closes may bring. "
        f"Capacity-bound: {settings.capacity_bound}."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("delta", "Δ", "There is no budget below 1 to take Δ over.")
    resampling = resampling_of(settings)
    parts = [parts_of(cell, settings.is_capacity_bound, resampling) for cell in own]
    kept = survivors([part.every.p for part in parts])
    return Section(
        "delta",
        "Δ: gated − plain",
        text,
        [
            _means(own, settings, resampling),
            _cells(own, parts, kept, settings),
            _matrix(own, [part.every for part in parts], "delta_matrix", "all tasks"),
            *_matrix_of_others(own, parts),
        ],
        _charts(own, parts),
    )


def _cells(
    cells: Sequence[Cell], parts: Sequence[Parts], kept: Sequence[bool], settings: Settings
) -> Table:
    names, values = identity(cells)
    return Table(
        "delta",
        _QUESTION,
        [
            *names,
            "budgets",
            "n",
            "Δ",
            "open rate",
            "p",
            "stays",
            "Δ without capacity-bound",
            "open rate there",
            "p there",
        ],
        [
            [
                *values(cell),
                len(part.every.budgets),
                part.every.delta.n,
                part.every.delta,
                part.every.open,
                part.every.p,
                survives,
                *_rest(part.others),
            ]
            for cell, part, survives in zip(cells, parts, kept, strict=True)
        ],
        [
            how(settings),
            "p: two-sided, the share of ways to flip the signs of the inputs' differences that "
            "give as large a Δ; k inputs that differ cannot show less than 2 / 2ᵏ. “Stays”: by "
            f"Benjamini and Hochberg's procedure at q = {Q:g} over the {len(cells)} values of Δ in "
            "this table.",
        ],
    )


def _rest(others: Delta | None) -> list[Value]:
    return [None] * 3 if others is None else [others.delta, others.open, others.p]


def _means(cells: Sequence[Cell], settings: Settings, resampling: Resampling) -> Table:
    """Mean Δ by gate and evictor, and by gate."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.gate, cell.evictor), []).append(cell)
    for gate in dict.fromkeys(cell.gate for cell in cells):
        own = [cell for cell in cells if cell.gate == gate]
        if len({cell.evictor for cell in own}) > 1:
            groups[gate, "all"] = own
    rows: list[list[Value]] = []
    for (gate, evictor), own in groups.items():
        rest = [without(cell, settings.is_capacity_bound) for cell in own]
        scopes: list[tuple[str, Sequence[Cell]]] = [
            ("all", own),
            ("without capacity-bound", [cell for cell in rest if cell is not None]),
        ]
        for scope, some in scopes:
            if some:
                rows.append([gate, evictor, scope, *_mean_row(grand(some, resampling))])
    return Table(
        "delta_mean",
        "What does the gate gain in the mean of the cells?",
        ["gate", "evictor", "tasks", "cells", "positive", "exactly 0", "n", "mean Δ"],
        rows,
        [
            "Each cell counts once, seeds included. Inputs are drawn for all cells of a suite "
            "alike; the interval is for these cells and says nothing of others. n: distinct "
            "inputs.",
            how(settings),
        ],
    )


def _mean_row(mean: Grand) -> list[Value]:
    return [mean.cells, mean.positive, mean.zero, mean.delta.n, mean.delta]


def _matrix(cells: Sequence[Cell], deltas: Sequence[Delta | None], name: str, tasks: str) -> Table:
    """Models by evictors."""
    evictors = list(dict.fromkeys(cell.evictor for cell in cells))
    names, values = identity(cells)
    at = names.index("evictor")
    found: dict[tuple[Value, ...], dict[str, Delta | None]] = {}
    for cell, delta in zip(cells, deltas, strict=True):
        place = values(cell)
        del place[at]
        found.setdefault(tuple(place), {})[cell.evictor] = delta
    rows: list[list[Value]] = []
    for place_, by_evictor in found.items():
        row: list[Value] = [*place_]
        for evictor in evictors:
            delta = by_evictor.get(evictor)
            row += [None, None] if delta is None else [delta.delta, delta.open]
        rows.append(row)
    names = [*names[:at], *names[at + 1 :]]
    heads = [head for evictor in evictors for head in (f"Δ {evictor}", f"open {evictor}")]
    return Table(name, f"Δ and open rate by model and evictor, {tasks}", [*names, *heads], rows)


def _matrix_of_others(cells: Sequence[Cell], parts: Sequence[Parts]) -> list[Table]:
    others = [part.others for part in parts]
    if all(
        other is None or other.delta.n == part.every.delta.n
        for other, part in zip(others, parts, strict=True)
    ):
        return []
    return [_matrix(cells, others, "delta_matrix_others", "without capacity-bound")]


def _charts(cells: Sequence[Cell], parts: Sequence[Parts]) -> list[Chart]:
    return row_charts(
        "delta",
        _QUESTION,
        "Δ of each cell with its 95 % interval, for all tasks and without the capacity-bound ones; "
        "n and the open rate stand in the row's name.",
        "Δ, gated − plain, mean over budgets below 1",
        [
            Row(
                f"{cell.label}\nn = {part.every.delta.n}, open {part.every.open.value:.2f}",
                [part.every.delta, None if part.others is None else part.others.delta],
            )
            for cell, part in zip(cells, parts, strict=True)
        ],
        [("all tasks", GATED), ("without capacity-bound", FULL)],
    )
