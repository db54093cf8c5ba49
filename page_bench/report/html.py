"""A report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from page_bench.pages.figures import Drawn
from page_bench.pages.section import Chart, Section, Table
from page_bench.pages.values import N, is_number, shown
from page_bench.report.build import Report

LONG = 15
"""Tables with more rows are folded away."""
LARGE = 400_000
"""A chart whose SVG has more bytes is shown as PNG."""

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --soft: #f3f5f7; --line: #d3d9e0;
  --link: #0b5cad; --quiet: #57606a; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --back: #15181c; --soft: #20252b;
  --line: #3a424c; --link: #7db8ff; --quiet: #a3adb8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
a { color: var(--link); }
nav ul { columns: 14rem; padding-left: 1.2rem; }
.notes { background: var(--soft); border: 1px solid var(--line); border-radius: .4rem;
  padding: .5rem 1rem; }
.quiet, .note { color: var(--quiet); font-size: .9rem; }
.notes h2 { margin: .3rem 0; padding: 0; border: 0; }
figure { margin: 1rem 0; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; padding: .4rem;
  border: 1px solid var(--line); border-radius: .4rem; }
figcaption { color: var(--quiet); font-size: .9rem; margin-top: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: max-content; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { background: var(--soft); }
td { max-width: 28rem; }
td.number { text-align: right; white-space: nowrap; }
summary { cursor: pointer; }
@media (max-width: 40rem) { body { padding: .6rem; font-size: 15px; } td { max-width: 16rem; } }
@media print { details > * { display: block; } }
""".strip()


def page(report: Report, charts: Mapping[str, Drawn]) -> str:
    """The whole page.

    Args:
        report: what to show; none of its text is trusted.
        charts: by name of the chart.
    """
    sections = [report.data, *report.sections]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Whatever a name or an answer holds, nothing is run and nothing is fetched.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        f"<title>{escape(report.title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{escape(report.title)}</h1></header>",
        *_contents(sections),
        "<main>",
        *_notes(report),
        *(line for section in sections for line in _section(section, charts)),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _contents(sections: Sequence[Section]) -> list[str]:
    links = [("notes", "Notes"), *((section.name, section.title) for section in sections)]
    return [
        '<nav aria-label="Contents">',
        "<ul>",
        *(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, title in links),
        "</ul>",
        "</nav>",
    ]


def _notes(report: Report) -> list[str]:
    said = "; ".join(f"{name}: {shown(value)}" for name, value in report.settings.items())
    items = [f"<li>{escape(note)}</li>" for note in report.notes]
    return [
        '<section id="notes" class="notes">',
        "<h2>Notes</h2>",
        *(["<ul>", *items, "</ul>"] if items else ["<p>None.</p>"]),
        f'<p class="quiet">{escape(said)}</p>',
        "</section>",
    ]


def _section(section: Section, charts: Mapping[str, Drawn]) -> list[str]:
    return [
        f'<section id="{escape(section.name)}">',
        f"<h2>{escape(section.title)}</h2>",
        f"<p>{escape(section.text)}</p>",
        *(line for chart in section.charts for line in _figure(chart, charts[chart.name])),
        *(line for table in section.tables for line in _table(table)),
        "</section>",
    ]


def _figure(chart: Chart, drawn: Drawn) -> list[str]:
    small = len(drawn.svg) <= LARGE
    kind, data = ("svg+xml", drawn.svg) if small else ("png", drawn.png)
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    width, height = (round(96 * inches) for inches in chart.size)
    return [
        f'<figure id="chart-{escape(chart.name)}">',
        f'<img src="{source}" width="{width}" height="{height}" '
        f'alt="{escape(f"{chart.title} {chart.alt}")}">',
        f"<figcaption>{escape(chart.alt)}</figcaption>",
        "</figure>",
    ]


def _table(table: Table) -> list[str]:
    with_n = N not in table.columns
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = [
        "<tr>"
        + "".join(
            f"<td{_class(is_number(value))}>{escape(shown(value, with_n))}</td>" for value in row
        )
        + "</tr>"
        for row in table.rows
    ]
    body = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">',
        "<table>",
        f"<thead><tr>{heads}</tr></thead>",
        "<tbody>",
        *rows,
        "</tbody>",
        "</table>",
        "</div>",
    ]
    if len(rows) > LONG:
        body = [f"<details><summary>{len(rows)} rows</summary>", *body, "</details>"]
    notes = [f'<p class="note">{escape(note)}</p>' for note in table.notes]
    return [f'<h3 id="table-{escape(table.name)}">{escape(table.title)}</h3>', *body, *notes]


def _class(number: bool) -> str:
    return ' class="number"' if number else ""
