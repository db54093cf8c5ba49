"""The paper's curves as rows of the leaderboard, marked as published."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

from page_bench.analysis.intervals import share
from page_bench.config import PageConfig
from page_bench.evictors.base import Granularity
from page_bench.leaderboard.columns import TASK_COLUMNS
from page_bench.leaderboard.counterpart import attention_of
from page_bench.leaderboard.published import Published
from page_bench.leaderboard.row import Row, sealed, to_json

TASKS = ("fwe", "niah_multikey_3", "qa_1", "vt")
"""The paper's mixed suite."""
NOTE = (
    "Published, not measured here. correct is the mean of the four reported task accuracies, its "
    "interval Wilson's for that share and n. kept_kv is the nominal budget b of plain eviction and "
    "p·b + 1 − p under a gate that opens on a share p. Harm and ρ are not reported by budget."
)
_Curve = dict[tuple[str, float], float]
"""Accuracy by task and budget."""


def published_rows(published: Sequence[Published]) -> tuple[list[Row], list[Row], dict[str, str]]:
    """Rows, rows of their tasks, and by row the source of the numbers.

    A row is made only where all four tasks are reported. A gated answer that is not reported is
    the plain one where the gate opens on every input of a task, and the full one where on none.
    """
    single = [
        row
        for row in published
        if len(row.tasks) == 1 and row.tasks[0] in TASKS and not row.setting and row.n
    ]
    # A curve is told by the report that has its open rates; other places repeat it.
    reports = {
        (row.model, row.context, row.evictor, row.granularity, row.n, row.source): row
        for row in single
        if row.metric == "open" and row.table == "repository" and row.granularity
    }
    rows, tasks, sources = [], [], {}
    for _, report in sorted(reports.items(), key=lambda item: str(item[0])):
        for values, own in _of_report(report, single):
            row = sealed(values)
            rows.append(row)
            tasks += [sealed({**one, "row": row["row"]}, TASK_COLUMNS) for one in own]
            sources[row["row"]] = report.source
    return rows, tasks, sources


_Made = Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]


def _of_report(report: Published, single: Sequence[Published]) -> _Made:
    """The rows of the report that an open rate is from, and their tasks.

    There are none unless full answers and open rates of all four tasks are reported.
    """
    wanted = (report.model, report.context, report.n)
    here = [row for row in single if (row.model, row.context, row.n) == wanted]
    # What the report itself says comes last, and counts.
    here.sort(key=lambda row: row.source == report.source)
    evictor = (report.evictor, report.granularity)
    own = [row for row in here if (row.evictor, row.granularity) == evictor]
    taus = {r.threshold for r in own if r.metric == "open" and r.source == report.source}
    if len(taus) != 1 or None in taus:
        return
    (tau,) = taus
    opened = {r.tasks[0]: r.value for r in own if r.metric == "open" and r.threshold == tau}
    full = {r.tasks[0]: r.value for r in here if (r.gate, r.metric) == ("closed", "accuracy")}
    if {*TASKS} - {*opened} or {*TASKS} - {*full}:
        return
    plain: _Curve = {}
    gated: _Curve = {}
    for row in own:
        if row.metric == "accuracy" and row.budgets and len(row.budgets) == 1:
            if row.gate == "open":
                plain[row.tasks[0], row.budgets[0]] = row.value
            elif row.gate == "page" and row.threshold == tau:
                gated[row.tasks[0], row.budgets[0]] = row.value
    if report.evictor == "snapkv":
        yield _row(report, "closed", 1.0, full, dict.fromkeys(TASKS, 0.0), full)
    for budget in sorted({b for _, b in plain if b < 1}):
        if any((task, budget) not in plain for task in TASKS):
            continue
        ours = {task: plain[task, budget] for task in TASKS}
        yield _row(report, "open", budget, ours, dict.fromkeys(TASKS, 1.0), full)
        theirs = {}
        for task in TASKS:
            same = {1.0: ours[task], 0.0: full[task]}.get(opened[task])
            theirs[task] = gated.get((task, budget), same)
        if None not in theirs.values():
            yield _row(report, "page", budget, theirs, opened, full, tau, ours)


def _row(
    report: Published,
    gate: str,
    budget: float,
    correct: dict[str, Any],
    opened: dict[str, float],
    full: dict[str, float],
    tau: float | None = None,
    plain: dict[str, float] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row and its tasks; `plain` is what a gated one is compared with."""

    def figures(n: int, tasks: Sequence[str]) -> dict[str, Any]:
        def mean(by_task: dict[str, float]) -> float:
            return sum(by_task[task] for task in tasks) / len(tasks)

        value, p = mean(correct), mean(opened)
        estimate = share(round(value * n), n)
        return {
            "n": n,
            "correct": value,
            "correct_low": estimate.low,
            "correct_high": estimate.high,
            "full_correct": mean(full),
            "delta": None if plain is None else value - mean(plain),
            "open": p,
            "kept_kv": p * budget + 1 - p,
        }

    evictor = "none" if gate == "closed" else report.evictor
    page, options = _usual(evictor, cast(Granularity, report.granularity))
    n = report.n or 0
    whole = figures(n * len(TASKS), TASKS)
    values = {
        "source": "published",
        "demonstration": False,
        "model": report.model,
        "dtype": "bfloat16",
        "attn_implementation": attention_of(report.model, report.context),
        "suite": f"page_ruler_{report.context.lower()}_mixed4",
        "length": report.context.lower(),
        "protocol": "page",
        "chat_template": True,
        "compress": "prompt",
        "evictor": evictor,
        "evictor_args": options,
        "granularity": report.granularity,
        "score_norm": "none",
        "n_sink": page.n_sink,
        "recent": page.n_recent,
        "window": page.window,
        "top_k": page.top_k,
        "gate": gate,
        "gate_args": "{}",
        "tau_variant": None if tau is None else "number",
        "tau": tau,
        "budget": budget,
        "data": to_json({"max_new_tokens": 128}),
        "n_tasks": len(TASKS),
        "tasks": " ".join(TASKS),
        **whole,
        "compression": 1 / whole["kept_kv"],
    }
    return values, [{"task": task, **figures(n, (task,))} for task in TASKS]


@cache
def _usual(evictor: str, granularity: Granularity) -> tuple[PageConfig, str]:
    """An evictor's usual settings and its options as JSON; looking them up takes a while."""
    page = PageConfig(evictor, {}, granularity)
    return page, to_json(dataclasses.asdict(page.make_evictor()))
