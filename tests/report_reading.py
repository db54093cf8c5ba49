"""Tables and charts of a report's sections, read back."""

from __future__ import annotations

from matplotlib.figure import Figure

from page_bench.analysis.intervals import Estimate
from page_bench.pages.section import Chart, Section, Table, Value


def table_of(section: Section, name: str) -> Table:
    (found,) = (table for table in section.tables if table.name == name)
    return found


def records(table: Table) -> list[dict[str, Value]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def value(given: Value) -> float:
    assert isinstance(given, Estimate)
    return given.value


def drawn(chart: Chart) -> Figure:
    figure = Figure(figsize=chart.size, layout="constrained")
    chart.draw(figure)
    return figure


def words(figure: Figure) -> str:
    found = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        found += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
        found += [label.get_text() for label in axes.get_yticklabels()]
    return "\n".join(found)
