"""Whether eviction's harm is that the evidence is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.pools import rate, units
from page_bench.pages.charts import place_charts
from page_bench.pages.palette import Look
from page_bench.pages.panels import dots, identity, name_rows, offsets
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from page_bench.analysis.intervals import Estimate

_QUESTION = "Does eviction break an answer where the evidence is gone?"
_BINS = ((0.0, 0.5, "below 1/2"), (0.5, 1.0, "1/2 and more, not all"), (1.0, 2.0, "all"))
"""Shares of the evidence, from and below."""


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Harm of plain eviction, by how much of the evidence its cache kept."""
    text = (
        "Evidence are the tokens that the answer needs, as far as the task says which: needles, "
        "assignments, counted words, references. Harm where most of it is left is an answer that "
        "was kept and not found; harm where it is gone was evicted. Plain eviction, all budgets "
        "below 1; inputs that the full cache does not answer count as not harmed."
    )
    own = [(cell, _known(cell)) for cell in cells]
    own = [(cell, rows) for cell, rows in own if len(rows)]
    if not own:
        return Section(
            "evidence",
            "Evidence kept",
            "No answer says how much of its evidence was kept: the tasks name no references that "
            "stand in the prompt, or the runs are of an earlier page-bench.",
        )
    found = {id(cell): _harms(cell, rows, settings) for cell, rows in own}
    names, values = identity([cell for cell, _ in own])
    table: list[list[Value]] = [
        [*values(cell), label, harm.n, harm]
        for cell, _ in own
        for label, harm in found[id(cell)].items()
    ]
    return Section(
        "evidence",
        "Evidence kept",
        text,
        [Table("evidence", _QUESTION, [*names, "evidence kept", "n", "harm, plain"], table)],
        _charts([cell for cell, _ in own], found),
    )


def _known(cell: Cell) -> pd.DataFrame:
    rows = cell.evicted
    return rows[rows["evidence"].notna()] if "evidence" in rows else rows.iloc[:0]


def _harms(cell: Cell, rows: pd.DataFrame, settings: Settings) -> dict[str, Estimate]:
    harmed = (rows["plain"] < rows["full"]).to_numpy()
    clusters = list(units(cell, rows))
    found = {}
    for low, high, label in _BINS:
        inside = ((rows["evidence"] >= low) & (rows["evidence"] < high)).to_numpy()
        if inside.any():
            own = [unit for unit, is_in in zip(clusters, inside, strict=True) if is_in]
            found[label] = rate(harmed[inside], own, settings.draws, settings.seed)
    return found


def _charts(cells: Sequence[Cell], found: dict[int, dict[str, Estimate]]) -> list[Chart]:
    labels = [label for _, _, label in _BINS]
    lines = list(dict.fromkeys((cell.evictor, cell.gate, cell.seed) for cell in cells))
    shift = dict(zip(lines, offsets(len(lines)), strict=True))

    def draw(axes: Axes, cell: Cell, look: Look, name: str) -> int:
        own = found[id(cell)]
        places = [labels.index(label) + shift[cell.evictor, cell.gate, cell.seed] for label in own]
        dots(axes, places, list(own.values()), look, name)
        name_rows(axes, labels)
        axes.set_xlim(-0.02, 1.02)
        return sum(harm.n for harm in own.values())

    return place_charts(
        "evidence",
        _QUESTION,
        "Share of inputs that plain eviction harms with 95 % intervals, by the share of the "
        "evidence that the cache kept, one panel per model and suite, one colour per evictor.",
        ("harm of plain eviction", "evidence kept"),
        cells,
        draw,
    )
