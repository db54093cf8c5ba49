"""A report's files: tables, figures, pages, and all numbers as JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.pages.figures import Drawn, drawn
from page_bench.pages.section import Chart, Section, Table
from page_bench.pages.values import expanded, plain
from page_bench.report import html, markdown
from page_bench.report.build import Report

NUMBERS, PAGE, TEXT = "report.json", "report.html", "report.md"
TABLES, FIGURES = "tables", "figures"
FORMAT = "page-bench report 1"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier report, or cannot be written to.

    Raises:
        UsageError: so it is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and _earlier(folder) is None:
            raise UsageError(
                f"{folder} holds other files than an earlier report's; give -o a new or an empty "
                f"folder."
            )
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {folder} ({error.strerror or error}); give -o a "
            f"folder that is writable."
        ) from error


def write(
    report: Report,
    folder: Path,
    progress: Callable[[Sequence[Chart]], Iterator[Chart]] = iter,
) -> list[Path]:
    """Write a report in place of an earlier one.

    Args:
        report: what to write.
        folder: see `check_folder`.
        progress: wraps the charts while these are drawn.

    Returns:
        The files, pages first.

    Raises:
        UsageError: a file could not be written, as on a full disk.
    """
    sections = [report.data, *report.sections]
    charts = [chart for section in sections for chart in section.charts]
    tables = [table for section in sections for table in section.tables]
    _check_names([chart.name for chart in charts])
    _check_names([table.name for table in tables])
    pictures = {chart.name: drawn(chart) for chart in progress(charts)}
    files = _files(report, tables, pictures)
    try:
        for name in _earlier(folder) or ():
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".partial")
            partial.write_bytes(data)
            os.replace(partial, path)
    except OSError as error:
        raise UsageError(
            f"the report could not be written to {folder} ({error.strerror or error}); make room "
            f"there, or give -o another folder."
        ) from error
    return [folder / name for name in files]


def csv_text(table: Table) -> str:
    """A table as CSV; see `values.expanded`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads, rows = expanded(table)
    writer.writerow(heads)
    writer.writerows([_unformula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _files(report: Report, tables: Sequence[Table], pictures: dict[str, Drawn]) -> dict[str, bytes]:
    files: dict[str, str | bytes] = {
        PAGE: html.page(report, pictures),
        TEXT: markdown.page(report, TABLES, FIGURES),
    }
    for table in tables:
        files[f"{TABLES}/{table.name}.csv"] = csv_text(table)
        files[f"{TABLES}/{table.name}.md"] = "\n".join(markdown.table_lines(table)).rstrip() + "\n"
    for name, picture in pictures.items():
        files[f"{FIGURES}/{name}.png"] = picture.png
        files[f"{FIGURES}/{name}.svg"] = picture.svg
    numbers = _numbers(report, [*files, NUMBERS])
    # First, so that what a full disk cuts short is still known as a report.
    return {
        name: data if isinstance(data, bytes) else data.encode("utf-8", errors="replace")
        for name, data in {NUMBERS: numbers, **files}.items()
    }


def _numbers(report: Report, files: Sequence[str]) -> str:
    value = {
        "format": FORMAT,
        "title": report.title,
        "settings": report.settings,
        "notes": list(report.notes),
        "sections": [_section(section) for section in (report.data, *report.sections)],
        "files": list(files),
    }
    return json.dumps(plain(value), ensure_ascii=False, indent=1) + "\n"


def _section(section: Section) -> dict[str, Any]:
    return {
        "name": section.name,
        "title": section.title,
        "text": section.text,
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "columns": list(table.columns),
                "rows": [list(row) for row in table.rows],
                "notes": list(table.notes),
            }
            for table in section.tables
        ],
        "charts": [
            {"name": chart.name, "title": chart.title, "alt": chart.alt} for chart in section.charts
        ],
    }


def _earlier(folder: Path) -> list[str] | None:
    """Files of the report that a folder holds; None if it holds none."""
    try:
        found = json_text.parse((folder / NUMBERS).read_bytes())
        if found["format"] != FORMAT:
            return None
        # Nothing outside the folder, whatever somebody has written there.
        inside = folder.resolve()
        return [n for n in found["files"] if (folder / n).resolve().is_relative_to(inside)]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several tables or charts are named {', '.join(twice)}")
    if wild := [name for name in names if not re.fullmatch(r"[\w-]+", name)]:
        raise ValueError(f"{', '.join(wild)} are no stems of file names")


def _unformula(cell: str) -> str:
    """Text that a spreadsheet would run as a formula, quoted; numbers stay."""
    if cell[:1] not in ("=", "+", "@", "-", "\t", "\r"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
