"""Rows of local files, opened by their exact names.

`datasets` takes names for patterns: to it the folder `run[1]` is the folder `run1`, and a name that
looks like a URL is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets

from page_bench.inputs import json_text

SUFFIXES = (".jsonl", ".parquet")


def table_of(files: Sequence[Path]) -> Dataset:
    """All rows of files of one kind, parquet or JSON lines, in memory.

    Raises:
        Exception: of many types, as their readers raise them; a message names no file.
    """
    found = [(file, file.stat()) for file in files]
    return _table_of(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in found))


@lru_cache(maxsize=1)  # a group asks for the same files once per task
def _table_of(stamped: tuple[tuple[Path, int, int], ...]) -> Dataset:
    """The same; files changed meanwhile have another size or time."""
    files = [file for file, _, _ in stamped]
    if files[0].suffix == ".parquet":
        return concatenate_datasets([_parquet(file) for file in files])
    rows = [row for file in files for row in json_lines(file)]
    names = dict.fromkeys(name for row in rows for name in row)
    return Dataset.from_dict({name: [row.get(name) for row in rows] for name in names})


def rows_in(file: Path) -> Sequence[dict[str, Any]]:
    """The rows of one file; the errors are those of `table_of`."""
    return _parquet(file) if file.suffix == ".parquet" else json_lines(file)


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line; ValueError: a line is none."""
    rows = []
    for number, row in json_text.lines(file, nan=True):
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no object")
        rows.append(row)
    return rows


def _parquet(file: Path) -> Dataset:
    from pyarrow import parquet

    # Opened here: pyarrow, too, takes some names for URLs.
    with file.open("rb") as source:
        return Dataset(parquet.read_table(source))
