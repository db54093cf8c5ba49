"""Agreement profiles and D read from them, against hand-made layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_cells import Toy, toy_cell

from page_bench.analysis.layers import profiles, thirds

# Four layers: one in each equal bin; strict thirds begin the late bin at ⌊8/3⌋ = 2.
AGREEMENT = np.array([[0.9, 0.5, 0.4, 0.1], [0.7, 0.5, 0.2, 0.1]])
DROPS = [0.8, 0.6]
STRICT = [0.9 - 0.25, 0.7 - 0.15]


@pytest.mark.parametrize(
    ("layers", "places"), [(3, (1, 2, 2)), (4, (1, 3, 2)), (28, (9, 19, 18)), (48, (16, 32, 32))]
)
def test_where_the_bins_lie(layers: int, places: tuple[int, int, int]) -> None:
    assert thirds(layers) == places


def test_a_profile_by_hand() -> None:
    toys = [Toy("vt", i, 1.0, {0.5: 1.0}, drop=drop) for i, drop in enumerate(DROPS)]
    (found,) = profiles(toy_cell(toys, agreement=AGREEMENT, tau=0.58))
    assert (found.task, found.n) == ("vt", 2)
    assert [layer.value for layer in found.layers] == pytest.approx([0.8, 0.5, 0.3, 0.1])
    # The second layer has the same value in both, within [0, 1].
    assert {layer.method for layer in found.layers} == {"n too small", "wilson"}
    assert (found.early.value, found.late.value) == pytest.approx((0.8, 0.1))
    assert found.strict_late.value == pytest.approx(0.2)
    assert found.drop.value == pytest.approx(0.7)
    assert found.strict_drop.value == pytest.approx(sum(STRICT) / 2)
    assert found.apart == 0
    assert found.largest < 1e-12
    # 0.6 opens at τ = 0.58, and 0.55 would not.
    assert found.flipped == 1


def test_a_recorded_d_that_the_layers_do_not_give_is_counted() -> None:
    toys = [Toy("vt", 0, 1.0, {0.5: 1.0}, drop=0.8), Toy("vt", 1, 1.0, {0.5: 1.0}, drop=0.65)]
    (found,) = profiles(toy_cell(toys, agreement=AGREEMENT, tau=None))
    assert found.apart == 1
    assert found.largest == pytest.approx(0.05)
    assert found.flipped is None


def test_tasks_read_their_own_inputs() -> None:
    toys = [Toy("vt", 0, 1.0, {0.5: 1.0}, drop=0.8), Toy("fwe", 0, 1.0, {0.5: 1.0}, drop=0.6)]
    fwe, vt = profiles(toy_cell(toys, agreement=AGREEMENT))
    assert (fwe.task, fwe.early.value, vt.task, vt.early.value) == ("fwe", 0.7, "vt", 0.9)


def test_without_three_layers_there_is_nothing_to_say() -> None:
    toys = [Toy("vt", 0, 1.0, {0.5: 1.0})]
    assert profiles(toy_cell(toys)) == []
    assert profiles(toy_cell(toys, agreement=np.array([[0.5, 0.4]]))) == []


def test_a_layer_without_pairs_of_heads_is_no_number() -> None:
    toys = [Toy("vt", 0, 1.0, {0.5: 1.0}, drop=math.nan)]
    (found,) = profiles(toy_cell(toys, agreement=np.array([[0.5, math.nan, math.nan]])))
    assert found.layers[1].n == 0
    assert math.isnan(found.drop.value)
    assert math.isnan(found.largest)
