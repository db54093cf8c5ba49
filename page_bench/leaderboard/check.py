"""What is wrong with a leaderboard's files, each thing in a sentence of its own."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.agreement import between_rows, between_tables
from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS, Column, named
from page_bench.leaderboard.consistency import within_row, within_task
from page_bench.leaderboard.file import SCHEMA, TASKS, Board, Line, beside, parse_line, read_lines
from page_bench.leaderboard.row import Row, to_value
from page_bench.leaderboard.schema import schema_text

_FORMULA = ("=", "+", "@", "-")
"""What begins a formula in a spreadsheet."""
_MARKUP = "<>`"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        path: of the file.
        line: its number, from 1 on; 0 where it is the whole file.
        column: its name; empty where it is the whole line.
        what: a sentence without its subject.
    """

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
    """The leaderboard in a file, and all that is wrong with it.

    Args:
        path: of `leaderboard.csv`; `tasks.csv` and `schema.json` are looked for beside it.

    Returns:
        Rows without a finding in themselves, and the findings by file and line. A file that is no
        table of the right columns has one finding.
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
    """The leaderboard in the lines of both tables, and all that is wrong with it.

    Args:
        path: what to call `leaderboard.csv`.
        rows, tasks: the lines of it and of `tasks.csv`.
    """
    found: list[Finding] = []
    good_rows: list[tuple[int, Row]] = []
    good_tasks: list[tuple[int, Row]] = []
    for file, columns, lines, good in (
        (path, COLUMNS, rows, good_rows),
        (beside(path, TASKS), TASK_COLUMNS, tasks, good_tasks),
    ):
        for line in lines:
            own = list(_fields(file, line, columns))
            if not own:
                row = parse_line(line, columns)
                check = within_row if columns is COLUMNS else within_task
                own = [Finding(file, line.number, *told) for told in check(row)]
                good.append((line.number, row))
            found += own
    board = Board(tuple(row for _, row in good_rows), tuple(row for _, row in good_tasks))
    for number, column, what in between_rows(good_rows):
        found.append(Finding(path, number, column, what))
    if not found:
        for name, number, column, what in between_tables(good_rows, good_tasks):
            file = path if name is None else beside(path, name)
            found.append(Finding(file, number, column, what))
    return board, found


def _fields(path: Path, line: Line, columns: Sequence[Column]) -> Iterator[Finding]:
    """What is wrong with single fields."""
    measured = line.fields.get("source", "measured") == "measured"
    for name, column in named(columns).items():
        text = line.fields[name]
        what = _damage(column, text)
        if what is None and text == "" and column.always and (measured or not _may_lack(column)):
            what = "is empty, which a complete row never is; add the run again"
        if what is not None:
            yield Finding(path, line.number, name, f"{what}.")


def _may_lack(column: Column) -> bool:
    """Whether others' reports may leave a column open."""
    return column.part in ("provenance", "figure") or column.name in ("data", "gate_args")


def _damage(column: Column, text: str) -> str | None:
    unprintable = next((c for c in text if unicodedata.category(c).startswith("C")), None)
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
    if (
        column.kind != "json"
        and column.name != "command"
        and any(character in text for character in _MARKUP)
    ):
        return f"is {text!r:.60}, which holds markup; names hold none of {' '.join(_MARKUP)}"
    if text != text.strip():
        return f"is {text!r:.60}, with a space at an end; remove it"
    return None


def _schema(path: Path) -> list[Finding]:
    try:
        text = text_file.read(path)
    except (OSError, text_file.NotText) as error:
        return [Finding(path, 0, "", f"cannot be read ({error}); add a run to write it anew.")]
    if text == schema_text():
        return []
    return [
        Finding(path, 0, "", "is not the schema of this page-bench; add a run to write it anew.")
    ]
