"""A sweep's arms side by side: what each answers, by task, and what eviction breaks."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from page_bench.analysis.estimates import share
from page_bench.records.finished_runs import Sample, read_traces
from page_bench.records.suites import split
from page_bench.records.trace import Trace
from page_bench.sweep.arms import Arm
from page_bench.sweep.output import trace_files

_MOST_TASKS, _MOST_LINES = 6, 8
_RIGHT = 1.0


@dataclass(frozen=True)
class ArmRow:
    """What an arm answered.

    Attributes:
        name: what tells the arm from the others, without its digest.
        folder: of its files.
        traces: one per answer.
    """

    name: str
    folder: Path
    traces: Sequence[Trace]

    @cached_property
    def by_task(self) -> dict[str, list[float]]:
        """Each task's values of `correct`, or of `score` where that is not 0 or 1."""
        values: dict[str, list[float]] = defaultdict(list)
        for trace in self.traces:
            value = trace.score if trace.correct is None else trace.correct
            if value is not None:
                values[trace.task].append(value)
        return dict(values)

    @property
    def kept_kv(self) -> float:
        """Mean over all answers."""
        return statistics.fmean(trace.kept_kv for trace in self.traces)

    @property
    def closed(self) -> bool:
        """Whether every answer is the full cache's."""
        return all(trace.gate == "closed" for trace in self.traces)


def verdict(arms: Sequence[Arm]) -> str:
    """The table of a finished sweep's arms, what they break, and what to run next."""
    rows = [
        ArmRow(arm.name.rpartition("-")[0] or arm.name, arm.folder, traces)
        for arm in arms
        if (traces := [r.trace for file in trace_files(arm) for r in read_traces(file)])
    ]
    if not rows:
        return "No arm has written a trace."
    losses = {row.name: _lost(row, rows) for row in rows if not row.closed}
    parts = ["\n".join(table(rows)), *_sentences(losses), _next(rows, losses)]
    return "\n\n".join(parts)


def table(rows: Sequence[ArmRow]) -> list[str]:
    """Lines: an arm each, with the mean of every task where these are few, and of all inputs."""
    tasks = sorted({task for row in rows for task in row.by_task})
    shown = tasks if len(tasks) <= _MOST_TASKS else []
    n = {task: max(len(row.by_task.get(task, [])) for row in rows) for task in tasks}
    head = ["arm", *(f"{split(task)[1]} (n={n[task]})" for task in shown)]
    cells = [[*head, "all [95 %]", "kept KV"]]
    for row in rows:
        means = [_mean(row.by_task.get(task, [])) for task in shown]
        cells.append([row.name, *means, _whole(row), f"{row.kept_kv:.3f}"])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f}" if values else "–"


def _whole(row: ArmRow) -> str:
    """The mean over all inputs; with Wilson's interval where these are distinct, right or wrong."""
    values = [value for of_task in row.by_task.values() for value in of_task]
    distinct = len({Sample.of(trace) for trace in row.traces}) == len(values)
    if not values or not distinct or {*values} - {0.0, _RIGHT}:
        return _mean(values)
    estimate = share(int(sum(values)), len(values))
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _lost(row: ArmRow, rows: Sequence[ArmRow]) -> dict[str, tuple[list[Trace], int]]:
    """By task, inputs that the full cache answers and this arm does not, and how many it answers.

    Nothing where no arm of the same model and prompts has the full cache's answers.
    """
    right: set[Sample] = set()
    for other in rows:
        if other.closed and other.traces[0].model == row.traces[0].model:
            right |= {Sample.of(t) for t in other.traces if t.correct == _RIGHT}
    count = Counter(sample.task for sample in right)
    lost: dict[str, list[Trace]] = defaultdict(list)
    for trace in row.traces:
        if trace.correct is not None and trace.correct < _RIGHT and Sample.of(trace) in right:
            lost[trace.task].append(trace)
    return {task: (traces, count[task]) for task, traces in lost.items()}


def _sentences(losses: Mapping[str, dict[str, tuple[list[Trace], int]]]) -> list[str]:
    found = [
        (len(traces), of, f"{name} loses {len(traces)} of {of} inputs of {task}")
        for name, tasks in losses.items()
        for task, (traces, of) in tasks.items()
    ]
    if not found:
        return []
    worst = sorted(found, key=lambda one: (-one[0] / one[1], -one[0]))
    lines = [sentence for _, _, sentence in worst[:_MOST_LINES]]
    more = [f"and {len(worst) - len(lines)} more"] if len(worst) > len(lines) else []
    return ["Of what the full cache answers:\n" + "\n".join(f"  {line}" for line in lines + more)]


def _next(rows: Sequence[ArmRow], losses: Mapping[str, dict[str, tuple[list[Trace], int]]]) -> str:
    folder = rows[0].folder.parent
    lines = [f"page-bench report {folder} -o {folder}/report"]
    for row in rows:
        for task, (traces, _) in losses.get(row.name, {}).items():
            words = f"page-bench show '{row.folder}' --task {task} --doc {traces[0].doc_id}"
            return "Next:\n" + "\n".join(f"  {line}" for line in [*lines, words])
    return "Next:\n" + "\n".join(f"  {line}" for line in lines)
