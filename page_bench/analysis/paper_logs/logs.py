"""Cells of the paper's released JSONL logs: the gate is decided from D, never read from a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.own_cells import gate_label
from page_bench.analysis.paper_logs.agreement import Agreement, agreement_of, attached
from page_bench.analysis.paper_logs.checks import compared
from page_bench.analysis.paper_logs.lines import Log, read_log
from page_bench.analysis.paper_logs.names import Names, withdrawn
from page_bench.analysis.paper_logs.table import LogTable, tables_of
from page_bench.analysis.regate import Tau, config_of, is_task
from page_bench.engine import decision
from page_bench.engine.decision import Decision
from page_bench.gating.gate import AnswerFacts, Facts, Gate
from page_bench.gating.gates import Oracle, Random, Retry
from page_bench.gating.rules import (
    CAPACITY_BOUND,
    DILUTION_PRONE,
    MIDPOINT_SIZE,
    midpoint_threshold,
    with_interval,
)
from page_bench.gating.signal_gates import Page
from page_bench.inputs.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

METRIC = "correct_paper"
"""What these logs hold: any reference counts in multiquery."""
_MULTIQUERY = "niah_multiquery"
_SAME_SIZE = 0.95
"""Replicates with a smaller share of the inputs of the largest one are parts of a run."""


@dataclass(frozen=True)
class Read:
    """What came of some logs.

    Attributes:
        cells: of all that could be used.
        used: their files.
        refused: files that could not be used, with the reason.
        notes: sentences on what was wrong in files that were used, and between them.
    """

    cells: list[Cell]
    used: list[Path]
    refused: dict[Path, str]
    notes: list[str]


def read_authors(files: Sequence[tuple[Path, Place]], choice: Choice) -> Read:
    """Cells of released logs.

    Args:
        files: each with what the user says of it.
        choice: gate (one that reads D, a control, or `oracle`), τ and metric.

    Raises:
        UsageError: a gate or metric that these logs do not allow.
    """
    _check(choice)
    cells: dict[tuple[str, str, str, int | None], tuple[Path, Cell]] = {}
    agreements: list[Agreement] = []
    read = Read([], [], {}, [])
    for path, place in files:
        try:
            found, notes = _cells_of(path, place, choice, agreements)
            for cell in found:
                other = cells.get((cell.model, cell.suite, cell.evictor, cell.seed))
                if other is not None:
                    raise UsageError(
                        f"it is of {cell.label} as {other[0].name} is; leave one out, or tell them "
                        f"apart as seed=NUMBER:PATH or evictor=NAME:PATH."
                    )
        except UsageError as error:
            read.refused[path] = str(error)
            continue
        cells |= {(c.model, c.suite, c.evictor, c.seed): (path, c) for c in found}
        read.used.append(path)
        read.notes.extend(notes)
    kept = _without_parts([(path, cell) for path, cell in cells.values()], read)
    with_agreement, notes = attached([cell for _, cell in kept], agreements)
    read.cells.extend(with_agreement)
    read.notes.extend([*notes, *compared(kept)])
    if read.cells and any(_MULTIQUERY in cell.tasks for cell in read.cells):
        read.notes.append(
            f"{_MULTIQUERY} counts as correct with any of its references, as the paper counted; "
            f"RULER asks for all, and the logs' cut texts do not allow to score again."
        )
    return read


def _check(choice: Choice) -> None:
    gate, tau = choice.used_gate, choice.tau
    reads_more = gate.signal not in (None, "drop")
    otherwise = isinstance(gate, Page) and gate != Page(open_when=gate.open_when)
    if reads_more or otherwise or isinstance(gate, Random | Retry):
        raise UsageError(
            f"gate={gate.name} with its options reads what the authors' logs do not hold; they "
            f"allow page as deployed, static, open, closed, task_oracle and oracle."
        )
    if tau is not None and tau.calibration is not None:
        raise UsageError(
            "--calibration is of page-bench's own runs; give --tau a number or a rule for the "
            "authors' logs."
        )
    if choice.metric not in (None, METRIC):
        raise UsageError(f"the authors' logs hold {METRIC} alone; give --metric {METRIC}, or none.")


def _cells_of(
    path: Path, place: Place, choice: Choice, agreements: list[Agreement]
) -> tuple[list[Cell], list[str]]:
    folder = withdrawn(path)
    if folder is not None:
        raise UsageError(f"its authors have withdrawn it: it lies in {folder}.")
    log = read_log(path)
    if log.kind is None:
        raise UsageError(f"it holds {log.why}.")
    names = Names.of(path, log.kind, _policy(log), place.names, place.seed)
    if log.kind == "agreement":
        agreement, notes = agreement_of(log, names)
        agreements.append(agreement)
        return [], notes
    tables, notes = tables_of(log, choice.least_inputs)
    cells = []
    for number, table in enumerate(tables):
        cell, said = _cell(table, names, choice, path.name)
        notes += said if number == 0 else []
        cells.append(cell)
    return cells, notes


def _policy(log: Log) -> str | None:
    policies = {str(row.get("score_policy")) for row in log.rows}
    if len(policies) > 1:
        raise UsageError(
            f"its rows are of several score policies ({', '.join(sorted(policies))}); write each "
            f"into a file of its own."
        )
    policy = log.rows[0].get("score_policy") if log.rows else None
    return policy if isinstance(policy, str) else None


def _cell(table: LogTable, names: Names, choice: Choice, file: str) -> tuple[Cell, list[str]]:
    import pandas as pd

    rows = table.rows
    first = rows["task"].map(table.first)
    # Global numbers run through all tasks; a document's is that in its own task.
    rows = rows.assign(doc_id=rows["id"] - first)
    inputs = rows.drop_duplicates(["task", "doc_id"])
    decided = _decide(choice.used_gate, choice.tau or Tau("fixed"), inputs)
    opened = _opens(rows, decided)
    missing = np.isnan(rows["full"].to_numpy()) & ~opened
    if missing.any():
        raise UsageError(
            f"its gate was open on {int(missing.sum())} rows that are closed here, and it holds no "
            f"answer of the full cache to them; report it at the τ of its run."
        )
    known, nothing = rows["full"].to_numpy(), np.full(len(rows), np.nan)
    threshold = decided.threshold
    made = pd.DataFrame(
        {
            "task": rows["task"].astype(str),
            "doc_id": rows["doc_id"],
            "repeat": 0,
            "input": pd.factorize(rows["task"] + "/" + rows["doc_id"].astype(str))[0],
            "budget": rows["budget"],
            "prompt_tokens": rows["prompt_tokens"],
            "drop": rows["drop"],
            "open": opened,
            "plain": rows["plain"],
            "full": known,
            "plain_score": nothing,
            "full_score": nothing,
            "plain_kept": rows["kept"],
            "full_kept": 1.0,
            "plain_bytes": nothing,
            "full_bytes": nothing,
            **{f"{name}_s": nothing for name in ("prefill", "gate", "plain", "full")},
        }
    )
    cell = Cell(
        model=names.model,
        suite=names.suite,
        evictor=" ".join(filter(None, [names.evictor, table.evictor])),
        gate=gate_label(decided.gate, "" if threshold is None else threshold.rule),
        tau=None if threshold is None else threshold.tau,
        seed=names.seed,
        metric=METRIC,
        rows=made,
        agreement=None,
    )
    return cell, _stored(rows, opened, file)


def _decide(gate: Gate, tau: Tau, inputs: pd.DataFrame) -> Decision:
    """The gate with its τ; a pilot is all inputs, as in the paper."""
    config = config_of(gate, tau)
    if gate.signal is None or not config.reads_pilot:
        return decision.without_pilot(config)
    tasks, drops = inputs["task"].tolist(), inputs["drop"].tolist()
    found = decision.from_pilot(config, tasks, drops)
    if tau.value == "midpoint" and gate.side is not None:
        low, high = (
            [d for task, d in zip(tasks, drops, strict=True) if is_task(name, task)][:MIDPOINT_SIZE]
            for name in (CAPACITY_BOUND, DILUTION_PRONE)
        )
        threshold = midpoint_threshold(low, high, "drop", gate.side)
        found = dataclasses.replace(found, threshold=with_interval(threshold, low, high))
    return found


def _opens(rows: pd.DataFrame, decided: Decision) -> NDArray[np.bool_]:
    gate, opened = decided.gate, []
    oracle = isinstance(gate, Oracle)
    if oracle and rows["full"].isna().any():
        raise UsageError("gate=oracle compares with the full cache's answers, which it lacks.")
    for row in rows.itertuples():
        signals = {"drop": float(row.drop)}
        mean = decided.task_means.get(str(row.task))
        facts = Facts(str(row.task), int(row.doc_id), 0, signals, decided.threshold, mean)
        takes = gate.opens(facts)
        if takes and oracle:
            plain, full = (AnswerFacts(np.nan, np.nan, v) for v in (row.plain, row.full))
            takes = gate.accepts(plain, full)
        opened.append(takes)
    return np.array(opened, dtype=bool)


def _stored(rows: pd.DataFrame, opened: NDArray[np.bool_], file: str) -> list[str]:
    """How the rows' own decisions and outcomes differ from those taken here."""
    below = (rows["budget"] < 1).to_numpy()
    stored_open = rows["stored_open"].to_numpy()
    flips = int((stored_open != opened)[below].sum())
    gated = np.where(opened, rows["plain"], rows["full"])
    own = np.where(stored_open, rows["plain"], rows["full"])
    other = (own != rows["stored_gated"].to_numpy()) & ~np.isnan(own)
    broken = int(other[below].sum())
    if broken:
        return [
            f"{file}: {broken} of {int(below.sum())} gated outcomes are neither what the run's own "
            f"gate says, plain or full; rows of two runs may be mixed. They are not used."
        ]
    if not flips:
        return []
    outcomes = int((gated != rows["stored_gated"].to_numpy())[below].sum())
    drop = rows["drop"].to_numpy()
    highest, lowest = _between(drop, stored_open)
    fits = f" (a τ in ({highest:.4f}, {lowest:.4f}])" if highest < lowest else ""
    return [
        f"{file}: the run's own gate{fits} decided otherwise on {flips} of {int(below.sum())} rows "
        f"below budget 1, and {outcomes} of its gated outcomes differ; they are not used."
    ]


def _between(drop: NDArray[np.float64], opened: NDArray[np.bool_]) -> tuple[float, float]:
    """The largest D of a closed gate and the smallest of an open one."""
    return (
        float(drop[~opened].max()) if not opened.all() else -np.inf,
        float(drop[opened].min()) if opened.any() else np.inf,
    )


def _without_parts(found: Sequence[tuple[Path, Cell]], read: Read) -> list[tuple[Path, Cell]]:
    """All but replicates that hold clearly fewer inputs than the largest one of their kind."""
    largest: dict[tuple[str, str, str], int] = {}
    sizes = [int(cell.rows["input"].nunique()) for _, cell in found]
    for (_, cell), size in zip(found, sizes, strict=True):
        place = cell.model, cell.suite, cell.evictor
        largest[place] = max(largest.get(place, 0), size)
    kept = []
    for (path, cell), size in zip(found, sizes, strict=True):
        most = largest[cell.model, cell.suite, cell.evictor]
        if cell.seed is not None and size < _SAME_SIZE * most:
            read.refused[path] = (
                f"it is part of a replicate: {size} inputs, where another seed of the same has "
                f"{most}; leave it out, or run it to its end."
            )
            if path in read.used:
                read.used.remove(path)
        else:
            kept.append((path, cell))
    return kept
