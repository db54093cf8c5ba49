"""What a gated answer costs in seconds, from stored plain and full answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from page_bench.analysis.pairs import Pair
from page_bench.gating.gate import Gate
from page_bench.records.trace import Trace


def seconds_of(pair: Pair, takes_plain: bool, gate: Gate) -> float:
    """Seconds for one input under a gate, what it discards included.

    These are the prefill, the reading of the signal where the gate reads one, the eviction, the
    answer's share of what was decoded together with it, and the answers that the gate read and
    discarded; a retry prefills again. Where the answer is from a run of this very gate, its own
    `discarded_s` counts.

    Args:
        pair: plain and full answer.
        takes_plain: the gate's decision.
        gate: the gate.

    Returns:
        Seconds; NaN where a record lacks one of these times.
    """
    answer, other = pair.gated(takes_plain), pair.gated(not takes_plain)
    if gate.signal is not None:
        # Before it decides, it has prefilled and read as the arm does.
        return pair.plain.prefill_s + pair.plain.gate_s + after_prefill(answer)
    return answer.prefill_s + after_prefill(answer) + _discarded(answer, other, takes_plain, gate)


def cost_columns(plain: Sequence[Trace], full: Sequence[Trace]) -> dict[str, list[float]]:
    """What both answers of some inputs kept and took, as the columns of `Cell.rows`."""
    return {
        "plain_kept": [trace.kept_kv for trace in plain],
        "full_kept": [trace.kept_kv for trace in full],
        "plain_bytes": [float(trace.kv_bytes_kept) for trace in plain],
        "full_bytes": [float(trace.kv_bytes_kept) for trace in full],
        "prefill_s": [trace.prefill_s for trace in plain],
        "gate_s": [trace.gate_s for trace in plain],
        "plain_s": [after_prefill(trace) for trace in plain],
        "full_s": [after_prefill(trace) for trace in full],
    }


def after_prefill(trace: Trace) -> float:
    """Seconds of the eviction and of the answer's share of what was decoded together."""
    return trace.evict_s + trace.decode_s / trace.decode_rows


def _discarded(answer: Trace, other: Trace, takes_plain: bool, gate: Gate) -> float:
    if (answer.gate, answer.gate_args) == (gate.name, dataclasses.asdict(gate)):
        return answer.discarded_s
    if "full" in gate.needs_answers:
        return after_prefill(other)
    if gate.needs_answers and not takes_plain:
        return other.prefill_s + after_prefill(other)
    return 0.0
