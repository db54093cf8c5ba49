"""All that is wrong with a leaderboard's files, each thing in a sentence of its own."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import COLUMNS, SCHEMA_TEXT, TASK_COLUMNS, Column
from page_bench.leaderboard.consistency import (
    between_rows,
    between_tables,
    within_row,
    within_task,
)
from page_bench.leaderboard.file import SCHEMA, TASKS, Board, Line, beside, read_lines
from page_bench.leaderboard.reproduce import is_control
from page_bench.leaderboard.row import to_value

_FORMULA = ("=", "+", "@", "-")
"""What begins a formula in a spreadsheet."""
_MARKUP = "<>`"


class Finding(NamedTuple):
    """One thing that is wrong; line 0 is the whole file, no column the whole line."""

    path: Path
    line: int
    column: str
    what: str

    def __str__(self) -> str:
        line = f" line {self.line}" if self.line else ""
        column = f", {self.column}" if self.column else ""
        return f"{self.path}{line}{column}: {self.what}"


def read_board(path: Path) -> Board:
    """The leaderboard in a file, once it has been checked.

    Raises:
        UsageError: the file does not exist, or something is wrong.
    """
    board, found = examined(path)
    if found:
        more = f" ({len(found) - 1} more; see page-bench leaderboard check)" * (len(found) > 1)
        raise UsageError(f"{found[0]}{more}")
    return board


def examined(path: Path) -> tuple[Board, list[Finding]]:
    """The leaderboard in a file, its tasks and schema beside it, and all that is wrong with it.

    Rows with a finding in themselves are left out. Findings are sorted by file and line; a file
    that is no table of the right columns has one.
    """
    lines: list[list[Line]] = []
    for file, columns in ((path, COLUMNS), (beside(path, TASKS), TASK_COLUMNS)):
        try:
            lines.append(read_lines(file, columns))
        except UsageError as error:
            return Board(), [Finding(file, 0, "", str(error).removeprefix(f"{file} "))]
    board, found = examined_lines(path, *lines)
    found += _schema(beside(path, SCHEMA))
    order = {path: 0, beside(path, TASKS): 1}
    return board, sorted(found, key=lambda one: (order.get(one.path, 2), one.line))


def examined_lines(
    path: Path, rows: Sequence[Line], tasks: Sequence[Line]
) -> tuple[Board, list[Finding]]:
    """The leaderboard in the lines of both tables, and all that is wrong with it."""
    found: list[Finding] = []
    good = []
    beside_it = beside(path, TASKS)
    for file, columns, lines, within in (
        (path, COLUMNS, rows, within_row),
        (beside_it, TASK_COLUMNS, tasks, within_task),
    ):
        whole = []
        for number, fields in lines:
            told = list(_fields(fields, columns))
            if not told:
                row = {column.name: to_value(column, fields[column.name]) for column in columns}
                told = list(within(row))
                whole.append((number, row))
            found += [Finding(file, number, *one) for one in told]
        good.append(whole)
    found += [Finding(path, *told) for told in between_rows(good[0])]
    if not found:
        for name, line, column, what in between_tables(*good):
            found.append(Finding(beside_it if name else path, line, column, what))
    return Board(*(tuple(row for _, row in whole) for whole in good)), found


def _fields(fields: dict[str, str], columns: Sequence[Column]) -> Iterator[tuple[str, str]]:
    """What is wrong with single fields: the column and the sentence."""
    for column in columns:
        text = fields[column.name]
        what = _damage(column, text)
        if what is None and text == "" and column.always:
            what = "is empty, which a complete row never is; add the run again"
        if what is not None:
            yield column.name, f"{what}."


def _damage(column: Column, text: str) -> str | None:
    unprintable = next(filter(is_control, text), None)
    if unprintable is not None:
        name = unicodedata.name(unprintable, f"U+{ord(unprintable):04X}")
        return f"holds the control character {name}; remove it"
    if len(text) > csv.field_size_limit():
        return f"is longer than the {csv.field_size_limit()} characters that CSV is read with"
    try:
        to_value(column, text)
    except ValueError as error:
        return f"is {text!r:.60}, {error}"
    if column.kind in ("integer", "number"):
        return None
    if text.startswith(_FORMULA):
        return f"begins with {text[0]!r}, which a spreadsheet takes for a formula; remove it"
    if column.kind != "json" and column.name != "command" and not set(text).isdisjoint(_MARKUP):
        return f"is {text!r:.60}, which holds markup; names hold none of {' '.join(_MARKUP)}"
    if text != text.strip():
        return f"is {text!r:.60}, with a space at an end; remove it"
    return None


def _schema(path: Path) -> list[Finding]:
    try:
        if text_file.read(path) == SCHEMA_TEXT:
            return []
        what = "is not the schema of this page-bench"
    except (OSError, text_file.NotText) as error:
        what = f"cannot be read ({error})"
    return [Finding(path, 0, "", f"{what}; add a run to write it anew.")]
