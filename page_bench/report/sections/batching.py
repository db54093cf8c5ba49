"""How much smaller the cache gets, and what batching leaves of that."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.batching import BATCHES, Achieved, Decay, achieved, decay
from page_bench.analysis.cells import Cell
from page_bench.pages.charts import line, place_charts
from page_bench.pages.palette import Look
from page_bench.pages.panels import identity
from page_bench.pages.section import Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUESTION = "How much compression is left when a batch is given the memory of its largest cache?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Achieved compression by budget, and its decay with the batch size."""
    text = (
        "Achieved compression is 1 / mean kept KV. Where a batch of B sequences is provided for "
        "its largest cache, one closed gate costs all of them the full cache: with open rate p and "
        "kept KV k of open gates, the expected kept KV is pᴮ·k + 1 − pᴮ, and compression its "
        "inverse. It is computed cell by cell and then averaged; averaging p first would give "
        "another number. Sequences of a batch are taken as drawn at random from the cell's inputs."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("batching", "Compression", "There is no budget below 1: nothing is evicted.")
    resampling = resampling_of(settings)
    found = {id(cell): decay([cell], _least([cell]), resampling) for cell in own}
    names, values = identity(own)
    tables = [
        Table(
            "compression",
            "How much smaller is the cache under the gate?",
            [*names, "budget", "n", "plain kept KV", "gated kept KV", "compression"],
            [
                [*values(cell), *_achieved_row(one)]
                for cell in own
                for one in achieved(cell, resampling)
            ],
            [how(settings)],
        ),
        Table(
            "batching",
            _QUESTION,
            [*names, "budget", "n", "open rate", "kept KV if open", *_heads()],
            [[*values(cell), *_row(found[id(cell)])] for cell in own],
            [how(settings), "Compression, at each cell's smallest budget."],
        ),
        *_means(own, settings),
    ]
    charts = place_charts(
        "batching",
        _QUESTION,
        "Compression over the batch size with 95 % intervals, one panel per model and suite and "
        "one colour per evictor; the dotted line at 1 is the full cache.",
        ("batch size, sequences", "compression, full cache / expected cache"),
        own,
        partial(_draw, found),
    )
    return Section("batching", "Compression and batching", text, tables, charts)


def _means(cells: Sequence[Cell], settings: Settings) -> list[Table]:
    """Means of the cells of each gate, at the smallest budget that all of them have."""
    rows: list[list[Value]] = []
    for gate in dict.fromkeys(cell.gate for cell in cells):
        own = [cell for cell in cells if cell.gate == gate]
        common = set.intersection(*(set(cell.evicted["budget"].tolist()) for cell in own))
        if len(own) > 1 and common:
            mean = decay(own, min(common), resampling_of(settings))
            rows.append([gate, len(own), *_row(mean)])
    if not rows:
        return []
    return [
        Table(
            "batching_mean",
            f"{_QUESTION[:-1]}, in the mean of the cells?",
            ["gate", "cells", "budget", "n", "open rate", "kept KV if open", *_heads()],
            rows,
            ["Mean of the cells' compressions; inputs are drawn for all cells of a suite alike."],
        )
    ]


def _least(cells: Sequence[Cell]) -> float:
    return min(float(cell.evicted["budget"].min()) for cell in cells)


def _heads() -> list[str]:
    return [f"batch {batch}" for batch in BATCHES]


def _achieved_row(one: Achieved) -> list[Value]:
    budget: Value = "mean" if one.budget is None else one.budget
    return [budget, one.kept.n, one.plain_kept, one.kept, one.compression]


def _row(one: Decay) -> list[Value]:
    return [
        one.budget,
        one.compression[BATCHES[0]].n,
        one.open,
        one.kept_open,
        *(one.compression[batch] for batch in BATCHES),
    ]


def _draw(found: dict[int, Decay], axes: Axes, cell: Cell, look: Look, name: str) -> int:
    own = found[id(cell)]
    values = [own.compression[batch] for batch in BATCHES]
    line(axes, BATCHES, values, look, f"{name}, budget {own.budget:g}")
    axes.axhline(1, color="black", ls=":", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    return values[0].n
