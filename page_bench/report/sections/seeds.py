"""How much Δ moves between draws of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import Delta, parts_of, without
from page_bench.analysis.intervals import Estimate
from page_bench.analysis.seeds import Spread, check, replicates, spread
from page_bench.inputs.errors import UsageError
from page_bench.pages.charts import Row, row_charts
from page_bench.pages.palette import looks
from page_bench.pages.section import Section, Table, Value
from page_bench.report.resampling import how, resampling_of
from page_bench.report.settings import Settings

_QUESTION = "How much does Δ move from one draw of the inputs to another?"


@dataclass(frozen=True)
class _Replicated:
    """Δ of a cell's seeds, over all tasks or the capacity-bound ones."""

    cells: Sequence[Cell]
    scope: str
    deltas: Sequence[Delta]

    @property
    def spread(self) -> Spread:
        return spread([delta.delta.value for delta in self.deltas])

    @property
    def name(self) -> list[Value]:
        first = self.cells[0]
        return [first.model, first.suite, first.evictor, first.gate, self.scope]


def section(cells: Sequence[Cell], settings: Settings) -> Section:
    """Δ under each seed, and its mean, standard deviation and range."""
    text = (
        "A seed draws other inputs of the same tasks. An interval over inputs tells of one draw; "
        "the standard deviation over seeds (of the sample, n − 1) tells how much a draw matters, "
        "and the interval of the mean is Student's over the seeds. Seeds whose runs are not "
        "complete are left out, since what they lack would pass for spread."
    )
    found, refused = [], []
    for own in replicates([cell for cell in cells if len(cell.evicted)]):
        try:
            check(own)
        except UsageError as why:
            refused.append(str(why))
            continue
        found += _replicated(own, settings)
    if not found:
        why_not = " ".join(refused) or "No cell was run under more than one seed."
        return Section("seeds", "Seeds", why_not)
    names = ["model", "suite", "evictor", "gate", "tasks"]
    tables = [
        Table(
            "seeds",
            _QUESTION,
            [*names, "seeds", "inputs per seed", "mean Δ", "SD", "range"],
            [[*one.name, *_row(one)] for one in found],
            refused,
        ),
        Table(
            "seeds_each",
            "What is Δ under each seed?",
            [*names, "seed", "n", "Δ", "open rate"],
            [
                [*one.name, cell.seed, delta.delta.n, delta.delta, delta.open]
                for one in found
                for cell, delta in zip(one.cells, one.deltas, strict=True)
            ],
            [how(settings)],
        ),
    ]
    seeds = sorted({cell.seed for one in found for cell in one.cells if cell.seed is not None})
    look = looks(f"seed {seed:06}" for seed in seeds)
    charts = row_charts(
        "seeds",
        _QUESTION,
        "Δ under each seed with its 95 % interval over inputs, one row per cell and set of tasks.",
        "Δ, gated − plain, mean over budgets below 1",
        [
            Row(
                f"{' '.join(map(str, one.name[:3]))}, {one.scope}\n"
                f"n = {_inputs(one)} per seed, SD {one.spread.sd:.3f}",
                [_of_seed(one, seed) for seed in seeds],
            )
            for one in found
        ],
        [(f"seed {seed}", look[f"seed {seed:06}"]) for seed in seeds],
    )
    return Section("seeds", "Seed replicates", text, tables, charts)


def _replicated(cells: Sequence[Cell], settings: Settings) -> list[_Replicated]:
    def deltas(some: Sequence[Cell]) -> list[Delta]:
        resampling = resampling_of(settings)
        return [parts_of(cell, settings.is_capacity_bound, resampling).every for cell in some]

    found = [_Replicated(cells, "all", deltas(cells))]
    bound = [without(cell, lambda task: not settings.is_capacity_bound(task)) for cell in cells]
    capacity = [cell for cell in bound if cell is not None]
    if len(capacity) == len(cells):
        found.append(_Replicated(capacity, "capacity-bound", deltas(capacity)))
    return found


def _row(one: _Replicated) -> list[Value]:
    found = one.spread
    return [found.mean.n, _inputs(one), found.mean, found.sd, found.range]


def _inputs(one: _Replicated) -> str:
    counts = sorted({delta.delta.n for delta in one.deltas})
    return "–".join(
        str(count) for count in (counts if len(counts) == 1 else counts[:: len(counts) - 1])
    )


def _of_seed(one: _Replicated, seed: int) -> Estimate | None:
    for cell, delta in zip(one.cells, one.deltas, strict=True):
        if cell.seed == seed:
            return delta.delta
    return None
