"""`schema.json`: the columns of the leaderboard as JSON Schema (draft 2020-12)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS, Column

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {"integer": "integer", "number": "number", "flag": "boolean"}
_PATTERNS = {"date": r"^\d{4}-\d{2}-\d{2}$", "names": r"^[^ ]+( [^ ]+)*$", "json": r"^\{.*\}$"}


def schema() -> dict[str, Any]:
    """The schema of `page-bench leaderboard export --format json` and of both tables.

    A row is an object with one property per column, null where the field is empty. `x-unit`,
    `x-source` and `x-part` say what JSON Schema has no word for.
    """
    return {
        "$schema": DRAFT,
        "title": "page-bench leaderboard",
        "description": "Lines of leaderboard.csv (row) and tasks.csv (task); an empty field is "
        "null. CSV with one line of headings, UTF-8, LF, numbers of at most six decimal places.",
        "type": "object",
        "properties": {
            "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
            "tasks": {"type": "array", "items": {"$ref": "#/$defs/task"}},
        },
        "$defs": {"row": _object(COLUMNS), "task": _object(TASK_COLUMNS)},
    }


def schema_text() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _object(columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {column.name: _property(column) for column in columns},
        "required": [column.name for column in columns],
        "additionalProperties": False,
    }


def _property(column: Column) -> dict[str, Any]:
    made: dict[str, Any] = {"description": column.meaning}
    kind = _TYPES.get(column.kind, "string")
    made["type"] = kind if column.always else [kind, "null"]
    if column.choices:
        made["enum"] = [*column.choices, *([] if column.always else [None])]
    if column.least > -math.inf:
        made["minimum"] = column.least
    if column.most < math.inf:
        made["maximum"] = column.most
    if column.kind in _PATTERNS:
        made["pattern"] = _PATTERNS[column.kind]
    if column.unit is not None:
        made["x-unit"] = column.unit
    made["x-source"] = column.source
    made["x-part"] = column.part
    return made
