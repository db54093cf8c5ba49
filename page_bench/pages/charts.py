"""Two kinds of charts that several sections draw: estimates in rows, and lines over an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import Estimate
from page_bench.pages.palette import Look, looks
from page_bench.pages.panels import (
    by_place,
    dots,
    key,
    name_rows,
    offsets,
    page_name,
    page_title,
    pages,
    panels,
    series,
    size_of,
    spans,
)
from page_bench.pages.section import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 24
"""Rows of one chart."""


@dataclass(frozen=True)
class Row:
    """A row of estimates.

    Attributes:
        name: what they are of, with n.
        estimates: one per series; None for none.
    """

    name: str
    estimates: Sequence[Estimate | None]


def row_charts(
    stem: str,
    question: str,
    alt: str,
    x: str,
    rows: Sequence[Row],
    legend: Sequence[tuple[str, Look]],
) -> list[Chart]:
    """Estimates with their intervals along x, in rows, and a line at 0.

    Args:
        stem, question, alt: of the charts (see `Chart`).
        x: the label of the axis.
        rows: from the top down.
        legend: name and look of each series.
    """
    of = pages(rows, ROWS)
    return [
        Chart(
            page_name(stem, i),
            page_title(question, i, len(of)),
            partial(_rows, page, legend, x),
            alt,
            (8.0, 1.4 + 0.32 * len(page)),
        )
        for i, page in enumerate(of)
    ]


def place_charts(
    stem: str,
    question: str,
    alt: str,
    axes: tuple[str, str],
    cells: Sequence[Cell],
    draw: Callable[[Axes, Cell, Look, str], int],
    share_y: bool = True,
) -> list[Chart]:
    """Lines, one panel per model and suite.

    Args:
        stem, question, alt: of the charts (see `Chart`).
        axes: labels of x and y.
        cells: all of them.
        draw: draws one cell in its look and under its name, and gives its n.
        share_y: whether all panels have one scale along y.
    """
    with_gate = len({cell.gate for cell in cells}) > 1
    names = {
        id(cell): f"{series(cell)}, {cell.gate}" if with_gate else series(cell) for cell in cells
    }
    look = looks(names.values())

    def page(places: Sequence[tuple[str, list[Cell]]], figure: Figure) -> None:
        drawn = panels(figure, len(places), share_y=share_y)
        for one, (place, own) in zip(drawn, places, strict=True):
            counts = [draw(one, cell, look[names[id(cell)]], names[id(cell)]) for cell in own]
            number = "–".join(str(n) for n in sorted({min(counts), max(counts)}))
            one.set_title(f"{place} (n = {number} inputs)", fontsize="medium")
            one.set_xlabel(axes[0])
            one.set_ylabel(axes[1])
            one.grid(alpha=0.3, lw=0.5)
        key(figure, drawn)

    of = pages(list(by_place(cells).items()))
    return [
        Chart(
            page_name(stem, i),
            page_title(question, i, len(of)),
            partial(page, places),
            alt,
            size_of(len(places), 3.4),
        )
        for i, places in enumerate(of)
    ]


def line(
    axes: Axes,
    x: Sequence[float],
    estimates: Sequence[Estimate],
    look: Look,
    label: str,
    *,
    plain: bool = False,
    x_estimates: Sequence[Estimate] | None = None,
) -> None:
    """A line through estimates with their intervals; those of the plain arm are dashed and hollow.

    Args:
        axes: to draw into.
        x: where.
        estimates: along y.
        look, label: of the line.
        plain: whether this is the plain arm.
        x_estimates: intervals along x; None for none.
    """
    values, reach = spans(estimates)
    axes.errorbar(
        x,
        values,
        yerr=reach,
        xerr=None if x_estimates is None else spans(x_estimates)[1],
        color=look.color,
        marker=look.marker,
        markerfacecolor="none" if plain else None,
        ls="--" if plain else "-",
        lw=1.3,
        ms=4.5,
        capsize=2,
        label=label,
    )


def _rows(rows: Sequence[Row], legend: Sequence[tuple[str, Look]], x: str, figure: Figure) -> None:
    (axes,) = panels(figure, 1)
    axes.axvline(0, color="black", lw=0.8)
    for i, ((label, look), shift) in enumerate(
        zip(legend, offsets(len(legend), 0.18), strict=True)
    ):
        known = [
            (place + shift, estimate)
            for place, row in enumerate(rows)
            if (estimate := row.estimates[i]) is not None
        ]
        if known:
            dots(axes, [place for place, _ in known], [own for _, own in known], look, label)
    name_rows(axes, [row.name for row in rows])
    axes.set_xlabel(x)
    key(figure, [axes])
