"""Which way D points, and over how many layers it is taken."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from page_bench.engine.summary import few_layers_warning
from page_bench.gating.direction import Direction, direction_of
from page_bench.gating.profile import DropOptions, bin_size
from page_bench.gating.threshold import Side


def direction(
    broken: Sequence[float], unbroken: Sequence[float], side: Side = "above"
) -> Direction:
    drops = {("t", i): value for i, value in enumerate([*broken, *unbroken])}
    plain = {sample: float(i >= len(broken)) for i, sample in enumerate(drops)}
    # What the full cache has wrong says nothing of eviction.
    drops |= {("u", i): 9.0 for i in range(50)}
    plain |= {("u", i): 0.0 for i in range(50)}
    full = {sample: float(sample[0] == "t") for sample in drops}
    return direction_of("snapkv at budget 0.25", drops, full, plain, side, seed=0)


def test_d_that_is_higher_where_eviction_breaks_points_the_wrong_way() -> None:
    draw = random.Random(0)
    # As measured on a model with three full-attention layers.
    broken = [draw.gauss(0.068, 0.03) for _ in range(20)]
    unbroken = [draw.gauss(-0.033, 0.03) for _ in range(20)]
    found = direction(broken, unbroken)
    assert found.verdict == "wrong"
    assert (found.n_broken, found.n_unbroken) == (20, 20)
    assert found.broken == pytest.approx(sum(broken) / 20)
    # Student's interval of the difference of these, by hand: within a few thousandths of it.
    assert found.interval == pytest.approx((-0.12, -0.08), abs=0.02)
    assert "D points the wrong way" in str(found)
    assert direction(unbroken, broken).verdict == "right"
    assert direction(broken, unbroken, side="below").verdict == "right"
    assert direction(broken, [*broken[:-1], 0.0]).verdict == "undecided"


@pytest.mark.parametrize(("n", "m"), [(9, 40), (40, 9), (0, 0)])
def test_of_few_inputs_nothing_is_said(n: int, m: int) -> None:
    found = direction([0.1 * i for i in range(n)], [-1.0] * m)
    assert found.verdict == "n too small"
    assert f"n too small ({m} inputs that snapkv at budget 0.25 leaves right and {n} it" in str(
        found
    )


def test_layers_per_bin_by_hand() -> None:
    # Three full-attention layers of Gemma-3-270M; 30 of SmolLM2.
    assert [bin_size(n) for n in (2, 3, 8, 9, 30)] == [0, 1, 2, 3, 10]
    assert bin_size(9, DropOptions(bins="half")) == 4
    assert bin_size(30, DropOptions(layer_stride=10)) == 1
    (warning,) = few_layers_warning(1, DropOptions())
    assert warning.startswith("D compares 1 layer per third ")
    assert few_layers_warning(3, DropOptions()) == []
