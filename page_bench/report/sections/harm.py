"""Harm at a fixed budget, with and without the gate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.harm import Harm, harms
from page_bench.pages.palette import GATED, PLAIN, looks
from page_bench.pages.panels import (
    POOLED,
    identity,
    key,
    page_name,
    page_title,
    pages,
    panels,
    size_of,
    spans,
)
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    "task",
    "budget",
    "n",
    "gated harm",
    "plain harm",
    "harmed inputs",
    "share of harm left",
    "plain / gated",
)
_QUESTION = "How often does eviction lose an answer, with and without the gate?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Share of inputs right with the full cache and wrong at a budget, gated and plain."""
    text = (
        "Harm at a budget is the share of inputs that are right with the full cache and wrong at "
        "that budget (for a metric that is no 0/1: that score less). A gated answer is the plain "
        "or the full one, so that the gate can only let harm through or stop it: “share of harm "
        "left” is the part of the harmed inputs on which it opens, and plain / gated its inverse."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("harm", "Harm", "There is no budget below 1, so that nothing can be lost.")
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in own:
        groups.setdefault((cell.evictor, cell.gate), []).append(cell)
    pooled = {name: harms(group, settings.draws, settings.seed) for name, group in groups.items()}
    note = (
        "Intervals are Wilson's; where answers to a document differ, documents are resampled "
        f"({settings.draws} draws). Budgets are nominal: where the gate closes, the "
        "whole cache stays."
    )
    tables = [
        Table(
            "harm",
            _QUESTION,
            ["evictor", "gate", "cells", *_COLUMNS],
            [
                [*name, len(groups[name]), *_row(harm)]
                for name, found in pooled.items()
                for harm in found
            ],
            [note, POOLED],
        )
    ]
    if len(own) > len(groups):
        names, values = identity(own)
        tables.append(
            Table(
                "harm_cells",
                "How often does eviction lose an answer, cell by cell?",
                [*names, *_COLUMNS],
                [
                    [*values(cell), *_row(harm)]
                    for cell in own
                    for harm in harms([cell], settings.draws, settings.seed)
                ],
                [note],
            )
        )
    return Section("harm", "Harm at a fixed budget", text, tables, _charts(pooled))


def _row(harm: Harm) -> list[Value]:
    return [
        harm.task,
        harm.budget,
        harm.n,
        harm.gated,
        harm.plain,
        harm.left.n,
        harm.left,
        harm.factor,
    ]


def _charts(pooled: dict[tuple[str, str], list[Harm]]) -> list[Chart]:
    """One chart per gate, one panel per task, one colour per evictor."""
    gates = list(dict.fromkeys(gate for _, gate in pooled))
    charts = []
    for number, gate in enumerate(gates):
        mine = {evictor: found for (evictor, own), found in pooled.items() if own == gate}
        tasks = sorted({harm.task for found in mine.values() for harm in found})
        stem = "harm" if len(gates) == 1 else f"harm_gate{number + 1}"
        of = pages(tasks)
        for i, page in enumerate(of):
            question = _QUESTION if len(gates) == 1 else f"{_QUESTION} Gate {gate}"
            charts.append(
                Chart(
                    page_name(stem, i),
                    page_title(question, i, len(of)),
                    partial(_draw, page, mine),
                    "Share of inputs harmed over the nominal budget with 95 % intervals, one panel "
                    "per task; dashed lines without the gate, solid lines with it, one colour per "
                    "evictor.",
                    size_of(len(page)),
                )
            )
    return charts


def _draw(tasks: Sequence[str], found: dict[str, list[Harm]], figure: Figure) -> None:
    axes = panels(figure, len(tasks), share_y=True)
    look = looks(found)
    alone = {"plain": PLAIN, "gated": GATED} if len(found) == 1 else None
    for one, task in zip(axes, tasks, strict=True):
        counts = set()
        for evictor, harms_ in found.items():
            mine = [harm for harm in harms_ if harm.task == task]
            counts |= {harm.n for harm in mine}
            for arm, style, fill in (("plain", "--", "none"), ("gated", "-", None)):
                values, reach = spans([getattr(harm, arm) for harm in mine])
                color, marker = look[evictor] if alone is None else alone[arm]
                one.errorbar(
                    [harm.budget for harm in mine],
                    values,
                    yerr=reach,
                    color=color,
                    marker=marker,
                    markerfacecolor=fill,
                    ls=style,
                    lw=1.2,
                    ms=5,
                    capsize=2,
                    label=f"{evictor} {arm}",
                )
        number = "–".join(str(n) for n in sorted({min(counts), max(counts)}))
        one.set_title(f"{task} (n = {number} per budget)", fontsize="medium")
        one.set_xlabel("budget, nominal share of the prompt kept")
        one.set_ylabel("share of inputs harmed")
        one.set_ylim(-0.02, 1.02)
        one.grid(alpha=0.3, lw=0.5)
    key(figure, axes)
