"""The paper's curves as rows of the leaderboard, marked as published."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from page_bench.analysis.intervals import share
from page_bench.config import PageConfig
from page_bench.evictors.base import Granularity
from page_bench.leaderboard.columns import TASK_COLUMNS
from page_bench.leaderboard.counterpart import attention_of
from page_bench.leaderboard.published import Published
from page_bench.leaderboard.row import Row, Value, sealed, task_row, to_json

TASKS = ("fwe", "niah_multikey_3", "qa_1", "vt")
"""The paper's mixed suite."""
NOTE = (
    "Published, not measured here. correct is the mean of the four reported task accuracies, its "
    "interval Wilson's for that share and n. kept_kv is the nominal budget b of plain eviction and "
    "p·b + 1 − p under a gate that opens on a share p. Harm and ρ are not reported by budget."
)
_GRANULARITIES: dict[str, Granularity] = {"shared": "shared", "layer": "layer", "head": "head"}


@dataclass(frozen=True)
class _Cell:
    """What is reported of one evictor on one model and length, by task and budget."""

    model: str
    context: str
    evictor: str
    granularity: Granularity
    n: int
    full: dict[str, float]
    plain: dict[tuple[str, float], float]
    gated: dict[tuple[str, float], float]
    opened: dict[str, float]
    tau: float
    source: str


def published_rows(published: Sequence[Published]) -> tuple[list[Row], list[Row], dict[str, str]]:
    """Rows, rows of their tasks, and by row where the numbers stand.

    A row is made only where all four tasks are reported. A gated answer that is not reported is
    the plain one where the gate opens on every input of a task, and the full one where on none.
    """
    rows, tasks, sources = [], [], {}
    for cell in _cells(published):
        for values, own in _of_cell(cell):
            row = sealed(values)
            rows.append(row)
            tasks += [task_row({**one, "row": row["row"]}, TASK_COLUMNS) for one in own]
            sources[str(row["row"])] = cell.source
    return rows, tasks, sources


def _cells(published: Sequence[Published]) -> list[_Cell]:
    single = [
        row
        for row in published
        if len(row.tasks) == 1 and row.tasks[0] in TASKS and not row.setting and row.n
    ]
    # A curve is told by the report that has its open rates; elsewhere stands what repeats it.
    reports = {
        (row.model, row.context, row.evictor, row.granularity, row.n, row.source)
        for row in single
        if row.metric == "open" and row.table == "repository" and row.granularity
    }
    found = (_cell(single, *report) for report in sorted(reports, key=str))
    return [cell for cell in found if cell is not None]


def _cell(
    single: Sequence[Published],
    model: str,
    context: str,
    evictor: str,
    granularity: str,
    n: int | None,
    source: str,
) -> _Cell | None:
    """The cell of one report; None unless it has full, plain and open rates of all four tasks."""
    here = [row for row in single if (row.model, row.context, row.n) == (model, context, n)]
    # What the report itself says comes last, and counts.
    here.sort(key=lambda row: row.source == source)
    own = [row for row in here if (row.evictor, row.granularity) == (evictor, granularity)]
    taus = {r.threshold for r in own if r.metric == "open" and r.source == source}
    (tau,) = taus if len(taus) == 1 else (None,)
    opened = {r.tasks[0]: r.value for r in own if r.metric == "open" and r.threshold == tau}
    full = {r.tasks[0]: r.value for r in here if (r.gate, r.metric) == ("closed", "accuracy")}
    if tau is None or n is None or {*TASKS} - {*opened} or {*TASKS} - {*full}:
        return None
    curves = [row for row in own if row.metric == "accuracy" and len(row.budgets or ()) == 1]
    return _Cell(
        model=model,
        context=context,
        evictor=evictor,
        granularity=_GRANULARITIES[granularity],
        n=n,
        full=full,
        plain=_curve(row for row in curves if row.gate == "open"),
        gated=_curve(row for row in curves if row.gate == "page" and row.threshold == tau),
        opened=opened,
        tau=tau,
        source=source,
    )


def _curve(rows: Iterable[Published]) -> dict[tuple[str, float], float]:
    """By task and budget."""
    return {(row.tasks[0], row.budgets[0]): row.value for row in rows if row.budgets}


def _of_cell(cell: _Cell) -> Iterable[tuple[dict[str, Value], list[dict[str, Value]]]]:
    """The values of its rows, and of their tasks."""
    budgets = [b for b in sorted({b for _, b in cell.plain}) if b < 1]
    budgets = [b for b in budgets if all((task, b) in cell.plain for task in TASKS)]
    if cell.evictor == "snapkv":
        yield _row(cell, "closed", 1.0, cell.full, dict.fromkeys(TASKS, 0.0))
    for budget in budgets:
        plain = {task: cell.plain[task, budget] for task in TASKS}
        yield _row(cell, "open", budget, plain, dict.fromkeys(TASKS, 1.0))
        gated = {task: _gated(cell, task, budget) for task in TASKS}
        known = {task: value for task, value in gated.items() if value is not None}
        if len(known) == len(TASKS):
            yield _row(cell, "page", budget, known, {task: cell.opened[task] for task in TASKS})


def _gated(cell: _Cell, task: str, budget: float) -> float | None:
    reported = cell.gated.get((task, budget))
    if reported is not None:
        return reported
    return {1.0: cell.plain[task, budget], 0.0: cell.full[task]}.get(cell.opened[task])


def _row(
    cell: _Cell, gate: str, budget: float, correct: dict[str, float], opened: dict[str, float]
) -> tuple[dict[str, Value], list[dict[str, Value]]]:
    n = cell.n * len(TASKS)
    mean = sum(correct.values()) / len(TASKS)
    full = sum(cell.full.values()) / len(TASKS)
    estimate = share(round(mean * n), n)
    p = sum(opened.values()) / len(TASKS)
    kept = p * budget + 1 - p
    plain = [cell.plain.get((task, budget)) for task in TASKS]
    known = [value for value in plain if value is not None]
    evictor = "none" if gate == "closed" else cell.evictor
    page = _usual(evictor, cell.granularity)
    values: dict[str, Value] = {
        "source": "published",
        "demonstration": False,
        "model": cell.model,
        "dtype": "bfloat16",
        "attn_implementation": attention_of(cell.model, cell.context),
        "suite": f"page_ruler_{cell.context.lower()}_mixed4",
        "length": cell.context.lower(),
        "protocol": "page",
        "chat_template": True,
        "compress": "prompt",
        "evictor": evictor,
        "evictor_args": to_json(dataclasses.asdict(page.make_evictor())),
        "granularity": cell.granularity,
        "score_norm": "none",
        "n_sink": page.n_sink,
        "recent": page.n_recent,
        "window": page.window,
        "top_k": page.top_k,
        "gate": gate,
        "gate_args": "{}",
        "tau_variant": "number" if gate == "page" else None,
        "tau": cell.tau if gate == "page" else None,
        "budget": budget,
        "data": to_json({"max_new_tokens": 128}),
        "n": n,
        "n_tasks": len(TASKS),
        "tasks": " ".join(TASKS),
        "correct": mean,
        "correct_low": estimate.low,
        "correct_high": estimate.high,
        "full_correct": full,
        "delta": mean - sum(known) / len(TASKS) if gate == "page" else None,
        "open": p,
        "kept_kv": kept,
        "compression": 1 / kept,
    }
    own = [
        {
            "task": task,
            "n": cell.n,
            "correct": correct[task],
            **_interval(correct[task], cell.n),
            "full_correct": cell.full[task],
            "delta": correct[task] - cell.plain[task, budget] if gate == "page" else None,
            "open": opened[task],
            "kept_kv": opened[task] * budget + 1 - opened[task],
        }
        for task in TASKS
    ]
    return values, own


@cache
def _usual(evictor: str, granularity: Granularity) -> PageConfig:
    """An evictor at its usual settings; looking it up takes a while."""
    return PageConfig(evictor, {}, granularity)


def _interval(value: float, n: int) -> dict[str, Value]:
    estimate = share(round(value * n), n)
    return {"correct_low": estimate.low, "correct_high": estimate.high}
