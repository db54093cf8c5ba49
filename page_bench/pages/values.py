"""How the values of a table are written: for people, for spreadsheets and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from page_bench.analysis.intervals import Estimate
from page_bench.pages.section import Table, Value

NOTHING = "–"
N = "n"
PARTS = ("low", "high", "n", "method")
"""Of an estimate, besides its value."""


def has_n(table: Table) -> bool:
    """Whether a table says of how many inputs its numbers are: a column, or its estimates."""
    return N in table.columns or any(isinstance(v, Estimate) for row in table.rows for v in row)


def shown(value: Value, with_n: bool = False) -> str:
    """A value as people read it.

    Args:
        value: of a table.
        with_n: whether an estimate's n is said, since the table has no column for it.
    """
    if value is None:
        return NOTHING
    if isinstance(value, Estimate):
        if math.isnan(value.value):
            return f"{NOTHING} (n={value.n})"
        return f"{value} (n={value.n})" if with_n else str(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return NOTHING if math.isnan(value) else f"{value:.4g}"
    return str(value)


def expanded(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headings and rows for a spreadsheet: an estimate is five columns, nothing is empty.

    The last says which interval it is, or why there is none.
    """
    wide = [any(isinstance(row[i], Estimate) for row in table.rows) for i in _places(table)]
    heads = []
    for name, is_wide in zip(table.columns, wide, strict=True):
        heads += [name, *(f"{name} {part}" for part in PARTS)] if is_wide else [name]
    rows = []
    for row in table.rows:
        cells: list[str] = []
        for value, is_wide in zip(row, wide, strict=True):
            if isinstance(value, Estimate):
                cells += [_exact(value.value), *(_exact(getattr(value, p)) for p in PARTS)]
            else:
                cells += [_exact(value), *([""] * len(PARTS) if is_wide else [])]
        rows.append(cells)
    return heads, rows


def plain(value: Any) -> Any:
    """A value for JSON; what is not a number becomes null."""
    if isinstance(value, Estimate):
        return {name: plain(part) for name, part in vars(value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item"):  # numpy's numbers
        return plain(value.item())
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def is_number(value: Value) -> bool:
    """Whether it is written flush right."""
    return isinstance(value, int | float | Estimate) and not isinstance(value, bool)


def _exact(value: str | int | float | bool | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _places(table: Table) -> Sequence[int]:
    return range(len(table.columns))
