"""The table of a run's samples in W&B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from page_bench.records.trace import Trace

COLUMNS = (
    *("task", "doc_id", "repeat", "drop", "z", "tau", "gate_open"),
    *("kept_kv", "kept_tokens", "kv_bytes_kept", "kv_bytes_full", "kept_all_because"),
    *("score", "correct", "correct_paper", "prompt_tokens", "new_tokens", "cut"),
    *("prefill_s", "gate_s", "evict_s", "decode_s", "answer"),
)
"""Fields of `Trace`; bytes and seconds as their names say, `drop` is D."""


def rows_of(traces: Sequence[Trace]) -> list[list[Any]]:
    """One row per sample, in the order of `COLUMNS`."""
    return [[getattr(trace, name) for name in COLUMNS] for trace in traces]
