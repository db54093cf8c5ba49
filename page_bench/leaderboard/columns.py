"""The columns of the leaderboard, as `schema.json` beside this file declares them.

It is JSON Schema (draft 2020-12) of both tables and of `page-bench leaderboard export --format
json`. `x-unit`, `x-source` and `x-part` say what JSON Schema has no word for.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.inputs import text_file

SCHEMA_TEXT = text_file.read(Path(__file__).with_name("schema.json"))
_KINDS = {"integer": "integer", "number": "number", "boolean": "flag", "string": "text"}
_PATTERNS = {r"^\d{4}-\d{2}-\d{2}$": "date", "^[^ ]+( [^ ]+)*$": "names", r"^\{.*\}$": "json"}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as in the file's first line.
        kind: `text`, `integer` or `number`; `names`, a list of words separated by single spaces;
            `json`, an object with sorted keys; `date`, a day as YYYY-MM-DD; `flag`, true or false.
        part: `mark`, `identity`, `figure` or `provenance`. `identity` columns say which arm a row
            is of; `row` is made of them alone.
        meaning: one sentence.
        unit: of a number; None for a text, or a number without.
        always: whether a measured row must have a value; empty means that it is not known.
        least, most: bounds of a number, both allowed.
        choices: all texts that are allowed; empty allows any.
    """

    name: str
    kind: str
    part: str
    meaning: str
    unit: str | None
    always: bool
    least: float
    most: float
    choices: tuple[str, ...]


def _column(name: str, declared: dict[str, Any]) -> Column:
    types = declared["type"]
    kind = _KINDS[types if isinstance(types, str) else types[0]]
    return Column(
        name,
        _PATTERNS[declared["pattern"]] if "pattern" in declared else kind,
        declared["x-part"],
        declared["description"],
        declared.get("x-unit"),
        isinstance(types, str),
        declared.get("minimum", -math.inf),
        declared.get("maximum", math.inf),
        tuple(one for one in declared.get("enum", ()) if one is not None),
    )


COLUMNS, TASK_COLUMNS = (
    tuple(_column(*one) for one in json.loads(SCHEMA_TEXT)["$defs"][of]["properties"].items())
    for of in ("row", "task")
)
IDENTITY = tuple(column for column in COLUMNS if column.part == "identity")
