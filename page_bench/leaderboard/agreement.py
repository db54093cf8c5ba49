"""What must agree between rows, and between rows and their tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from page_bench.leaderboard.columns import IDENTITY
from page_bench.leaderboard.consistency import ROUNDING, number
from page_bench.leaderboard.file import TASKS
from page_bench.leaderboard.row import Row, sort_key, to_text

Place = tuple[int, Row]
"""A row and the number of its line."""

_GATE = ("gate", "gate_args", "tau_variant")
_EVICTION = ("evictor", "evictor_args", "granularity", "score_norm", "n_sink", "recent", "budget")
_OBSERVED = ("window", "top_k")


def between_rows(rows: Sequence[Place]) -> Iterator[tuple[int, str, str]]:
    """Line, column and what is wrong: doubled rows, wrong order, and figures that do not fit."""
    seen: dict[object, int] = {}
    for i, (line, row) in enumerate(rows):
        if row["row"] in seen:
            yield line, "row", f"is that of line {seen[row['row']]} again; remove one of the two."
        elif i and sort_key(row) < sort_key(rows[i - 1][1]):
            yield line, "", "stands in the wrong place: rows are sorted by their identity columns."
        seen.setdefault(row["row"], line)
    plain = {_key(row, _GATE): one for one in rows if (row := one[1])["gate"] == "open"}
    without = (*_GATE, *_EVICTION, *_OBSERVED)
    full = defaultdict(list)
    for one in rows:
        if one[1]["gate"] == "closed":
            full[_key(one[1], without)].append(one)
    for line, row in rows:
        if row["gate"] in ("open", "closed"):
            others: list[Place] = []
        else:
            others = [plain[_key(row, _GATE)]] if _key(row, _GATE) in plain else []
        yield from _delta(line, row, others)
        if row["gate"] != "closed":
            yield from _full(line, row, full[_key(row, without)])


def _delta(line: int, row: Row, others: Sequence[Place]) -> Iterator[tuple[int, str, str]]:
    delta, correct = number(row, "delta"), number(row, "correct")
    if delta is not None and row["gate"] in ("open", "closed"):
        yield (
            line,
            "delta",
            f"is {delta:g}, but gate={row['gate']} has no plain eviction beside it.",
        )
    for where, other in others:
        theirs = number(other, "correct")
        if delta is None or correct is None or theirs is None or not _same_inputs(row, other):
            continue
        if abs(correct - theirs - delta) > 3 * ROUNDING:
            yield (
                line,
                "delta",
                f"is {delta:g}, but correct here minus that of its plain eviction, line {where}, "
                f"is {correct - theirs:g}.",
            )


def _full(line: int, row: Row, others: Sequence[Place]) -> Iterator[tuple[int, str, str]]:
    ours = number(row, "full_correct")
    for where, other in others:
        theirs = number(other, "correct")
        if ours is None or theirs is None or not _same_inputs(row, other):
            continue
        if abs(ours - theirs) > 2 * ROUNDING:
            yield (
                line,
                "full_correct",
                f"is {ours:g}, but the full cache, line {where}, has {theirs:g} correct.",
            )
            return


def between_tables(
    rows: Sequence[Place], tasks: Sequence[Place]
) -> Iterator[tuple[str | None, int, str, str]]:
    """File (None for that of the rows), line, column and what is wrong."""
    known = {row["row"]: (line, row) for line, row in rows}
    own: dict[object, list[Place]] = defaultdict(list)
    place = {row["row"]: i for i, (_, row) in enumerate(rows)}
    last: tuple[int, str] = (-1, "")
    for line, task in tasks:
        if task["row"] not in known:
            yield TASKS, line, "row", f"is {task['row']}, of no row of the leaderboard."
            continue
        here = place[task["row"]], str(task["task"])
        if here == last:
            yield TASKS, line, "task", f"is {task['task']} of one row a second time."
        elif here < last:
            yield TASKS, line, "", "stands in the wrong place: tasks are sorted by row and name."
        last = max(last, here)
        own[task["row"]].append((line, task))
    for line, row in rows:
        if row["source"] == "measured":
            yield from _sums(line, row, own[row["row"]])


def _sums(
    line: int, row: Row, tasks: Sequence[Place]
) -> Iterator[tuple[str | None, int, str, str]]:
    if not tasks:
        yield None, line, "row", f"has no line in {TASKS}, so that its classes are hidden."
        return
    names = " ".join(str(task["task"]) for _, task in tasks)
    if names != row["tasks"]:
        yield None, line, "tasks", f"is {row['tasks']}, but {TASKS} has {names}."
        return
    n = sum(number(task, "n") or 0 for _, task in tasks)
    if n != row["n"]:
        yield None, line, "n", f"is {row['n']}, but its tasks in {TASKS} have {n:g} together."
        return
    for name in ("correct", "full_correct", "open", "harm", "rho", "delta", "score", "kept_kv"):
        whole = number(row, name)
        parts = [(number(task, name), number(task, "n") or 0) for _, task in tasks]
        if whole is None and any(value is not None for value, _ in parts):
            yield None, line, name, f"is empty, but {TASKS} has it by task."
        elif whole is not None and any(value is None for value, _ in parts):
            yield TASKS, tasks[0][0], name, "is empty, but the row has it."
        elif whole is not None:
            mean = sum((value or 0) * size for value, size in parts) / n
            if abs(mean - whole) > 3 * ROUNDING:
                yield None, line, name, f"is {whole:g}, but its tasks in {TASKS} make {mean:g}."


def _same_inputs(row: Row, other: Row) -> bool:
    return row["inputs"] == other["inputs"]


def _key(row: Row, without: Sequence[str]) -> str:
    return json.dumps([to_text(row[c.name]) for c in IDENTITY if c.name not in without])
