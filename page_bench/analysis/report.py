"""Re-gated outcomes in tables, notes and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from page_bench.analysis.ablation import Contrast, PairDraws
from page_bench.analysis.estimates import LEAST
from page_bench.analysis.kappa import Margins
from page_bench.analysis.outcomes import Row
from page_bench.analysis.tau_sweep import Sweep, within
from page_bench.gating.gate import Gate
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.gating.threshold import Threshold

Budget = float | str
TABLE_POINTS = 25
"""Rows of a sweep's printed table; the figure and the JSON have them all."""


def legend(metric: str, draws: int, seed: int) -> list[str]:
    """What the numbers are."""
    return [
        f"Means of {metric}; Δ is gated − plain, input by input; harm is the share right with the",
        "full cache and wrong under the gate, harm plain the same without a gate. Intervals, 95 %:",
        "Wilson for shares of distinct inputs and where all inputs agree, else percentiles of",
        f"{draws} resamples of (task, doc_id), seed {seed}; of fewer than {LEAST} inputs they say",
        "too little, so that no interval is given.",
        "Seconds per input: prefill, signal where the gate reads one, eviction, its share of what",
        "was decoded together, and the answers that the gate read and discarded.",
    ]


def describe(gate: Gate, threshold: Threshold | None, pilot: str | None = None) -> str:
    """Gate and τ, where its pilot comes from, and which labels they need."""
    changed = [
        f"{f.name}={getattr(gate, f.name)}"
        for f in dataclasses.fields(gate)
        if getattr(gate, f.name) != f.default
    ]
    words = [f"gate {gate.name}", *changed]
    labels = f"labels {gate.labels}"
    source = "" if pilot is None else f"pilot from {pilot}"
    if threshold is None:
        return "; ".join(filter(None, (" ".join(words), labels, source)))
    origin = threshold.rule
    if threshold.pilot_n:
        origin += f", pilot n={threshold.pilot_n}"
        if threshold.interval is not None:
            origin += f", 95 % [{threshold.interval[0]:.4f}, {threshold.interval[1]:.4f}]"
        if threshold.pilot_open is not None:
            origin += f", opens {threshold.pilot_open:.2f} of it"
        if threshold.open_rate is not None:
            origin += f", asked {threshold.open_rate:g}"
    origin += f", {source}" if source else ""
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
    header += ["seconds", "harm", "harm plain", *others]
    lines = [
        [
            f"{budget:g}" if isinstance(budget, float) else budget,
            row.task,
            str(row.n),
            str(row.inputs),
            *map(str, (row.open, row.gated, row.plain, row.full, row.delta, row.kept_kv)),
            *map(str, (row.seconds, row.harm, row.plain_harm)),
            *(str(row.scores[name]) for name in others),
        ]
        for budget, own in rows.items()
        for row in own
    ]
    return table([header, *lines])


def sweep_table(sweep: Sweep) -> list[str]:
    """One line per τ, evenly thinned, with best Δ and plateaus marked."""
    points = sweep.points
    shown = set(np.linspace(0, len(points) - 1, min(len(points), TABLE_POINTS)).round().astype(int))
    # What is marked is never thinned away.
    marked = {sweep.best, sweep.tau, *(sweep.plateau or ()), *(sweep.around or ())}
    header = ["τ", "open", f"Δ {sweep.metric}", "false pos.", "false neg."]
    header += ["closed tasks open", "others closed"] if points[0].by_task else []
    lines = [[*header, "kept KV", ""]]
    for i, point in enumerate(points):
        if i not in shown and point.tau not in marked:
            continue
        marks = [
            *(["best"] if point.tau == sweep.best else []),
            *(["τ"] if point.tau == sweep.tau else []),
            *(["plateau"] if within(point.tau, sweep.plateau) else []),
            *(["around τ"] if within(point.tau, sweep.around) else []),
        ]
        by_task = point.errors if point.by_task else ()
        estimates = (
            *(point.open, point.delta, point.false_positive, point.false_negative, *by_task),
            point.kept_kv,
        )
        lines.append([f"{point.tau:.4f}", *map(str, estimates), ", ".join(marks)])
    first = points[0]
    capacity, others = first.errors
    sizes = f"{capacity.n} of tasks to stay closed, {others.n} of others; "
    return [
        f"n = {first.delta.n} inputs; {sizes if first.by_task else ''}"
        f"{first.false_positive.n} right with the full "
        f"cache and wrong plain, {first.false_negative.n} for which plain is as good; "
        f"{len(points)} τ, {len(lines) - 1} shown",
        *table(lines),
    ]


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


def kappa_lines(margins: Margins) -> list[str]:
    """κ of an arm, and how far from what the paper's bound requires."""
    low, high = f"{margins.lowest_required:.2f}", f"{margins.highest_required:.2f}"
    return [
        f"κ, margin-to-noise, n = {margins.n}, {margins.layers} layers of {margins.heads} heads: "
        f"median {margins.median}, at most {margins.highest:.3f}.",
        f"The paper's bound on a wrongly opened gate says something from "
        f"κ = {low if low == high else f'{low} to {high}'} on,",
        f"which a share {margins.reached} of layers and heads reaches. No gate reads κ; its side "
        f"above is a convention.",
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
            *(
                "–" if math.isnan(value) else f"{value:+.4f}"
                for value in (row.margin, row.lowest, row.highest)
            ),
            "–" if math.isnan(row.margin) else f"{row.ordered}/{row.draws}",
        ]
        for row in rows
    ]
    return table([header, *lines])


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


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
