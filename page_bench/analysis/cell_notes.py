"""Sentences on cells whose numbers say less than they seem to."""

from __future__ import annotations

from collections.abc import Sequence

from page_bench.analysis.cells import Cell
from page_bench.engine.summary import hardly_right
from page_bench.gating.threshold import SMALL_PILOT


def cell_notes(cells: Sequence[Cell]) -> list[str]:
    """What a reader must know of these cells before comparing them."""
    notes = []
    for cell in cells:
        notes += _useless(cell) + _same_budgets(cell) + _decides_nothing(cell) + _few(cell)
        notes += _no_drop(cell)
    return list(dict.fromkeys(notes))


def _useless(cell: Cell) -> list[str]:
    rows = cell.rows.drop_duplicates("input").sort_values("task", kind="stable")
    warning = hardly_right(zip(rows["task"], rows["full"], strict=True))
    return [] if warning is None else [f"{_place(cell)}: {warning}"]


def _same_budgets(cell: Cell) -> list[str]:
    """Budgets below a floor of protected positions keep the same and are one point, not several."""
    kept = cell.rows.pivot_table(index="input", columns="budget", values="plain_kept")
    groups: list[list[float]] = []
    for budget in kept.columns:
        same = groups and (kept[groups[-1][-1]] == kept[budget]).all()
        if same:
            groups[-1].append(float(budget))
        else:
            groups.append([float(budget)])
    return [
        f"{_place(cell)} {cell.evictor}: budgets {', '.join(f'{b:g}' for b in own)} keep the same "
        f"({kept[own[0]].mean():.3f} of the cache), so that they are one point of the grid."
        for own in groups
        if len(own) > 1
    ]


def _decides_nothing(cell: Cell) -> list[str]:
    opened = cell.evicted["open"]
    if not len(opened) or 0 < opened.sum() < len(opened):
        return []
    if opened.all():
        return [f"{cell.label}: the gate always opens, so every gated answer is the plain one."]
    return [f"{cell.label}: the gate never opens, so Δ is the full cache's."]


def _no_drop(cell: Cell) -> list[str]:
    lacking = int(cell.rows.drop_duplicates("input")["drop"].isna().sum())
    if not lacking:
        return []
    return [
        f"{_place(cell)} {cell.evictor}: D is not a number on {lacking} of "
        f"{cell.rows['input'].nunique()} inputs; a gate on D stays closed there, and what compares "
        f"D leaves them out."
    ]


def _few(cell: Cell) -> list[str]:
    counts = cell.rows.drop_duplicates("input")["task"].value_counts()
    if counts.min() >= SMALL_PILOT:
        return []
    return [
        f"{_place(cell)}: tasks have {counts.min()} inputs or few more; intervals are wide and "
        f"classes hardly ever decided."
    ]


def _place(cell: Cell) -> str:
    seed = "" if cell.seed is None else f" seed {cell.seed}"
    return f"{cell.model} {cell.suite}{seed}"
