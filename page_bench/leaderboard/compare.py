"""Our numbers beside the PAGE paper's, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from page_bench.analysis.delta import survivors
from page_bench.analysis.estimates import Kind, kept_kind
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate, share
from page_bench.gating.rules import CAPACITY_BOUND
from page_bench.leaderboard.counterpart import Cells
from page_bench.leaderboard.difference import DIFFERS, Difference, of_means, of_shares
from page_bench.leaderboard.published import Published

MARGIN = 0.1
"""Differences of shares up to this count as none."""
DROP_MARGIN = 0.01
"""The same for mean D; other hardware alone shifts it by 0.0035."""

_METRICS = ("accuracy", "delta", "kept_kv", "drop", "rho", "harm", "open")


@dataclass(frozen=True)
class Comparison:
    """One reported number, ours of the same tasks, budgets, gate and τ, and ours − theirs."""

    published: Published
    ours: Estimate
    difference: Difference
    verdict: str


@dataclass(frozen=True)
class Uncompared:
    """One reported number for which there is none of ours, and a phrase that says why."""

    published: Published
    reason: str


class _NoCounterpart(Exception):
    """Why a number of ours cannot be made."""


def compare(
    cells: Cells,
    published: Sequence[Published],
    margin: float = MARGIN,
    draws: int = DRAWS,
    seed: int = SEED,
) -> tuple[list[Comparison], list[Uncompared]]:
    """Every reported number, with ours where we have measured the same.

    The gate is decided anew, from D at the τ of each number: a gated answer is, input by input,
    the plain or the full one (paper, appendix F). Both sides count as independent samples. They
    read the same rows where the data is the same, so real differences are, if anything, smaller
    than the intervals say. Ours are the estimates of `analysis.estimates`, the paper's own: inputs
    are resampled all tasks together. Without an interval of ours nothing is compared.

    Args:
        margin: see `Difference.verdict`; for D it is `DROP_MARGIN`.
        draws, seed: of the bootstrap.
    """
    compared: list[Comparison] = []
    left: list[Uncompared] = []
    for row in published:
        try:
            ours, successes = _measure(_rows(row, cells), row, draws, seed)
        except _NoCounterpart as reason:
            left.append(Uncompared(row, str(reason)))
            continue
        if successes is not None and row.n:
            gap = of_shares(successes, ours.n, round(row.value * row.n), row.n)
        else:
            gap = of_means(ours, row.value, row.low, row.high, row.n)
        verdict = gap.verdict(DROP_MARGIN if row.metric == "drop" else margin)
        compared.append(Comparison(row, ours, gap, verdict))
    return compared, left


def false_discoveries(compared: Sequence[Comparison]) -> tuple[float, int]:
    """How many cells would differ at 5 % by chance, and do at Benjamini and Hochberg's 5 %."""
    return 0.05 * len(compared), sum(survivors([c.difference.p for c in compared], 0.05))


def differing(compared: Sequence[Comparison]) -> list[Comparison]:
    """The cells that differ, the largest difference first."""
    found = [c for c in compared if c.verdict == DIFFERS]
    return sorted(found, key=lambda c: -abs(c.difference.value))


def _rows(row: Published, cells: Cells) -> pd.DataFrame:
    """A cell's rows that the number is about; one per input where no budget matters."""
    if row.setting:
        raise _NoCounterpart(f"belongs to a setting of its own ({row.setting})")
    if row.metric not in _METRICS:
        raise _NoCounterpart(f"{row.metric} follows from other numbers, or is not taken here")
    if row.gate.split("-")[0] == "page" and row.threshold is None:
        rule = f"τ by the rule {row.tau}, over a pilot that is not listed" if row.tau else "no τ"
        raise _NoCounterpart(rule)
    if row.budgets is None:
        raise _NoCounterpart("over budgets that the source does not list")
    here = {key[2]: own for key, own in cells.items() if key[:2] == (row.model, row.context)}
    if not here:
        raise _NoCounterpart(f"no run of {row.model} at {row.context}")
    tasks = set(row.tasks)
    if row.evictor:
        rows = here.get(f"{row.evictor} {row.granularity}")
    else:
        rows = max(here.values(), key=lambda own: len(tasks & {*own["task"]}))
    if rows is None:
        raise _NoCounterpart(f"no run of evictor={row.evictor} granularity={row.granularity}")
    known = {*rows["task"]}
    missing = [task for task in row.tasks if task not in known]
    if missing or not tasks:
        raise _NoCounterpart(f"no run of {', '.join(missing) or 'its tasks'}")
    rows = rows[rows["task"].isin(tasks)]
    if not row.budgets or row.budgets == (1.0,):
        rows = rows.drop_duplicates("input")
    else:
        is_at = np.isclose(rows["budget"].to_numpy()[:, None], row.budgets)
        n = rows["input"].nunique()
        for budget, column in zip(row.budgets, is_at.T, strict=True):
            if rows["input"][column].nunique() < n:
                what = "not all inputs" if column.any() else "no run"
                raise _NoCounterpart(f"{what} at budget {budget:g}")
        rows = rows[is_at.any(axis=1)]
    counts = rows.groupby("task")["input"].nunique()
    if counts.nunique() > 1:
        raise _NoCounterpart("unequal numbers of inputs per task")
    if counts.sum() < 2:
        raise _NoCounterpart("fewer than two inputs")
    return rows


def _measure(
    rows: pd.DataFrame, row: Published, draws: int, seed: int
) -> tuple[Estimate, int | None]:
    """Our number, and how many inputs it counts if it is a share of them."""
    drop, plain, full = (rows[name].to_numpy() for name in ("drop", "plain", "full"))
    inputs = rows["input"].to_numpy()

    def counted(flags: NDArray[np.bool_]) -> tuple[Estimate, int]:
        return share(int(flags.sum()), len(flags)), int(flags.sum())

    def mean(values: ArrayLike, kind: Kind) -> tuple[Estimate, None]:
        found = ClusterBootstrap(inputs.tolist(), draws, seed).mean(values, kind)
        if not found.has_interval:
            raise _NoCounterpart(f"{found.method} for an interval of ours, {found.n} inputs")
        return found, None

    def opens(gate: str) -> NDArray[np.bool_]:
        """Where a gate gives the plain answer."""
        if gate == "page":
            return np.asarray(drop >= row.threshold)
        if gate == "task_oracle":
            return (rows["task"] != CAPACITY_BOUND).to_numpy()
        return np.full(len(rows), gate == "open")

    def answers(gate: str) -> NDArray[np.float64]:
        if gate == "oracle":
            return np.maximum(plain, full)
        return np.where(opens(gate), plain, full)

    gate, *other = row.gate.split("-")
    if row.metric == "drop":
        return mean(drop, "change")
    if row.metric == "open":
        return counted(drop >= (row.threshold or 0.0))
    if row.metric == "kept_kv":
        return mean(np.where(opens(gate), rows["plain_kept"], rows["full_kept"]), kept_kind(gate))
    if row.metric == "delta":
        return mean(answers(gate) - answers(other[0]), "change")
    if row.metric == "rho":
        recovers = pd.Series((answers(gate) > 0) & (full == 0)).groupby(inputs).any()
        return counted(recovers.to_numpy())
    right = answers(gate)
    values = right if row.metric == "accuracy" else ((full > 0) & (right == 0)) * 1.0
    return counted(values > 0) if len(inputs) == len(set(inputs)) else mean(values, "share")
