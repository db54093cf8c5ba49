"""Rows of finished runs: each suite of each run, compared with its plain and full counterparts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from page_bench.analysis.pairs import prompts_that_differ
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.check import examined_lines
from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS
from page_bench.leaderboard.file import Board, line_of
from page_bench.leaderboard.identity import identity_of, marks_of, provenance_of
from page_bench.leaderboard.measures import Answers, row_figures, task_figures
from page_bench.leaderboard.row import Row, Value, sealed, task_row
from page_bench.leaderboard.run import Run
from page_bench.records.finished_runs import Arm, Sample
from page_bench.records.trace import Trace

_OF_OTHERS = (
    ("delta", "its Δ against plain eviction", "open"),
    ("full_correct", "the full cache's accuracy, harm and what follows from them", "closed"),
)
"""Figures that come from other runs: what is lost without them, and the gate of these runs."""


@dataclass(frozen=True)
class Added:
    """What runs amount to.

    Attributes:
        rows: for `leaderboard.csv`.
        tasks: for `tasks.csv`.
        notes: sentences on what the rows leave empty.
    """

    rows: list[Row]
    tasks: list[Row]
    notes: list[str]


@dataclass
class _Known:
    """Answers of all runs, each with its run, by what they are answers of."""

    answers: dict[tuple[object, Sample], list[tuple[Trace, Run]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, key: object, trace: Trace, run: Run) -> None:
        self.answers[key, Sample.of(trace)].append((trace, run))

    def best(self, key: object, asked: Trace, gate: str) -> tuple[Trace, Run] | None:
        """The answer to the same input, asked for alike; from a run of that gate if any is."""
        found = self.answers.get((key, Sample.of(asked)), [])
        alike = [one for one in found if one[0].asked == asked.asked]
        return min(alike, key=lambda one: one[0].gate != gate, default=None)


def rows_of(runs: Sequence[Run]) -> Added:
    """The rows of runs and of their tasks.

    Args:
        runs: gated, plain and full ones; those of one arm are compared with each other.

    Raises:
        UsageError: two of them are of one row and differ, or runs that belong together hold
            different inputs.
    """
    plain, full = _Known(), _Known()
    for run in runs:
        for trace in run.traces:
            if trace.gate_open:
                plain.add(Arm.of(trace), trace, run)
            else:
                full.add(_model(trace), trace, run)
    rows: dict[str, tuple[Row, Run]] = {}
    tasks: list[Row] = []
    lacking: Counter[str] = Counter()
    for run in runs:
        for suite, own in run.suites().items():
            answers = _answers(run, own, runs, plain, full)
            values = {
                **marks_of(run, suite),
                **identity_of(run, suite, own),
                **row_figures(answers),
                **provenance_of(run),
            }
            row = sealed(values)
            name = str(row["row"])
            if name in rows and _same_figures(row, rows[name][0]):
                # As where each evictor of a grid has an arm with its gate closed.
                rows[name] = min((rows[name], (row, run)), key=lambda one: str(one[0]["command"]))
                continue
            if name in rows:
                raise UsageError(
                    f"{rows[name][1].path} and {run.path} are two runs of {label(row)} with "
                    f"different results; give one of them."
                )
            rows[name] = row, run
            told = task_figures(answers)
            tasks += [task_row({"row": name, **figures}, TASK_COLUMNS) for figures in told]
            if answers.gate != "closed":
                lacking["full"] += answers.full is None
                lacking["plain"] += answers.plain is None
    notes = _notes(lacking)
    differing = _prompts_that_differ(runs) if notes else ""
    notes += [f"{differing}: what stays empty may be for this."] if differing else []
    return Added([row for row, _ in rows.values()], tasks, notes)


def _same_figures(row: Row, other: Row) -> bool:
    """Whether two runs of one arm came to the same; how fast each was says nothing about that."""
    names = [c.name for c in COLUMNS if c.part == "figure" and c.name != "decode_speedup"]
    return [row[name] for name in names] == [other[name] for name in names]


def merged(board: Board, added: Added, replace: bool) -> Board:
    """The leaderboard with rows added.

    Raises:
        UsageError: a row stands there already, and is not to be replaced.
    """
    known = {row["row"] for row in board.rows}
    doubled = [row for row in added.rows if row["row"] in known]
    if doubled and not replace:
        more = f" and {len(doubled) - 1} more stand" if len(doubled) > 1 else " stands"
        raise UsageError(
            f"{label(doubled[0])}{more} in the leaderboard already, the first as row "
            f"{doubled[0]['row']}; give --replace to put this run in its place."
        )
    _check_lost(board, doubled)
    return board.with_rows(added.rows, added.tasks)


def _check_lost(board: Board, rows: Iterable[Row]) -> None:
    """Raise UsageError where what a row knows would give way to nothing."""
    old = {row["row"]: row for row in board.rows}
    for row in rows:
        for name, what, gate in _OF_OTHERS:
            if row[name] is None and old[row["row"]][name] is not None:
                raise UsageError(
                    f"{label(row)} would lose {what}, which these runs alone do not tell; add its "
                    f"run with gate={gate} on the same inputs together with it."
                )


def check_sound(board: Board) -> None:
    """Refuse what could not be read back.

    Raises:
        UsageError: something in the rows or their tasks is wrong.
    """
    table = Path("leaderboard.csv")
    rows = [line_of(i, row, COLUMNS) for i, row in enumerate(board.rows)]
    tasks = [line_of(i, task, TASK_COLUMNS) for i, task in enumerate(board.tasks)]
    _, found = examined_lines(table, rows, tasks)
    if not found:
        return
    first, labels = found[0], [label(row) for row in board.rows]
    if first.path == table:
        where = labels[first.line]
    else:
        task = board.tasks[first.line]
        own = next(i for i, row in enumerate(board.rows) if row["row"] == task["row"])
        where = f"{labels[own]}, task {task['task']}"
    # There are no lines yet that a reader could look up.
    what = re.sub(r"\bline (\d+)\b", lambda found: labels[int(found[1])], first.what)
    column = f", {first.column}" * bool(first.column)
    raise UsageError(f"these runs make no sound leaderboard: {where}{column}: {what}")


def label(row: Row) -> str:
    """What to call a row in a message."""
    names = ("model", "suite", "evictor", "gate")
    rule: Value = row["tau_variant"]
    parts = [str(row[name]) for name in names] + ([] if rule is None else [str(rule)])
    return f"{' '.join(parts)} at budget {row['budget']:g}"


def _model(trace: Trace) -> tuple[str, str, str, str]:
    """What a full cache's answer depends on besides the prompt."""
    return trace.model, trace.dtype, trace.attn_implementation, trace.compress


def _answers(
    run: Run, own: Sequence[Trace], runs: Sequence[Run], plain: _Known, full: _Known
) -> Answers:
    arm, model = Arm.of(own[0]), _model(own[0])
    if run.gate == "closed":
        return Answers(own, None, own)
    if run.gate == "open":
        of_plain: Sequence[Trace] | None = own
    else:
        with_it = [r for r in runs if r.gate == "open" and Arm.of(r.traces[0]) == arm]
        of_plain, _ = _all(run, own, [plain.best(arm, t, "open") for t in own], with_it, "plain")
    with_it = [r for r in runs if r.gate == "closed" and _model(r.traces[0]) == model]
    of_full, from_runs = _all(
        run, own, [full.best(model, t, "closed") for t in own], with_it, "full"
    )
    devices = {str(one.page["device"]) for one in (run, *from_runs)}
    return Answers(own, of_plain, of_full, alone=len(devices) == 1)


def _all(
    run: Run,
    own: Sequence[Trace],
    found: Sequence[tuple[Trace, Run] | None],
    others: Iterable[Run],
    kind: str,
) -> tuple[list[Trace] | None, list[Run]]:
    """Counterparts of all inputs and the runs they are from; None where they are not known.

    Raises:
        UsageError: a run was made to compare with, but not on these inputs.
    """
    inputs = [Sample.of(trace) for trace in own]
    unlike, compared = None, set[Sample]()
    for other in others:
        known = {Sample.of(trace) for trace in other.traces}
        tasks = {sample.task for sample in known}
        here = {sample for sample in inputs if sample.task in tasks}
        known = {sample for sample in known if sample.task in {s.task for s in here}}
        if known == here:
            compared |= here
        elif known & here:
            unlike = other, len(here), len(known)
    if unlike is not None and compared != set(inputs):
        other, ours, theirs = unlike
        differing = _prompts_that_differ([run, other])
        raise UsageError(
            f"{run.path} and the {kind} run {other.path} hold {ours} and {theirs} inputs of the "
            f"same tasks{', and ' * bool(differing)}{differing}; run both with the same --limit, "
            f"--samples, chat template and data."
        )
    whole = [one for one in found if one is not None]
    if len(whole) < len(found):
        return None, []
    return [trace for trace, _ in whole], list({id(r): r for _, r in whole}.values())


def _prompts_that_differ(runs: Iterable[Run]) -> str:
    return prompts_that_differ((trace, str(run.path)) for run in runs for trace in run.traces)


def _notes(lacking: Counter[str]) -> list[str]:
    """What stays empty, and which runs would fill it."""
    told = {
        "full": "no full run (gate=closed) of the same inputs: harm, ρ and AUC stay empty",
        "plain": "no plain run (gate=open) of the same arm: Δ, ρ and AUC stay empty",
    }
    return [
        f"{n} of these rows {'has' if n == 1 else 'have'} {told[kind]}."
        for kind, n in sorted(lacking.items())
        if n
    ]
