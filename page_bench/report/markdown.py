"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from page_bench.pages.section import Section, Table
from page_bench.pages.values import N, is_number, shown
from page_bench.report.build import Report

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|~#"} | {"\n": " ", "\r": " "})


def table_lines(table: Table) -> list[str]:
    """A table as lines, its notes below."""
    with_n = N not in table.columns
    right = [
        bool(table.rows) and all(row[i] is None or is_number(row[i]) for row in table.rows)
        for i in range(len(table.columns))
    ]
    lines = [_line(table.columns), _line(["--:" if flush else "---" for flush in right], raw=True)]
    lines += [_line([shown(value, with_n) for value in row]) for row in table.rows]
    return [*lines, "", *(f"{escaped(note)}\n" for note in table.notes)]


def page(report: Report, tables: str, figures: str) -> str:
    """The whole report.

    Args:
        report: what to show.
        tables, figures: folders that the files lie in, relative to the page's.
    """
    lines = [f"# {escaped(report.title)}", "", "## Notes", ""]
    lines += [f"- {escaped(note)}" for note in report.notes] or ["None."]
    said = "; ".join(f"{name}: {shown(value)}" for name, value in report.settings.items())
    lines += ["", escaped(said), ""]
    for section in (report.data, *report.sections):
        lines += _section(section, tables, figures)
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """Text of others, so that it is shown as it is and on one line."""
    return text.translate(_SPECIAL)


def _section(section: Section, tables: str, figures: str) -> list[str]:
    lines = [f"## {escaped(section.title)}", "", escaped(section.text), ""]
    for chart in section.charts:
        lines += [
            f"![{escaped(chart.title)} {escaped(chart.alt)}]({figures}/{chart.name}.svg)",
            "",
        ]
    for table in section.tables:
        lines += [f"### {escaped(table.title)}", "", *table_lines(table)]
        lines += [f"[CSV]({tables}/{table.name}.csv)", ""]
    return lines


def _line(cells: Sequence[str], raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(escaped, cells))} |"
