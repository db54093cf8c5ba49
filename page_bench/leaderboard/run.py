"""Finished runs of page_hf: the results JSON of each and the traces beside it, checked for gaps."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.leaderboard.results import OtherModelError, Results, read_results
from page_bench.leaderboard.row import MOST_NESTED, nesting
from page_bench.records.finished_runs import Arm, read_traces
from page_bench.records.suites import split
from page_bench.records.trace import Trace

PATTERN = "results_*.json"
_MARKER, _LOCK = "finished.json", ".lock"
_ARM = re.compile(r"-[0-9a-f]{8}$")
"""How the folder of a sweep's arm ends."""


@dataclass(frozen=True)
class FinishedRun:
    """One call of lm-eval with page_hf: its results JSON, and traces of scored answers."""

    path: Path
    results: Results
    traces: list[Trace]

    @property
    def page(self) -> Mapping[str, Any]:
        """What page_hf says of the run."""
        page: Mapping[str, Any] = self.results["config"]["page"]
        return page

    @property
    def gate(self) -> str:
        """Name of the gate."""
        return self.traces[0].gate

    def suites(self) -> dict[str, list[Trace]]:
        """Its answers by suite."""
        found = defaultdict(list)
        for trace in self.traces:
            found[split(trace.task)[0]].append(trace)
        return dict(sorted(found.items()))


def read_finished(places: Sequence[str | Path]) -> tuple[list[FinishedRun], list[str]]:
    """All runs of results files, and of folders of lm-eval's or a sweep's layout.

    Also sentences on what is left out: runs of other models, and tasks or answers without a
    `correct` of 0 or 1.

    Raises:
        UsageError: nothing is there that could be counted, or a run is not whole.
    """
    paths: dict[Path, Path] = {}
    for place in places:
        path = user_path(place)
        if not path.exists():
            raise UsageError(f"{path} does not exist; give folders of finished runs.")
        found = sorted(path.rglob(PATTERN)) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"{path} holds no {PATTERN}; give the --output_path of a run or a sweep that ended."
            )
        for lock in path.rglob(_LOCK) if path.is_dir() else ():
            if _ARM.search(lock.parent.name):
                _check_finished(lock.parent)
        for file in found:
            paths.setdefault(file.resolve(), file)
    runs: list[FinishedRun] = []
    left_out: list[str] = []
    for path in paths.values():
        try:
            run, said = _scored(_read(path))
        except OtherModelError as error:
            run, said = None, [str(error).replace("; leave it out", ", and is left out")]
        runs += [] if run is None else [run]
        left_out += said
    if not runs:
        raise UsageError(" ".join(left_out))
    return runs, left_out


def _read(path: Path) -> FinishedRun:
    for folder in path.parents[:2]:
        if _ARM.search(folder.name) and (folder / _LOCK).exists():
            _check_finished(folder)
    results = read_results(path)
    for name in results["configs"]:
        if re.search(r"[\s,]", name):
            raise UsageError(
                f"{path} is of the task {name!r}, a name that --tasks would take for several; "
                f"give it one without spaces and commas, and run it again."
            )
    run = FinishedRun(path, results, _traces(path, results["config"]["page"]))
    _check_counts(run)
    arms: dict[str, set[object]] = defaultdict(set)
    for trace in run.traces:
        arms[trace.task].add((Arm.of(trace), trace.gate, trace.tau))
    # Tasks may differ in their protocol, and in τ where it is measured by request type.
    if any(len(own) > 1 for own in arms.values()):
        n = len(set.union(*arms.values()))
        raise UsageError(f"the traces beside {path} are of {n} arms; run it again.")
    return run


def _check_finished(folder: Path) -> None:
    """Refuse an arm of a sweep that was not finished, or has changed since."""
    marker = folder / _MARKER
    if not marker.is_file():
        raise UsageError(
            f"{folder} is an arm that its sweep has not finished; start the sweep again with the "
            f"same words, and add it when it is done."
        )
    try:
        files = json_text.parse(marker.read_bytes())["files"].items()
        changed = [name for name, size in files if (folder / name).stat().st_size != size]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{folder} lacks what {_MARKER} lists ({error}); start the sweep again."
        ) from error
    if changed:
        raise UsageError(
            f"{folder / changed[0]} is not as long as when the arm was finished; start the sweep "
            f"again."
        )


def _traces(path: Path, page: Mapping[str, Any]) -> list[Trace]:
    name = page.get("trace_file")
    if not name:
        raise UsageError(
            f"{path} is of a run without a trace; run it again with --output_path or trace=FOLDER."
        )
    # The folder may have moved since; lm-eval writes both files into the same one.
    places = [path.parent / str(name).replace("\\", "/").rpartition("/")[2], Path(name)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UsageError(f"{places[0]}, the trace of {path.name}, is missing; run it again.")
    try:
        traces = [record.trace for record in read_traces(file)]
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror or error}).") from error
    if any(nesting([t.evictor_args, t.gate_args, t.asked]) > MOST_NESTED for t in traces):
        raise UsageError(
            f"{file} is nested deeper than {MOST_NESTED} levels, as no trace is; run again, or "
            f"leave it out."
        )
    return traces


def _scored(run: FinishedRun) -> tuple[FinishedRun | None, list[str]]:
    """The run without what cannot be counted, None where that is all, and sentences on it.

    An answer that its task's filters pass over is left out by itself. A task of which a document
    has no other answer is left out whole: a part of its documents is another task.
    """
    counted = [trace for trace in run.traces if _counts(trace)]
    documents = {(trace.task, trace.doc_id) for trace in counted}
    lacking = [t for t in run.traces if (t.task, t.doc_id) not in documents]
    broken = {trace.task: trace for trace in reversed(lacking)}
    said = [
        f"{run.path}: {task} is left out, since document {trace.doc_id} has {_lack(trace)}."
        for task, trace in broken.items()
    ]
    passed_over = Counter(t.task for t in run.traces if not _counts(t) and t.task not in broken)
    said += [
        f"{run.path}: {n} answers to {task} are left out, since lm-eval has scored another one of "
        f"the same document."
        for task, n in passed_over.items()
    ]
    left = [trace for trace in counted if trace.task not in broken]
    return (dataclasses.replace(run, traces=left) if left else None), said


def _counts(trace: Trace) -> bool:
    """Whether the leaderboard has a place for an answer's scores."""
    return trace.correct in (0, 1) and trace.score is not None and 0 <= trace.score <= 1


def _lack(trace: Trace) -> str:
    if trace.score is None:
        return "no score: its run ended early, or its task gives no number for one document"
    if trace.correct in (0, 1):
        return f"the score {trace.score:g}, which is no share"
    metric = (trace.metric or "score").partition(",")[0]
    return f"no `correct` of 0 or 1, by which answers are counted: its metric is {metric}"


def _check_counts(run: FinishedRun) -> None:
    """Refuse a run whose trace lacks answers that the results count, or holds others."""
    distinct = {(trace.task, trace.doc_id, trace.repeat) for trace in run.traces}
    if len(distinct) != len(run.traces):
        raise UsageError(f"the trace beside {run.path} holds an answer twice; run it again.")
    by_task: dict[str, list[Trace]] = defaultdict(list)
    for trace in run.traces:
        by_task[trace.task].append(trace)
    results = run.results
    for task, settings in results["configs"].items():
        own = by_task[task]
        # A document of given continuations has a trace for each of its contexts.
        generated = settings.get("output_type", "generate_until") == "generate_until"
        held = len(own) if generated else len({trace.doc_id for trace in own})
        wanted = results["n-samples"][task]["effective"]
        wanted *= (settings.get("repeats") or 1) if generated else 1
        if held != wanted:
            raise UsageError(
                f"{run.path} counts {wanted} answers of {task}, but its trace holds {held}; run it "
                f"again."
            )
        _check_mean(run, task, own)
    if unknown := by_task.keys() - results["configs"].keys():
        raise UsageError(
            f"the trace beside {run.path} holds {min(unknown)}, which the results do not; run it "
            f"again."
        )


def _check_mean(run: FinishedRun, task: str, traces: Sequence[Trace]) -> None:
    """Refuse a task of which results and trace say different things."""
    metric, _, filter_name = (traces[0].metric or "score,none").partition(",")
    settings = run.results["configs"][task].get("metric_list") or []
    means = {one.get("metric") for one in settings if one.get("aggregation") == "mean"}
    if metric == "score":  # of our own tasks, in which `correct` is what counts
        metric, values = "correct", [(t.doc_id, t.correct) for t in traces]
    elif metric in means:
        values = [(t.doc_id, t.score) for t in traces]
    else:  # the mean of the scores may be another number
        return
    said = run.results["results"][task].get(f"{metric},{filter_name}")
    documents: dict[int, list[float]] = defaultdict(list)
    for doc_id, value in values:
        documents[doc_id] += [] if value is None else [value]
    if said is None or not all(documents.values()):  # a document without a score is told later
        return
    mean = statistics.fmean(statistics.fmean(own) for own in documents.values())
    if not abs(said - mean) <= 1e-9:
        raise UsageError(
            f"{run.path} says that {said:.4f} of {task} is correct, its trace {mean:.4f}; one of "
            f"them was changed, so run it again."
        )
