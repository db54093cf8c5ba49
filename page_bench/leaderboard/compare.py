"""Our numbers beside the PAGE paper's, cell by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import survivors
from page_bench.analysis.estimates import Kind, kept_kind
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate, share
from page_bench.gating.rules import CAPACITY_BOUND
from page_bench.leaderboard.difference import DIFFERS, Difference, of_means, of_shares
from page_bench.leaderboard.published import Published

MARGIN = 0.1
"""Differences of shares up to this count as none."""
DROP_MARGIN = 0.01
"""The same for mean D; other hardware alone shifts it by 0.0035."""

_SHARES = ("rho", "harm", "open")


@dataclass(frozen=True)
class Comparison:
    """One reported number and ours.

    Attributes:
        published: theirs.
        ours: of the same tasks, budgets, gate and τ.
        difference: ours − theirs.
        verdict: one of `difference.VERDICTS`.
    """

    published: Published
    ours: Estimate
    difference: Difference
    verdict: str


@dataclass(frozen=True)
class Uncompared:
    """One reported number for which there is none of ours.

    Attributes:
        published: theirs.
        reason: a phrase.
    """

    published: Published
    reason: str


class _NoCounterpart(Exception):
    """Why a number of ours cannot be made."""


def compare(
    cells: Sequence[Cell],
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
        cells: in the paper's names, see `counterparts`.
        published: the numbers.
        margin: see `Difference.verdict`; for D it is `DROP_MARGIN`.
        draws, seed: of the bootstrap.
    """
    compared: list[Comparison] = []
    left: list[Uncompared] = []
    for row in published:
        try:
            ours, successes = _measure(_cell_of(row, cells), row, draws, seed)
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


def false_discoveries(compared: Sequence[Comparison], q: float = 0.05) -> tuple[float, int]:
    """How many of the cells would differ by chance alone, and how many do beyond that.

    Args:
        compared: cells.
        q: level, and the false discovery rate of Benjamini and Hochberg.
    """
    return q * len(compared), sum(survivors([c.difference.p for c in compared], q))


def verdicts(compared: Sequence[Comparison]) -> Counter[str]:
    """How many cells got each verdict."""
    return Counter(comparison.verdict for comparison in compared)


def differing(compared: Sequence[Comparison]) -> list[Comparison]:
    """The cells that differ, the largest difference first."""
    found = [c for c in compared if c.verdict == DIFFERS]
    return sorted(found, key=lambda c: -abs(c.difference.value))


def _cell_of(row: Published, cells: Sequence[Cell]) -> Cell:
    """The cell that the number is about."""
    if row.setting:
        raise _NoCounterpart(f"belongs to a setting of its own ({row.setting})")
    if row.metric not in ("accuracy", "delta", "kept_kv", "drop", *_SHARES):
        raise _NoCounterpart(f"{row.metric} follows from other numbers, or is not taken here")
    if row.gate.split("-")[0] == "page" and row.threshold is None:
        rule = f"τ by the rule {row.tau}, over a pilot that is not listed" if row.tau else "no τ"
        raise _NoCounterpart(rule)
    if row.budgets is None:
        raise _NoCounterpart("over budgets that the source does not list")
    here = [c for c in cells if c.model == row.model and c.suite == row.context]
    if not here:
        raise _NoCounterpart(f"no run of {row.model} at {row.context}")
    if not row.evictor:
        return max(here, key=lambda c: len(set(row.tasks) & set(c.tasks)))
    same = [c for c in here if c.evictor == f"{row.evictor} {row.granularity}"]
    if not same:
        raise _NoCounterpart(f"no run of evictor={row.evictor} granularity={row.granularity}")
    return same[0]


def _measure(cell: Cell, row: Published, draws: int, seed: int) -> tuple[Estimate, int | None]:
    """Our number, and how many inputs it counts if it is a share of them."""
    rows = _rows(cell, row)
    if row.metric == "drop":
        return _mean(rows, rows["drop"], draws, seed, "change"), None
    if row.metric == "open":
        return _share(rows["drop"].to_numpy() >= (row.threshold or 0.0))
    gates = row.gate.split("-")
    if row.metric == "kept_kv":
        opened = _opens(rows, gates[0], row.threshold)
        kept = np.where(opened, rows["plain_kept"], rows["full_kept"])
        return _mean(rows, kept, draws, seed, kept_kind(gates[0])), None
    answers = [_answers(rows, gate, row.threshold) for gate in gates]
    if row.metric == "delta":
        return _mean(rows, answers[0] - answers[1], draws, seed, "change"), None
    full = rows["full"].to_numpy()
    inputs = rows["input"].to_numpy()
    if row.metric == "rho":
        recovers = pd.Series((answers[0] > 0) & (full == 0)).groupby(inputs).any()
        return _share(recovers.to_numpy())
    values = answers[0] if row.metric == "accuracy" else ((full > 0) & (answers[0] == 0)) * 1.0
    if len(inputs) == len(set(inputs)):
        return _share(values > 0)
    return _mean(rows, values, draws, seed, "share"), None


def _rows(cell: Cell, row: Published) -> pd.DataFrame:
    """The cell's rows that the number is about; one per input where no budget matters."""
    rows = cell.rows
    tasks = list(row.tasks)
    missing = [task for task in tasks if task not in cell.tasks]
    if missing or not tasks:
        raise _NoCounterpart(f"no run of {', '.join(missing) or 'its tasks'}")
    rows = rows[rows["task"].isin(tasks)]
    budgets = row.budgets
    if not budgets or budgets == (1.0,):
        rows = rows.drop_duplicates("input")
        budgets = ()
    for budget in budgets:
        there = rows[np.isclose(rows["budget"], budget)]
        if set(there["input"]) != set(rows["input"]):
            what = "no run" if there.empty else "not all inputs"
            raise _NoCounterpart(f"{what} at budget {budget:g}")
    if budgets:
        rows = rows[np.isclose(rows["budget"].to_numpy()[:, None], budgets).any(axis=1)]
    counts = rows.groupby("task")["input"].nunique()
    if counts.nunique() > 1:
        raise _NoCounterpart("unequal numbers of inputs per task")
    if counts.sum() < 2:
        raise _NoCounterpart("fewer than two inputs")
    return rows


def _opens(rows: pd.DataFrame, gate: str, tau: float | None) -> NDArray[np.bool_]:
    """Where a gate gives the plain answer."""
    if gate == "page":
        assert tau is not None
        return rows["drop"].to_numpy() >= tau
    if gate == "task_oracle":
        return (rows["task"] != CAPACITY_BOUND).to_numpy()
    return np.full(len(rows), gate == "open")


def _answers(rows: pd.DataFrame, gate: str, tau: float | None) -> NDArray[np.float64]:
    """0 or 1 under a gate."""
    plain, full = rows["plain"].to_numpy(), rows["full"].to_numpy()
    if gate == "oracle":
        return np.maximum(plain, full)
    return np.where(_opens(rows, gate, tau), plain, full)


def _share(flags: NDArray[np.bool_]) -> tuple[Estimate, int]:
    return share(int(flags.sum()), len(flags)), int(flags.sum())


def _mean(rows: pd.DataFrame, values: object, draws: int, seed: int, kind: Kind) -> Estimate:
    found = ClusterBootstrap(rows["input"].tolist(), draws, seed).mean(np.asarray(values), kind)
    if not found.has_interval:
        raise _NoCounterpart(f"{found.method} for an interval of ours, {found.n} inputs")
    return found
