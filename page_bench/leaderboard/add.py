"""Rows of finished runs: each suite of each run, compared with its plain and full counterparts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page_bench.analysis.pairs import prompts_that_differ
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.check import examined_lines
from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS
from page_bench.leaderboard.file import Board, lines_of
from page_bench.leaderboard.identity import described
from page_bench.leaderboard.measures import Answers, row_figures, task_figures
from page_bench.leaderboard.row import Row, sealed
from page_bench.leaderboard.run import FinishedRun
from page_bench.records.finished_runs import Arm, Sample
from page_bench.records.trace import Trace

_OF_OTHERS = (
    ("delta", "its Δ against plain eviction", "open"),
    ("full_correct", "the full cache's accuracy, harm and what follows from them", "closed"),
)
"""Figures that come from other runs: what is lost without them, and the gate of these runs."""
_LACKING = {
    "full": "no full run (gate=closed) of the same inputs: harm, ρ and AUC stay empty",
    "plain": "no plain run (gate=open) of the same arm: Δ, ρ and AUC stay empty",
}
_SAME = [c.name for c in COLUMNS if c.part == "figure" and c.name != "decode_speedup"]
"""Figures that two runs of one arm share, however fast each was."""

_Found = dict[tuple[object, Sample], list[tuple[Trace, FinishedRun]]]
"""Answers of all runs, each with its run, by what they are answers of."""


@dataclass(frozen=True)
class Added:
    """Rows and tasks that runs make, and sentences on what the rows leave empty."""

    rows: list[Row]
    tasks: list[Row]
    notes: list[str]


def rows_of(runs: Sequence[FinishedRun]) -> Added:
    """The rows of runs and of their tasks.

    Args:
        runs: gated, plain and full ones; those of one arm are compared with each other.

    Raises:
        UsageError: two of them are of one row and differ, or runs that belong together hold
            different inputs.
    """
    plain: _Found = defaultdict(list)
    full: _Found = defaultdict(list)
    for run in runs:
        for trace in run.traces:
            found, key = (plain, Arm.of(trace)) if trace.gate_open else (full, _model(trace))
            found[key, Sample.of(trace)].append((trace, run))
    rows: dict[str, tuple[Row, FinishedRun]] = {}
    tasks: list[Row] = []
    lacking: Counter[str] = Counter()
    for run in runs:
        for suite, own in run.suites().items():
            answers = _answers(run, own, runs, plain, full)
            row = sealed({**described(run, suite, own), **row_figures(answers)})
            name = row["row"]
            if name in rows:
                known, other = rows[name]
                if any(row[figure] != known[figure] for figure in _SAME):
                    raise UsageError(
                        f"{other.path} and {run.path} are two runs of {label(row)} with "
                        f"different results; give one of them."
                    )
                # As where each evictor of a grid has an arm with its gate closed.
                rows[name] = min(rows[name], (row, run), key=lambda one: one[0]["command"])
                continue
            rows[name] = row, run
            told = task_figures(answers)
            tasks += [sealed({"row": name, **figures}, TASK_COLUMNS) for figures in told]
            if answers.gate != "closed":
                lacking["full"] += answers.full is None
                lacking["plain"] += answers.plain is None
    notes = [
        f"{n} of these rows {'has' if n == 1 else 'have'} {_LACKING[kind]}."
        for kind, n in sorted(lacking.items())
        if n
    ]
    differing = _prompts_that_differ(runs) if notes else ""
    notes += [f"{differing}: what stays empty may be for this."] if differing else []
    return Added([row for row, _ in rows.values()], tasks, notes)


def merged(board: Board, added: Added, replace: bool) -> Board:
    """The leaderboard with rows added.

    Raises:
        UsageError: a row is there already, and is not to be replaced, or would lose what it knows.
    """
    known = {row["row"]: row for row in board.rows}
    doubled = [row for row in added.rows if row["row"] in known]
    if doubled and not replace:
        more = f" and {len(doubled) - 1} more stand" if len(doubled) > 1 else " stands"
        raise UsageError(
            f"{label(doubled[0])}{more} in the leaderboard already, the first as row "
            f"{doubled[0]['row']}; give --replace to put this run in its place."
        )
    for row in doubled:
        for name, what, gate in _OF_OTHERS:
            if row[name] is None and known[row["row"]][name] is not None:
                raise UsageError(
                    f"{label(row)} would lose {what}, which these runs alone do not tell; add its "
                    f"run with gate={gate} on the same inputs together with it."
                )
    return board.with_rows(added.rows, added.tasks)


def check_sound(board: Board) -> None:
    """Refuse what could not be read back.

    Raises:
        UsageError: something in the rows or their tasks is wrong.
    """
    table = Path("leaderboard.csv")
    lines = lines_of(board.rows, COLUMNS), lines_of(board.tasks, TASK_COLUMNS)
    _, found = examined_lines(table, *lines)
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
    names = ("model", "suite", "evictor", "gate", "tau_variant")
    parts = [row[name] for name in names if row[name] is not None]
    return f"{' '.join(parts)} at budget {row['budget']:g}"


def _model(trace: Trace) -> tuple[str, str, str, str]:
    """What a full cache's answer depends on besides the prompt."""
    return trace.model, trace.dtype, trace.attn_implementation, trace.compress


def _answers(
    run: FinishedRun,
    own: Sequence[Trace],
    runs: Sequence[FinishedRun],
    plain: _Found,
    full: _Found,
) -> Answers:
    arm, model = Arm.of(own[0]), _model(own[0])
    if run.gate == "closed":
        return Answers(own, None, own)
    of_plain: Sequence[Trace] | None = own
    if run.gate != "open":
        with_it = [r for r in runs if r.gate == "open" and Arm.of(r.traces[0]) == arm]
        of_plain, _ = _all(run, own, plain, arm, with_it, "plain")
    with_it = [r for r in runs if r.gate == "closed" and _model(r.traces[0]) == model]
    of_full, from_runs = _all(run, own, full, model, with_it, "full")
    devices = {one.page["device"] for one in (run, *from_runs)}
    return Answers(own, of_plain, of_full, alone=len(devices) == 1)


def _all(
    run: FinishedRun,
    own: Sequence[Trace],
    found: _Found,
    key: object,
    others: Iterable[FinishedRun],
    kind: str,
) -> tuple[list[Trace] | None, list[FinishedRun]]:
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
    gate = "open" if kind == "plain" else "closed"
    whole = []
    for trace, sample in zip(own, inputs, strict=True):
        # Answers that were asked for alike, from a run of that gate if any is.
        alike = [one for one in found.get((key, sample), []) if one[0].asked == trace.asked]
        if not alike:
            return None, []
        whole.append(min(alike, key=lambda one: one[0].gate != gate))
    return [trace for trace, _ in whole], list({id(r): r for _, r in whole}.values())


def _prompts_that_differ(runs: Iterable[FinishedRun]) -> str:
    return prompts_that_differ((trace, str(run.path)) for run in runs for trace in run.traces)
