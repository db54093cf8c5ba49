"""What a report is made of: sections with tables and charts, each of which answers one question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from page_bench.analysis.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | bool | Estimate | None


@dataclass(frozen=True)
class Table:
    """Numbers that answer one question.

    Attributes:
        name: stem of its files.
        title: the question.
        columns: headings. A table without a column `n` holds estimates, which carry their n.
        rows: one value per column; None where nothing can be said.
        notes: sentences that stand below.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A figure that answers one question.

    Attributes:
        name: stem of its files.
        title: the question.
        draw: puts axes into an empty figure; the title is added by the report.
        alt: what there is to see, for those who cannot.
        size: width and height in inches.
    """

    name: str
    title: str
    draw: Callable[[Figure], None]
    alt: str
    size: tuple[float, float] = (7.0, 4.2)


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        name: its anchor.
        title: its heading.
        text: one or two sentences on what is shown and how it is defined.
        tables, charts: what it shows. A section without any is left out, and its `text` says why
            in the report's notes.
    """

    name: str
    title: str
    text: str
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
