"""r(x): whether some budget under the gate beats the full cache, and what that cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.pools import inputs
from page_bench.analysis.recovery import Recovery, recoveries
from page_bench.pages.palette import GATED, PLAIN
from page_bench.pages.panels import (
    POOLED,
    identity,
    key,
    name_rows,
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

_QUESTION = "How often does the best budget beat the full cache, and how often does it miss it?"
_COLUMNS = ("task", "n", "b = 1 counted", "r = −1", "r = 0", "r = +1")


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Distribution of r(x) by task, with and without b = 1."""
    text = (
        "r(x) is the sign of the best gated answer over all budgets minus the answer from the full "
        "cache. With b = 1 among the budgets, r(x) ≥ 0 is an identity: there the gated answer is "
        "the full one, so that an empty r = −1 says nothing about harm. Over the budgets below 1 "
        "alone, r = −1 means that no budget keeps an answer that the full cache has. In either "
        "form the best budget is chosen with the answer known, so that r(x) is what a perfect "
        "choice could recover; what a fixed budget loses stands under harm."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("recovery", "r(x)", "There is no budget below 1, so that r(x) is 0.")
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in own:
        groups.setdefault((cell.evictor, cell.gate), []).append(cell)
    pooled = {
        name: recoveries([inputs(cell) for cell in group], settings.draws, settings.seed)
        for name, group in groups.items()
    }
    note = (
        "Intervals are Wilson's; where answers to a document differ, documents are resampled "
        f"({settings.draws} draws)."
    )
    tables = [
        Table(
            "recovery",
            _QUESTION,
            ["evictor", "gate", "cells", *_COLUMNS],
            [
                [*name, len(groups[name]), *_row(one)]
                for name, found in pooled.items()
                for one in found
            ],
            [note, POOLED],
        )
    ]
    if len(own) > len(groups):
        names, values = identity(own)
        tables.append(
            Table(
                "recovery_cells",
                "How often does the best budget beat the full cache, cell by cell?",
                [*names, *_COLUMNS],
                [
                    [*values(cell), *_row(one)]
                    for cell in own
                    for one in recoveries([inputs(cell)], settings.draws, settings.seed)
                ],
                [note],
            )
        )
    of = pages(list(pooled.items()))
    charts = [
        Chart(
            page_name("recovery", i),
            page_title(_QUESTION, i, len(of)),
            partial(_draw, page),
            "For each task, to the right the share of inputs with r = +1 and to the left that with "
            "r = −1 over the budgets below 1, with 95 % intervals; one panel per evictor and gate.",
            size_of(len(page), 0.9 + 0.32 * max(len(cell.tasks) for cell in own)),
        )
        for i, page in enumerate(of)
    ]
    return Section("recovery", "r(x), the best of all budgets", text, tables, charts)


def _row(one: Recovery) -> list[Value]:
    return [one.task, one.n, "yes" if one.with_full else "no", one.lost, one.same, one.gained]


def _draw(page: Sequence[tuple[tuple[str, str], list[Recovery]]], figure: Figure) -> None:
    axes = panels(figure, len(page))
    for one, ((evictor, gate), found) in zip(axes, page, strict=True):
        mine = [recovery for recovery in found if not recovery.with_full]
        rows = range(len(mine))
        for kind, sign, look, label in (
            ("lost", -1, PLAIN, "r = −1: no budget below 1 keeps the answer"),
            ("gained", 1, GATED, "r = +1: some budget below 1 beats the full cache"),
        ):
            values, reach = spans([getattr(recovery, kind) for recovery in mine])
            one.barh(
                rows,
                sign * values,
                xerr=reach if sign > 0 else reach[::-1],
                color=look.color,
                ecolor="black",
                error_kw={"lw": 1, "capsize": 2},
                height=0.6,
                label=label,
            )
        name_rows(one, [f"{recovery.task} (n = {recovery.n})" for recovery in mine])
        one.axvline(0, color="black", lw=0.8)
        one.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        one.set_title(f"{evictor}, {gate}", fontsize="medium")
        one.set_xlabel("share of inputs")
    key(figure, axes)
