"""The partition: which tasks eviction can help, and whether the gate agrees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.partition import Part, gatings, parts
from page_bench.analysis.pools import arms, inputs
from page_bench.pages.palette import looks
from page_bench.pages.panels import (
    POOLED,
    by_place,
    dots,
    identity,
    key,
    name_rows,
    offsets,
    page_name,
    page_title,
    pages,
    panels,
    series,
    size_of,
    start_at,
)
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    "task",
    "n",
    "budgets",
    "ρ",
    "full accuracy",
    "headroom",
    "harmed at every budget",
    "by point",
    "class",
    "because",
)
_WHICH = "Which tasks can eviction help?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """ρ by task with its interval, the class it speaks for, and what the gate does."""
    text = (
        "ρ is the share of inputs that are wrong with the full cache and right at some budget "
        "below 1 without a gate (for a metric that is no 0/1: that score more, and no class is "
        f"called). From {settings.rho_threshold:g} on a task is dilution-prone, below it "
        "capacity-bound. “By point” compares ρ alone, “class” its whole interval: a class below "
        "the threshold also needs as large a share of inputs that every budget harms, since ρ is "
        "small as well where nothing is left to recover (saturated) or nothing changes "
        "(budget-insensitive). ρ grows with the number of budgets tried. The gate's call counts "
        "where it opens; the report's other sections take capacity-bound tasks from the setting "
        f"({settings.capacity_bound}), not from this call."
    )
    own = [cell for cell in arms(cells) if len(cell.evicted)]
    if not own:
        return Section(
            "partition", "Partition", "There is no budget below 1, so that nothing can recover."
        )
    found = {
        id(cell): parts([inputs(cell)], settings.rho_threshold, settings.draws, settings.seed)
        for cell in own
    }
    names, values = identity(own, gate=False)
    rows = [[*values(cell), *_row(part)] for cell in own for part in found[id(cell)]]
    tables = [
        *_pooled(own, settings),
        Table(
            "partition",
            "Which tasks can eviction help, cell by cell?",
            [*names, *_COLUMNS],
            rows,
            _notes(settings),
        ),
        _gates(cells, own, found, settings),
    ]
    return Section("partition", "Partition", text, tables, _charts(own, found, settings))


def _row(part: Part) -> list[Value]:
    call = part.call
    return [
        part.task,
        part.n,
        part.budgets,
        part.rho,
        part.full,
        part.headroom,
        part.always,
        part.by_point,
        None if call is None else call.name,
        None if call is None else call.reason,
    ]


def _notes(settings: Settings) -> list[str]:
    return [
        "Intervals are Wilson's; where answers to a document differ, documents are resampled "
        f"({settings.draws} draws)."
    ]


def _pooled(own: Sequence[Cell], settings: Settings) -> list[Table]:
    """Inputs of all models, suites and seeds together, evictor by evictor."""
    rows: list[list[Value]] = []
    for evictor in dict.fromkeys(cell.evictor for cell in own):
        together = [cell for cell in own if cell.evictor == evictor]
        if len(together) < 2:
            continue
        frames = [inputs(cell) for cell in together]
        for part in parts(frames, settings.rho_threshold, settings.draws, settings.seed):
            holding = sum(part.task in cell.tasks for cell in together)
            rows.append([evictor, holding, *_row(part)])
    if not rows:
        return []
    return [
        Table(
            "partition_pooled",
            "Which tasks can eviction help, over all models and suites?",
            ["evictor", "cells", *_COLUMNS],
            rows,
            [*_notes(settings), POOLED],
        )
    ]


def _gates(
    cells: Sequence[Cell],
    own: Sequence[Cell],
    found: dict[int, list[Part]],
    settings: Settings,
) -> Table:
    classes = {
        (cell.model, cell.suite, cell.evictor, cell.seed, part.task): part
        for cell in own
        for part in found[id(cell)]
    }
    names, values = identity(cells)
    rows: list[list[Value]] = []
    for cell in cells:
        for one in gatings(cell, settings.draws, settings.seed):
            part = classes[cell.model, cell.suite, cell.evictor, cell.seed, one.task]
            call = None if part.call is None else part.call.name
            agrees = one.agrees(part.call)
            shown = None if agrees is None else ("yes" if agrees else "no")
            head = [*values(cell), cell.tau, one.task, part.n]
            rows.append([*head, one.drop, one.open, one.call, part.by_point, call, shown])
    return Table(
        "partition_gate",
        "Does the gate open on the tasks that eviction can help, and close on the others?",
        [
            *names,
            "τ",
            "task",
            "n",
            "D",
            "open rate",
            "gate's call",
            "class by point",
            "class",
            "gate agrees with class",
        ],
        rows,
        ["Without a word in the last column the class is undecided."],
    )


def _charts(own: Sequence[Cell], found: dict[int, list[Part]], settings: Settings) -> list[Chart]:
    places = list(by_place(own).items())
    of = pages(places)
    return [
        Chart(
            page_name("partition_rho", i),
            page_title(_WHICH, i, len(of)),
            partial(_draw, page, found, settings.rho_threshold),
            "ρ of each task with its 95 % interval, one panel per model and suite and one marker "
            f"per evictor; a dashed line marks the threshold {settings.rho_threshold:g}.",
            size_of(len(page), 0.9 + 0.32 * max(len(cell.tasks) for cell in own)),
        )
        for i, page in enumerate(of)
    ]


def _draw(
    page: Sequence[tuple[str, list[Cell]]],
    found: dict[int, list[Part]],
    threshold: float,
    figure: Figure,
) -> None:
    axes = panels(figure, len(page))
    look = looks(series(cell) for _, cells in page for cell in cells)
    for one, (place, cells) in zip(axes, page, strict=True):
        tasks = sorted({part.task for cell in cells for part in found[id(cell)]})
        for shift, cell in zip(offsets(len(cells)), cells, strict=True):
            mine = found[id(cell)]
            where = [tasks.index(part.task) + shift for part in mine]
            dots(one, where, [part.rho for part in mine], look[series(cell)], series(cell))
        counts = [part.n for cell in cells for part in found[id(cell)]]
        name_rows(one, tasks)
        one.axvline(threshold, color="black", ls="--", lw=0.8, label=f"threshold {threshold:g}")
        one.set_title(f"{place} (n = {_range(counts)} per task)", fontsize="medium")
        one.set_xlabel("ρ, share of inputs")
    start_at(axes, -0.01)
    key(figure, axes)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low}–{high}"
