"""Signals of stored records: as written, or taken anew from the agreement of layers and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from page_bench.gating.gate import Gate
from page_bench.gating.gates import make_gate
from page_bench.gating.profile import (
    DropOptions,
    drop_of,
    late_plateau,
    mean_of_pairs,
    monotonicity,
    slope,
)
from page_bench.gating.signal_gates import Page
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Sample
from page_bench.records.trace import Trace

BINNED = frozenset({"drop", "entropy_drop", "late_plateau", "slope", "monotonicity"})
"""Signals that depend on how D is taken; a run with options of its own has recorded others."""

_PROFILE_READINGS = {"late_plateau": late_plateau, "slope": slope, "monotonicity": monotonicity}


def signal_of(trace: Trace, name: str, gate: Gate | None = None) -> float:
    """What a gate would read of a stored input.

    Args:
        trace: a record.
        name: of the signal.
        gate: with its options, which say how D is taken; None for D as deployed.

    Raises:
        UsageError: the record does not hold it.
    """
    if name == "drop":
        wanted = drop_options(gate, trace.top_k)
        if wanted == recorded_options(trace):
            return trace.drop
        return drop_of(profile_of(trace, wanted), wanted)
    deployed = drop_options(None, trace.top_k)
    as_deployed = recorded_options(trace) == deployed
    if name in trace.signals and (as_deployed or name not in BINNED):
        return trace.signals[name]
    if name in _PROFILE_READINGS:
        return _PROFILE_READINGS[name](profile_of(trace, deployed))
    raise UsageError(
        f"the trace of {Sample.of(trace)} does not hold {name}; run again with signals=all."
    )


def profile_of(trace: Trace, options: DropOptions) -> Sequence[float]:
    """The agreement of each layer over the head pairs that the options choose.

    Raises:
        UsageError: the record holds neither it nor the pairs.
    """
    recorded = recorded_options(trace)
    if (options.head_pairs, options.seed) == (recorded.head_pairs, recorded.seed) or (
        options.head_pairs == recorded.head_pairs == 1
    ):
        return trace.agreement
    if trace.pair_agreement is None:
        raise UsageError(
            f"the trace of {Sample.of(trace)} does not hold the agreement of single head pairs; "
            f"run again with signals=pairs."
        )
    return list(mean_of_pairs(trace.pair_agreement, options).tolist())


@cache
def drop_options(gate: Gate | None, top_k: int) -> DropOptions:
    """How a gate takes D; as deployed unless it is `page` with options of its own."""
    return gate.drop_options(top_k) if isinstance(gate, Page) else DropOptions(top_k)


def recorded_options(trace: Trace) -> DropOptions:
    """How the D of a record was taken."""
    own = make_gate(trace.gate, trace.gate_args) if trace.gate == Page.name else None
    return drop_options(own, trace.top_k)
