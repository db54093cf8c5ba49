"""The numbers that stand for a run in W&B: what a sweep can optimise, each with its interval."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from page_bench.analysis.intervals import ClusterBootstrap, Estimate, share
from page_bench.trace import Trace

PREFIX = "page/"
DRAWS = 2_000
"""Of the bootstrap; fewer than a report's, since the next arm waits."""


def summary_of(traces: Sequence[Trace], full: Sequence[float | None]) -> dict[str, float]:
    """A run's numbers, by W&B's key.

    Each of `score`, `correct`, `open_rate`, `kept_kv` and `harm` stands for all samples of the
    run and has its 95 % interval beside it, `…_low` and `…_high`: Wilson's for shares of
    different documents, else a bootstrap over (task, document).

    - `n`: samples.
    - `score`, `correct`: as the tasks give them; absent where one does not.
    - `open_rate`: share of the samples whose gate opened.
    - `kept_kv`: kept ÷ full entries of the prompt's cache.
    - `compression`: 1 ÷ `kept_kv`, as the PAGE paper counts it for one prompt at a time.
    - `harm`: share right with the full cache and wrong here; absent unless the full cache's
      verdict is known of every sample.
    - `score_per_kept_kv`: `correct` ÷ `kept_kv`. It rewards a small cache that still answers:
      the full cache has its own accuracy there, and an arm with half the cache and the same
      accuracy twice as much.

    Args:
        traces: of all samples, scored.
        full: `correct` of the full cache's answer to each; None where unknown.
    """
    if not traces:
        return {}
    rows = _Rows(traces)
    kept = rows.bootstrapped([trace.kept_kv for trace in traces])
    found = {
        "open_rate": rows.mean([float(trace.gate_open) for trace in traces]),
        "kept_kv": kept,
    }
    numbers: dict[str, float] = {"n": len(traces), "compression": 1 / kept.value}
    for name in ("score", "correct"):
        values = [getattr(trace, name) for trace in traces]
        if _is_known(values):
            found[name] = rows.mean(values)
    if "correct" in found:
        numbers["score_per_kept_kv"] = found["correct"].value / kept.value
        if _is_known(full):
            pairs = zip(full, traces, strict=True)
            found["harm"] = rows.mean([float(f > t.correct) for f, t in pairs])  # type: ignore[operator]
    for name, estimate in found.items():
        numbers[name] = estimate.value
        numbers[f"{name}_low"], numbers[f"{name}_high"] = estimate.low, estimate.high
    return {PREFIX + name: value for name, value in numbers.items()}


def drops_of(traces: Sequence[Trace]) -> dict[str, list[float]]:
    """D of every sample by task, as far as it was measured."""
    found = defaultdict(list)
    for trace in traces:
        if math.isfinite(trace.drop):
            found[trace.task].append(trace.drop)
    return dict(found)


class _Rows:
    """Means over samples, with an interval over documents."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        clusters = [(trace.task, trace.doc_id) for trace in traces]
        self._independent = len(set(clusters)) == len(clusters)
        self._bootstrap = ClusterBootstrap(clusters, DRAWS)

    def mean(self, values: Sequence[float]) -> Estimate:
        if self._independent and {*values} <= {0.0, 1.0}:
            return share(int(sum(values)), len(values))
        return self._bootstrap.mean(values)

    def bootstrapped(self, values: Sequence[float]) -> Estimate:
        """Of what is no share of documents, even where all values are 0 or 1."""
        return self._bootstrap.mean(values)


def _is_known(values: Sequence[float | None]) -> bool:
    return all(value is not None and not math.isnan(value) for value in values)
