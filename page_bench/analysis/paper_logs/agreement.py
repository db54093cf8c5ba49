"""The paper's `drops_*` logs: head agreement by layer, put beside the inputs it was read from."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell
from page_bench.analysis.paper_logs.lines import Log, ranges
from page_bench.analysis.paper_logs.names import Names
from page_bench.inputs.errors import UsageError

SAME_DROP = 0.02
"""Two D of one input lie nearer; other hardware and two bin conventions move D by up to 0.01."""


@dataclass(frozen=True)
class Agreement:
    """A log of head agreement.

    Attributes:
        file: its name.
        model, suite, seed: what it is of.
        tasks: by task, in order, prompt lengths `[n]` and agreement `[n, layers]`.
    """

    file: str
    model: str
    suite: str
    seed: int | None
    tasks: dict[str, tuple[list[int], NDArray[np.float64]]]


def agreement_of(log: Log, names: Names) -> tuple[Agreement, list[str]]:
    """The agreement of a log, without blocks that stand there twice, and sentences on these.

    Raises:
        UsageError: nothing is there, or numbers of layers differ.
    """
    if not log.rows:
        raise UsageError("no line of it is whole.")
    notes = []
    if log.unreadable:
        notes.append(
            f"{log.path.name}: {len(log.unreadable)} lines are not whole and were left out (line "
            f"{ranges(log.unreadable)}); inputs of that task cannot be told by their place."
        )
    blocks: dict[str, list[list[int]]] = defaultdict(list)
    for i, row in enumerate(log.rows):
        known = blocks[row["task"]]
        if i and log.rows[i - 1]["task"] == row["task"]:
            known[-1].append(i)
        else:
            known.append([i])
    tasks = {}
    for task, own in blocks.items():
        first = own[0] if len(own) > 1 else _once(log, own[0])
        again = [i for block in own for i in block if i not in set(first)]
        if again:
            notes.append(
                f"{log.path.name}: the block of {task} stands there twice and counts once (line "
                f"{ranges(log.lines[i] for i in again)})."
            )
        layers = [log.rows[i]["head_agreement_per_layer"] for i in first]
        if len({len(values) for values in layers}) > 1:
            raise UsageError(f"its inputs of {task} have different numbers of layers.")
        tasks[task] = (
            [int(log.rows[i]["T"]) for i in first],
            np.array(layers, dtype=np.float64),
        )
    sizes = {task: len(lengths) for task, (lengths, _) in tasks.items()}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{task} {n}" for task, n in sorted(sizes.items()))
        notes.append(f"{log.path.name}: its tasks have different numbers of inputs ({said}).")
    return Agreement(log.path.name, names.model, names.suite, names.seed, tasks), notes


def attached(
    cells: Sequence[Cell], agreements: Sequence[Agreement]
) -> tuple[list[Cell], list[str]]:
    """Cells with the agreement of their inputs, where a log has it of all of them.

    The logs do not number their inputs: an input is known by its place in its task, and its
    prompt length and D must agree.

    Returns:
        The cells, and sentences on logs that fit none.
    """
    made, fits, why = list(cells), set(), dict[str, str]()
    for log in agreements:
        for i, cell in enumerate(made):
            if (cell.model, cell.suite, cell.seed) != (log.model, log.suite, log.seed):
                continue
            found = _of_inputs(cell, log)
            if isinstance(found, str):
                why[log.file] = f"{cell.label}: {found}"
            else:
                made[i] = dataclasses.replace(cell, agreement=found)
                fits.add(log.file)
    notes = [
        f"{log.file}: agreement by layer is shown for no cell, "
        + (why.get(log.file) or f"since no log holds answers of {log.model} at {log.suite}")
        + "."
        for log in agreements
        if log.file not in fits
    ]
    return made, notes


def _of_inputs(cell: Cell, log: Agreement) -> NDArray[np.float64] | str:
    inputs = cell.rows.drop_duplicates("input").sort_values("input")
    found = []
    for row in inputs.itertuples():
        lengths, values = log.tasks.get(str(row.task), ([], np.empty((0, 0))))
        place = int(row.doc_id)
        if place >= len(lengths) or lengths[place] != row.prompt_tokens:
            return f"{row.task} document {place} is not in it with {row.prompt_tokens} tokens"
        third = values.shape[1] // 3
        drop = values[place, :third].mean() - values[place, -third:].mean()
        if abs(drop - float(row.drop)) > SAME_DROP:
            return f"D of {row.task} document {place} is {drop:.4f} there and {row.drop:.4f} here"
        found.append(values[place])
    if len({len(values) for values in found}) > 1:
        return "numbers of layers differ"
    return np.array(found)


def _once(log: Log, block: list[int]) -> list[int]:
    """A block without its repetition, if it holds the same inputs twice in a row."""
    half = len(block) // 2
    same = [(log.rows[i]["T"], log.rows[i]["head_agreement_per_layer"]) for i in block]
    return block[:half] if half and same[:half] == same[half:] else block
