"""The files of a leaderboard: `leaderboard.csv`, and beside it `tasks.csv` and `schema.json`."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import COLUMNS, SCHEMA_TEXT, TASK_COLUMNS, Column
from page_bench.leaderboard.row import Row, sort_key, texts

TASKS, SCHEMA = "tasks.csv", "schema.json"
Line = tuple[int, dict[str, str]]
"""A line of a table: its number in the file, from 1 on, and its fields by column."""


@dataclass(frozen=True)
class Board:
    """The rows of `leaderboard.csv` and of `tasks.csv`, in order."""

    rows: tuple[Row, ...] = ()
    tasks: tuple[Row, ...] = ()

    def tasks_of(self, row: Row) -> list[Row]:
        """The tasks that a row is made of."""
        return self._tasks.get(row["row"], [])

    @cached_property
    def _tasks(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = defaultdict(list)
        for task in self.tasks:
            found[task["row"]].append(task)
        return dict(found)

    def with_rows(self, rows: Sequence[Row], tasks: Iterable[Row]) -> Board:
        """This and more rows, which take the place of those with the same `row`."""
        gone = {row["row"] for row in rows}
        all_rows = sorted([*(r for r in self.rows if r["row"] not in gone), *rows], key=sort_key)
        place = {row["row"]: i for i, row in enumerate(all_rows)}
        all_tasks = [*(t for t in self.tasks if t["row"] not in gone), *tasks]
        all_tasks.sort(key=lambda task: (place[task["row"]], task["task"]))
        return Board(tuple(all_rows), tuple(all_tasks))


def beside(path: Path, name: str) -> Path:
    """Another file of the same leaderboard; of one that is a link, beside what it points to."""
    here = path.parent / name
    if path.is_symlink() and not os.path.lexists(here):
        return Path(os.path.realpath(path)).parent / name
    return here


def read_lines(path: Path, columns: Sequence[Column]) -> list[Line]:
    """The lines of a table below its first.

    Raises:
        UsageError: it cannot be read, or is no table of these columns.
    """
    try:
        text = text_file.read(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}).") from error
    except text_file.NotText as error:
        raise UsageError(f"{path} {error}; restore it, or save it as UTF-8.") from error
    if "\r" in text:
        number = text[: text.index("\r")].count("\n") + 1
        raise UsageError(
            f"{path} line {number} holds a carriage return without a line feed; end lines by LF or "
            f"CRLF."
        )
    if not text.endswith("\n"):
        raise UsageError(f"{path} does not end with a line break: it was cut off; restore it.")
    reader = csv.reader(io.StringIO(text), strict=True)
    names = [column.name for column in columns]
    lines: list[Line] = []
    try:
        _check_header(path, next(reader), names)
        for fields in reader:
            if len(fields) != len(columns):
                raise UsageError(
                    f"{path} line {reader.line_num} has {len(fields)} fields, not {len(columns)}; "
                    f"restore it, or add the run again."
                )
            lines.append((reader.line_num, dict(zip(names, fields, strict=True))))
    except csv.Error as error:
        raise UsageError(
            f"{path} line {reader.line_num} is no CSV: {error}; restore it."
        ) from error
    return lines


def _check_header(path: Path, given: Sequence[str], wanted: Sequence[str]) -> None:
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    if unknown:
        raise UsageError(f"{path} line 1 has the unknown column {unknown[0]!r}; remove it.")
    if missing:
        raise UsageError(f"{path} line 1 lacks the column {missing[0]}; restore it.")
    if given != wanted:
        first = next(a for a, b in zip(given, wanted, strict=False) if a != b)
        raise UsageError(
            f"{path} line 1 has the column {first} in the wrong place; order them as {SCHEMA} does."
        )


def lines_of(rows: Iterable[Row], columns: Sequence[Column]) -> list[Line]:
    """The lines that rows make, numbered from 0 on."""
    names = [column.name for column in columns]
    made = (dict(zip(names, texts(row, columns), strict=True)) for row in rows)
    return list(enumerate(made))


def write_board(path: Path, board: Board) -> None:
    """Write both tables and the schema; readers see old files or new ones, never a part.

    Raises:
        UsageError: nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(beside(path, TASKS), _table(board.tasks, TASK_COLUMNS))
        replace(path, _table(board.rows, COLUMNS))
        replace(beside(path, SCHEMA), SCHEMA_TEXT)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).") from error


def _table(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    return csv_text([c.name for c in columns], (texts(row, columns) for row in rows))


def csv_text(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *lines])
    return file.getvalue()


def replace(path: Path, text: str) -> None:
    """Write a file; readers see the old one or the new one, and a link stays a link.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.write_bytes(text.encode("utf-8"))
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
