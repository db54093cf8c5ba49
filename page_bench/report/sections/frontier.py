"""Accuracy against the cache that is really kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from page_bench.analysis.cells import Cell
from page_bench.analysis.frontier import Frontier, Matched, frontier
from page_bench.pages.charts import line, place_charts
from page_bench.pages.palette import Look
from page_bench.pages.panels import identity
from page_bench.pages.section import Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUESTION = "At the same achieved memory, does the gate pay?"


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Both curves over achieved kept-KV, matched-memory comparisons, and the crossover."""
    text = (
        "Each arm is a curve of the metric over the mean kept KV that it achieved, with the full "
        "cache as last point; between points it is taken as straight. An advantage is gated − "
        "plain at the same kept KV. The crossover is the least kept KV at which the gated curve "
        "begins to lie above; below the least that the gate keeps, only plain eviction can go."
    )
    own = [cell for cell in cells if len(cell.evicted)]
    if not own:
        return Section("frontier", "Frontier", "There is no budget below 1, hence no curve.")
    resampling = resampling_of(settings)
    found = {id(cell): frontier(cell, resampling) for cell in own}
    names, values = identity(own)
    tables = [
        Table(
            "frontier_crossover",
            "At which kept KV does the gate begin to pay?",
            [*names, "n", "least gated kept KV", "crossover", "resamples with a crossover"],
            [[*values(cell), *_crossover(found[id(cell)])] for cell in own],
            [
                how(settings),
                "No crossover: the gated curve nowhere lies above. A crossover has no interval: it "
                "jumps from one stretch of the curves to another, so no resampling holds it.",
            ],
        ),
        Table(
            "frontier_matched",
            _QUESTION,
            [*names, "compared", "budget", "n", "kept KV", "gated", "plain", "advantage"],
            [[*values(cell), *row] for cell in own for row in _matched(found[id(cell)])],
            [
                how(settings),
                "The arm that is not named is interpolated at the other's mean kept KV; at a given "
                "kept KV both are.",
            ],
        ),
        Table(
            "frontier_points",
            "What does each arm keep, and what does it score?",
            [*names, "budget", "n", "plain kept KV", "plain", "gated kept KV", "gated"],
            [[*values(cell), *row] for cell in own for row in _points(found[id(cell)])],
            [how(settings)],
        ),
    ]
    charts = place_charts(
        "frontier",
        _QUESTION,
        "Metric over achieved kept KV with 95 % intervals along both axes, one panel per model and "
        "suite and one colour per evictor: dashed and hollow without gate, solid with it; both end "
        "in the full cache.",
        ("achieved kept KV, share of the full cache", own[0].metric),
        own,
        partial(_draw, found),
    )
    return Section("frontier", "Accuracy and memory", text, tables, charts)


def _crossover(found: Frontier) -> list[Value]:
    least = min((point.gated_kept for point in found.points), key=lambda kept: kept.value)
    return [found.full.n, least, found.crossover, found.overtakes]


def _matched(found: Frontier) -> list[list[Value]]:
    kinds: list[tuple[str, Sequence[Matched]]] = [
        ("gated at its kept KV", found.gated_against_plain),
        ("plain at its kept KV", found.plain_against_gated),
        ("given kept KV", found.at_kept),
    ]
    return [
        [
            kind,
            matched.budget,
            matched.advantage.n,
            matched.kept.value if matched.budget is None else matched.kept,
            matched.gated,
            matched.plain,
            matched.advantage,
        ]
        for kind, own in kinds
        for matched in own
    ]


def _points(found: Frontier) -> list[list[Value]]:
    rows: list[list[Value]] = [
        [
            point.budget,
            point.plain.n,
            point.plain_kept,
            point.plain,
            point.gated_kept,
            point.gated,
        ]
        for point in found.points
    ]
    full = [found.full_kept, found.full]
    return [*rows, ["full cache", found.full.n, *full, *full]]


def _draw(found: dict[int, Frontier], axes: Axes, cell: Cell, look: Look, name: str) -> int:
    own = found[id(cell)]
    for arm in ("plain", "gated"):
        kept = [*(getattr(point, f"{arm}_kept") for point in own.points), own.full_kept]
        metric = [*(getattr(point, arm) for point in own.points), own.full]
        order = sorted(range(len(kept)), key=lambda i: kept[i].value)
        kept, metric = [kept[i] for i in order], [metric[i] for i in order]
        line(
            axes,
            [estimate.value for estimate in kept],
            metric,
            look,
            f"{name} {arm}",
            plain=arm == "plain",
            x_estimates=kept,
        )
    axes.set_xlim(-0.02, 1.04)
    return own.full.n
