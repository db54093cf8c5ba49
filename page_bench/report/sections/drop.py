"""D by task with τ, and how well D tells apart what eviction harms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.drops import separations
from page_bench.analysis.estimates import LEAST
from page_bench.analysis.pools import arms, inputs, mean, prefills
from page_bench.engine.summary import FEW_LAYERS
from page_bench.gating.profile import bin_size
from page_bench.pages.palette import looks
from page_bench.pages.panels import (
    identity,
    key,
    name_rows,
    page_name,
    page_title,
    pages,
    panels,
    size_of,
)
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report.resampling import how
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DOTS = 300
"""Dots per task; of more inputs, as many evenly spaced order statistics are drawn."""
FEW_DRAWS = 2_000
"""An AUC's interval takes no more draws than this, which settle it to about 0.001."""


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """D by task, τ, and AUC for capacity-bound tasks and for harmed inputs."""
    text = (
        "D is the head agreement of the first third of the layers minus that of the last; the gate "
        "opens where D ≥ τ. AUC is the probability that D of an input that is to stay closed lies "
        "below D of another: 1 is a perfect threshold, 0.5 chance. Inputs that are to stay closed "
        "are those of the capacity-bound tasks "
        f"({settings.capacity_bound}), or those that eviction harms."
    )
    own = [cell for cell in cells if len(cell.evicted) and bool(cell.evicted["drop"].notna().any())]
    if not own:
        return Section("drop", "D", "No input below budget 1 has its D recorded.")
    groups = prefills(own)
    draws = min(settings.draws, FEW_DRAWS)
    heads = [group[0] for group in groups]
    names, values = identity(heads, gate=False)
    rows: list[list[Value]] = []
    notes = ["One evictor stands for all with the same D."]
    for cell in heads:
        third = None if cell.agreement is None else bin_size(cell.agreement.shape[1])
        if third is not None and third < FEW_LAYERS:
            notes.append(
                f"{cell.model}: D compares {third} layers per third; from fewer than {FEW_LAYERS} "
                f"it may point the wrong way."
            )
        for task, mine in inputs(cell).groupby("task", sort=True):
            drops = mine["drop"].to_numpy()
            known = drops[~np.isnan(drops)]
            average = mean(drops, list(mine["unit"]), settings.draws, settings.seed, "change")
            ends: list[Value] = [None] * 4
            if len(known):
                spread = float(known.std(ddof=1)) if len(known) > 1 else None
                ends = [spread, *(float(q) for q in np.quantile(known, [0, 0.5, 1]))]
            bound = "yes" if settings.is_capacity_bound(str(task)) else "no"
            rows.append([*values(cell), str(task), bound, third, len(known), average, *ends])
    tables = [
        Table(
            "drop",
            "Where does D of each task lie?",
            [
                *names,
                "task",
                "capacity-bound",
                "layers per third",
                "n",
                "mean D",
                "standard deviation",
                "lowest",
                "median",
                "highest",
            ],
            rows,
            [*dict.fromkeys(notes), how(settings)],
        ),
        _auc(own, settings, draws),
    ]
    of = pages(groups)
    charts = [
        Chart(
            page_name("drop", i),
            page_title("On which side of τ does D of each task lie?", i, len(of)),
            partial(_draw, page, settings),
            "D of each input by task, one panel per model and suite, with a bar at the mean of "
            "each task and a dashed line at each gate's τ.",
            size_of(len(page), 0.9 + 0.36 * max(len(cell.tasks) for cell in own)),
        )
        for i, page in enumerate(of)
    ]
    return Section("drop", "D by task", text, tables, charts)


def _auc(own: Sequence[Cell], settings: Settings, draws: int) -> Table:
    shown = arms(own)
    names, values = identity(shown, gate=False)
    rows: list[list[Value]] = []
    for cell in shown:
        for one in separations(cell, settings.is_capacity_bound, draws, settings.seed):
            n = one.n_closed + one.n_others
            rows.append([*values(cell), one.closed, n, one.n_closed, one.n_others, one.auc])
    return Table(
        "drop_auc",
        "How well does D tell apart the inputs that are to stay closed?",
        [*names, "to stay closed", "n", "of these closed", "others", "AUC of D"],
        rows,
        [
            f"Intervals: documents of all tasks resampled together, {draws} draws; none where a "
            f"class has fewer than {LEAST}."
        ],
    )


def _draw(page: Sequence[list[Cell]], settings: Settings, figure: Figure) -> None:
    axes = panels(figure, len(page))
    look = looks(["capacity-bound", "other"])
    for one, group in zip(axes, page, strict=True):
        cell, frame = group[0], inputs(group[0])
        labels = []
        for row, (task, mine) in enumerate(frame.groupby("task", sort=True)):
            drops = mine["drop"].dropna().to_numpy()
            labels.append(f"{task} (n = {len(drops)})")
            kind = "capacity-bound" if settings.is_capacity_bound(str(task)) else "other"
            color, marker = look[kind]
            shown = _thinned(drops)
            # A fixed scatter, so that the same runs give the same file.
            jitter = (np.arange(len(shown)) * 0.618 % 1 - 0.5) * 0.5
            one.plot(
                shown,
                row + jitter,
                marker,
                color=color,
                ms=3,
                alpha=0.5,
                mew=0,
                label=f"{kind} task, one input",
            )
            if len(drops):
                one.plot([drops.mean()] * 2, [row - 0.35, row + 0.35], color="black", lw=2)
        name_rows(one, labels)
        styles = ("--", ":", "-.")
        taus = dict.fromkeys((c.gate, c.tau) for c in group if c.tau is not None)
        for i, (gate, tau) in enumerate(taus):
            one.axvline(tau, color="black", lw=1, ls=styles[i % 3], label=f"τ of {gate}")
        seed = "" if cell.seed is None else f" seed {cell.seed}"
        one.set_title(f"{cell.model} {cell.suite}{seed}", fontsize="medium")
        one.set_xlabel("D, head-agreement drop")
    key(figure, axes)


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) <= MOST_DOTS:
        return values
    chosen = np.linspace(0, len(values) - 1, MOST_DOTS).round().astype(int)
    return np.asarray(np.sort(values)[chosen])
