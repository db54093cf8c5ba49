"""Rows of the CSV files: texts in, typed values out, and back; identity and digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from page_bench.inputs import json_text
from page_bench.leaderboard.columns import COLUMNS, IDENTITY, Column

Row = Mapping[str, Any]
"""One value per column: str, int, float or bool; None where it is not known."""

DIGITS = 6
"""Decimal places of a number."""
MOST_NESTED = 50
"""Levels of JSON that are read."""
_MOST_FIGURES = 15
"""Decimal digits of a whole number, all of which a float holds."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def to_text(value: Any) -> str:
    """A value as the file holds it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(rounded(value))
    return "" if value is None else str(value)


def rounded(value: float) -> float:
    """A number as the file holds it; never −0."""
    return round(float(value), DIGITS) + 0.0


def to_value(column: Column, text: str) -> Any:
    """The value of a text.

    Raises:
        ValueError: the column cannot hold that; the message is a phrase after `is`.
    """
    if text == "":
        return None
    match column.kind:
        case "integer" | "number":
            return _number(column, text)
        case "flag":
            if text not in ("true", "false"):
                raise ValueError("neither true nor false")
            return text == "true"
        case "json":
            _check_object(text)
        case "date":
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) or not _is_day(text):
                raise ValueError("no day, YYYY-MM-DD")
        case "names":
            words = text.split(" ")
            if words != sorted(set(words)) or "" in words:
                raise ValueError("no list of distinct names, sorted, with single spaces between")
    if column.choices and text not in column.choices:
        raise ValueError(f"none of {', '.join(column.choices)}")
    return text


def _number(column: Column, text: str) -> int | float:
    whole = column.kind == "integer"
    if text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        raise ValueError("not finite, where an unknown number is left empty")
    if not _NUMBER.fullmatch(text) or (whole and not text.lstrip("-").isdecimal()):
        raise ValueError("not a whole number" if whole else "not a number")
    if (whole and len(text.lstrip("-")) > _MOST_FIGURES) or not math.isfinite(float(text)):
        raise ValueError("too large for a number")
    value = int(text) if whole else float(text)
    if not column.least <= value <= column.most:
        ends = f"[{column.least:g}, {column.most:g}]".replace("-inf", "−∞").replace("inf", "∞")
        raise ValueError(f"outside {ends}")
    if to_text(value) != text:
        raise ValueError(f"not written as the file writes it, {to_text(value)}")
    return value


def _is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def _check_object(text: str) -> None:
    try:
        value = json_text.parse(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if nesting(value) > MOST_NESTED:
        raise ValueError(f"nested deeper than {MOST_NESTED} levels")
    if to_json(value) != text:
        raise ValueError("not written as the file writes JSON, with sorted keys")


def nesting(value: object) -> int:
    """How many levels of lists and objects JSON has."""
    deepest, left = 0, [(value, 1)]
    while left:
        one, level = left.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            inner = one.values() if isinstance(one, dict) else one
            left += [(item, level + 1) for item in inner]
    return deepest


def to_json(value: Mapping[str, object]) -> str:
    """An object as a `json` column holds it."""
    return json.dumps(value, sort_keys=True)


def texts(row: Row, columns: Sequence[Column] = COLUMNS) -> list[str]:
    """The fields of a row's line."""
    return [to_text(row[column.name]) for column in columns]


def row_id(row: Row) -> str:
    """What the column `row` must hold."""
    return _sha256(texts(row, IDENTITY))[:12]


def digest(row: Row, columns: Sequence[Column] = COLUMNS) -> str:
    """What the column `digest` must hold."""
    return _sha256(texts(row, [column for column in columns if column.name != "digest"]))


def sealed(values: Row, columns: Sequence[Column] = COLUMNS) -> Row:
    """The row of a table with `digest` filled in, numbers rounded, NaN and what is missing None.

    A row of `leaderboard.csv` gets its `row` as well.
    """
    row: dict[str, Any] = {}
    for column in columns:
        value = values.get(column.name)
        if isinstance(value, float):
            value = rounded(value) if math.isfinite(value) else None
        row[column.name] = value
    if columns is COLUMNS:
        row["row"] = row_id(row)
    row["digest"] = digest(row, columns)
    return row


def sort_key(row: Row) -> tuple[tuple[float, str], ...]:
    """Rows are sorted by their identity columns, numbers by size, texts by letter."""
    values = (row[column.name] for column in IDENTITY)
    return tuple((v, "") if isinstance(v, int | float) else (-math.inf, v or "") for v in values)


def _sha256(fields: Iterable[str]) -> str:
    text = json.dumps(list(fields), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
