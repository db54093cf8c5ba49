"""The ranked table, group by group, as CSV, JSON or Markdown."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from page_bench.analysis.estimates import with_ends
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import COLUMNS
from page_bench.leaderboard.consistency import number
from page_bench.leaderboard.file import Board, csv_text
from page_bench.leaderboard.ranking import GROUPED_BY, Bin, Group, Place, groups
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


def chosen(found: Sequence[Group], wanted: Sequence[str]) -> list[Group]:
    """The groups that fit all conditions.

    Args:
        found: groups.
        wanted: each `COLUMN=PATTERN` of a column of `GROUPED_BY`; `*`, `?` and `[…]` as in a shell.

    Raises:
        UsageError: a condition names no such column, or nothing fits.
    """
    conditions = []
    for words in wanted:
        name, equals, pattern = words.partition("=")
        if not equals or name not in GROUPED_BY:
            raise UsageError(
                f"--group {words} is not COLUMN=PATTERN with a column of {', '.join(GROUPED_BY)}."
            )
        conditions.append((name, pattern))
    left = [
        group
        for group in found
        if all(fnmatch.fnmatchcase(to_text(group.key[name]), pat) for name, pat in conditions)
    ]
    if not left:
        what = f" fits --group {' '.join(wanted)}" if wanted else ""
        raise UsageError(f"no row{what or ' stands in the leaderboard'}; add runs first.")
    return left


def exported(board: Board, form: str, wanted: Sequence[str] = ()) -> str:
    """The ranked table.

    Args:
        board: rows and tasks.
        form: one of `FORMATS`.
        wanted: see `chosen`.

    Raises:
        UsageError: see `chosen`.
    """
    return FORMATS[form](board, chosen(groups(board.rows), wanted))


def _csv(board: Board, found: Sequence[Group]) -> str:
    header = ["group", "kept_kv_bin", "rank", *(column.name for column in COLUMNS)]
    lines = [
        [str(i), own.label, place.shown, *texts(place.row)] for i, own, place in _places(found)
    ]
    return csv_text(header, lines)


def _json(board: Board, found: Sequence[Group]) -> str:
    rows: list[Mapping[str, Any]] = []
    tasks: list[Row] = []
    ranking = []
    for i, own, place in _places(found):
        rows.append(dict(place.row))
        tasks += board.tasks_of(place.row)
        ranking.append(
            {
                "row": place.row["row"],
                "group": i,
                "kept_kv_bin": [own.low, own.high],
                "rank": place.rank,
                "tied": place.tied,
            }
        )
    told = [{"number": i, "label": g.label, **g.key} for i, g in enumerate(found, start=1)]
    made = {"groups": told, "ranking": ranking, "rows": rows, "tasks": tasks}
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _markdown(board: Board, found: Sequence[Group]) -> str:
    lines = ["# Leaderboard", "", _EXPLAINED]
    for group in found:
        lines += ["", f"## {_cell(group.label)}", ""]
        first = group.bins[0].places[0].row
        if first["demonstration"]:
            lines += [f"Demonstration: {_cell(str(first['why']))}.", ""]
        lines += [f"Tasks: {_cell(str(first['tasks']))}."]
        for own in group.bins:
            lines += ["", f"### kept-KV {own.label}", ""]
            lines += [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
            lines += [_line(_fields(board, place)) for place in own.places]
    return "\n".join(lines) + "\n"


def _fields(board: Board, place: Place) -> list[str]:
    row = place.row
    gate = str(row["gate"]) + ("" if row["tau_variant"] is None else f" {row['tau_variant']}")
    gate += "" if row["tau"] is None else f", τ = {row['tau']:.4g}"
    fields = [place.shown, str(row["evictor"]), str(row["granularity"]), gate]
    fields += [f"{row['budget']:g}"]
    fields += [_estimate(row, name) for name in ("kept_kv", "correct", "harm", "delta", "open")]
    return [*fields, _worst(board.tasks_of(row)), str(row["n"])]


def _estimate(row: Row, name: str) -> str:
    value, low, high = (number(row, one) for one in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "–"
    if low is not None and low == high:
        return f"{value:.3f} (exact)"
    return f"{value:.3f}" if low is None or high is None else with_ends(value, low, high)


def _worst(tasks: Sequence[Row]) -> str:
    harmed = [(number(task, "harm"), str(task["task"])) for task in tasks]
    known = [(harm, name) for harm, name in harmed if harm is not None]
    if known:
        harm, name = max(known, key=lambda one: one[0])
        return f"{name}: harm {harm:.3f}" if harm else "no harm"
    right = [(number(task, "correct") or 0.0, str(task["task"])) for task in tasks]
    if not right:
        return "–"
    correct, name = min(right)
    return f"{name}: correct {correct:.3f}"


def _places(found: Sequence[Group]) -> Iterator[tuple[int, Bin, Place]]:
    for i, group in enumerate(found, start=1):
        for own in group.bins:
            for place in own.places:
                yield i, own, place


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, fields))} |"


def _cell(text: str) -> str:
    """A text that Markdown shows as it is: no link and no image comes of it."""
    return re.sub(r"([\\|`*<>!&])", r"\\\1", text).replace("](", "]\\(")


FORMATS: dict[str, Callable[[Board, Sequence[Group]], str]] = {
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
}
"""By name; JSON is what `schema.json` describes, with the groups and the ranking beside it."""
