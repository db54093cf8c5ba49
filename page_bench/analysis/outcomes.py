"""What a gate's decisions come to, per task and overall, each number with n and interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.costs import seconds_of
from page_bench.analysis.estimates import kept_kind
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate
from page_bench.analysis.pairs import Pair
from page_bench.gating.gate import Gate
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Trace

METRICS = ("correct", "score", "correct_paper")
ALL_TASKS = "all"


@dataclass(frozen=True)
class Outcomes:
    """Pairs as columns; one row per pair.

    Attributes:
        metric: what `plain` and `full` hold, one of `METRICS`.
        clusters: (model, task, doc_id), the unit that is resampled.
        tasks: names.
        plain, full: the metric of both answers.
        plain_kept, full_kept: kept_kv of both.
        evicted: bool, whether anything was evicted for the plain answer.
    """

    metric: str
    clusters: list[tuple[str, str, int]]
    tasks: NDArray[np.str_]
    plain: NDArray[np.float64]
    full: NDArray[np.float64]
    plain_kept: NDArray[np.float64]
    full_kept: NDArray[np.float64]
    evicted: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: Sequence[Pair], metric: str = "correct") -> Outcomes:
        """The columns of some pairs.

        Raises:
            UsageError: an answer has no such score.
        """
        return cls(
            metric,
            [(pair.plain.model, pair.sample.task, pair.sample.doc_id) for pair in pairs],
            np.array([pair.sample.task for pair in pairs], dtype=np.str_),
            np.array([metric_of(pair.plain, metric) for pair in pairs]),
            np.array([metric_of(pair.full, metric) for pair in pairs]),
            np.array([pair.plain.kept_kv for pair in pairs]),
            np.array([pair.full.kept_kv for pair in pairs]),
            np.array([pair.plain.kept_all_because is None for pair in pairs], dtype=bool),
        )

    @classmethod
    def of_cell(cls, cell: Cell) -> Outcomes:
        """The columns of a cell at its budgets below 1."""
        rows = cell.evicted
        places = zip(rows["task"], rows["doc_id"], strict=True)
        plain, full, plain_kept, full_kept = (
            rows[name].to_numpy(dtype=np.float64)
            for name in ("plain", "full", "plain_kept", "full_kept")
        )
        return cls(
            cell.metric,
            [(cell.model, str(task), int(doc_id)) for task, doc_id in places],
            rows["task"].to_numpy(dtype=np.str_),
            plain,
            full,
            plain_kept,
            full_kept,
            plain_kept < full_kept,
        )

    @property
    def harmed(self) -> NDArray[np.bool_]:
        """Where eviction costs something: right with the full cache and wrong without."""
        return self.plain < self.full

    def bootstrap(self, draws: int = DRAWS, seed: int = SEED) -> ClusterBootstrap:
        """Resamples of the clusters."""
        return ClusterBootstrap(self.clusters, draws, seed)


@dataclass(frozen=True)
class Row:
    """Outcome of a gate on the inputs of a task, or of all.

    Attributes:
        task: its name, or `ALL_TASKS`.
        n: pairs.
        inputs: distinct inputs among them; fewer than n where budgets or repeats are pooled.
        open: share that takes the plain answer.
        evicted: share of which something was evicted; below `open` where budgets kept all.
        gated, plain, full: mean of the metric under the gate, without gate, with the full cache.
        scores: mean under the gate of every metric that all records hold.
        delta: gated − plain, input by input.
        kept_kv: mean kept share of the cache under the gate.
        seconds: mean time per input under the gate, see `costs.seconds_of`; NaN for no gate.
        harm, plain_harm: share right with the full cache and wrong under the gate, or without one;
            for a score that is no 0/1, share that scores less.
    """

    task: str
    n: int
    inputs: int
    open: Estimate
    evicted: Estimate
    gated: Estimate
    plain: Estimate
    full: Estimate
    scores: dict[str, Estimate]
    delta: Estimate
    kept_kv: Estimate
    seconds: Estimate
    harm: Estimate
    plain_harm: Estimate


def summarise(
    pairs: Sequence[Pair],
    takes_plain: Sequence[bool],
    metric: str = "correct",
    draws: int = DRAWS,
    seed: int = SEED,
    gate: Gate | None = None,
) -> list[Row]:
    """One row per task and, if there are several, one for all inputs.

    Args:
        pairs: inputs, of several budgets if need be.
        takes_plain: the gate's decisions on them (see `regate.decide`).
        metric: one of `METRICS`.
        draws, seed: of the bootstrap.
        gate: which gate these are decisions of, for its cost in seconds; None leaves that out.
    """
    tasks = sorted({pair.sample.task for pair in pairs})
    names = tasks if len(tasks) == 1 else [*tasks, ALL_TASKS]
    rows = []
    for name in names:
        mine = [i for i, pair in enumerate(pairs) if name in (pair.sample.task, ALL_TASKS)]
        own, opened = [pairs[i] for i in mine], [takes_plain[i] for i in mine]
        rows.append(_row(name, own, np.array(opened, dtype=bool), metric, draws, seed, gate))
    return rows


def metric_of(trace: Trace, metric: str) -> float:
    """A score of a record.

    Raises:
        UsageError: it has none.
    """
    value: float | None = getattr(trace, metric)
    if value is None or np.isnan(value):
        held = [name for name in METRICS if getattr(trace, name) is not None]
        use = f"use --metric {held[0]}" if held else "run a task that scores its answers"
        raise UsageError(f"{trace.task} document {trace.doc_id} has no {metric}; {use}.")
    return value


def _row(
    task: str,
    pairs: Sequence[Pair],
    opened: NDArray[np.bool_],
    metric: str,
    draws: int,
    seed: int,
    gate: Gate | None,
) -> Row:
    columns = Outcomes.of(pairs, metric)
    boot = columns.bootstrap(draws, seed)
    gated = _gated(columns, opened)
    kept = np.where(opened, columns.plain_kept, columns.full_kept)
    others = [name for name in METRICS if name != metric and _all_have(pairs, name)]
    under_gate = [_gated(Outcomes.of(pairs, name), opened) for name in others]
    scores = np.stack([gated, columns.plain, columns.full, *under_gate], -1)
    means = boot.means(scores, "share")
    took = [
        np.nan if gate is None else seconds_of(pair, bool(plain), gate)
        for pair, plain in zip(pairs, opened, strict=True)
    ]
    rest = np.stack([gated - columns.plain, kept, took], -1)
    delta, kept_kv, seconds = boot.means(
        rest, ["change", kept_kind(gate.name if gate else ""), "free"]
    )
    flags = np.stack(
        [opened, opened & columns.evicted, opened & columns.harmed, columns.harmed], -1
    )
    opens, evicted, harm, plain_harm = boot.ratios(flags, np.ones_like(opened))
    return Row(
        task=task,
        n=len(opened),
        inputs=boot.n,
        open=opens,
        evicted=evicted,
        gated=means[0],
        plain=means[1],
        full=means[2],
        scores={metric: means[0], **dict(zip(others, means[3:], strict=True))},
        delta=delta,
        kept_kv=kept_kv,
        seconds=seconds,
        harm=harm,
        plain_harm=plain_harm,
    )


def _gated(columns: Outcomes, opened: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(opened, columns.plain, columns.full)


def _all_have(pairs: Sequence[Pair], metric: str) -> bool:
    return all(getattr(trace, metric) is not None for p in pairs for trace in (p.plain, p.full))
