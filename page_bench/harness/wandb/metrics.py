"""The numbers that stand for a run in W&B, each with its interval; sweeps maximise `correct`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from page_bench.analysis.estimates import kept_kind
from page_bench.analysis.intervals import ClusterBootstrap
from page_bench.records.trace import Trace

PREFIX = "page/"
DRAWS = 2_000
"""Of the bootstrap; fewer than a report's, since the next arm waits."""


def summary_of(traces: Sequence[Trace], full: Sequence[float | None]) -> dict[str, float]:
    """A run's numbers, by W&B's key.

    Each of `score`, `correct`, `open_rate`, `kept_kv`, `cut` and `harm` stands for all samples of
    the run and has its 95 % interval beside it, `…_low` and `…_high`, if that many samples allow
    one; see `analysis.estimates`.

    - `n`: samples.
    - `score`, `correct`: as the tasks give them; absent where one does not.
    - `open_rate`: share of the samples whose gate opened.
    - `kept_kv`: kept ÷ full entries of the prompt's cache.
    - `compression`: 1 ÷ `kept_kv`, as the PAGE paper counts it for one prompt at a time.
    - `cut`: share of the answers that only their length limit ended, and `cut_n`, how many were
      generated; absent where none was.
    - `harm`: share right with the full cache and wrong here; absent unless the full cache's
      verdict is known of every sample.

    There is no quotient of accuracy and cache to maximise: the arm that destroys most has the
    largest.

    Args:
        traces: of all samples, scored.
        full: `correct` of the full cache's answer to each; None where unknown.
    """
    if not traces:
        return {}
    boot = ClusterBootstrap([(trace.task, trace.doc_id) for trace in traces], DRAWS)
    kept = boot.mean([trace.kept_kv for trace in traces], kept_kind(traces[0].gate))
    found = {
        "open_rate": boot.mean([float(trace.gate_open) for trace in traces], "share"),
        "kept_kv": kept,
    }
    numbers: dict[str, float] = {"n": len(traces), "compression": 1 / kept.value}
    for name in ("score", "correct"):
        values = [getattr(trace, name) for trace in traces]
        if _is_known(values):
            found[name] = boot.mean(values, "share")
    if "correct" in found and _is_known(full):
        pairs = zip(full, traces, strict=True)
        harmed = [float(f > t.correct) for f, t in pairs]  # type: ignore[operator]
        found["harm"] = boot.mean(harmed, "share")
    generated = [trace for trace in traces if trace.cut is not None]
    if generated:
        numbers["cut_n"] = len(generated)
        of_cut = ClusterBootstrap([(trace.task, trace.doc_id) for trace in generated], DRAWS)
        found["cut"] = of_cut.mean([float(trace.cut is True) for trace in generated], "share")
    for name, estimate in found.items():
        numbers[name] = estimate.value
        if estimate.has_interval:
            numbers[f"{name}_low"], numbers[f"{name}_high"] = estimate.low, estimate.high
    return {PREFIX + name: value for name, value in numbers.items()}


def drops_of(traces: Sequence[Trace]) -> dict[str, list[float]]:
    """D of every sample by task, as far as it was measured."""
    found = defaultdict(list)
    for trace in traces:
        if math.isfinite(trace.drop):
            found[trace.task].append(trace.drop)
    return dict(found)


def _is_known(values: Sequence[float | None]) -> bool:
    return all(value is not None and not math.isnan(value) for value in values)
