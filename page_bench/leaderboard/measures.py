"""The figures of a row and of its tasks, from a run's answers and those they compare with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.costs import cost_columns
from page_bench.analysis.estimates import Kind, kept_kind
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate
from page_bench.analysis.partition import parts
from page_bench.analysis.pools import inputs, rate
from page_bench.leaderboard.row import Value, rounded
from page_bench.records.suites import split
from page_bench.records.trace import Trace
from page_bench.report.settings import RHO_THRESHOLD


@dataclass(frozen=True)
class Answers:
    """A suite's answers of one arm, and the same inputs' from others.

    Attributes:
        own: of the run.
        plain: under plain eviction by the same arm, input by input; None where not known, and for
            the full cache, which has none.
        full: from the full cache; None where not known.
        alone: whether seconds of `own` and `full` can be compared: one device.
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
        chosen = [i for i, trace in enumerate(self.own) if trace.task == task]

        def some(traces: Sequence[Trace] | None) -> list[Trace] | None:
            return None if traces is None else [traces[i] for i in chosen]

        return Answers([self.own[i] for i in chosen], some(self.plain), some(self.full), self.alone)


def row_figures(answers: Answers, draws: int = DRAWS, seed: int = SEED) -> dict[str, Value]:
    """The figures of a row.

    Args:
        answers: of its suite.
        draws, seed: of the bootstrap over documents; see `analysis.estimates`.
    """
    own, full, plain = answers.own, answers.full, answers.plain
    names = [trace.task for trace in own]
    base = np.nan if plain is None or answers.gate == "open" else _correct(plain)
    kept_kv = np.array([trace.kept_kv for trace in own])
    means = [_scores(own), kept_kv, _correct(own) - base]
    boot = ClusterBootstrap(_documents(own), draws, seed)
    kinds: list[Kind] = ["share", kept_kind(answers.gate), "change"]
    score, kept, delta = boot.means(np.stack(means, -1), kinds)
    found: dict[str, Value] = {
        "n": len(own),
        "n_tasks": len(set(names)),
        "tasks": " ".join(sorted({split(name)[1] for name in names})),
        "inputs": _inputs(own),
        "tau": own[0].tau,
        "kv_bytes": _mean([trace.kv_bytes_kept for trace in own]),
        "kv_bytes_full": _mean([trace.kv_bytes_full for trace in own]),
        "compression": 1 / rounded(kept.value),
        **_spread("score", score),
        **_spread("kept_kv", kept),
        **_spread("delta", delta),
        **_shares(answers),
        "decode_speedup": _speedup(answers),
    }
    if full is not None:
        found |= {"full_score": _mean(_scores(full)), "full_correct": _mean(_correct(full))}
    if plain is not None and full is not None:
        drop = np.array([trace.drop for trace in own])
        known = ~np.isnan(drop)
        if known.any():
            among = [trace for trace, is_in in zip(own, known, strict=True) if is_in]
            harmed = _correct(plain) < _correct(full)
            auc = ClusterBootstrap(_documents(among), draws, seed).auc(drop[known], harmed[known])
            found |= _spread("auc_drop", auc)
    return found


def _inputs(traces: Sequence[Trace]) -> str:
    """What tells a set of inputs from another of the same size."""
    own = sorted((t.task, t.doc_id, t.repeat, t.prompt_sha256) for t in traces)
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:12]


def task_figures(answers: Answers) -> list[dict[str, Value]]:
    """The figures of each task, by name."""
    classes = _classes(answers)
    found = []
    for name in sorted({trace.task for trace in answers.own}):
        mine, task = answers.of_task(name), split(name)[1]
        row: dict[str, Value] = {
            "task": task,
            "n": len(mine.own),
            "score": _mean(_scores(mine.own)),
            "kept_kv": _mean([trace.kept_kv for trace in mine.own]),
            "drop": _mean([trace.drop for trace in mine.own if not np.isnan(trace.drop)]),
            "class": classes.get(task),
            **_shares(mine),
        }
        if mine.full is not None:
            row["full_correct"] = _mean(_correct(mine.full))
        if mine.plain is not None and answers.gate != "open":
            row["delta"] = _mean(_correct(mine.own) - _correct(mine.plain))
        found.append(row)
    return found


def _shares(answers: Answers) -> dict[str, Value]:
    """What is counted: right answers, open gates, harm and ρ."""
    own, full, plain = answers.own, answers.full, answers.plain
    documents = _documents(own)
    found = {
        **_spread("correct", rate(_correct(own) == 1, documents)),
        **_spread("open", rate([trace.gate_open for trace in own], documents)),
    }
    if full is not None and answers.gate != "closed":
        found |= _spread("harm", rate(_correct(own) < _correct(full), documents))
        if plain is not None:
            found |= _spread("rho", rate(_correct(plain) > _correct(full), documents))
    return found


def _classes(answers: Answers) -> dict[str, str]:
    """The class of each task at the row's budget; none where plain or full answers are missing."""
    cell = _cell(answers)
    if cell is None:
        return {}
    return {
        part.task: part.call.name
        for part in parts([inputs(cell)], RHO_THRESHOLD)
        if part.call is not None
    }


def _cell(answers: Answers) -> Cell | None:
    own, plain, full = answers.own, answers.plain, answers.full
    if plain is None or full is None or own[0].budget >= 1:
        return None
    rows = pd.DataFrame(
        {
            "task": [split(trace.task)[1] for trace in own],
            "doc_id": [trace.doc_id for trace in own],
            "repeat": [trace.repeat for trace in own],
            "input": range(len(own)),
            "budget": [trace.budget for trace in own],
            "prompt_tokens": [trace.prompt_tokens for trace in own],
            "drop": [trace.drop for trace in own],
            "open": [trace.gate_open for trace in own],
            "plain": _correct(plain),
            "full": _correct(full),
            "plain_score": _scores(plain),
            "full_score": _scores(full),
            **cost_columns(plain, full),
        }
    )
    first = own[0]
    suite = split(first.task)[0]
    return Cell(
        first.model, suite, first.evictor, first.gate, first.tau, None, "correct", rows, None
    )


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


def _correct(traces: Sequence[Trace]) -> NDArray[np.float64]:
    return np.array([trace.correct for trace in traces], dtype=np.float64)


def _scores(traces: Sequence[Trace]) -> NDArray[np.float64]:
    return np.array([trace.score for trace in traces], dtype=np.float64)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _spread(name: str, estimate: Estimate) -> dict[str, Value]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
