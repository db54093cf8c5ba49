"""What the full cache would have answered, as far as it is known: eviction's harm rests on it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from page_bench.engine.memory import Memory
from page_bench.engine.prompt import Prompt
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import TRACE_PATTERN, Sample, parse_trace, read_traces
from page_bench.records.trace import Trace

Place = tuple[str, int, int]
"""Task, document and repeat."""

Verdicts = Mapping[Hashable, float]
"""`correct` of the full cache's answers by `question_of`."""


def place_of(sample: Prompt | Trace) -> Place:
    """Which sample of a run it is."""
    return sample.task, sample.doc_id, sample.repeat


def question_of(trace: Trace) -> Hashable:
    """Equal for records whose full cache gives one and the same answer."""
    asked = json.dumps(trace.asked, sort_keys=True)
    model = trace.model, trace.dtype, trace.attn_implementation
    return *model, trace.compress, trace.chat_template, asked, Sample.of(trace)


def verdicts_of(traces: Iterable[Trace]) -> dict[Hashable, float]:
    """`correct` of those answers of which nothing was evicted: they are the full cache's."""
    return {
        question_of(trace): trace.correct
        for trace in traces
        if trace.kept_all_because is not None and trace.correct is not None
    }


def stored_verdicts(memory: Memory, prompts: Iterable[Prompt]) -> dict[Place, float]:
    """`correct` of the full cache's answers that stand in a store.

    Args:
        memory: the store, seen from the run's model.
        prompts: of the run; those whose documents do not say how an answer is judged are left out.
    """
    found = {}
    for prompt in prompts:
        answer = None if prompt.correct is None else memory.answer(prompt, None)
        if prompt.correct is not None and answer is not None:
            found[place_of(prompt)] = prompt.correct(answer.answer_ids)
    return found


def run_verdicts(folder: Path, besides: Path | None) -> dict[Hashable, float]:
    """Those of runs with a closed gate whose traces stand in a folder.

    Args:
        folder: looked into, not below.
        besides: a file that is left out, the run's own.
    """
    found: dict[Hashable, float] = {}
    for path in sorted(folder.glob(TRACE_PATTERN)):
        if path != besides and _is_full(path):
            found |= file_verdicts(path)
    return found


def file_verdicts(path: Path) -> dict[Hashable, float]:
    """Those of one file of traces; none where it cannot be read whole, as of a run killed."""
    try:
        return verdicts_of(record.trace for record in read_traces(path))
    except (OSError, UsageError):
        return {}


def full_correct(
    traces: Sequence[Trace], stored: Mapping[Place, float], runs: Verdicts
) -> list[float | None]:
    """`correct` of the full cache's answer to each of a run's samples; None where unknown.

    Args:
        traces: of the run.
        stored: from a store.
        runs: from other runs.
    """
    own = verdicts_of(traces)
    return [
        own.get(key, stored.get(place_of(trace), runs.get(key)))
        for trace, key in zip(traces, map(question_of, traces), strict=True)
    ]


def _is_full(path: Path) -> bool:
    """Whether a file's first trace had a closed gate; a run has one gate."""
    try:
        with path.open("rb") as file:
            return parse_trace(file.readline()).gate == "closed"
    except (OSError, UsageError):
        return False
