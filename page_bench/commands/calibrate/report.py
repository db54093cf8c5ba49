"""A calibration in words and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from page_bench.analysis.estimates import FEW, LEVEL
from page_bench.commands.calibrate.pilots import PilotRow
from page_bench.gating.calibration import Calibration
from page_bench.gating.rules import (
    BOOTSTRAP_DRAWS,
    CONFIDENCE,
    FIXED_TAU,
    LABEL_NEEDS,
    known_threshold,
    opens_at,
)
from page_bench.gating.signal_gates import SIDES
from page_bench.gating.threshold import SMALL_PILOT, Threshold


def describe(calibration: Calibration, signal: str = "drop") -> str:
    """What was measured on what, and τ of one signal by every rule, with interval and labels."""
    shortest, typical, longest = calibration.lengths
    model = calibration.model
    values = calibration.values(signal)
    found = [one for one in calibration.thresholds if one.signal == signal]
    side = found[0].side if found else SIDES[signal]
    where = (
        f"documents from {calibration.test_limit} on, disjoint from the test"
        if calibration.pilot_kind == "held-out"
        else f"the first {calibration.test_limit} documents: pilot = test inputs"
    )
    lines = [
        f"model   {model.name}, {model.dtype}, {model.attn_implementation}",
        f"pilot   {len(values)} prompts of {calibration.pilot or ', '.join(calibration.tasks)}",
        f"        {calibration.pilot_kind}: {where}",
        f"length  {typical:g} tokens typically, {shortest} to {longest}",
        f"{signal:<7} mean {statistics.fmean(values):.4f}, sd {statistics.pstdev(values):.4f}; "
        f"the gate opens {side} τ",
        "",
    ]
    header = ("tau", "value", f"{CONFIDENCE:.0%} interval", "n", "opens", "undecided", "labels")
    rows = [header, *(_row(one, values) for one in found)]
    if signal == "drop":
        rows.append(_row(known_threshold("fixed", signal, side), values))
    lines += _table(rows)
    lines += ["", f"Interval: bootstrap over the pilot, {BOOTSTRAP_DRAWS} draws. Opens: share of"]
    lines += ["the pilot. Undecided: share of it that opens at one end of the interval only."]
    if len(values) < SMALL_PILOT:
        lines.append(f"Below {SMALL_PILOT} prompts τ may lie anywhere.")
    return "\n".join(lines)


def pilot_table(rows: Sequence[PilotRow]) -> str:
    """How τ and the open rate move from pilot to pilot, all applied to the same inputs."""
    counts = {task: rate.n for task, rate in rows[0].open_by_task.items()}
    first = rows[0].threshold
    asked = f"theta_z={first.theta_z:g}" if first.theta_z is not None else f"{first.open_rate:g}"
    header = ("pilot", "n", "mean", "sd", f"tau ({first.rule}, {asked})", "opens")
    named = (f"{task} ({n})" for task, n in counts.items())
    lines = _table([(*header, *named), *map(_pilot_row, rows)])
    taus = [row.threshold.tau for row in rows]
    rates = [row.open_rate.value for row in rows]
    return "\n".join(
        [
            *lines,
            "",
            f"Opens: share of the same {rows[0].open_rate.n} inputs, and of each task's (their",
            f"number beside its name), at that τ; {LEVEL:.0%} Wilson intervals.",
            f"τ moves by {max(taus) - min(taus):.4f}, "
            f"the open rate by {max(rates) - min(rates):.2f}.",
        ]
    )


def _row(threshold: Threshold, values: Sequence[float]) -> tuple[str, ...]:
    rule = f"fixed {FIXED_TAU}" if threshold.rule == "fixed" else threshold.rule
    # The midpoint comes from inputs of its own; what it opens is told of the pilot, like the rest.
    opened = statistics.fmean(opens_at(v, threshold.tau, threshold.side) for v in values)
    undecided = _undecided(threshold, values)
    return (
        rule,
        f"{threshold.tau:.4f}",
        _interval(threshold),
        str(threshold.pilot_n or "–"),
        f"{opened:.2f}",
        "–" if undecided is None else f"{undecided:.2f}",
        str(LABEL_NEEDS[threshold.rule]),
    )


def _undecided(threshold: Threshold, values: Sequence[float]) -> float | None:
    if threshold.interval is None:
        return None
    low, high = threshold.interval
    side = threshold.side
    return statistics.fmean(opens_at(v, low, side) != opens_at(v, high, side) for v in values)


def _pilot_row(row: PilotRow) -> tuple[str, ...]:
    one = row.threshold
    return (
        row.pilot,
        str(one.pilot_n),
        f"{one.mu:.4f}",
        f"{one.sigma:.4f}",
        f"{one.tau:.4f} {_interval(one)}",
        str(row.open_rate),
        *map(str, row.open_by_task.values()),
    )


def _interval(threshold: Threshold) -> str:
    if threshold.interval is None:
        return FEW if threshold.pilot_n and threshold.sigma != 0 else "–"
    return "[{:.4f}, {:.4f}]".format(*threshold.interval)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
