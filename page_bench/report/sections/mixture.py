"""Δ against the capacity-bound share of the traffic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.mixture import SHARES, Mixture, can_mix, mixture
from page_bench.pages.palette import GATED
from page_bench.pages.panels import identity, key, panels
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUESTION = "How does Δ depend on how much of the traffic is capacity-bound?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """The line from Δ of the dilution-prone inputs to that of the capacity-bound ones."""
    text = (
        "Δ(f) = f · Δ of capacity-bound inputs + (1 − f) · Δ of all others, since accuracy adds up "
        "over inputs. The Δ of a suite is one point of this line, at the share that the suite "
        f"happens to have. Capacity-bound: {settings.capacity_bound}."
    )
    own = [cell for cell in cells if can_mix(cell, settings.is_capacity_bound)]
    if not own:
        return Section(
            "mixture",
            "Traffic mixture",
            "No cell holds capacity-bound inputs beside others at budgets below 1.",
        )
    resampling = resampling_of(settings)
    lines = [mixture([cell], settings.is_capacity_bound, resampling) for cell in own]
    means = {}
    for gate in dict.fromkeys(cell.gate for cell in own):
        some = [cell for cell in own if cell.gate == gate]
        means[gate] = mixture(some, settings.is_capacity_bound, resampling)
    names, values = identity(own)
    heads = ["n", "share as run", *(f"Δ at f = {share:g}" for share in SHARES), "slope"]
    left = len(cells) - len(own)
    notes = [how(settings)]
    if left:
        notes.append(f"{left} cells without both kinds of inputs below budget 1 are left out.")
    tables = [
        Table(
            "mixture_mean",
            f"{_QUESTION[:-1]}, in the mean of the cells?",
            ["gate", "cells", *heads],
            [[gate, mean.cells, *_row(mean)] for gate, mean in means.items()],
            [*notes, "Each cell counts once; inputs are drawn for all cells of a suite alike."],
        ),
        Table(
            "mixture",
            _QUESTION,
            [*names, *heads],
            [[*values(cell), *_row(one)] for cell, one in zip(own, lines, strict=True)],
            notes,
        ),
    ]
    charts = [
        Chart(
            "mixture" if len(means) == 1 else f"mixture_gate{number + 1}",
            _QUESTION if len(means) == 1 else f"{_QUESTION} Gate {gate}",
            partial(
                _draw,
                mean,
                [one for cell, one in zip(own, lines, strict=True) if cell.gate == gate],
            ),
            "Δ over the capacity-bound share of the traffic: one grey line per cell, the mean line "
            "with its 95 % band, and a dashed line at the share that was run.",
        )
        for number, (gate, mean) in enumerate(means.items())
    ]
    return Section("mixture", "Δ and the mixture of traffic", text, tables, charts)


def _row(one: Mixture) -> list[Value]:
    return [one.slope.n, one.share, *one.deltas, one.slope]


def _draw(mean: Mixture, lines: Sequence[Mixture], figure: Figure) -> None:
    (axes,) = panels(figure, 1)
    for number, one in enumerate(lines):
        values = [delta.value for delta in one.deltas]
        label = "cells" if number == 0 else None
        axes.plot(one.shares, values, color="0.65", lw=1, label=label)
    low, high = ([getattr(delta, end) for delta in mean.deltas] for end in ("low", "high"))
    axes.fill_between(mean.shares, low, high, color=GATED.color, alpha=0.2, lw=0)
    axes.plot(
        mean.shares,
        [delta.value for delta in mean.deltas],
        color=GATED.color,
        lw=2,
        label=f"mean of {mean.cells} cells, {mean.slope.n} inputs, slope {mean.slope}",
    )
    axes.axvline(mean.share, color="black", ls="--", lw=1, label=f"as run: {mean.share:.2f}")
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xlim(0, 1)
    axes.set_xlabel("capacity-bound share f of the inputs")
    axes.set_ylabel("Δ, gated − plain")
    axes.grid(alpha=0.3, lw=0.5)
    key(figure, [axes])
