"""What must agree within one row: interval and value, gate and τ, arm and command, seal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime

from page_bench.evictors import own_names, title_parts
from page_bench.gating.gates import GATES
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS, intervals
from page_bench.leaderboard.paths import is_local
from page_bench.leaderboard.reproduce import named_arm
from page_bench.leaderboard.row import DIGITS, Row, digest, rounded, row_id

Told = tuple[str, str]
"""A column and what is wrong with it."""

FIRST_DAY = date(2026, 1, 1)
"""No page-bench ran before."""
ROUNDING = 10.0**-DIGITS


def within_row(row: Row) -> Iterator[Told]:
    """What disagrees in a row of `leaderboard.csv` whose fields are right each by itself."""
    if row["row"] != row_id(row):
        yield "row", f"is {row['row']}, but the identity columns make {row_id(row)}."
    if row["source"] != "measured":
        yield "source", "is no source of this table, which holds measured rows alone."
    if row["digest"] != digest(row):
        yield "digest", "does not belong to the other columns: the line was edited by hand."
    yield from _intervals(row, intervals(COLUMNS))
    yield from _counts(row)
    yield from _gate(row)
    yield from _marks(row)
    yield from _command(row)


def within_task(row: Row) -> Iterator[Told]:
    """What disagrees in a row of `tasks.csv`."""
    if row["digest"] != digest(row, TASK_COLUMNS):
        yield "digest", "does not belong to the other columns: the line was edited by hand."
    yield from _intervals(row, intervals(TASK_COLUMNS))
    yield from _shares(row)


def number(row: Row, name: str) -> float | None:
    """A number of a row; None where it is not known."""
    value = row[name]
    return float(value) if isinstance(value, int | float) else None


def _intervals(row: Row, names: list[str]) -> Iterator[Told]:
    for name in names:
        low, value, high = (number(row, one) for one in (f"{name}_low", name, f"{name}_high"))
        if low is None and high is None:
            continue
        if low is None or value is None or high is None:
            yield name, "has a part of value and interval without the others."
        elif not low - ROUNDING <= value <= high + ROUNDING:
            yield name, f"is {value:g}, outside its own interval [{low:g}, {high:g}]."
        elif low == high and name != "kept_kv":
            yield name, "has an interval without width, which no number of answers can give."


def _counts(row: Row) -> Iterator[Told]:
    tasks = str(row["tasks"] or "").split()
    if row["n_tasks"] is not None and row["n_tasks"] != len(tasks):
        yield "n_tasks", f"is {row['n_tasks']}, but tasks names {len(tasks)}."
    yield from _shares(row)
    kept, compression = number(row, "kept_kv"), number(row, "compression")
    if kept == 0:
        yield "kept_kv", "is 0, but the last prompt token always stays."
    elif kept is not None and compression is not None and compression != rounded(1 / kept):
        yield "compression", f"is {compression:g}, but 1 / kept_kv is {rounded(1 / kept):g}."
    held, whole = number(row, "kv_bytes"), number(row, "kv_bytes_full")
    if held is not None and whole is not None and held > whole:
        yield "kv_bytes", f"is {held:g}, more than the full cache's {whole:g}."


def _shares(row: Row) -> Iterator[Told]:
    """Shares of n answers are whole numbers of answers, and fit each other."""
    n = number(row, "n")
    for name in ("correct", "full_correct", "open", "harm", "rho"):
        share = number(row, name)
        if n and share is not None and abs(share * n - round(share * n)) > n * ROUNDING:
            yield name, f"is {share:g}, no share of {n:g} answers."
    full, correct = number(row, "full_correct"), number(row, "correct")
    harm, rho = number(row, "harm"), number(row, "rho")
    if full is not None and harm is not None and harm > full + 2 * ROUNDING:
        yield "harm", f"is {harm:g}, more than the {full:g} that the full cache has right."
    if full is not None and rho is not None and rho > 1 - full + 2 * ROUNDING:
        yield "rho", f"is {rho:g}, more than the {1 - full:g} that the full cache has wrong."
    if None not in (full, correct, harm) and correct < full - harm - 3 * ROUNDING:  # type: ignore[operator]
        yield "harm", "is less than full_correct minus correct, so that answers are missing."


def _gate(row: Row) -> Iterator[Told]:
    gate, rule = str(row["gate"]), row["tau_variant"]
    if gate not in GATES:
        yield "gate", f"is {gate}, which does not exist; gates are {', '.join(GATES)}."
    if rule is not None and rule not in LABEL_NEEDS:
        yield "tau_variant", f"is {rule}, no rule for τ; these are {', '.join(LABEL_NEEDS)}."
    if (rule is None) != (row["tau"] is None) and row["source"] == "measured":
        there, missing = ("tau", "tau_variant") if rule is None else ("tau_variant", "tau")
        yield missing, f"is empty, but {there} is not."
    try:
        unknown = [part for part in title_parts(str(row["evictor"])) if not _is_evictor(part)]
    except UsageError as error:
        yield "evictor", f"is {row['evictor']}, no evictor's title: {error}"
    else:
        if unknown:
            yield "evictor", f"is {row['evictor']}, but there is no evictor {unknown[0]}."
    wanted = {"closed": 0.0, "open": 1.0}.get(gate)
    if gate == "closed" and (row["kept_kv"] != 1 or row["budget"] != 1 or row["evictor"] != "none"):
        yield "gate", "is closed, the full cache, but evictor, budget or kept_kv say otherwise."
    if wanted == 0.0 and row["open"] not in (None, wanted):
        yield "open", f"is {row['open']}, but gate=closed never opens."
    if row["budget"] == 0:
        yield "budget", "is 0, and nothing can be kept of that."


def _is_evictor(name: str) -> bool:
    """Ours by name; others' by the file that they stand in, or as an installed package's."""
    if ".py:" in name:
        return not is_local(name)
    if name in own_names():
        return True
    from page_bench.evictors import evictor_names

    return name in evictor_names()


def _marks(row: Row) -> Iterator[Told]:
    if bool(row["demonstration"]) != (row["why"] is not None):
        told = "no reason" if row["demonstration"] else "a reason, but is no demonstration"
        yield "why", f"gives {told}."
    if row["date"] is not None:
        day = date.fromisoformat(str(row["date"]))
        if not FIRST_DAY <= day <= datetime.now(UTC).date():
            yield "date", f"is {day}, not between {FIRST_DAY} and today."


def _command(row: Row) -> Iterator[Told]:
    command = str(row["command"])
    try:
        arm = named_arm(command)
    except ValueError as error:
        yield "command", f"is {error}."
        return
    names = ["gate", *(("evictor", "granularity", "score_norm") if row["gate"] != "closed" else ())]
    for name in names:
        if arm[name] != row[name]:
            yield "command", f"does not name this arm: it runs {name}={arm[name]}."
            return
    if row["gate"] != "closed" and rounded(arm["budget"]) != row["budget"]:
        yield "command", f"does not name this arm: it runs budget={arm['budget']:g}."
    elif str(arm["pretrained"]) not in str(row["model"]):
        yield "command", f"does not name this arm: it runs pretrained={arm['pretrained']}."
    elif not any(_belongs(task, str(row["suite"])) for task in arm["tasks"]):
        yield "command", f"does not name this arm: it runs no task of {row['suite']}."


def _belongs(task: str, suite: str) -> bool:
    """Whether a task or group of a command may be of a suite."""
    base = suite.removesuffix("_e")
    return task.startswith(base) or suite == task
