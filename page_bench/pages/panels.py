"""What the sections' charts and tables have in common: panels, error bars, names of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import Estimate
from page_bench.pages.palette import Look
from page_bench.pages.section import Value

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

MOST = 6
"""Panels of one chart."""
POOLED = (
    "All models, suites and seeds stand together; as in the paper, the same document under two "
    "models counts as two inputs, so that these intervals are somewhat narrow."
)
"""Note of tables over several cells."""


def pages(items: Sequence[T], most: int = MOST) -> list[Sequence[T]]:
    """Items in stretches that fit one chart."""
    return [items[start : start + most] for start in range(0, len(items), most)]


def page_name(stem: str, page: int) -> str:
    """Name of a chart's page; the first has no number."""
    return stem if page == 0 else f"{stem}_{page + 1}"


def page_title(question: str, page: int, of: int) -> str:
    """The question, and which of several pages answers it."""
    return question if of == 1 else f"{question} ({page + 1} of {of})"


def size_of(panels: int, height: float = 3.0) -> tuple[float, float]:
    """Inches of a chart with some panels, each of them `height` high."""
    columns = _columns(panels)
    return 5.2 * columns if columns > 1 else 7.0, height * -(-panels // columns) + 0.6


def panels(figure: Figure, number: int, share_x: bool = True, share_y: bool = False) -> list[Axes]:
    """That many axes in rows, those that the last row has no use for left out.

    Args:
        figure: empty.
        number: panels.
        share_x, share_y: whether all have one scale, since what they hold is to be compared.
    """
    columns = _columns(number)
    grid = figure.subplots(
        -(-number // columns), columns, squeeze=False, sharex=share_x, sharey=share_y
    )
    axes: list[Axes] = list(grid.flat)
    for unused in axes[number:]:
        unused.remove()
    for one in axes[:number]:
        one.tick_params(labelbottom=True, labelleft=True)
    return axes[:number]


def spans(estimates: Sequence[Estimate]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values, and how far the interval reaches below and above, `[n]` and `[2, n]`.

    Where an end is not a finite number, no bar is drawn.
    """
    values, lows, highs = (
        np.array([getattr(estimate, name) for estimate in estimates], dtype=np.float64)
        for name in ("value", "low", "high")
    )
    reach = np.stack([values - lows, highs - values])
    return values, np.where(np.isfinite(reach), np.clip(reach, 0, None), 0)


def dots(
    axes: Axes, places: Sequence[float], estimates: Sequence[Estimate], look: Look, label: str
) -> None:
    """Estimates along x with their intervals, at places along y."""
    values, reach = spans(estimates)
    axes.errorbar(
        values,
        places,
        xerr=reach,
        fmt=look.marker,
        color=look.color,
        ms=5,
        lw=1.2,
        capsize=2,
        label=label,
    )


def start_at(axes: Sequence[Axes], left: float) -> None:
    """Let x begin there, once everything is drawn."""
    for one in axes:
        # A limit that is set for one side stops the other from following the data.
        right = one.get_xlim()[1]
        one.set_xlim(left, right + 0.03 * (right - left))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names along y, the first at the top."""
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3, lw=0.5)


def offsets(number: int, reach: float = 0.28) -> list[float]:
    """Places around 0 for series that share a row."""
    return [0.0] if number == 1 else [float(x) for x in np.linspace(-reach, reach, number)]


def key(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels."""
    entries: dict[str, Artist] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    longest = max((len(label) for label in entries), default=0)
    # A small letter is about 0.075 inches wide, and the handle takes up six.
    fitting = int(figure.get_figwidth() / 0.075 / (longest + 6))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(4, max(1, fitting)),
        fontsize="small",
        frameon=False,
    )


def by_place(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells by model and suite, in their order."""
    places: dict[str, list[Cell]] = {}
    for cell in cells:
        places.setdefault(f"{cell.model} {cell.suite}", []).append(cell)
    return places


def series(cell: Cell) -> str:
    """What tells a cell from others of its model, suite and gate."""
    return cell.evictor if cell.seed is None else f"{cell.evictor} seed {cell.seed}"


def identity(
    cells: Sequence[Cell], gate: bool = True
) -> tuple[list[str], Callable[[Cell], list[Value]]]:
    """Headings of the columns that name a cell, and what stands in them.

    Args:
        cells: all of the table; a seed is named if one of them has any.
        gate: whether the gate is named.
    """
    seeded = any(cell.seed is not None for cell in cells)
    names = [
        "model",
        "suite",
        "evictor",
        *(["gate"] if gate else []),
        *(["seed"] if seeded else []),
    ]

    def values(cell: Cell) -> list[Value]:
        return [getattr(cell, name) for name in names]

    return names, values


def _columns(number: int) -> int:
    return 1 if number == 1 else 2
