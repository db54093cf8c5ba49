"""All sections of a report, from cells; nothing is written."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from page_bench import __version__
from page_bench.analysis.cells import Cell
from page_bench.analysis.intervals import ClusterBootstrap
from page_bench.inputs.errors import UsageError
from page_bench.pages.section import Section, Table, Value
from page_bench.pages.values import has_n
from page_bench.report.settings import Settings
from page_bench.report.sources import Sources

SECTIONS = (
    *("partition", "harm", "evidence", "recovery", "delta", "decomposition", "budgets"),
    "frontier",
    *("oracle", "batching", "drop", "tau", "layers", "scaling", "mixture", "seeds", "cost"),
)
"""Modules of this package, in the order of the report."""

WITHOUT_FULL = frozenset({"delta", "decomposition", "batching", "mixture", "seeds", "layers"})
"""Those that ask nothing of the full cache's answers where the gate opens."""


@dataclass(frozen=True)
class Report:
    """What is to be written.

    Attributes:
        title: of all.
        settings: by name, what the statistics were taken with.
        notes: what a reader must know first.
        data: what was read.
        sections: those with something to show.
    """

    title: str
    settings: dict[str, Value]
    notes: Sequence[str]
    data: Section
    sections: Sequence[Section]


def build(
    sources: Sources,
    settings: Settings,
    progress: Callable[[Sequence[str]], Iterator[str]] = iter,
) -> Report:
    """All sections of a report.

    Args:
        sources: cells and what was read.
        settings: of the statistics.
        progress: wraps the names of the sections while these are made.
    """
    notes = [*_task_notes(sources.cells, settings), *sources.notes]
    known = [cell for cell in sources.cells if cell.knows_full]
    partial = len(sources.cells) - len(known)
    if partial:
        notes.append(
            f"{partial} of {len(sources.cells)} cells do not hold the full cache's answers where "
            f"the gate was open and are left out of all sections that need them; there are left "
            f"{', '.join(sorted(WITHOUT_FULL))}."
        )
    sections: list[Section] = []
    silent: list[Section] = []
    for name in progress(SECTIONS):
        module = importlib.import_module(f"page_bench.report.sections.{name}")
        cells = sources.cells if name in WITHOUT_FULL else known
        made = _made(name, module.section, cells, settings)
        (sections if made.tables or made.charts else silent).append(made)
    notes += [f"no section “{made.title}”: {made.text}" for made in silent]
    for made in sections:
        _check(made)
    return Report(
        "Eviction, input by input",
        {
            "capacity-bound tasks": settings.capacity_bound,
            "bootstrap draws": settings.draws,
            "bootstrap seed": settings.seed,
            "resampled": "inputs of all tasks together",
            "ρ threshold": settings.rho_threshold,
            "page-bench": __version__,
        },
        notes,
        data_section(sources),
        sections,
    )


def data_section(sources: Sources) -> Section:
    """Which cells there are, how the traces were made, and what became of each file."""
    cells: list[list[Value]] = [
        [
            *(cell.model, cell.suite, cell.evictor, cell.gate, cell.tau, cell.seed, cell.metric),
            ", ".join(cell.tasks),
            ", ".join(f"{b:g}" for b in sorted(cell.rows["budget"].unique())),
            int(cell.rows["input"].nunique()),
            len(cell.rows),
        ]
        for cell in sources.cells
    ]
    heads = ("model", "suite", "evictor", "gate", "τ", "seed", "metric", "tasks", "budgets", "n")
    tables = [
        Table(
            "data_cells",
            "Which inputs, under which evictor and gate?",
            [*heads, "rows"],
            cells,
            ["n: inputs; a row is one of them at one budget."],
        )
    ]
    if sources.settings:
        tables.append(
            Table(
                "data_settings",
                "How were the traces made?",
                [*sources.setting_names, "n"],
                [[*values, n] for values, n in sorted(sources.settings.items())],
                ["n: traces."],
            )
        )
    if sources.cut:
        tables.append(_cut(sources))
    if sources.versions:
        tables.append(
            Table(
                "data_versions",
                "With which software and device?",
                ["what", "which", "n"],
                [[*what, n] for what, n in sorted(sources.versions.items())],
                ["n: results files beside the traces that say so."],
            )
        )
    tables.append(
        Table(
            "data_files",
            "Which files were read?",
            ["file", "n", "left out because"],
            [[str(file.path), file.n, file.left_out or None] for file in sources.files],
            ["n: rows."],
        )
    )
    text = (
        "All statistics are taken from cells: inputs of one model and suite under one evictor, at "
        "several budgets, with a gate over them. A gated answer is, input by input, the plain or "
        "the full one."
    )
    return Section("data", "What was read", text, tables)


def _cut(sources: Sources) -> Table:
    """How many answers their length limit cut, task by task."""
    rows: list[list[Value]] = []
    for (task, full, limit), answers in sorted(sources.cut.items()):
        prompts, cut = zip(*answers, strict=True)
        found = ClusterBootstrap(prompts).mean(cut, "share")
        rows.append([task, "full" if full else "evicted", limit, len(answers), found.n, found])
    return Table(
        "data_cut",
        "How many answers were cut at their length limit?",
        ["task", "cache", "tokens allowed", "answers", "n", "cut"],
        rows,
        [
            "n: inputs, each drawn with all its answers. Cut: as long as allowed, and neither an "
            "end-of-sequence token nor a stop string at the end. Where only evicted answers are "
            "cut, eviction made them ramble; where the full cache's are too, the limit is short or "
            "the task sets no stop."
        ],
    )


def _made(
    name: str,
    section: Callable[[Sequence[Cell], Settings], Section],
    cells: Sequence[Cell],
    settings: Settings,
) -> Section:
    """A section; what it cannot make of these cells is told in its stead."""
    if not cells:
        return Section(name, name, "no cell holds the full cache's answers to all inputs.")
    try:
        return section(cells, settings)
    except UsageError as error:
        return Section(name, name, str(error))


def _check(section: Section) -> None:
    """An estimate without n would be an author's mistake, not a user's."""
    silent = [table.name for table in section.tables if table.rows and not has_n(table)]
    if silent:
        raise ValueError(f"tables without n in section {section.name}: {', '.join(silent)}")


def _task_notes(cells: Sequence[Cell], settings: Settings) -> list[str]:
    tasks = sorted({task for cell in cells for task in cell.tasks})
    bound = [task for task in tasks if settings.is_capacity_bound(task)]
    if not bound:
        return [
            f"no task is {settings.capacity_bound}, so that nothing is taken as capacity-bound; "
            f"--capacity_bound names others ({', '.join(tasks)})."
        ]
    if len(bound) == len(tasks):
        return [f"every task is capacity-bound ({settings.capacity_bound}); nothing is left to Δ."]
    return []
