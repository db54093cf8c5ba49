"""Sentences that belong to re-gated numbers: what they hide, and what was asked for in vain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from page_bench.analysis.estimates import FEW
from page_bench.analysis.outcomes import Row
from page_bench.analysis.pairs import Family
from page_bench.analysis.regate import LIVE_METRIC, OWN_PILOT
from page_bench.analysis.report import Budget
from page_bench.analysis.tau_sweep import AROUND, PLATEAU, Sweep, within
from page_bench.gating.gate import Gate
from page_bench.gating.gates import Oracle, TaskOracle
from page_bench.gating.threshold import SMALL_PILOT, Threshold


def gate_notes(gate: Gate, metric: str, tasks: Iterable[str]) -> list[str]:
    """Where a gate decides otherwise than asked, or than an actual run would.

    Args:
        gate: the gate.
        metric: what it is judged by.
        tasks: of the runs.
    """
    notes = []
    if isinstance(gate, TaskOracle):
        notes += unknown_tasks("gate.closed", gate.closed, tasks)
    if isinstance(gate, Oracle) and metric != LIVE_METRIC:
        notes.append(
            f"gate=oracle compares {metric} here and {LIVE_METRIC} in an actual run; --metric "
            f"{LIVE_METRIC} gives that run's decisions."
        )
    return notes


def unknown_tasks(option: str, patterns: str, tasks: Iterable[str]) -> list[str]:
    """Names or patterns that no task has."""
    return [
        f"{option}={name} is no task of these runs." for name in TaskOracle(patterns).unused(tasks)
    ]


def family_notes(family: Family, pilot: str | None) -> list[str]:
    """What the budgets of a family share and do not share.

    Args:
        family: arms that differ in their budget.
        pilot: see `regate.pilot_of`.
    """
    notes = []
    inputs = {budget: {p.sample for p in own} for budget, own in family.budgets.items()}
    if pilot == OWN_PILOT and len({frozenset(own) for own in inputs.values()}) > 1:
        sizes = ", ".join(f"{len(own)} at {budget:g}" for budget, own in inputs.items())
        notes.append(
            f"{family.label}: its budgets hold different inputs ({sizes}) and share one τ, "
            f"measured on all of them; a run at one budget measures its own: regate budgets apart."
        )
    if len(family.pooled) < len(family.budgets):
        notes.append(
            f"{family.label}: budget=1 evicts nothing, so what is pooled over budgets is without "
            f"it, as in the paper."
        )
    return notes


def extremes(label: str, rows: Mapping[Budget, Sequence[Row]]) -> list[str]:
    """Sentences where a gate decides nothing, or the budget evicts nothing."""
    notes = []
    for budget, own in rows.items():
        row, where = own[-1], f"{label} budget={budget}"
        if row.open.value == 0:
            notes.append(f"{where}: the gate never opens, so Δ is the full cache's.")
        elif row.open.value == 1:
            notes.append(f"{where}: the gate always opens, so every answer is the plain one.")
        kept = round((row.open.value - row.evicted.value) * row.n)
        if kept:
            notes.append(f"{where}: on {kept} of the {row.n} inputs the budget kept everything.")
    return notes


def plateau_notes(sweep: Sweep) -> list[str]:
    """What the plateaus are, and what they hide."""
    if sweep.plateau is None:
        return [*_around_notes(sweep), f"no plateau: the best Δ has no interval ({FEW})."]
    low, high = sweep.plateau
    inside = [point for point in sweep.points if within(point.tau, sweep.plateau)]
    opens = [point.open.value for point in inside]
    kept = [point.kept_kv.value for point in inside]
    notes = [
        f"plateau [{low:.4f}, {high:.4f}]: the {PLATEAU}; there the open rate is "
        f"{min(opens):.2f} to {max(opens):.2f} and kept KV {min(kept):.2f} to {max(kept):.2f}."
    ]
    if min(opens) == 0:
        notes.append(
            "the plateau reaches a gate that never opens: Δ alone rewards the full cache, so read "
            "it with kept KV and the false rates."
        )
    return [*notes, *_around_notes(sweep)]


def _around_notes(sweep: Sweep) -> list[str]:
    """The paper's plateau around τ, or why there is none."""
    first = sweep.points[0]
    empty = [
        name
        for name, rate in zip(("positive", "negative"), first.errors, strict=True)
        if rate.n == 0
    ]
    if empty:
        said = " or ".join(empty)
        return [f"no input can be a false {said}, so nothing can be said of the {AROUND}."]
    if sweep.around is None:
        return [f"τ={sweep.tau:.4f} lies on no plateau in the sense of the {AROUND}."]
    classes = "by task" if first.by_task else "by outcome, not by task"
    ends = f"[{sweep.around[0]:.4f}, {sweep.around[1]:.4f}]"
    return [f"around τ {ends}: the {AROUND}; classes here are {classes}."]


def k_notes(label: str, points: Sequence[tuple[int, Threshold | None, Row]]) -> list[str]:
    """Warnings of the trap: a τ that k has moved D away from."""
    notes = [
        f"{label} top_k={k}: the gate never opens, so its Δ is the full cache's and no merit of "
        f"this top_k."
        for k, _, row in points
        if row.open.value == 0
    ]
    taus = {threshold.tau for _, threshold, _ in points if threshold is not None}
    if len(taus) == 1:
        notes.append(
            f"{label}: one τ for all top_k, but the scale of D moves with it, so compare at "
            f"tau=zscore or tau=quantile as well."
        )
    return notes


def class_notes(label: str, tasks: Mapping[str, bool], n_harmed: int, closed: str) -> list[str]:
    """Sentences where a class is empty or small.

    Args:
        label: of the arm.
        tasks: by name, whether it is to stay closed.
        n_harmed: inputs that are right with the full cache and wrong plain.
        closed: the names that were asked for.
    """
    notes = []
    if not any(tasks.values()):
        notes.append(f"{label}: no task is {closed}; give --capacity_bound one of these runs.")
    elif all(tasks.values()):
        notes.append(f"{label}: every task is {closed}, so there is no other to compare with.")
    if n_harmed == 0:
        notes.append(f"{label}: no input is right with the full cache and wrong plain: no AUC.")
    elif n_harmed < SMALL_PILOT:
        notes.append(f"{label}: {n_harmed} inputs are harmed; an AUC from so few says little.")
    return notes
