"""Traces as finished runs leave them, without a run."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from page_bench.analysis.pairs import Pair, pair_runs
from page_bench.records.finished_runs import Record, Sample
from page_bench.records.trace import Trace

_PLACEHOLDERS: dict[str, Any] = {
    "str": "x",
    "int": 1,
    "float": 0.5,
    "bool": True,
    "list[float]": [0.5],
    "list[int]": [0, 1, 2],
}
_USUAL: dict[str, Any] = {
    "model": "tiny",
    "dtype": "float32",
    "attn_implementation": "sdpa",
    "compress": "prompt",
    "evictor": "snapkv",
    "granularity": "shared",
    "score_norm": "none",
    "budget": 0.25,
    "window": 32,
    "top_k": 32,
    "repeat": 0,
    "discarded_s": 0.0,
    "prompt_tokens": 100,
    "agreement": [0.6, 0.5, 0.4],
}


def stored(
    task: str = "vt",
    doc_id: int = 0,
    *,
    gate: str = "open",
    drop: float = 0.2,
    correct: float | None = 1.0,
    kept_kv: float | None = None,
    gate_open: bool | None = None,
    **changes: Any,
) -> Trace:
    """The record of one input; of a gate that opened unless it is `closed`.

    Args:
        task, doc_id: the sample; its prompt differs from all others'.
        gate, drop, correct: as in `Trace`; `score` and `correct_paper` are the same number.
        kept_kv: default 0.25 where the gate opened.
        gate_open: default `gate != "closed"`.
        changes: other fields.
    """
    opened = gate != "closed" if gate_open is None else gate_open
    values = {
        field.name: None
        if str(field.type).endswith("| None")
        else _PLACEHOLDERS.get(str(field.type), {})
        for field in dataclasses.fields(Trace)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    values |= _USUAL
    values |= {
        "task": task,
        "doc_id": doc_id,
        "prompt_sha256": hashlib.sha256(f"{task}/{doc_id}".encode()).hexdigest(),
        "gate": gate,
        "gate_open": opened,
        "drop": drop,
        "kept_kv": (0.25 if opened else 1.0) if kept_kv is None else kept_kv,
        "kept_all_because": None if opened else "gate closed",
        "answer": f"{task} {doc_id} {opened}",
        "score": correct,
        "correct": correct,
        "correct_paper": correct,
    }
    return Trace(**{**values, **changes})


def pair(task: str, doc_id: int, drop: float, plain: float, full: float, **changes: Any) -> Pair:
    """One input with the metric of its plain and of its full answer."""
    one = stored(task, doc_id, drop=drop, correct=plain, **changes)
    other = stored(task, doc_id, drop=drop, correct=full, gate="closed", **changes)
    return Pair(Sample.of(one), one, other)


def records(*traces: Trace) -> list[Record]:
    """Traces as if they stood in one file."""
    return [Record(trace, Path("trace_1.jsonl"), i) for i, trace in enumerate(traces, start=1)]


def paired(*traces: Trace) -> list[Pair]:
    """The pairs of traces of one arm."""
    (pairs,) = pair_runs(records(*traces))[0].values()
    return pairs
