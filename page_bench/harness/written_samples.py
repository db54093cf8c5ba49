"""lm-eval's samples made such that lm-eval can write them."""

from __future__ import annotations

import logging
from typing import Any

from page_bench.inputs.json_text import HALF

REPLACEMENT = "\ufffd"
_FIELDS = ("resps", "filtered_resps")

_log = logging.getLogger(__name__)


def make_writable(results: Any) -> None:
    """Replace halves of surrogate pairs in answers, which UTF-8 cannot hold, and say so.

    lm-eval would write the samples up to the first such answer and report it in an INFO record.
    The trace keeps every answer as it was.

    Args:
        results: of `simple_evaluate` with `page_hf`, changed in place; other processes than
            the first have none.
    """
    if not isinstance(results, dict):
        return
    rows = [row for rows in results.get("samples", {}).values() for row in rows]
    changed = sum([_changed(row) for row in rows])
    if not changed:
        return
    warning = (
        f"{changed} samples have an answer with half of a surrogate pair, which lm-eval cannot "
        f"write: its samples have U+FFFD there, the trace has the answer as it was."
    )
    _log.warning(warning)
    page = results.get("config", {}).get("page")
    if isinstance(page, dict):
        page.setdefault("warnings", []).append(warning)


def _changed(row: dict[str, Any]) -> bool:
    """Whether a sample held such an answer; now it does not."""
    made = {name: _replaced(row[name]) for name in _FIELDS if name in row}
    found = any(made[name] is not row[name] for name in made)
    row.update(made)
    return found


def _replaced(value: Any) -> Any:
    """The very same value where there is nothing to replace."""
    if isinstance(value, str):
        return HALF.sub(REPLACEMENT, value) if HALF.search(value) else value
    if isinstance(value, list | tuple):
        items = [_replaced(item) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value
