"""The ranked table, group by group, as CSV, JSON or Markdown."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from page_bench.analysis.estimates import with_ends
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import COLUMNS
from page_bench.leaderboard.file import Board, csv_text
from page_bench.leaderboard.ranking import GROUPED_BY, Bin, Group, Ranked, groups
from page_bench.leaderboard.row import Row, texts, to_text

_HEADINGS = (
    *("rank", "evictor", "granularity", "gate", "budget", "kept-KV", "correct", "harm"),
    *("Δ", "open", "worst task", "n"),
)
_EXPLAINED = (
    "Rows are ranked within rows that kept about as much of the cache. A rank is 1 plus the number "
    "of rows whose whole 95 % interval of correct lies above; = marks a shared rank, – a gate that "
    "reads labels. Harm: wrong, and right with the full cache. Worst task: the one with the most "
    "harm, or, where the full cache is not known, the fewest right answers."
)


def exported(board: Board, form: str, wanted: Sequence[str] = ()) -> str:
    """The ranked table of the groups that fit all conditions.

    Args:
        board: rows and tasks.
        form: one of `FORMATS`.
        wanted: each `COLUMN=PATTERN` of a column of `GROUPED_BY`; `*`, `?` and `[…]` as in a shell.

    Raises:
        UsageError: a condition names no such column, or nothing fits.
    """
    found = groups(board.rows)
    for words in wanted:
        name, equals, pattern = words.partition("=")
        if not equals or name not in GROUPED_BY:
            raise UsageError(
                f"--group {words} is not COLUMN=PATTERN with a column of {', '.join(GROUPED_BY)}."
            )
        found = [one for one in found if fnmatch.fnmatchcase(to_text(one.key[name]), pattern)]
    if not found:
        what = f"fits --group {' '.join(wanted)}" if wanted else "stands in the leaderboard"
        raise UsageError(f"no row {what}; add runs first.")
    return FORMATS[form](board, found)


def _csv(board: Board, found: Sequence[Group]) -> str:
    header = ["group", "kept_kv_bin", "rank", *(column.name for column in COLUMNS)]
    places = _places(found)
    return csv_text(header, ([i, b.label, one.shown, *texts(one.row)] for i, b, one in places))


def _json(board: Board, found: Sequence[Group]) -> str:
    places = list(_places(found))
    made: dict[str, Any] = {
        "groups": [{"number": i, "label": g.label, **g.key} for i, g in enumerate(found, start=1)],
        "ranking": [
            {
                "row": place.row["row"],
                "group": i,
                "kept_kv_bin": [own.low, own.high],
                "rank": place.rank,
                "tied": place.tied,
            }
            for i, own, place in places
        ],
        "rows": [place.row for *_, place in places],
        "tasks": [task for *_, place in places for task in board.tasks_of(place.row)],
    }
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _markdown(board: Board, found: Sequence[Group]) -> str:
    lines = ["# Leaderboard", "", _EXPLAINED]
    for group in found:
        lines += ["", f"## {_cell(group.label)}", ""]
        first = next(group.rows)
        if first["demonstration"]:
            lines += [f"Demonstration: {_cell(str(first['why']))}.", ""]
        lines += [f"Tasks: {_cell(str(first['tasks']))}."]
        for own in group.bins:
            lines += ["", f"### kept-KV {own.label}", ""]
            lines += [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
            lines += [_line(_fields(board, place)) for place in own.places]
    return "\n".join(lines) + "\n"


def _fields(board: Board, place: Ranked) -> list[str]:
    row = place.row
    gate = row["gate"] + ("" if row["tau_variant"] is None else f" {row['tau_variant']}")
    gate += "" if row["tau"] is None else f", τ = {row['tau']:.4g}"
    fields = [place.shown, row["evictor"], row["granularity"], gate, f"{row['budget']:g}"]
    fields += [_estimate(row, name) for name in ("kept_kv", "correct", "harm", "delta", "open")]
    return [*fields, _worst(board.tasks_of(row)), str(row["n"])]


def _estimate(row: Row, name: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return "–"
    if low is None or high is None:
        return f"{value:.3f}"
    return f"{value:.3f} (exact)" if low == high else with_ends(value, low, high)


def _worst(tasks: Sequence[Row]) -> str:
    known = [task for task in tasks if task["harm"] is not None]
    if known:
        worst = max(known, key=lambda task: task["harm"])
        return f"{worst['task']}: harm {worst['harm']:.3f}" if worst["harm"] else "no harm"
    if not tasks:
        return "–"
    worst = min(tasks, key=lambda task: (task["correct"] or 0.0, task["task"]))
    return f"{worst['task']}: correct {worst['correct'] or 0.0:.3f}"


def _places(found: Sequence[Group]) -> Iterator[tuple[int, Bin, Ranked]]:
    for i, group in enumerate(found, start=1):
        for own in group.bins:
            for place in own.places:
                yield i, own, place


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, fields))} |"


def _cell(text: str) -> str:
    """A text that Markdown shows as it is, never as a link or an image."""
    return re.sub(r"([\\|`*<>!&])", r"\\\1", text).replace("](", "]\\(")


FORMATS: dict[str, Callable[[Board, Sequence[Group]], str]] = {
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
}
"""By name; JSON is what `schema.json` describes, with the groups and the ranking beside it."""
