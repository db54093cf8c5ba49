"""Head agreement layer by layer, and D read from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.layers import TOLERANCE, TaskProfile, profiles, thirds
from page_bench.analysis.pools import prefills
from page_bench.pages.palette import looks
from page_bench.pages.panels import (
    identity,
    key,
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

_QUESTION = "How does head agreement change with depth?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Agreement by layer and task with its interval, the bins of D, and D by both conventions."""
    text = (
        "Head agreement of a layer is the mean Jaccard similarity of its heads' most attended "
        "keys. D is its mean over the first ⌊L/3⌋ layers minus that over the last ⌊L/3⌋. Strict "
        "thirds begin the late bin at ⌊2L/3⌋, one layer earlier where 3 does not divide L; the "
        "gate does not use them. D is computed from the agreement again and compared with the D "
        "that the runs recorded."
    )
    found: list[tuple[Cell, list[TaskProfile]]] = []
    for group in prefills([cell for cell in cells if len(cell.evicted)]):
        for cell in sorted(group, key=lambda one: (one.agreement is None, one.tau is None)):
            if mine := profiles(cell, settings.draws, settings.seed):
                found.append((cell, mine))
                break
    if not found:
        return Section(
            "layers",
            "Layers",
            "No input below budget 1 has its head agreement recorded for three layers or more.",
        )
    names, values = identity([cell for cell, _ in found], gate=False)
    rows: list[list[Value]] = [
        [*values(cell), *_row(profile, cell.tau)] for cell, mine in found for profile in mine
    ]
    of = pages(found)
    tables = [
        Table(
            "layers",
            "What do the two conventions of D come to, and is the recorded D the computed one?",
            [
                *names,
                "task",
                "n",
                "layers",
                "early",
                "late",
                "late, strict thirds",
                "D",
                "D, strict thirds",
                "inputs whose recorded D is another",
                "largest difference",
                "τ",
                "decided otherwise by strict thirds",
            ],
            rows,
            [
                "One evictor stands for all with the same D.",
                how(settings),
                f"A recorded D is another where it differs by more than {TOLERANCE:g}, as it does "
                "for runs whose gate reads other layers, bins or head pairs.",
            ],
        ),
        _by_layer(found),
    ]
    charts = [
        Chart(
            page_name("layers", i),
            page_title(_QUESTION, i, len(of)),
            partial(_draw, page),
            "Mean head agreement by layer with its 95 % band, one line per task and one panel per "
            "model and suite; the early and late thirds are shaded, and a dashed line marks where "
            "strict thirds begin.",
            size_of(len(page)),
        )
        for i, page in enumerate(of)
    ]
    return Section("layers", "Head agreement by layer", text, tables, charts)


def _row(profile: TaskProfile, tau: float | None) -> list[Value]:
    return [
        profile.task,
        profile.n,
        len(profile.layers),
        profile.early,
        profile.late,
        profile.strict_late,
        profile.drop,
        profile.strict_drop,
        profile.apart,
        None if np.isnan(profile.largest) else profile.largest,
        tau,
        profile.flipped,
    ]


def _by_layer(found: Sequence[tuple[Cell, list[TaskProfile]]]) -> Table:
    names, values = identity([cell for cell, _ in found], gate=False)
    return Table(
        "layers_profile",
        "What is the head agreement of each layer?",
        [*names, "task", "layer", "n", "agreement"],
        [
            [*values(cell), profile.task, layer, profile.n, estimate]
            for cell, mine in found
            for profile in mine
            for layer, estimate in enumerate(profile.layers)
        ],
        ["Layers are numbered from 0, next to the embedding."],
    )


def _draw(page: Sequence[tuple[Cell, list[TaskProfile]]], figure: Figure) -> None:
    axes = panels(figure, len(page), share_x=False)
    look = looks(profile.task for _, mine in page for profile in mine)
    for one, (cell, mine) in zip(axes, page, strict=True):
        depth = range(len(mine[0].layers))
        for profile in mine:
            color, marker = look[profile.task]
            lows, highs = (
                [getattr(layer, end) for layer in profile.layers] for end in ("low", "high")
            )
            one.plot(
                depth,
                [layer.value for layer in profile.layers],
                color=color,
                marker=marker,
                ms=3,
                lw=1.2,
                label=profile.task,
            )
            one.fill_between(depth, lows, highs, color=color, alpha=0.2, lw=0)
        end, start, strict = thirds(len(depth))
        for left, right in ((0, end), (start, len(depth))):
            one.axvspan(left - 0.5, right - 0.5, color="tab:gray", alpha=0.12, lw=0)
        if strict != start:
            one.axvline(
                strict - 0.5, color="black", ls="--", lw=0.8, label="late bin of strict thirds"
            )
        one.set_xlim(-0.5, len(depth) - 0.5)
        counts = {min(p.n for p in mine), max(p.n for p in mine)}
        number = "–".join(str(n) for n in sorted(counts))
        seed = "" if cell.seed is None else f" seed {cell.seed}"
        one.set_title(f"{cell.model} {cell.suite}{seed} (n = {number} per task)", fontsize="medium")
        one.set_xlabel("layer (early and late third shaded)")
        one.set_ylabel("head agreement")
    key(figure, axes)
