"""Inputs whose answers have no score: what is left without them, and what to say of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from page_bench.analysis.outcomes import METRICS, metric_of
from page_bench.analysis.pairs import Pair
from page_bench.records.finished_runs import Arm, Sample
from page_bench.records.trace import Trace


def has_metric(trace: Trace, metric: str) -> bool:
    """Whether a record has that score."""
    value: float | None = getattr(trace, metric)
    return value is not None and not math.isnan(value)


def with_metric(
    arms: Mapping[Arm, Sequence[Pair]], metric: str
) -> tuple[dict[Arm, list[Pair]], list[str]]:
    """The pairs of which both answers have a score; the others have no part in anything.

    Args:
        arms: pairs by arm.
        metric: one of `METRICS`.

    Returns:
        Those pairs, and a sentence per task on what is left out.

    Raises:
        UsageError: none has it.
    """
    found: dict[Arm, list[Pair]] = {}
    lacking: list[Trace] = []
    for arm, pairs in arms.items():
        known = []
        for pair in pairs:
            own = [t for t in (pair.plain, pair.full) if not has_metric(t, metric)]
            lacking += own[:1]
            known += [] if own else [pair]
        if known:
            found[arm] = known
    if lacking and not found:
        metric_of(lacking[0], metric)
    totals: dict[str, set[Sample]] = defaultdict(set)
    for pairs in arms.values():
        for pair in pairs:
            totals[pair.sample.task].add(pair.sample)
    return found, [
        f"{n} of {len(totals[task])} inputs of {task} are left out: {why}."
        for task, (n, why) in _without(lacking, metric).items()
    ]


def left_out(traces: Iterable[Trace], metric: str) -> tuple[int, str]:
    """How many records have no such score, and a clause per task; empty where all have it."""
    found = _without([t for t in traces if not has_metric(t, metric)], metric)
    said = "; ".join(f"{n} of {task}: {why}" for task, (n, why) in found.items())
    return sum(n for n, _ in found.values()), said


def _without(lacking: Iterable[Trace], metric: str) -> dict[str, tuple[int, str]]:
    """By task, how many inputs there are and why they lack a score."""
    by_task: dict[str, dict[Sample, Trace]] = defaultdict(dict)
    for trace in lacking:
        by_task[trace.task][Sample.of(trace)] = trace
    return {task: (len(own), _why(own.values(), metric)) for task, own in by_task.items()}


def _why(lacking: Iterable[Trace], metric: str) -> str:
    held = [name for name in METRICS if any(has_metric(trace, name) for trace in lacking)]
    if held:
        return f"their answers have no {metric}; --metric {held[0]} reads what they have"
    return (
        "their answers have no score: a filter passes over them, their task gives no number for "
        "one document, or their run ended before they were scored"
    )
