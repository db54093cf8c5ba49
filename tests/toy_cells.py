"""Cells made up by hand, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from page_bench.analysis.cells import Cell


@dataclass(frozen=True)
class Toy:
    """One input.

    Attributes:
        task, doc_id: the sample.
        full: the metric with the full cache.
        plain: by budget, the metric under eviction.
        drop: D.
        open: what the gate decides, at all budgets.
        others: columns of `Cell.rows`, the same at all budgets.
    """

    task: str
    doc_id: int
    full: float
    plain: dict[float, float]
    drop: float = 0.1
    open: bool = True
    others: dict[str, Any] = field(default_factory=dict)


def toy_cell(
    toys: Sequence[Toy],
    *,
    model: str = "toy",
    suite: str = "ruler_4k",
    evictor: str = "snapkv",
    gate: str = "page fixed",
    tau: float | None = 0.07,
    seed: int | None = None,
    metric: str = "correct",
    with_full: bool = True,
    agreement: NDArray[np.float64] | None = None,
) -> Cell:
    """A cell of these inputs.

    Args:
        toys: inputs.
        with_full: whether budget 1 stands among the rows, as where runs hold it.
        agreement: `[inputs, layers]`.
        model, suite, evictor, gate, tau, seed, metric: as in `Cell`.
    """
    rows = []
    for number, toy in enumerate(toys):
        budgets = dict(toy.plain) | ({1.0: toy.full} if with_full else {})
        for budget in sorted(budgets):
            rows.append(
                {
                    "task": toy.task,
                    "doc_id": toy.doc_id,
                    "repeat": 0,
                    "input": number,
                    "budget": budget,
                    "prompt_tokens": 1000,
                    "drop": toy.drop,
                    "open": toy.open,
                    "plain": budgets[budget],
                    "full": toy.full,
                    "plain_score": np.nan,
                    "full_score": np.nan,
                    "plain_kept": budget,
                    "full_kept": 1.0,
                    "plain_bytes": np.nan,
                    "full_bytes": np.nan,
                    "prefill_s": np.nan,
                    "gate_s": np.nan,
                    "plain_s": np.nan,
                    "full_s": np.nan,
                    **toy.others,
                }
            )
    return Cell(model, suite, evictor, gate, tau, seed, metric, pd.DataFrame(rows), agreement)


def counted(task: str, patterns: Sequence[tuple[int, float, dict[float, float]]]) -> list[Toy]:
    """So many inputs of each pattern of (count, full, plain by budget), numbered from 0 on."""
    toys: list[Toy] = []
    for count, full, plain in patterns:
        toys += [Toy(task, len(toys) + i, full, plain) for i in range(count)]
    return toys
