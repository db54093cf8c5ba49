"""Logs in the format that the PAGE paper's authors released, with a planted truth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BUDGETS = (1.0, 0.5, 0.25)
TASKS = ("niah_multikey_3", "vt", "fwe", "qa_1")
N = 20
"""Inputs of each task."""
LAYERS = 9


def length(task: int, i: int) -> int:
    return 4000 + 7 * task + 3 * i


def drop(task: int, i: int) -> float:
    """0.03 to 0.049 on the needles, 0.13 and more elsewhere: τ = 0.07 lies between."""
    return 0.03 + 0.1 * task + 0.001 * i


def full(task: int, i: int) -> bool:
    return i % (task + 2) != 0


def plain(task: int, i: int, budget: float) -> bool:
    """Needles break below 0.5; of the other tasks those recover whose number is 0."""
    if budget == 1:
        return full(task, i)
    return full(task, i) and budget >= 0.5 if task == 0 else full(task, i) or i == 0


def gated_rows(tau: float = 0.07, tasks: Sequence[str] = TASKS, n: int = N) -> list[dict[str, Any]]:
    """Rows of gated_*.jsonl: numbers run through all tasks, budget 1 is a row."""
    rows = []
    for t, task in enumerate(tasks):
        for i in range(n):
            opened = drop(t, i) >= tau
            for budget in BUDGETS:
                kept = max(40, int(length(t, i) * budget)) if budget < 1 else length(t, i)
                rows.append(
                    {
                        "id": t * n + i,
                        "task": task,
                        "budget": budget,
                        "T": length(t, i),
                        "drop": drop(t, i),
                        "gate_open": opened,
                        "n_kept_plain": kept,
                        "n_kept_gated": kept if opened else length(t, i),
                        "gold": ["x"],
                        "pred_plain": "y" * 200,
                        "pred_gated": "y" * 200,
                        "correct_plain": plain(t, i, budget),
                        "correct_gated": plain(t, i, budget) if opened else full(t, i),
                    }
                )
    return rows


def arm_rows() -> list[dict[str, Any]]:
    """Rows of adakv_*.jsonl: numbers begin anew in each task, the full cache is a field."""
    return [
        {
            "id": i,
            "task": task,
            "budget": budget,
            "T": length(t, i),
            "drop": drop(t, i),
            "gate_open": drop(t, i) >= 0.07,
            "correct_full": full(t, i),
            "correct_plain_shared": plain(t, i, budget),
            "n_kept_shared": float(round(length(t, i) * budget)),
            "correct_gated_shared": plain(t, i, budget) if drop(t, i) >= 0.07 else full(t, i),
            "correct_plain_adakv": full(t, i),
            "n_kept_adakv": float(round(length(t, i) * budget)),
            "correct_gated_adakv": full(t, i),
            "pred_full": "y" * 120,
        }
        for t, task in enumerate(TASKS)
        for i in range(N)
        for budget in BUDGETS[1:]
    ]


def memory_rows() -> list[dict[str, Any]]:
    """Rows of gated_dbtrimkv_*.jsonl: budgets in tokens, counts summed over 288 heads."""
    rows = []
    for row in gated_rows():
        if row["budget"] == 1:
            continue
        tokens = {0.5: 512, 0.25: 128}[row["budget"]]
        heads = {"n_kept_plain": 288 * tokens, "n_kept_gated": 288 * (row["T"] + 32)}
        rows.append({**row, **heads, "budget": tokens, "tau": 0.07})
    return rows


def agreement_rows(tasks: Sequence[str] = TASKS, n: int = N) -> list[dict[str, Any]]:
    """Rows of drops_*.jsonl, whose D is that of `gated_rows`; the last task stands first."""
    return [
        {
            "task": task,
            "T": length(t, i),
            "head_agreement_per_layer": profile(t, i).tolist(),
        }
        for t, task in reversed(list(enumerate(tasks)))
        for i in range(n)
    ]


def profile(task: int, i: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Agreement whose first third lies above the last by D."""
    values = np.full(LAYERS, 0.4 + 0.01 * task)
    values[: LAYERS // 3] += drop(task, i)
    return values


def write(path: Path, rows: Iterable[dict[str, Any] | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
