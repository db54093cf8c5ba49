"""The gates of actual runs, and what each has decided."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from page_bench.analysis.pairs import DROP_TOLERANCE
from page_bench.records.finished_runs import Arm, Record, Sample
from page_bench.records.trace import Trace

_CONTROLS = ("open", "closed")


@dataclass(frozen=True, order=True)
class RunGate:
    """The gate of actual runs.

    Attributes:
        name, args: `args` is JSON with sorted keys.
        rule: how τ was found; empty where the gate reads none.
        tau: τ; NaN where the gate reads none.
    """

    name: str
    args: str
    rule: str
    tau: float


def decisions_of(records: Iterable[Record]) -> dict[RunGate, dict[tuple[Arm, Sample], bool]]:
    """By gate, what runs with it have decided; τ that differ by rounding alone are one."""
    rules: dict[tuple[str, str, str], list[Trace]] = defaultdict(list)
    for record in records:
        trace = record.trace
        if trace.gate not in _CONTROLS:
            args = json.dumps(trace.gate_args, sort_keys=True)
            rules[trace.gate, args, trace.tau_variant or ""].append(trace)
    found: dict[RunGate, dict[tuple[Arm, Sample], bool]] = {}
    for rule, traces in sorted(rules.items()):
        # What was asked for is no measurement.
        jitter = 0.0 if rule[2] == "number" else DROP_TOLERANCE
        merged = _merged({math.nan if t.tau is None else t.tau for t in traces}, jitter)
        for trace in traces:
            tau = merged[_key(math.nan if trace.tau is None else trace.tau)]
            decisions = found.setdefault(RunGate(*rule, tau), {})
            decisions[Arm.of(trace), Sample.of(trace)] = trace.gate_open
    return found


def _merged(taus: Iterable[float], jitter: float) -> dict[str, float]:
    """For each τ the lowest of those that lie no further from their neighbour than `jitter`."""
    merged, last, lowest = {_key(math.nan): math.nan}, -math.inf, math.nan
    for tau in sorted(tau for tau in taus if not math.isnan(tau)):
        lowest = lowest if tau - last <= jitter else tau
        merged[_key(tau)], last = lowest, tau
    return merged


def _key(tau: float) -> str:
    # NaN is no key, since it does not equal itself.
    return repr(tau)
