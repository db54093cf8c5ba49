"""What the gate would come to at another τ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cell_sweep import compares_drop, sweep_cell
from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import LEAST
from page_bench.analysis.pools import arms, prefills
from page_bench.analysis.tau_sweep import AROUND, PLATEAU, Sweep
from page_bench.pages.palette import looks
from page_bench.pages.panels import (
    by_place,
    identity,
    key,
    page_name,
    page_title,
    pages,
    panels,
    series,
    size_of,
)
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW_DRAWS = 2_000
"""A curve's band takes no more draws than this."""


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Δ, open rate, kept KV and both kinds of error over τ."""
    text = (
        "The gate decides anew at every τ. Δ alone is no guide to τ: a gate that never opens gives "
        "the full cache's answers and saves nothing, so that open rate and kept KV stand beside "
        "it. Errors are counted by task: capacity-bound tasks "
        f"({settings.capacity_bound}) that open, and other tasks that stay closed. The plateau is "
        f"the {PLATEAU}; the plateau around τ is the {AROUND}."
    )
    own = [cell for cell in cells if cell.tau is not None and len(cell.evicted)]
    read = [cell for cell in own if compares_drop(cell)]
    if not read:
        why = "No gate compares D with a τ" if own or not cells else "No gate has a τ"
        return Section("tau", "τ", f"{why} at budgets below 1, so that none can be moved.")
    draws = min(settings.draws, FEW_DRAWS)
    sweeps = {
        id(cell): sweep_cell(cell, settings.is_capacity_bound, draws, settings.seed)
        for cell in read
    }
    note = (
        f"n counts inputs. Rates of opening have Wilson's intervals; for Δ, kept KV and the rates "
        f"among harmed and unharmed inputs, budgets below 1 are pooled and documents resampled "
        f"({draws} draws) unless they all agree; of fewer than {LEAST} no interval is given."
    )
    left = len(own) - len(read)
    notes = [note]
    if left:
        notes.append(f"Left out: {left} whose gate does not open exactly where D ≥ τ.")
    names, values = identity(read)
    tables = [
        Table(
            "tau",
            "How much does Δ hang on τ?",
            [
                *names,
                "τ",
                "n",
                "Δ at τ",
                "open rate",
                "kept KV",
                "capacity-bound open",
                "others closed",
                "τ of the largest Δ",
                "largest Δ",
                "kept KV there",
                "plateau from",
                "plateau to",
                "around τ from",
                "around τ to",
            ],
            [[*values(cell), *_row(sweeps[id(cell)])] for cell in read],
            notes,
        ),
        Table(
            "tau_points",
            "What does the gate come to at each τ?",
            [
                *names,
                "τ",
                "n",
                "Δ",
                "open rate",
                "kept KV",
                "capacity-bound open",
                "others closed",
                "harmed inputs open",
                "unharmed inputs closed",
            ],
            [
                [
                    *values(cell),
                    point.tau,
                    point.open.n,
                    point.delta,
                    point.open,
                    point.kept_kv,
                    point.capacity_open,
                    point.others_closed,
                    point.false_positive,
                    point.false_negative,
                ]
                for cell in read
                for point in sweeps[id(cell)].points
            ],
            [note],
        ),
    ]
    return Section("tau", "τ sensitivity", text, tables, _charts(read, sweeps))


def _row(found: Sweep) -> list[Value]:
    (here,) = (point for point in found.points if point.tau == found.tau)
    (best,) = (point for point in found.points if point.tau == found.best)
    around = (None, None) if found.around is None else found.around
    return [
        found.tau,
        here.open.n,
        here.delta,
        here.open,
        here.kept_kv,
        here.capacity_open,
        here.others_closed,
        found.best,
        best.delta,
        best.kept_kv,
        *(found.plateau or (None, None)),
        *around,
    ]


def _charts(read: Sequence[Cell], sweeps: dict[int, Sweep]) -> list[Chart]:
    """The curves do not depend on the gate, which only says where its τ lies."""
    places = by_place(read)
    evictors = {place: arms(cells) for place, cells in places.items()}
    # Which inputs open at a τ does not even depend on the evictor.
    signals = {place: [group[0] for group in prefills(cells)] for place, cells in places.items()}
    charts = []
    for name, question, alt, what, drawn in (
        (
            "tau_delta",
            "How much does Δ hang on τ?",
            "Δ with its 95 % band over τ, one colour per evictor",
            (("delta", "-", ""),),
            evictors,
        ),
        (
            "tau_errors",
            "Which τ closes the capacity-bound tasks and opens the others?",
            "Share of inputs of capacity-bound tasks that open (solid) and of other tasks that "
            "stay closed (dotted) with 95 % bands over τ; one evictor stands for all with the same "
            "D",
            (
                ("capacity_open", "-", "capacity-bound tasks open"),
                ("others_closed", ":", "other tasks closed"),
            ),
            signals,
        ),
        (
            "tau_kept",
            "How much of the cache stays at each τ?",
            "Mean kept KV with its 95 % band over τ, one colour per evictor",
            (("kept_kv", "-", ""),),
            evictors,
        ),
    ):
        of = pages(list(places))
        for i, page in enumerate(of):
            charts.append(
                Chart(
                    page_name(name, i),
                    page_title(question, i, len(of)),
                    partial(
                        _draw,
                        {place: (drawn[place], places[place]) for place in page},
                        sweeps,
                        what,
                    ),
                    f"{alt}; one panel per model and suite, and a black vertical line at the τ of "
                    "each gate.",
                    size_of(len(page)),
                )
            )
    return charts


_AXES = {
    "delta": "Δ, gated − plain",
    "capacity_open": "share of inputs",
    "kept_kv": "kept KV, share of the full cache",
}
_STYLES = ("--", "-.", ":")


def _draw(
    page: dict[str, tuple[list[Cell], list[Cell]]],
    sweeps: dict[int, Sweep],
    what: Sequence[tuple[str, str, str]],
    figure: Figure,
) -> None:
    axes = panels(figure, len(page), share_x=False)
    look = looks(series(cell) for drawn, _ in page.values() for cell in drawn)
    alone = len(look) == 1
    for one, (place, (drawn, all_)) in zip(axes, page.items(), strict=True):
        counts = [sweeps[id(cell)].points[0].delta.n for cell in drawn]
        for cell in drawn:
            taus = [point.tau for point in sweeps[id(cell)].points]
            for attribute, style, label in what:
                estimates = [getattr(point, attribute) for point in sweeps[id(cell)].points]
                lows, highs = ([getattr(e, end) for e in estimates] for end in ("low", "high"))
                color = look[series(cell)].color
                one.plot(
                    taus,
                    [estimate.value for estimate in estimates],
                    color=color,
                    ls=style,
                    lw=1.5,
                    label=(label if label and alone else f"{series(cell)} {label}").strip(),
                )
                one.fill_between(taus, lows, highs, color=color, alpha=0.15, lw=0)
        gates = dict.fromkeys((cell.gate, cell.tau) for cell in all_)
        for style, (gate, tau) in zip(itertools.cycle(_STYLES), gates, strict=False):
            assert tau is not None
            one.axvline(tau, color="black", ls=style, lw=1, label=f"τ of {gate}")
        number = "–".join(str(n) for n in sorted({min(counts), max(counts)}))
        one.set_title(f"{place} (n = {number} inputs)", fontsize="medium")
        one.set_xlabel("τ on D")
        one.set_ylabel(_AXES[what[0][0]])
        one.grid(alpha=0.3, lw=0.5)
    key(figure, axes)
