"""Compression and its decay against hand-made caches and the paper's Tables 22 and 23."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_cells import Toy, toy_cell

from page_bench.analysis.batching import achieved, decay, static_compression
from page_bench.analysis.cells import Cell
from page_bench.analysis.resampling import Resampling

FEW = Resampling(500)
OPEN = {"Qwen2.5-1.5B": 300, "Qwen2.5-3B": 196, "Qwen2.5-14B": 300, "Mistral-7B": 287}
"""Of 400 inputs, how many gates open: Table 22's 0.750, 0.490, 0.750 and 0.718."""
TABLE_23 = {
    "Qwen2.5-1.5B": (3.37, 2.12, 1.42, 1.10, 1.01, 1.00, 1.00),
    "Qwen2.5-3B": (1.85, 1.29, 1.06, 1.00, 1.00, 1.00, 1.00),
    "Qwen2.5-14B": (3.37, 2.12, 1.42, 1.10, 1.01, 1.00, 1.00),
    "Mistral-7B": (3.06, 1.93, 1.33, 1.07, 1.00, 1.00, 1.00),
}
MEAN = (2.91, 1.86, 1.31, 1.07, 1.01, 1.00, 1.00)


def cell_of(model: str, opened: int, n: int = 400, budgets: tuple[float, ...] = (0.0625,)) -> Cell:
    plain = dict.fromkeys(budgets, 1.0)
    toys = [Toy("vt", i, 1.0, plain, open=i < opened) for i in range(n)]
    return toy_cell(toys, model=model)


def test_the_formula_by_hand() -> None:
    """p = 1/2, k = 1/4: one in four pairs is all open, 1/16 + 3/4 = 13/16."""
    assert static_compression(0.5, 0.25, 2) == pytest.approx(16 / 13)
    assert static_compression(0.5, 0.25, 1) == pytest.approx(1 / 0.625)
    assert static_compression(1.0, 0.25, 64) == pytest.approx(4)
    assert static_compression(0.0, 0.25, 1) == 1


def test_the_formula_is_what_random_batches_hold() -> None:
    generator = np.random.default_rng(0)
    opened = generator.random((200_000, 4)) < 0.8
    kept = np.where(opened.all(1), 0.1, 1.0)
    assert static_compression(0.8, 0.1, 4) == pytest.approx(1 / kept.mean(), rel=0.01)


@pytest.mark.parametrize("model", list(OPEN))
def test_table_23_follows_from_table_22(model: str) -> None:
    found = decay([cell_of(model, OPEN[model])], 0.0625, FEW)
    values = [found.compression[batch].value for batch in (1, 2, 4, 8, 16, 32, 64)]
    assert values == pytest.approx(TABLE_23[model], abs=6e-3)
    assert found.open.value == OPEN[model] / 400
    assert (found.kept_open.value, found.compression[1].n) == (0.0625, 400)


def test_the_mean_is_of_compressions_and_not_of_open_rates() -> None:
    """Table 23's last row: 2.91 at batch 1, where the mean open rate would give 2.74."""
    cells = [cell_of(model, opened) for model, opened in OPEN.items()]
    found = decay(cells, 0.0625, FEW)
    values = [estimate.value for estimate in found.compression.values()]
    assert values == pytest.approx(MEAN, abs=6e-3)
    wrong = static_compression(found.open.value, found.kept_open.value, 1)
    assert wrong == pytest.approx(2.74, abs=5e-3)
    assert found.compression[1].value == pytest.approx(2.91, abs=5e-3)
    assert (found.cells, found.compression[1].n) == (4, 400)
    assert found.compression[1].low < found.compression[1].value < found.compression[1].high


def test_table_22_s_kept_kv() -> None:
    """0.297, 0.437 and 0.625 at three budgets, a mean of 0.584 over eight, and 1 over it."""
    budgets = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
    found = achieved(cell_of("Qwen2.5-1.5B", 300, budgets=budgets), FEW)
    kept = {one.budget: one for one in found}
    assert [kept[b].kept.value for b in (0.0625, 0.25, 0.5)] == pytest.approx(
        (0.297, 0.4375, 0.625), abs=5e-4
    )
    assert kept[0.25].plain_kept.value == 0.25
    assert kept[0.0625].compression.value == pytest.approx(3.4, abs=0.05)
    mean = kept[None]
    assert (mean.kept.value, mean.plain_kept.value) == pytest.approx((0.584, 0.445), abs=6e-4)
    assert mean.compression.value == pytest.approx(1.71, abs=5e-3)


def test_a_gate_that_never_opens_saves_nothing() -> None:
    found = decay([cell_of("shut", 0, 20)], 0.0625, FEW)
    assert [one.value for one in found.compression.values()] == [1.0] * 7
    assert not found.compression[1].has_interval
    assert math.isnan(found.kept_open.value)


def test_kept_kv_of_open_gates_is_their_own() -> None:
    """Closed inputs would have kept more; only what the open ones keep counts."""
    toys = [
        Toy("vt", 0, 1.0, {0.1: 1.0}, open=True, others={"plain_kept": 0.2}),
        Toy("vt", 1, 1.0, {0.1: 1.0}, open=False, others={"plain_kept": 0.6}),
    ]
    found = decay([toy_cell(toys, with_full=False)], 0.1, FEW)
    assert found.kept_open.value == pytest.approx(0.2)
    assert found.compression[1].value == pytest.approx(1 / 0.6)
