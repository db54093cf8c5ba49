"""Rows as they stand in a CSV file: texts in, typed values out, and back; identity and digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from page_bench.inputs import json_text
from page_bench.leaderboard.columns import COLUMNS, IDENTITY, Column

Value = str | int | float | bool | None
Row = Mapping[str, Value]
"""One value per column; None where it is not known."""

DIGITS = 6
"""Decimal places of a number."""
MOST_NESTED = 50
"""Levels of JSON that are read."""
_ROW_DIGITS = 12
_MOST_FIGURES = 15
"""Decimal digits of a whole number, all of which a float holds."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def to_text(value: Value) -> str:
    """A value as it stands in the file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(rounded(value))
    return str(value)


def rounded(value: float) -> float:
    """A number as the file holds it; never −0."""
    return round(float(value), DIGITS) + 0.0


def to_value(column: Column, text: str) -> Value:
    """The value that a text stands for.

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
            _object(text)
        case "date":
            _day(text)
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
        top = "∞" if column.most == math.inf else f"{column.most:g}"
        bottom = "−∞" if column.least == -math.inf else f"{column.least:g}"
        raise ValueError(f"outside [{bottom}, {top}]")
    if to_text(value) != text:
        raise ValueError(f"not written as the file writes it, {to_text(value)}")
    return value


def _object(text: str) -> None:
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
    """How many lists and objects of JSON stand within each other."""
    deepest, left = 0, [(value, 1)]
    while left:
        one, level = left.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            left += [
                (inner, level + 1) for inner in (one.values() if isinstance(one, dict) else one)
            ]
    return deepest


def _day(text: str) -> None:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise ValueError("no day, YYYY-MM-DD") from None


def to_json(value: Mapping[str, object]) -> str:
    """An object as a `json` column holds it."""
    return json.dumps(value, sort_keys=True)


def texts(row: Row, columns: Sequence[Column] = COLUMNS) -> list[str]:
    """The fields of a row's line."""
    return [to_text(row[column.name]) for column in columns]


def row_id(row: Row) -> str:
    """What the column `row` must hold."""
    return _sha256(texts(row, IDENTITY))[:_ROW_DIGITS]


def digest(row: Row, columns: Sequence[Column] = COLUMNS) -> str:
    """What the column `digest` must hold."""
    return _sha256(texts(row, [column for column in columns if column.name != "digest"]))


def sealed(values: Mapping[str, Value]) -> Row:
    """The row with `row` and `digest` filled in, numbers rounded, NaN and what is missing None."""
    row: dict[str, Value] = {c.name: _known(values.get(c.name)) for c in COLUMNS}
    row["row"] = row_id(row)
    row["digest"] = digest(row)
    return row


def task_row(values: Mapping[str, Value], columns: Sequence[Column]) -> Row:
    """A row of `tasks.csv`, treated likewise."""
    row: dict[str, Value] = {column.name: _known(values.get(column.name)) for column in columns}
    row["digest"] = digest(row, columns)
    return row


def _known(value: Value) -> Value:
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value


def sort_key(row: Row) -> tuple[tuple[float, str], ...]:
    """Rows stand in the order of their identity columns, numbers by size, texts by letter."""
    return tuple(_place(row[column.name]) for column in IDENTITY)


def _place(value: Value) -> tuple[float, str]:
    if isinstance(value, int | float):
        return float(value), ""
    return -math.inf, value or ""


def _sha256(fields: Iterable[str]) -> str:
    text = json.dumps(list(fields), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
