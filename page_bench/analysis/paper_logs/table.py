"""The rows of one of the paper's released logs as a table, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from page_bench.analysis.paper_logs.lines import ARM, Log, ranges
from page_bench.evictors.base.budget import FREE_MINIMUM
from page_bench.inputs.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

SINKS, WINDOW = 4, 32
"""Positions that the paper's runs always keep."""
HEADS = 36 * 8
"""Layers times KV heads of Qwen3-4B, over which `gated_dbtrimkv_*` adds up kept tokens."""
SHORT = 0.5
"""A task with fewer inputs than this share of the largest task's makes its log a part of one."""

_KEY = ["task", "id", "budget"]


@dataclass(frozen=True)
class LogTable:
    """Rows of one evictor; one row per input and budget, ordered by task, id and budget.

    Attributes:
        evictor: the arm's own name; empty where the log is of one evictor alone.
        rows: columns `task`, `id`, `budget` (nominal share), `prompt_tokens`, `drop`,
            `stored_open`, `plain`, `stored_gated`, `full` (NaN where unknown), `kept` (share),
            `line`.
        first: by task, its least id in the file, whatever was left out.
    """

    evictor: str
    rows: pd.DataFrame
    first: dict[str, int]


def tables_of(log: Log, least_inputs: int) -> tuple[list[LogTable], list[str]]:
    """One table for each evictor of a log, without its repeated rows and incomplete inputs.

    Args:
        log: of answers.
        least_inputs: a task with fewer makes the file a stub.

    Returns:
        Tables, and sentences on what was wrong.

    Raises:
        UsageError: the file cannot be relied on; the sentence says why.
    """
    if not log.rows:
        raise UsageError("no line of it is whole.")
    notes = []
    if log.unreadable:
        notes.append(
            f"{log.path.name}: {len(log.unreadable)} lines are not whole and were left out (line "
            f"{ranges(log.unreadable)})."
        )
    parts = log.arms if log.kind == "arms" else [""]
    tables = []
    for number, part in enumerate(parts):
        whole = _rows(log, part)
        first = {str(task): int(least) for task, least in whole.groupby("task")["id"].min().items()}
        rows, said = _clean(whole, log, least_inputs)
        if number == 0:
            notes += said
        tables.append(LogTable(part, rows, first))
    return tables, notes


def _rows(log: Log, part: str) -> pd.DataFrame:
    import pandas as pd

    plain, kept, gated = (
        (f"{ARM}{part}", f"n_kept_{part}", f"correct_gated_{part}")
        if part
        else ("correct_plain", "n_kept_plain", "correct_gated")
    )
    column: Callable[[str], list[Any]] = lambda name: [row.get(name) for row in log.rows]  # noqa: E731
    rows = pd.DataFrame(
        {
            "task": column("task"),
            "id": column("id"),
            "budget": np.array(column("budget"), dtype=np.float64),
            "prompt_tokens": column("T"),
            "drop": np.array(column("drop"), dtype=np.float64),
            "stored_open": np.array(column("gate_open"), dtype=bool),
            "plain": np.array(column(plain), dtype=np.float64),
            "stored_gated": np.array(column(gated), dtype=np.float64),
            "full": np.array(column("correct_full"), dtype=np.float64),
            "kept": np.array(column(kept), dtype=np.float64),
            "line": log.lines,
        }
    )
    return rows


def _clean(rows: pd.DataFrame, log: Log, least_inputs: int) -> tuple[pd.DataFrame, list[str]]:
    name, notes = log.path.name, []
    failed = rows["kept"] < 0
    if failed.any():
        notes.append(f"{name}: {int(failed.sum())} rows are marked as failed and were left out.")
        rows = rows[~failed]
    rows, said = _without_repeats(rows, name)
    notes += said
    _check_inputs(rows, name)
    rows, said = _with_full(rows, name)
    notes += said
    rows, said = _whole_grids(rows, name)
    notes += said + _check_sizes(rows, name, least_inputs)
    if log.kind == "memory":
        rows, said = _memory_as_share(rows, name)
        notes += said
    else:
        notes += _counts(rows, name)
        rows = rows.assign(kept=(rows["kept"] / rows["prompt_tokens"]).clip(upper=1.0))
    return rows.sort_values(_KEY, ignore_index=True), notes


def _without_repeats(rows: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows that stand twice are named and count once; where the two differ, neither can be trusted.

    A run that was killed while its file was moved has left rows of an older run in the new one.
    """
    twice = rows[rows.duplicated(_KEY, keep=False)]
    if twice.empty:
        return rows, []
    again = rows[rows.duplicated(_KEY)]
    values = [column for column in rows.columns if column != "line"]
    where = "; ".join(
        f"{task} ids {ranges(own['id'])}, line {ranges(own['line'])}"
        for task, own in again.groupby("task", sort=True)
    )
    if len(twice.drop_duplicates(values)) > len(twice.drop_duplicates(_KEY)):
        raise UsageError(
            f"rows of two runs are mixed, since the same input and budget stands there with "
            f"different values ({where}); remove the rows that are stale."
        )
    return rows.drop_duplicates(_KEY), [
        f"{name}: a block stands there twice and counts once ({where})."
    ]


def _check_inputs(rows: pd.DataFrame, name: str) -> None:
    """T and D belong to the input; where they change with the budget, two runs are mixed."""
    if (impossible := (rows["prompt_tokens"] <= 0) | (rows["budget"] <= 0)).any():
        line = rows["line"][impossible].iloc[0]
        raise UsageError(f"line {line} has a prompt length or a budget that cannot be.")
    own = rows.groupby(["task", "id"], sort=True)
    spread = own["prompt_tokens"].nunique().gt(1) | own["drop"].nunique(dropna=False).gt(1)
    if spread.any():
        task, number = spread[spread].index[0]
        raise UsageError(
            f"rows of two runs are mixed, since {int(spread.sum())} inputs have several prompt "
            f"lengths or D ({task} id {number} is the first); remove the rows that are stale."
        )


def _with_full(rows: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[str]]:
    """The full cache's outcome: its own field, the row at budget 1, or what a closed gate gave."""
    if rows["full"].notna().all():
        return rows, []
    notes = []
    keys = ["task", "id"]
    whole = rows[rows["budget"] == 1].set_index(keys)["plain"]
    places = rows.set_index(keys).index
    if not whole.empty:
        known = places.isin(whole.index)
        if not known.all():
            lost = rows[~known].drop_duplicates(keys)
            notes.append(
                f"{name}: {len(lost)} inputs lack the row at budget 1, so that the full cache's "
                f"answer is unknown, and were left out ({_named(lost)})."
            )
        return rows[known].assign(full=whole.reindex(places[known]).to_numpy()), notes
    closed = rows[~rows["stored_open"]].groupby(keys)["stored_gated"]
    if closed.nunique().gt(1).any():
        raise UsageError(
            "answers of a closed gate differ between budgets, though all are the full cache's; "
            "rows of two runs are mixed."
        )
    rows = rows.assign(full=closed.first().reindex(places).to_numpy())
    unknown = int(rows.drop_duplicates(keys)["full"].isna().sum())
    return rows, [
        f"{name}: there is no row of the full cache, whose answers are known where the run's gate "
        f"was closed; those to {unknown} inputs with an open gate are not, so that harm, recovery, "
        f"ρ and oracle cannot be said."
    ]


def _whole_grids(rows: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Without inputs that lack budgets, as the last one of a killed run does."""
    grid = rows["budget"].nunique()
    sizes = rows.groupby(["task", "id"])["budget"].transform("size")
    if (sizes == grid).all():
        return rows, []
    lost = rows[sizes < grid].drop_duplicates(["task", "id"])
    return rows[sizes == grid], [
        f"{name}: {len(lost)} inputs lack some of the {grid} budgets and were left out "
        f"({_named(lost)})."
    ]


def _check_sizes(rows: pd.DataFrame, name: str, least_inputs: int) -> list[str]:
    sizes = rows.drop_duplicates(["task", "id"])["task"].value_counts().sort_index()
    said = ", ".join(f"{task} {count}" for task, count in sizes.items()) or "none"
    if sizes.empty or sizes.min() < least_inputs:
        raise UsageError(
            f"it is a stub: a task needs at least {least_inputs} inputs, but there are {said}; "
            f"leave it out, or lower --least_inputs."
        )
    if sizes.min() < SHORT * sizes.max():
        raise UsageError(
            f"it is short, as of a run that was killed: {said} inputs; leave it out, or run again."
        )
    notes = []
    if sizes.nunique() > 1:
        notes.append(f"{name}: its tasks have different numbers of inputs ({said}).")
    if len(sizes) == 1:
        notes.append(f"{name}: it holds one task alone ({said}); Δ and τ are of that task.")
    return notes


def _counts(rows: pd.DataFrame, name: str) -> list[str]:
    """Which rule the counts of kept tokens follow: both round b·T, but not alike."""
    below = rows[rows["budget"] < 1]
    asked, length = below["budget"] * below["prompt_tokens"], below["prompt_tokens"]
    least = SINKS + WINDOW
    rules = {
        "⌊b·T⌋": np.minimum(np.maximum(np.floor(asked), least + FREE_MINIMUM), length),
        "b·T rounded": np.minimum(np.maximum(np.round(asked), least), length),
        f"{least} whatever the budget": np.minimum(least, length),
    }
    misses = {rule: int((below["kept"] != wanted).sum()) for rule, wanted in rules.items()}
    rule = min(misses, key=misses.__getitem__)
    if not misses[rule]:
        return [] if rule == "⌊b·T⌋" else [f"{name}: kept tokens are {rule}."]
    return [
        f"{name}: kept tokens are {rule} but for {misses[rule]} of {len(below)} rows, as with "
        f"other protected positions; what was kept counts, not the budget."
    ]


def _memory_as_share(rows: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[str]]:
    length = float(rows.drop_duplicates(["task", "id"])["prompt_tokens"].mean())
    tokens = sorted(rows["budget"].unique())
    shares = {m: round(m / length, 4) for m in tokens}
    said = ", ".join(f"{shares[m]:g} for {m:g}" for m in tokens)
    kept = rows["kept"] / HEADS / rows["prompt_tokens"]
    return rows.assign(budget=rows["budget"].map(shares), kept=kept.clip(upper=1.0)), [
        f"{name}: budgets are tokens per head, shown as shares of the mean prompt length ({said}); "
        f"kept tokens are summed over {HEADS} heads and count the answer's as well."
    ]


def _named(inputs: pd.DataFrame) -> str:
    return "; ".join(
        f"{task} ids {ranges(own['id'])}" for task, own in inputs.groupby("task", sort=True)
    )
