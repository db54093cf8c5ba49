"""A grid of cells drawn at random, in which everything that a report shows has something to say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from toy_cells import Toy, toy_cell

from page_bench.analysis.cells import Cell

BUDGETS = (0.0625, 0.125, 0.25, 0.5)
# Mean D, accuracy with the full cache, share of wrong inputs that recover, accuracy that is left
# at each budget.
TASKS = {
    "niah_multikey_3": (0.04, 0.9, 0.0, (0.0, 0.02, 0.1, 0.4)),
    "vt": (0.16, 0.8, 0.3, (0.3, 0.9, 0.97, 1.0)),
    "fwe": (0.11, 0.6, 0.4, (0.6, 0.8, 0.9, 1.0)),
    "qa_1": (0.22, 0.7, 0.1, (0.9, 0.95, 1.0, 1.0)),
}
LAYERS = 10


def grid(
    models: Sequence[str] = ("toy-1B", "toy-7B"),
    suites: Sequence[str] = ("ruler_4k", "ruler_16k"),
    evictors: Sequence[str] = ("snapkv", "streamingllm"),
    gates: Sequence[tuple[str, float]] = (("page fixed", 0.07), ("page zscore", 0.09)),
    n: int = 30,
) -> list[Cell]:
    """Cells of all of these, n inputs per task, the same prefill for all evictors and gates."""
    cells = []
    for i, model in enumerate(models):
        for j, suite in enumerate(suites):
            agreement, drops, fulls = _prefill(n, np.random.default_rng([i, j]))
            for k, evictor in enumerate(evictors):
                for gate, tau in gates:
                    random = np.random.default_rng([i, j, k])
                    toys = _toys(n, drops, fulls, tau, random)
                    cells.append(
                        toy_cell(
                            toys,
                            model=model,
                            suite=suite,
                            evictor=evictor,
                            gate=gate,
                            tau=tau,
                            agreement=agreement,
                        )
                    )
    return cells


def _prefill(n: int, random: np.random.Generator) -> tuple[np.ndarray, list[float], list[float]]:
    third = LAYERS // 3
    agreement, fulls = random.uniform(0.2, 0.4, (n * len(TASKS), LAYERS)), list[float]()
    for number, (mean, full, *_) in enumerate(TASKS.values()):
        for row in range(number * n, (number + 1) * n):
            wanted = random.normal(mean, 0.02)
            profile = agreement[row]
            profile[:third] += wanted - (profile[:third].mean() - profile[-third:].mean())
            fulls.append(float(random.random() < full))
    drops = agreement[:, :third].mean(1) - agreement[:, -third:].mean(1)
    return agreement, drops.tolist(), fulls


def _toys(
    n: int,
    drops: Sequence[float],
    fulls: Sequence[float],
    tau: float,
    random: np.random.Generator,
) -> list[Toy]:
    toys = []
    for number, (task, (_, _, recovers, left)) in enumerate(TASKS.items()):
        for doc_id in range(n):
            row = number * n + doc_id
            chance, seconds = random.random(), float(random.uniform(0.9, 1.1))
            plain = {
                budget: float(chance < (kept if fulls[row] else recovers * 0.8))
                for budget, kept in zip(BUDGETS, left, strict=True)
            }
            others = {
                "prefill_s": 0.4 * seconds,
                "gate_s": 0.02 * seconds,
                "plain_s": 0.5 * seconds,
                "full_s": 0.8 * seconds,
            }
            toys.append(Toy(task, doc_id, fulls[row], plain, drops[row], drops[row] >= tau, others))
    return toys
