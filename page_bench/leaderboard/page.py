"""The leaderboard as one HTML file that needs no server and loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from page_bench.analysis.partition import UNDECIDED
from page_bench.config import PageConfig
from page_bench.evictors import is_in_file
from page_bench.evictors.base import Granularity
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.check import read_board
from page_bench.leaderboard.columns import COLUMNS
from page_bench.leaderboard.file import Board, replace
from page_bench.leaderboard.published import read_published
from page_bench.leaderboard.published_rows import NOTE, published_rows
from page_bench.leaderboard.ranking import Group, groups
from page_bench.leaderboard.row import Row

ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("dom.js", "charts.js", "table.js")
_KINDS = ("Measured", "Demonstration", "Published")
_RANK = "1 + rows of about the same kept KV whose whole interval of correct lies above."
_ELSEWHERE = ("command", "why", "source", "demonstration")
"""Columns that an opened row shows elsewhere."""


def build(file: Path, output: Path) -> None:
    """Write the page of a leaderboard, with the paper's curves beside it.

    Args:
        file: `leaderboard.csv`, with `tasks.csv` beside it.
        output: the page; equal tables give equal bytes.

    Raises:
        UsageError: the tables hold something wrong, or the page cannot be written.
    """
    if output.suffix != ".html":
        raise UsageError(f"--output {output} is no name of a page; give one that ends in .html.")
    text = page(read_board(file))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace(output, text)
    except OSError as error:
        raise UsageError(f"{output} cannot be written ({error.strerror or error}).") from error


def page(board: Board) -> str:
    """The page's HTML: measured rows, and published ones beside them."""
    rows, tasks, sources = published_rows(read_published())
    everything = Board((*board.rows, *rows), (*board.tasks, *tasks))
    script = "".join(_asset(name) for name in _SCRIPTS)
    # What a content security policy calls a script that is in the page.
    sha = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{sha}'; style-src 'unsafe-inline'; "
        f"base-uri 'none'; form-action 'none'",
        "style": _asset("page.css"),
        "script": script,
        "data": _embedded(_data(everything, sources)),
    }
    html = _asset("page.html")
    for name, text in parts.items():
        before, found, after = html.partition(f"<!--{name}-->")
        assert found
        html = before + text + after
    return html


def _data(board: Board, sources: Mapping[str, str]) -> dict[str, Any]:
    """What the page's script reads."""
    tasks: dict[str, list[Row]] = defaultdict(list)
    for task in board.tasks:
        tasks[task["row"]].append(_known(task))
    found = sorted(groups(board.rows), key=lambda group: _KINDS.index(_kind(group)))
    meanings = {c.name: c.meaning + (f" Unit: {c.unit}." if c.unit else "") for c in COLUMNS}
    hidden = {f"{c.name}{end}" for c in COLUMNS for end in ("_low", "_high")}.union(_ELSEWHERE)
    return {
        "groups": [_group(group) for group in found],
        "rows": {
            row["row"]: {**_known(row), "options": _options(row), "where": sources.get(row["row"])}
            for row in board.rows
        },
        "tasks": tasks,
        "facts": [c.name for c in COLUMNS if c.name not in hidden],
        "meanings": {**meanings, "rank": _RANK},
        "undecided": UNDECIDED,
        "published_note": NOTE,
    }


def _group(group: Group) -> dict[str, Any]:
    whys = sorted({row["why"] for row in group.rows if row["demonstration"] and row["why"]})
    model = group.key["model"]
    told = [(name, str(value)) for name, value in group.key.items() if value is not None]
    return {
        "name": model,
        "rest": group.label.removeprefix(model),
        "kind": _kind(group),
        "note": f"Demonstration, no evidence about a method: {'; '.join(whys)}" if whys else "",
        "facts": [fact for fact in told if fact[0] in ("tasks", "length", "data")],
        "bins": [
            {
                "label": own.label,
                "places": [(place.row["row"], place.shown, place.rank) for place in own.places],
            }
            for own in group.bins
        ],
    }


def _kind(group: Group) -> str:
    if group.key["source"] == "published":
        return "Published"
    return "Demonstration" if all(row["demonstration"] for row in group.rows) else "Measured"


def _options(row: Row) -> str:
    """The options that are not the evictor's own defaults, in words."""
    given = _flat(json.loads(row["evictor_args"] or "{}"))
    usual = _usual(row["evictor"], row["granularity"])
    told = sorted((n, v) for n, v in given.items() if n not in usual or usual[n] != v)
    return " ".join(f"{name}={value}" for name, value in told)


@cache
def _usual(evictor: str, granularity: Granularity) -> dict[str, Any]:
    """An evictor's own defaults; looking it up takes a while, and rows have few."""
    try:
        # The title is data: to look up a class in a file would run the file.
        if is_in_file(evictor):
            return {}
        return _flat(dataclasses.asdict(PageConfig(evictor, {}, granularity).make_evictor()))
    except UsageError:  # of a package that is not installed here
        return {}


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options of an evictor and, after `base.`, of those that it wraps."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _embedded(value: object) -> str:
    """JSON that ends no script element and opens no comment, whatever it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    escapes = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
    return text.translate(escapes)


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
