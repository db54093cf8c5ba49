"""What the gate costs in time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.times import Times, times
from page_bench.pages.palette import FULL, GATED, PLAIN
from page_bench.pages.panels import (
    by_place,
    dots,
    identity,
    key,
    name_rows,
    page_name,
    page_title,
    pages,
    panels,
    series,
    size_of,
    start_at,
)
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.resampling import how
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUESTION = "How long does an input take with and without the gate?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Seconds per input, plain, gated and full, and the gate's share of the prefill."""
    text = (
        "Seconds per input are the prefill and what follows it; the gated ones hold the reading of "
        "the signal besides, whether the gate opens or not, and the plain or the full answer. "
        "Answers that were decoded together share the time of their batch evenly, so that these "
        "seconds are those of this run's batches, not of an input served alone; the first inputs "
        "of a run also hold the warming up."
    )
    found = [(cell, times(cell, settings.draws, settings.seed)) for cell in cells]
    found = [(cell, rows) for cell, rows in found if rows]
    if not found:
        return Section(
            "cost",
            "Cost of the gate",
            "No input below budget 1 has the times of its prefill, gate and both answers recorded.",
        )
    names, values = identity([cell for cell, _ in found])
    rows: list[list[Value]] = [
        [
            *values(cell),
            "all" if one.budget is None else one.budget,
            one.n,
            one.prefill,
            one.gate,
            one.share,
            one.plain,
            one.gated,
            one.full,
        ]
        for cell, own in found
        for one in own
    ]
    table = Table(
        "cost",
        "What does the gate cost, and what does an input take?",
        [
            *names,
            "budget",
            "n",
            "prefill, s",
            "gate, s",
            "gate / prefill",
            "plain, s",
            "gated, s",
            "full, s",
        ],
        rows,
        [
            f"{how(settings)} They say nothing of other machines or batches.",
            "All budgets below 1 together count each input once, by its mean.",
        ],
    )
    totals = {id(cell): own[-1] for cell, own in found}
    of = pages(list(by_place([cell for cell, _ in found]).items()))
    most = max(len(own) for _, own in (place for page in of for place in page))
    charts = [
        Chart(
            page_name("cost", i),
            page_title(_QUESTION, i, len(of)),
            partial(_draw, page, totals),
            "Mean seconds per input over all budgets below 1 with 95 % intervals: plain, gated and "
            "full, one row per evictor and gate and one panel per model and suite.",
            size_of(len(page), 1.2 + 0.4 * most),
        )
        for i, page in enumerate(of)
    ]
    return Section("cost", "Cost of the gate", text, [table], charts)


def _draw(page: Sequence[tuple[str, list[Cell]]], totals: dict[int, Times], figure: Figure) -> None:
    axes = panels(figure, len(page), share_x=False)
    for one, (place, cells) in zip(axes, page, strict=True):
        mine = [totals[id(cell)] for cell in cells]
        for shift, name, look in ((-0.2, "plain", PLAIN), (0, "gated", GATED), (0.2, "full", FULL)):
            where = [row + shift for row in range(len(mine))]
            dots(one, where, [getattr(total, name) for total in mine], look, name)
        labels = [f"{series(cell)}, {cell.gate}" for cell in cells]
        name_rows(one, [f"{n} (n = {t.n})" for n, t in zip(labels, mine, strict=True)])
        one.set_title(place, fontsize="medium")
        one.set_xlabel("seconds per input")
    start_at(axes, 0)
    key(figure, axes)
