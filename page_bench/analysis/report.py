"""Re-gated outcomes in tables, notes and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from page_bench.analysis.ablation import Contrast, PairDraws
from page_bench.analysis.outcomes import Row
from page_bench.analysis.tau_sweep import AROUND, PLATEAU, Sweep
from page_bench.gating.gate import Gate
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.gating.threshold import SMALL_PILOT, Threshold

Budget = float | str
TABLE_POINTS = 25
"""Rows of a sweep's printed table; the figure and the JSON have them all."""


def legend(metric: str, draws: int, seed: int) -> list[str]:
    """What the numbers are."""
    return [
        f"Means of {metric}; Δ is gated − plain, input by input; harm is the share right with the",
        "full cache and wrong under the gate, harm plain the same without a gate. Intervals, 95 %:",
        f"Wilson for shares of distinct inputs, else percentiles of {draws} resamples of",
        f"(task, doc_id), seed {seed}; of equal values these have no width, which is no certainty.",
    ]


def describe(gate: Gate, threshold: Threshold | None) -> str:
    """Gate and τ, and which labels they need."""
    changed = [
        f"{f.name}={getattr(gate, f.name)}"
        for f in dataclasses.fields(gate)
        if getattr(gate, f.name) != f.default
    ]
    words = [f"gate {gate.name}", *changed]
    labels = f"labels {gate.labels}"
    if threshold is None:
        return f"{' '.join(words)}; {labels}"
    origin = threshold.rule
    if threshold.pilot_n:
        origin += f", pilot n={threshold.pilot_n}"
        if threshold.interval is not None:
            origin += f", 95 % [{threshold.interval[0]:.4f}, {threshold.interval[1]:.4f}]"
    needs = LABEL_NEEDS[threshold.rule]
    return (
        f"{' '.join(words)}, τ={threshold.tau:.4f} on {threshold.signal} ({origin}); {labels}, "
        f"for τ {needs}"
    )


def outcome_table(rows: Mapping[Budget, Sequence[Row]]) -> list[str]:
    """One line per budget and task."""
    first = next(iter(rows.values()))[0]
    every = [row for own in rows.values() for row in own]
    # A column that repeats another says nothing.
    others = [
        name
        for name in list(first.scores)[1:]
        if all(name in r.scores for r in every) and any(r.scores[name] != r.gated for r in every)
    ]
    header = ["budget", "task", "n", "inputs", "open", "gated", "plain", "full", "Δ", "kept KV"]
    header += ["harm", "harm plain", *others]
    lines = [
        [
            f"{budget:g}" if isinstance(budget, float) else budget,
            row.task,
            str(row.n),
            str(row.inputs),
            *map(str, (row.open, row.gated, row.plain, row.full, row.delta, row.kept_kv)),
            *map(str, (row.harm, row.plain_harm)),
            *(str(row.scores[name]) for name in others),
        ]
        for budget, own in rows.items()
        for row in own
    ]
    return table([header, *lines])


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


def sweep_table(sweep: Sweep) -> list[str]:
    """One line per τ, evenly thinned, with best Δ and plateaus marked."""
    points = sweep.points
    shown = set(np.linspace(0, len(points) - 1, min(len(points), TABLE_POINTS)).round().astype(int))
    # What is marked is never thinned away.
    marked = {sweep.best, sweep.tau, *sweep.plateau, *(sweep.around or ())}
    lines = [["τ", "open", f"Δ {sweep.metric}", "false pos.", "false neg.", "kept KV", ""]]
    for i, point in enumerate(points):
        if i not in shown and point.tau not in marked:
            continue
        marks = [
            *(["best"] if point.tau == sweep.best else []),
            *(["τ"] if point.tau == sweep.tau else []),
            *(["plateau"] if _inside(point.tau, sweep.plateau) else []),
            *(["around τ"] if _inside(point.tau, sweep.around) else []),
        ]
        estimates = (
            *(point.open, point.delta, point.false_positive, point.false_negative),
            point.kept_kv,
        )
        lines.append([f"{point.tau:.4f}", *map(str, estimates), ", ".join(marks)])
    first = points[0]
    return [
        f"n = {first.open.n}, {first.delta.n} inputs; {first.false_positive.n} right with the full "
        f"cache and wrong plain, {first.false_negative.n} for which plain is as good; "
        f"{len(points)} τ, {len(lines) - 1} shown",
        *table(lines),
    ]


def plateau_notes(sweep: Sweep) -> list[str]:
    """What the plateaus are, and what they hide."""
    low, high = sweep.plateau
    inside = [point for point in sweep.points if _inside(point.tau, sweep.plateau)]
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
    if sweep.around is None:
        notes.append(f"τ={sweep.tau:.4f} lies on no plateau in the sense of the {AROUND}.")
    else:
        ends = f"[{sweep.around[0]:.4f}, {sweep.around[1]:.4f}]"
        notes.append(f"around τ {ends}: the {AROUND}; classes here are by outcome, not by task.")
    return notes


def k_table(points: Sequence[tuple[int, Threshold | None, Row]]) -> list[str]:
    """One line per top_k, the open rate beside Δ."""
    header = ["top_k", "τ", "n", "inputs", "open", "Δ", "gated", "plain", "full", "kept KV"]
    lines = [
        [
            str(k),
            "–" if threshold is None else f"{threshold.tau:.4f} ({threshold.rule})",
            str(row.n),
            str(row.inputs),
            *map(str, (row.open, row.delta, row.gated, row.plain, row.full, row.kept_kv)),
        ]
        for k, threshold, row in points
    ]
    return table([header, *lines])


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


def contrast_table(rows: Sequence[Contrast]) -> list[str]:
    """One line per signal or way of taking D."""
    header = ["", "n", "opens", "mean closed tasks", "nearest task", "its mean", "margin"]
    header += ["separates", "AUC by task", "harmed", "AUC harmed", "oriented"]
    lines = [
        [
            row.label,
            str(row.n),
            row.side,
            str(row.capacity_mean),
            row.nearest_task or "–",
            str(row.nearest_mean),
            str(row.margin),
            row.separates,
            str(row.auc_task),
            str(row.n_harmed),
            str(row.auc_harm),
            "–" if math.isnan(row.oriented_harm) else f"{row.oriented_harm:.3f} {row.found_side}",
        ]
        for row in rows
    ]
    return [
        *table([header, *lines]),
        "AUC: how often an input that is to stay closed lies on the closed side of another (0.5 is",
        "chance), the side as in `opens`. Oriented: the better side, chosen on these same inputs.",
    ]


def head_pair_table(rows: Sequence[PairDraws]) -> list[str]:
    """One line per share of the head pairs."""
    header = ["share", "pairs", "n", "draws", "margin (mean)", "lowest", "highest", "ordered"]
    lines = [
        [
            f"{row.share:g}",
            str(row.pairs),
            str(row.n),
            str(row.draws),
            *(f"{value:+.4f}" for value in (row.margin, row.lowest, row.highest)),
            f"{row.ordered}/{row.draws}",
        ]
        for row in rows
    ]
    return table([header, *lines])


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


def to_json(value: Any) -> str:
    """One JSON object; what is not a number becomes null."""
    return json.dumps(_plain(value), indent=1, ensure_ascii=False)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _inside(tau: float, ends: tuple[float, float] | None) -> bool:
    return ends is not None and ends[0] <= tau <= ends[1]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
