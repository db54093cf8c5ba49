"""ρ against the headroom that the full cache leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import LEAST
from page_bench.analysis.partition import Part, parts
from page_bench.analysis.pools import arms, inputs
from page_bench.analysis.scaling import Fit, Point, fit
from page_bench.pages.palette import FULL, GATED, PLAIN
from page_bench.pages.panels import (
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

_QUESTION = "Does ρ grow with the headroom that the full cache leaves?"


@dataclass(frozen=True)
class _Placed:
    """A task of a cell, its numbers and its documents."""

    cell: Cell
    part: Part
    point: Point
    capacity_bound: bool


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """ρ and headroom by task, and the slope through the origin."""
    text = (
        "If a fixed share of what the full cache gets wrong can be recovered, ρ lies on a line "
        "through the origin over the headroom 1 − full accuracy. The line is the least-squares one "
        f"through all tasks but the capacity-bound ones ({settings.capacity_bound}). ρ / headroom "
        "is the share of wrong inputs that some budget below 1 sets right. ρ cannot exceed the "
        "headroom (dotted)."
    )
    own = [cell for cell in arms(cells) if len(cell.evicted)]
    placed = [one for cell in own for one in _place(cell, settings)]
    if not placed:
        return Section(
            "scaling",
            "Headroom",
            "No cell has answers that are right or wrong at a budget below 1, so that there is no "
            "headroom to compare ρ with.",
        )
    evictors = list(dict.fromkeys(one.cell.evictor for one in placed))
    names, values = identity(own, gate=False)
    rows: list[list[Value]] = [
        [
            *values(one.cell),
            one.part.task,
            "yes" if one.capacity_bound else "no",
            one.part.n,
            one.part.headroom,
            one.part.rho,
            one.part.ratio.n,
            one.part.ratio,
        ]
        for one in placed
    ]
    fits = {
        (evictor, bound): fit(
            [
                one.point
                for one in placed
                if one.cell.evictor == evictor and (bound is None or one.capacity_bound == bound)
            ],
            settings.draws,
            settings.seed,
        )
        for evictor in evictors
        for bound in (False, True, None)
    }
    tables = [
        Table(
            "scaling",
            "What share of its headroom does each task recover?",
            [
                *names,
                "task",
                "capacity-bound",
                "n",
                "headroom",
                "ρ",
                "wrong with the full cache",
                "ρ / headroom",
            ],
            rows,
            ["Intervals are Wilson's, those of ρ / headroom among the wrong inputs."],
        ),
        Table(
            "scaling_fit",
            "What is the slope through the origin?",
            ["evictor", "tasks", "points", "n", "slope", "slope, points resampled"],
            [
                [
                    evictor,
                    {False: "not capacity-bound", True: "capacity-bound", None: "all"}[bound],
                    found.points,
                    found.within.n,
                    found.within,
                    found.across,
                ]
                for (evictor, bound), found in fits.items()
                if found.points
            ],
            [
                f"The slope's interval resamples the inputs within each point ({settings.draws} "
                "draws): how far these inputs settle it. The last column resamples the points: how "
                "far it hangs on which models, suites and tasks are in. An interval needs "
                f"{LEAST} inputs in each point, or as many points.",
                "No point is left out for being small or out of line.",
            ],
        ),
    ]
    of = pages(evictors)
    charts = [
        Chart(
            page_name("scaling", i),
            page_title(_QUESTION, i, len(of)),
            partial(_draw, page, placed, {e: fits[e, False] for e in page}),
            "ρ with its 95 % interval over the headroom, one point per task, model and suite and "
            "one panel per evictor; open triangles for capacity-bound tasks, and circles for "
            "all others with their line through the origin.",
            size_of(len(page), 3.6),
        )
        for i, page in enumerate(of)
    ]
    return Section("scaling", "ρ against headroom", text, tables, charts)


def _place(cell: Cell, settings: Settings) -> list[_Placed]:
    frame = inputs(cell)
    found = []
    for part in parts([frame], settings.rho_threshold, settings.draws, settings.seed):
        if part.call is None:
            continue
        rows = frame[frame["task"] == part.task]
        documents = (
            rows.assign(headroom=1 - rows["full"], gained=rows["best"] > rows["full"])
            .astype({"gained": float})
            .groupby("doc_id")[["headroom", "gained"]]
            .mean()
        )
        point = Point(
            f"{cell.label} {part.task}",
            documents["headroom"].to_numpy(dtype=np.float64),
            documents["gained"].to_numpy(dtype=np.float64),
        )
        found.append(_Placed(cell, part, point, settings.is_capacity_bound(part.task)))
    return found


def _draw(
    page: Sequence[str], placed: Sequence[_Placed], fits: dict[str, Fit], figure: Figure
) -> None:
    axes = panels(figure, len(page), share_y=True)
    for one, evictor in zip(axes, page, strict=True):
        n = 0
        for bound, label, look, fill in (
            (False, "other task", GATED, GATED.color),
            (True, "capacity-bound task", PLAIN, "none"),
        ):
            mine = [p for p in placed if p.cell.evictor == evictor and p.capacity_bound == bound]
            if not mine:
                continue
            n += sum(p.part.n for p in mine)
            values, reach = spans([p.part.rho for p in mine])
            one.errorbar(
                [p.part.headroom for p in mine],
                values,
                yerr=reach,
                fmt="^" if bound else "o",
                color=look.color,
                markerfacecolor=fill,
                ms=6,
                lw=1,
                capsize=2,
                label=label,
            )
        line = fits[evictor].within
        ends = np.array([0.0, 1.0])
        if not np.isnan(line.value):
            label = "fit, 95 % band" if line.has_interval else f"fit ({line.method})"
            one.plot(ends, line.value * ends, color=GATED.color, lw=1.5, label=label)
        if line.has_interval:
            one.fill_between(
                ends, line.low * ends, line.high * ends, color=GATED.color, alpha=0.12, lw=0
            )
        one.plot(ends, ends, color=FULL.color, ls=":", lw=1, label="ρ = headroom")
        shown = "no fit" if np.isnan(line.value) else f"slope {line.value:.2f}"
        one.set_title(f"{evictor}: {shown} (n = {n} inputs)", fontsize="medium")
        one.set_xlabel("headroom, 1 − full accuracy")
        one.set_ylabel("ρ, share of inputs")
        one.set_xlim(-0.02, 1.02)
        one.set_ylim(-0.02, 1.02)
    key(figure, axes)
