"""The figures of a row and of its tasks, from a run's answers and those they compare with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.estimates import Kind, kept_kind
from page_bench.analysis.intervals import ClusterBootstrap, Estimate
from page_bench.analysis.partition import call_of
from page_bench.analysis.pools import rate
from page_bench.leaderboard.row import rounded
from page_bench.records.suites import split
from page_bench.records.trace import Trace
from page_bench.report.settings import RHO_THRESHOLD


@dataclass(frozen=True)
class Answers:
    """A suite's answers of one arm; the same inputs' under plain eviction and from the full cache.

    These two are None where not known; the full cache has no plain ones. `alone` says that `own`
    and `full` come from one device, so that their seconds can be compared.
    """

    own: Sequence[Trace]
    plain: Sequence[Trace] | None
    full: Sequence[Trace] | None
    alone: bool = False

    @property
    def gate(self) -> str:
        """Name of the gate."""
        return self.own[0].gate

    def of_task(self, task: str) -> Answers:
        """Those of one task, by lm-eval's name."""

        def some(traces: Sequence[Trace]) -> list[Trace]:
            return [trace for trace in traces if trace.task == task]

        plain, full = (one if one is None else some(one) for one in (self.plain, self.full))
        return Answers(some(self.own), plain, full, self.alone)


def row_figures(answers: Answers) -> dict[str, Any]:
    """The figures of a row; intervals are those of `analysis.estimates`."""
    own, full, plain = answers.own, answers.full, answers.plain
    names = [trace.task for trace in own]
    base = np.nan if plain is None or answers.gate == "open" else _of(plain, "correct")
    means = [_of(own, "score"), _of(own, "kept_kv"), _of(own, "correct") - base]
    boot = ClusterBootstrap(_documents(own))
    kinds: list[Kind] = ["share", kept_kind(answers.gate), "change"]
    score, kept, delta = boot.means(np.stack(means, -1), kinds)
    prompts = sorted((t.task, t.doc_id, t.repeat, t.prompt_sha256) for t in own)
    found: dict[str, Any] = {
        "n": len(own),
        "n_tasks": len(set(names)),
        "tasks": " ".join(sorted({split(name)[1] for name in names})),
        "inputs": hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:12],
        "tau": own[0].tau,
        "kv_bytes": _mean(own, "kv_bytes_kept"),
        "kv_bytes_full": _mean(own, "kv_bytes_full"),
        "compression": 1 / rounded(kept.value),
        **_spread("score", score),
        **_spread("kept_kv", kept),
        **_spread("delta", delta),
        **_shares(answers),
        "decode_speedup": _speedup(answers),
    }
    if full is not None:
        found |= {"full_score": _mean(full, "score"), "full_correct": _mean(full, "correct")}
    if plain is not None and full is not None:
        drop = _of(own, "drop")
        known = ~np.isnan(drop)
        if known.any():
            among = [trace for trace, is_in in zip(own, known, strict=True) if is_in]
            harmed = _of(plain, "correct") < _of(full, "correct")
            auc = ClusterBootstrap(_documents(among)).auc(drop[known], harmed[known])
            found |= _spread("auc_drop", auc)
    return found


def task_figures(answers: Answers) -> list[dict[str, Any]]:
    """The figures of each task, by name."""
    found = []
    for name in sorted({trace.task for trace in answers.own}):
        mine, task = answers.of_task(name), split(name)[1]
        row: dict[str, Any] = {
            "task": task,
            "n": len(mine.own),
            "score": _mean(mine.own, "score"),
            "kept_kv": _mean(mine.own, "kept_kv"),
            "drop": _mean([trace for trace in mine.own if not np.isnan(trace.drop)], "drop"),
            **_shares(mine),
        }
        if mine.full is not None:
            row["full_correct"] = _mean(mine.full, "correct")
        if mine.plain is not None and answers.gate != "open":
            row["delta"] = float(np.mean(_of(mine.own, "correct") - _of(mine.plain, "correct")))
        if mine.plain is not None and mine.full is not None and mine.own[0].budget < 1:
            plain, full = _of(mine.plain, "correct"), _of(mine.full, "correct")
            rho, always = (rate(f, _documents(mine.own)) for f in (plain > full, plain < full))
            row["class"] = call_of(rho, 1 - float(full.mean()), always, RHO_THRESHOLD).name
        found.append(row)
    return found


def _shares(answers: Answers) -> dict[str, Any]:
    """What is counted: right answers, open gates, harm and ρ."""
    own, full, plain = answers.own, answers.full, answers.plain
    documents, correct = _documents(own), _of(own, "correct")
    counted = {"correct": correct == 1, "open": _of(own, "gate_open") == 1}
    if full is not None and answers.gate != "closed":
        counted["harm"] = correct < _of(full, "correct")
        if plain is not None:
            counted["rho"] = _of(plain, "correct") > _of(full, "correct")
    found: dict[str, Any] = {}
    for name, flags in counted.items():
        found |= _spread(name, rate(flags, documents))
    return found


def _speedup(answers: Answers) -> float | None:
    """Seconds per token with the full cache over those here; None where others decoded along."""
    own, full = answers.own, answers.full
    if full is None or not answers.alone or answers.gate == "closed":
        return None
    if any(trace.decode_rows != 1 for trace in (*own, *full)):
        return None
    ours, theirs = _token_seconds(own), _token_seconds(full)
    return theirs / ours if ours and theirs else None


def _token_seconds(traces: Sequence[Trace]) -> float | None:
    tokens = sum(trace.new_tokens for trace in traces)
    seconds = sum(trace.decode_s for trace in traces)
    return seconds / tokens if tokens and np.isfinite(seconds) else None


def _documents(traces: Sequence[Trace]) -> list[tuple[str, int]]:
    return [(trace.task, trace.doc_id) for trace in traces]


def _of(traces: Sequence[Trace], name: str) -> NDArray[np.float64]:
    return np.array([getattr(trace, name) for trace in traces], dtype=np.float64)


def _mean(traces: Sequence[Trace], name: str) -> float:
    return float(np.mean(_of(traces, name))) if traces else float("nan")


def _spread(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
