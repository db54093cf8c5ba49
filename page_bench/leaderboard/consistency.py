"""What must agree within a row, between rows, and between rows and their tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

from page_bench.evictors import evictor_names, own_names, title_parts
from page_bench.gating.gates import GATES
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import IDENTITY, TASK_COLUMNS
from page_bench.leaderboard.file import TASKS
from page_bench.leaderboard.paths import is_local
from page_bench.leaderboard.reproduce import named_arm
from page_bench.leaderboard.row import DIGITS, Row, digest, rounded, row_id, sort_key, to_text

Told = tuple[str, str]
"""A column and what is wrong with it."""
Numbered = tuple[int, Row]
"""A row and the number of its line."""

FIRST_DAY = date(2026, 1, 1)
"""No page-bench ran before."""
ROUNDING = 10.0**-DIGITS
_GATE = ("gate", "gate_args", "tau_variant")
_EVICTION = ("evictor", "evictor_args", "granularity", "score_norm", "n_sink", "recent", "budget")
_OBSERVED = ("window", "top_k")
_EDITED = "does not belong to the other columns: the line was edited by hand."


def within_row(row: Row) -> Iterator[Told]:
    """What disagrees in a row of `leaderboard.csv` whose fields are right each by itself."""
    if row["row"] != row_id(row):
        yield "row", f"is {row['row']}, but the identity columns make {row_id(row)}."
    if row["source"] != "measured":
        yield "source", "is no source of this table, which holds measured rows alone."
    if row["digest"] != digest(row):
        yield "digest", _EDITED
    yield from _intervals(row)
    yield from _counts(row)
    yield from _gate(row)
    if row["demonstration"] != (row["why"] is not None):
        told = "no reason" if row["demonstration"] else "a reason, but is no demonstration"
        yield "why", f"gives {told}."
    if row["date"] is not None:
        day = date.fromisoformat(row["date"])
        if not FIRST_DAY <= day <= datetime.now(UTC).date():
            yield "date", f"is {day}, not between {FIRST_DAY} and today."
    try:
        fault = _other_arm(row)
        told = f"does not name this arm: it runs {fault}." if fault else ""
    except ValueError as error:
        told = f"is {error}."
    if told:
        yield "command", told


def within_task(row: Row) -> Iterator[Told]:
    """What disagrees in a row of `tasks.csv`."""
    if row["digest"] != digest(row, TASK_COLUMNS):
        yield "digest", _EDITED
    yield from _intervals(row)
    yield from _shares(row)


def _intervals(row: Row) -> Iterator[Told]:
    for name in sorted(name for name in row if f"{name}_low" in row):
        low, value, high = row[f"{name}_low"], row[name], row[f"{name}_high"]
        if low is None and high is None:
            continue
        if None in (low, value, high):
            yield name, "has a part of value and interval without the others."
        elif not low - ROUNDING <= value <= high + ROUNDING:
            yield name, f"is {value:g}, outside its own interval [{low:g}, {high:g}]."
        elif low == high and name != "kept_kv":
            yield name, "has an interval without width, which no number of answers can give."


def _counts(row: Row) -> Iterator[Told]:
    tasks = (row["tasks"] or "").split()
    if row["n_tasks"] not in (None, len(tasks)):
        yield "n_tasks", f"is {row['n_tasks']}, but tasks names {len(tasks)}."
    yield from _shares(row)
    kept, compression = row["kept_kv"], row["compression"]
    if kept == 0:
        yield "kept_kv", "is 0, but the last prompt token always stays."
    elif None not in (kept, compression) and compression != rounded(1 / kept):
        yield "compression", f"is {compression:g}, but 1 / kept_kv is {rounded(1 / kept):g}."
    held, whole = row["kv_bytes"], row["kv_bytes_full"]
    if None not in (held, whole) and held > whole:
        yield "kv_bytes", f"is {held:g}, more than the full cache's {whole:g}."


def _shares(row: Row) -> Iterator[Told]:
    """Shares of n answers are whole numbers of answers, and fit each other."""
    n = row["n"]
    for name in ("correct", "full_correct", "open", "harm", "rho"):
        share = row[name]
        if n and share is not None and abs(share * n - round(share * n)) > n * ROUNDING:
            yield name, f"is {share:g}, no share of {n:g} answers."
    full, correct, harm, rho = (row[one] for one in ("full_correct", "correct", "harm", "rho"))
    if full is None:
        return
    if harm is not None and harm > full + 2 * ROUNDING:
        yield "harm", f"is {harm:g}, more than the {full:g} that the full cache has right."
    if rho is not None and rho > 1 - full + 2 * ROUNDING:
        yield "rho", f"is {rho:g}, more than the {1 - full:g} that the full cache has wrong."
    if None not in (correct, harm) and correct < full - harm - 3 * ROUNDING:
        yield "harm", "is less than full_correct minus correct, so that answers are missing."


def _gate(row: Row) -> Iterator[Told]:
    gate, rule = row["gate"], row["tau_variant"]
    if gate not in GATES:
        yield "gate", f"is {gate}, which does not exist; gates are {', '.join(GATES)}."
    if rule is not None and rule not in LABEL_NEEDS:
        yield "tau_variant", f"is {rule}, no rule for τ; these are {', '.join(LABEL_NEEDS)}."
    if (rule is None) != (row["tau"] is None) and row["source"] == "measured":
        there, missing = ("tau", "tau_variant") if rule is None else ("tau_variant", "tau")
        yield missing, f"is empty, but {there} is not."
    try:
        unknown = [part for part in title_parts(row["evictor"]) if not _is_evictor(part)]
    except UsageError as error:
        yield "evictor", f"is {row['evictor']}, no evictor's title: {error}"
    else:
        if unknown:
            yield "evictor", f"is {row['evictor']}, but there is no evictor {unknown[0]}."
    if gate == "closed":
        if row["kept_kv"] != 1 or row["budget"] != 1 or row["evictor"] != "none":
            yield "gate", "is closed, the full cache, but evictor, budget or kept_kv say otherwise."
        if row["open"]:
            yield "open", f"is {row['open']}, but gate=closed never opens."
    if row["budget"] == 0:
        yield "budget", "is 0, and nothing can be kept of that."


def _is_evictor(name: str) -> bool:
    """Ours by name; those of others by their file, or by the installed package's name."""
    if ".py:" in name:
        return not is_local(name)
    return name in own_names() or name in evictor_names()


def _other_arm(row: Row) -> str | None:
    """What a row's command runs instead of the row's arm.

    Raises:
        ValueError: it is no command; see `named_arm`.
    """
    arm = named_arm(row["command"])
    evicts = row["gate"] != "closed"
    for name in ("gate", *(("evictor", "granularity", "score_norm") if evicts else ())):
        if arm[name] != row[name]:
            return f"{name}={arm[name]}"
    if evicts and rounded(arm["budget"]) != row["budget"]:
        return f"budget={arm['budget']:g}"
    if str(arm["pretrained"]) not in row["model"]:
        return f"pretrained={arm['pretrained']}"
    suite = row["suite"]
    if not any(task.startswith(suite.removesuffix("_e")) for task in arm["tasks"]):
        return f"no task of {suite}"
    return None


def between_rows(rows: Sequence[Numbered]) -> Iterator[tuple[int, str, str]]:
    """Line, column and what is wrong: doubled rows, wrong order, and figures that do not fit."""
    seen: dict[str, int] = {}
    before = None
    for line, row in rows:
        if row["row"] in seen:
            yield line, "row", f"is that of line {seen[row['row']]} again; remove one of the two."
        elif before and sort_key(row) < before:
            yield line, "", "stands in the wrong place: rows are sorted by their identity columns."
        seen.setdefault(row["row"], line)
        before = sort_key(row)
    no_eviction = (*_GATE, *_EVICTION, *_OBSERVED)
    plain = {_key(row, _GATE): (line, row) for line, row in rows if row["gate"] == "open"}
    full: dict[str, list[Numbered]] = defaultdict(list)
    for line, row in rows:
        if row["gate"] == "closed":
            full[_key(row, no_eviction)].append((line, row))
    for line, row in rows:
        gate, delta = row["gate"], row["delta"]
        if gate in ("open", "closed"):
            if delta is not None:
                what = f"is {delta:g}, but gate={gate} has no plain eviction beside it."
                yield line, "delta", what
        elif _key(row, _GATE) in plain:
            where, other = plain[_key(row, _GATE)]
            if _compared(row, "delta", other):
                found = row["correct"] - other["correct"]
                if _differ(found, delta, 3):
                    what = "correct here minus that of its plain eviction"
                    yield line, "delta", f"is {delta:g}, but {what}, line {where}, is {found:g}."
        if gate == "closed":
            continue
        for where, other in full[_key(row, no_eviction)]:
            ours, theirs = row["full_correct"], other["correct"]
            if _compared(row, "full_correct", other) and _differ(ours, theirs, 2):
                what = f"is {ours:g}, but the full cache, line {where}, has {theirs:g} correct."
                yield line, "full_correct", what
                break


def between_tables(
    rows: Sequence[Numbered], tasks: Sequence[Numbered]
) -> Iterator[tuple[str | None, int, str, str]]:
    """File (None for that of the rows), line, column and what is wrong."""
    place = {row["row"]: i for i, (_, row) in enumerate(rows)}
    own: dict[str, list[Numbered]] = defaultdict(list)
    last: tuple[int, str] = (-1, "")
    for line, task in tasks:
        if task["row"] not in place:
            yield TASKS, line, "row", f"is {task['row']}, of no row of the leaderboard."
            continue
        here = place[task["row"]], task["task"]
        if here == last:
            yield TASKS, line, "task", f"is {task['task']} of one row a second time."
        elif here < last:
            yield TASKS, line, "", "stands in the wrong place: tasks are sorted by row and name."
        last = max(last, here)
        own[task["row"]].append((line, task))
    for line, row in rows:
        yield from _sums(line, row, own[row["row"]])


def _sums(
    line: int, row: Row, tasks: Sequence[Numbered]
) -> Iterator[tuple[str | None, int, str, str]]:
    names = " ".join(task["task"] for _, task in tasks)
    sizes = [task["n"] for _, task in tasks]
    if not tasks:
        yield None, line, "row", f"has no line in {TASKS}, so that its classes are hidden."
    elif names != row["tasks"]:
        yield None, line, "tasks", f"is {row['tasks']}, but {TASKS} has {names}."
    elif sum(sizes) != row["n"]:
        what = f"is {row['n']}, but its tasks in {TASKS} have {sum(sizes)} together."
        yield None, line, "n", what
    else:
        figures = ("correct", "full_correct", "open", "harm", "rho", "delta", "score", "kept_kv")
        for name in figures:
            whole, parts = row[name], [task[name] for _, task in tasks]
            if whole is None:
                if any(value is not None for value in parts):
                    yield None, line, name, f"is empty, but {TASKS} has it by task."
            elif None in parts:
                yield TASKS, tasks[0][0], name, "is empty, but the row has it."
            else:
                sums = (value * n for value, n in zip(parts, sizes, strict=True))
                mean = sum(sums) / row["n"]
                if _differ(mean, whole, 3):
                    yield None, line, name, f"is {whole:g}, but its tasks in {TASKS} make {mean:g}."


def _compared(row: Row, name: str, other: Row) -> bool:
    """Whether a row's figure is known and follows from another row of the same inputs."""
    known = (row[name], row["correct"], other["correct"])
    return None not in known and row["inputs"] == other["inputs"]


def _differ(one: float, other: float, roundings: int) -> bool:
    return abs(one - other) > roundings * ROUNDING


def _key(row: Row, without: Sequence[str]) -> str:
    return json.dumps([to_text(row[c.name]) for c in IDENTITY if c.name not in without])
