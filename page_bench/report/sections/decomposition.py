"""Which tasks Δ comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import Delta, parts_of
from page_bench.pages.charts import place_charts
from page_bench.pages.palette import Look
from page_bench.pages.panels import dots, identity, name_rows, offsets
from page_bench.pages.section import Chart, Section, Table
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUESTION = "Which tasks does Δ come from?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Δ task by task, with the open rate that explains its zeros."""
    text = (
        "Δ of a cell is the mean of its tasks' Δ, weighted by their inputs. A task marked † has Δ "
        "exactly 0 because the gate opens on all of its inputs: gated and plain are then the same "
        "answers, and the zero is an identity, not a finding."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("decomposition", "Δ by task", "There is no budget below 1 to take Δ over.")
    resampling = resampling_of(settings)
    tasks = {id(cell): parts_of(cell, settings.is_capacity_bound, resampling).tasks for cell in own}
    names, values = identity(own)
    table = Table(
        "decomposition",
        _QUESTION,
        [*names, "task", "capacity-bound", "n", "Δ", "open rate", "mark"],
        [
            [
                *values(cell),
                delta.task,
                settings.is_capacity_bound(delta.task or ""),
                delta.delta.n,
                delta.delta,
                delta.open,
                "†" if delta.is_zero and delta.all_open else "",
            ]
            for cell in own
            for delta in tasks[id(cell)]
        ],
        [how(settings)],
    )
    return Section("decomposition", "Δ by task", text, [table], _charts(own, tasks))


def _charts(cells: Sequence[Cell], tasks: dict[int, tuple[Delta, ...]]) -> list[Chart]:
    every = sorted({delta.task or "" for found in tasks.values() for delta in found})
    lines = list(dict.fromkeys((cell.evictor, cell.gate, cell.seed) for cell in cells))
    shift = dict(zip(lines, offsets(len(lines)), strict=True))

    def draw(axes: Axes, cell: Cell, look: Look, name: str) -> int:
        found = tasks[id(cell)]
        own = shift[cell.evictor, cell.gate, cell.seed]
        places = [every.index(delta.task or "") + own for delta in found]
        dots(axes, places, [delta.delta for delta in found], look, name)
        name_rows(axes, every)
        axes.axvline(0, color="black", lw=0.8)
        return sum(delta.delta.n for delta in found)

    return place_charts(
        "decomposition",
        _QUESTION,
        "Δ of each task with its 95 % interval, one panel per model and suite, one colour per "
        "evictor.",
        ("Δ, gated − plain, mean over budgets below 1", ""),
        cells,
        draw,
    )
