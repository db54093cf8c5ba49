"""Every signal against loops over eager attention and against values computed by hand."""

from __future__ import annotations

import json
import math
import statistics
from itertools import combinations, pairwise
from typing import Any

import pytest
import reference
import torch
from reference_inputs import LayerInputs, layer_inputs
from tensor_sizes import LargestTensor
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch import Tensor

from page_bench.gating import profile, signals
from page_bench.gating.profile import chosen_pairs, late_plateau, mean_of_pairs, monotonicity, slope
from page_bench.gating.signals import (
    SIGNALS,
    DropOptions,
    agreements,
    drop_of,
    entropy_drop,
    entropy_norm,
    head_agreement,
    head_agreement_drop,
    keynorm_disp,
    max_share,
    measure,
    pair_agreement,
    topk_mass_share,
)
from page_bench.inputs.errors import UsageError
from page_bench.model.window import window_statistics

WINDOW = 32
TOP_K = 8


def thirds(values: list[float]) -> float:
    """Mean of the first ⌊L/3⌋ minus mean of the last ⌊L/3⌋."""
    size = len(values) // 3
    return statistics.fmean(values[:size]) - statistics.fmean(values[len(values) - size :])


def plain_signals(layers: list[LayerInputs]) -> dict[str, float]:
    """All signals from whole attention matrices, in loops, from the definitions."""
    length = layers[0].attention.shape[-1]
    window = [layer.attention[:, -WINDOW:].double() for layer in layers]
    agreement = reference.head_agreements([rows.mean(1) for rows in window], TOP_K)

    def spread(row: list[float]) -> float:
        return -sum(p * math.log(p) for p in row if p > 0) / math.log(length)

    entropies = [
        statistics.fmean(spread(row) for head in rows.tolist() for row in head) for rows in window
    ]
    score = [0.0] * length
    for rows in window:
        for head in rows.tolist():
            for row in head:
                for position, weight in enumerate(row):
                    score[position] += weight
    dispersions = []
    for layer in layers:
        for head in layer.k.double().tolist():
            norms = [math.hypot(*key) for key in head]
            dispersions.append(statistics.stdev(norms) / statistics.fmean(norms))
    depth = [i / (len(layers) - 1) for i in range(len(layers))]
    down = [b < a for a, b in pairwise(agreement)]
    return {
        "drop": thirds(agreement),
        "entropy_norm": statistics.fmean(entropies),
        "topk_mass_share": sum(sorted(score, reverse=True)[:TOP_K]) / sum(score),
        "max_share": max(score) / sum(score),
        "keynorm_disp": statistics.fmean(dispersions),
        "entropy_drop": thirds(entropies),
        "late_plateau": statistics.fmean(agreement[-(len(layers) // 3) :]),
        "slope": statistics.linear_regression(depth, agreement).slope,
        "monotonicity": sum(down) / len(down),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("length", "n_layers"), [(40, 3), (200, 7)])
def test_every_signal_equals_loops_over_eager_attention(
    family: str, length: int, n_layers: int
) -> None:
    layers = layer_inputs(tiny_model(family, num_hidden_layers=n_layers), random_prompt(length))
    seen = [window_statistics(layer.q[:, -WINDOW:], layer.k, layer.scaling) for layer in layers]
    window_attention = torch.stack([layer.mean_attention for layer in seen])
    entropies = [layer.row_entropy for layer in seen if layer.row_entropy is not None]
    options = DropOptions(top_k=TOP_K)
    measured = measure(
        agreements(window_attention, options),
        window_attention,
        torch.stack(entropies),
        [layer.k for layer in layers],
        options,
    )
    assert list(measured) == list(SIGNALS)
    assert measured == pytest.approx(plain_signals(layers), abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_agreement_of_pairs_equals_sets(family: str) -> None:
    attention = reference.eager_attention_window(tiny_model(family), random_prompt(150), WINDOW)
    expected = []
    for layer in attention:
        sets = [reference.top_keys(head, TOP_K) for head in layer]
        expected.append([len(a & b) / len(a | b) for a, b in combinations(sets, 2)])
    pairs = pair_agreement(torch.stack(attention), TOP_K)
    assert pairs.tolist() == expected
    torch.testing.assert_close(pairs.mean(-1), head_agreement(torch.stack(attention), TOP_K))


def test_pairs_are_in_lexicographic_order() -> None:
    # Sets {0,1}, {1,2}, {2,3}: neighbours share one of three keys, the outer heads none.
    heads = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    pairs = pair_agreement(heads[None], top_k=2)
    assert pairs.tolist() == [[pytest.approx(1 / 3), 0.0, pytest.approx(1 / 3)]]  # 01, 02, 12
    assert head_agreement(heads[None], 2).tolist() == pytest.approx([2 / 9])


# Values computed by hand.


def test_entropy_norm_by_hand() -> None:
    # T = 4: even attention has ln 4, the others half and none of it.
    rows = torch.tensor([[math.log(4), math.log(2)], [0.0, math.log(4)]])
    assert entropy_norm(rows, 4) == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert math.isnan(entropy_norm(torch.zeros(1, 2), 1))


def test_entropy_drop_by_hand() -> None:
    rows = torch.tensor([[2.0, 4], [1, 1], [3, 1], [0, 2], [0, 1]]) * math.log(10)
    options = DropOptions(late_bin="strict")
    assert entropy_drop(rows, 10) == pytest.approx(3 - 0.5)
    assert entropy_drop(rows, 10, options) == pytest.approx(3 - (1 + 0.5) / 2)


def test_shares_of_the_score_by_hand() -> None:
    first = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.0, 0.8]]
    second = [[0.2, 0.2, 0.6, 0.0], [0.0, 0.2, 0.4, 0.4]]
    window_attention = torch.tensor([first, second])
    # Mean over heads and layers: 0.2, 0.2, 0.3, 0.3.
    assert max_share(window_attention) == pytest.approx(0.3)
    assert topk_mass_share(window_attention, 2) == pytest.approx(0.6)
    assert topk_mass_share(window_attention, 3) == pytest.approx(0.8)
    assert topk_mass_share(window_attention, 32) == pytest.approx(1)
    # Shares, whatever the sum.
    assert topk_mass_share(window_attention * 5, 2) == pytest.approx(0.6)


def test_dispersion_of_key_norms_by_hand() -> None:
    # Norms 5, 5, 5 and 1, 2, 3: dispersions 0 and 1/2. The second layer: 3, 5 with sd √2.
    first = torch.tensor([[[3.0, 4], [-4, 3], [0, 5]], [[1, 0], [0, -2], [3, 0]]])
    second = torch.tensor([[[3.0, 0], [3, 4]]])
    assert keynorm_disp([first]) == pytest.approx(0.25)
    assert keynorm_disp([first, second]) == pytest.approx((0.25 + math.sqrt(2) / 4) / 2)
    assert keynorm_disp([first.bfloat16()]) == pytest.approx(0.25)
    assert math.isnan(keynorm_disp([torch.ones(2, 1, 4)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_key_norms_need_no_copy_of_the_keys(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = torch.randn(2, 1001, 16, generator=torch.Generator().manual_seed(0)).to(dtype) * 100
    whole = keynorm_disp([keys])
    monkeypatch.setattr(signals, "_CHUNK_BYTES", 50 * 2 * 16 * 4)
    # 128,128 bytes in fp32; a chunk is 6,400, the norms are 8,008.
    with LargestTensor(before=[keys]) as largest:
        parts = keynorm_disp([keys])
    assert parts == pytest.approx(whole, rel=1e-6)
    assert 0 < largest.bytes <= 2 * 1001 * 4
    # Squares of such keys overflow in fp16.
    assert math.isfinite(whole)


def test_readings_of_a_profile_by_hand() -> None:
    agreement = [0.9, 0.5, 0.7, 0.3, 0.1, 0.2]
    assert drop_of(agreement) == pytest.approx(0.7 - 0.15)
    assert late_plateau(agreement) == pytest.approx(0.15)
    assert late_plateau(agreement, DropOptions(bins="half")) == pytest.approx(0.2)
    assert monotonicity(agreement) == pytest.approx(3 / 5)
    # Depth 0, 0.2 … 1, mean 0.5: Σ dx·y = −0.51, Σ dx² = 0.7.
    assert slope(agreement) == pytest.approx(-51 / 70)
    assert slope([1.0, 0.75, 0.5, 0.25]) == pytest.approx(-0.75)
    assert slope([0.25, 0.25]) == 0
    assert monotonicity([0.3, 0.3, 0.3]) == 0


def test_readings_of_too_few_layers_are_not_a_number() -> None:
    for reading in (slope, monotonicity, drop_of, late_plateau):
        assert math.isnan(reading([0.5]))
        assert math.isnan(reading([]))
    assert math.isnan(drop_of([0.5, 0.1]))
    # As where a layer has one head.
    assert math.isnan(slope([0.5, math.nan, 0.1]))
    assert math.isnan(monotonicity([0.5, math.nan, 0.1]))
    assert slope([0.5, 0.1]) == pytest.approx(-0.4)


# How D is taken.


def random_profile(n_layers: int) -> list[float]:
    generator = torch.Generator().manual_seed(n_layers)
    return torch.rand(n_layers, generator=generator, dtype=torch.float64).tolist()


@pytest.mark.parametrize("n_layers", range(3, 40))
def test_the_two_conventions_differ_only_where_three_does_not_divide_the_layers(
    n_layers: int,
) -> None:
    agreement = random_profile(n_layers)
    early = statistics.fmean(agreement[: n_layers // 3])
    equal = early - statistics.fmean(agreement[n_layers - n_layers // 3 :])
    strict = early - statistics.fmean(agreement[2 * n_layers // 3 :])
    assert drop_of(agreement) == pytest.approx(equal, abs=1e-12)
    assert drop_of(agreement, DropOptions(late_bin="strict")) == pytest.approx(strict, abs=1e-12)
    if n_layers % 3 == 0:
        assert drop_of(agreement) == drop_of(agreement, DropOptions(late_bin="strict"))
    else:
        assert abs(equal - strict) > 1e-4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # L = 11: layer i has agreement 2^i.
        ({}, (1 + 2 + 4) / 3 - (256 + 512 + 1024) / 3),
        ({"late_bin": "strict"}, (1 + 2 + 4) / 3 - (128 + 256 + 512 + 1024) / 4),
        ({"bins": "half"}, 31 / 5 - (2047 - 63) / 5),
        ({"bins": "half", "late_bin": "strict"}, 31 / 5 - (2047 - 31) / 6),
        ({"bins": "quarter"}, (1 + 2) / 2 - (512 + 1024) / 2),
        ({"bins": "quarter", "late_bin": "strict"}, (1 + 2) / 2 - (256 + 512 + 1024) / 3),
        # Layers 0, 2, 4, 6, 8, 10.
        ({"layer_stride": 2}, (1 + 4) / 2 - (256 + 1024) / 2),
        # Layers 0, 4, 8: one layer each.
        ({"layer_stride": 4}, 1 - 256),
        ({"layer_stride": 4, "bins": "quarter"}, 1 - 256),
        ({"layer_stride": 4, "bins": "half", "late_bin": "strict"}, 1 - (16 + 256) / 2),
        # Layers 0 and 7.
        ({"layer_stride": 7}, 1 - 128),
    ],
)
def test_bins_by_hand(options: dict[str, Any], expected: float) -> None:
    agreement = [2.0**i for i in range(11)]
    assert drop_of(agreement, DropOptions(**options)) == pytest.approx(expected, abs=1e-12)


def test_bins_of_a_named_subset_of_layers() -> None:
    agreement = [2.0**i for i in range(12)]
    assert drop_of(agreement, layers=[0, 11]) == 1 - 2048
    assert drop_of(agreement, layers=range(4)) == 1 - 8
    assert drop_of(agreement, DropOptions(bins="half"), layers=range(4)) == 1.5 - 6
    assert drop_of(agreement, layers=range(12)) == drop_of(agreement)
    assert late_plateau(agreement, layers=[0, 3, 5]) == 32
    # One layer is not early and late at once.
    assert math.isnan(drop_of(agreement, layers=[5]))
    assert math.isnan(drop_of(agreement, DropOptions(layer_stride=12)))


def test_a_stored_profile_gives_the_same_drop_to_the_last_bit() -> None:
    attention = torch.rand(7, 5, 90, generator=torch.Generator().manual_seed(0))
    for options in (DropOptions(), DropOptions(late_bin="strict", head_pairs=0.3, seed=5)):
        agreement = agreements(attention, options)
        pairs = pair_agreement(attention, options.top_k)
        stored = json.loads(json.dumps([agreement.tolist(), pairs.tolist()]))
        assert drop_of(stored[0], options) == drop_of(agreement, options)
        if options.head_pairs < 1:
            assert torch.equal(mean_of_pairs(stored[1], options), agreement)
    assert drop_of(head_agreement(attention)) == head_agreement_drop(head_agreement(attention))


# Published counts of Table 9, of 66 pairs.
@pytest.mark.parametrize(
    ("share", "count"), [(1.0, 66), (0.5, 33), (0.25, 16), (0.1, 7), (0.05, 3), (0.02, 1)]
)
def test_a_share_of_the_head_pairs_is_as_many_as_the_paper_drew(share: float, count: int) -> None:
    chosen = chosen_pairs(66, DropOptions(head_pairs=share))
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(66))


def test_at_least_one_pair_is_compared() -> None:
    options = DropOptions(head_pairs=0.001)
    assert len(chosen_pairs(66, options)) == 1
    assert chosen_pairs(1, options) == [0]
    assert chosen_pairs(0, options) == []


def test_the_choice_of_pairs_depends_on_the_seed_alone() -> None:
    draws = {tuple(chosen_pairs(66, DropOptions(head_pairs=0.25, seed=s))) for s in range(100)}
    assert len(draws) > 90
    again = chosen_pairs(66, DropOptions(head_pairs=0.25, seed=3, top_k=9, bins="half"))
    assert again == chosen_pairs(66, DropOptions(head_pairs=0.25, seed=3))
    # Each pair is drawn now and then.
    assert set().union(*draws) == set(range(66))


def test_chosen_pairs_are_the_same_in_every_layer() -> None:
    pairs = torch.arange(10.0).expand(4, 10) + torch.arange(4.0)[:, None] * 100
    options = DropOptions(head_pairs=0.3, seed=1)
    expected = statistics.fmean(chosen_pairs(10, options))
    assert mean_of_pairs(pairs, options).tolist() == pytest.approx(
        [expected, expected + 100, expected + 200, expected + 300]
    )


def test_all_pairs_give_the_deployed_agreement() -> None:
    attention = torch.rand(5, 6, 80, generator=torch.Generator().manual_seed(0))
    pairs = pair_agreement(attention, 8)
    torch.testing.assert_close(mean_of_pairs(pairs, DropOptions()), head_agreement(attention, 8))
    assert torch.equal(agreements(attention, DropOptions(top_k=8)), head_agreement(attention, 8))


def test_a_single_head_has_no_pairs() -> None:
    attention = torch.rand(4, 1, 50)
    assert pair_agreement(attention).shape == (4, 0)
    for share in (1.0, 0.5):
        profile_of_one = agreements(attention, DropOptions(head_pairs=share))
        assert profile_of_one.shape == (4,)
        assert profile_of_one.isnan().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": "fifth"}, r"gate.bins=fifth is unknown; choose one of third, half, quarter\."),
        ({"late_bin": "late"}, r"gate.late_bin=late is unknown; choose one of equal, strict\."),
        ({"top_k": 0}, r"top_k=0 is not possible; give a whole number of at least 1\."),
        ({"top_k": 3.5}, "top_k=3.5 is not possible"),
        ({"layer_stride": 0}, r"gate.layer_stride=0 .* at least 1\."),
        ({"layer_stride": True}, "gate.layer_stride=True"),
        ({"seed": 0.5}, r"gate.seed=0.5 is not possible; give a whole number\."),
        ({"head_pairs": 0}, "gate.head_pairs=0 is not a share"),
        ({"head_pairs": 1.5}, r"above 0 and at most 1\."),
        ({"head_pairs": "all"}, "gate.head_pairs=all"),
        ({"head_pairs": math.nan}, "gate.head_pairs=nan"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DropOptions(**options)


# All of them together.


def observed() -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(7, 3, 60, generator=generator)
    entropy = torch.rand(7, 3, generator=generator)
    keys = list(torch.randn(7, 2, 60, 8, generator=generator))
    return agreements(attention), attention, entropy, keys


def test_measuring_some_signals_gives_what_measuring_all_gives() -> None:
    agreement, attention, entropy, keys = observed()
    everything = measure(agreement, attention, entropy, keys)
    assert tuple(everything) == SIGNALS
    for name, value in everything.items():
        assert measure(agreement, attention, entropy, keys, names=[name]) == {name: value}
    fed_less = [n for n in SIGNALS if n not in signals.NEEDS_ENTROPY | signals.NEEDS_KEYS]
    assert measure(agreement, attention, names=fed_less) == {n: everything[n] for n in fed_less}
    assert everything["drop"] == drop_of(agreement)


def test_keys_may_be_one_tensor_or_handed_over_one_by_one() -> None:
    agreement, attention, entropy, keys = observed()
    expected = measure(agreement, attention, entropy, keys)
    assert measure(agreement, attention, entropy, torch.stack(keys)) == expected
    assert measure(agreement, attention, entropy, iter(keys)) == expected


def test_options_reach_the_signals_that_have_bins_or_a_k() -> None:
    agreement, attention, entropy, keys = observed()
    plain = measure(agreement, attention, entropy, keys)
    options = DropOptions(top_k=5, bins="half", layer_stride=2)
    other = measure(agreement, attention, entropy, keys, options)
    moved = {name for name in SIGNALS if plain[name] != other[name]}
    assert moved == {"drop", "topk_mass_share", "entropy_drop", "late_plateau"}
    assert other["topk_mass_share"] == topk_mass_share(attention, 5)
    assert other["entropy_drop"] == entropy_drop(entropy, 60, options)
    assert other["late_plateau"] == late_plateau(agreement, options)


def test_a_signal_whose_inputs_are_missing_is_an_error() -> None:
    agreement, attention, entropy, keys = observed()
    with pytest.raises(ValueError, match="entropy_drop, entropy_norm: row_entropy"):
        measure(agreement, attention, keys=keys)
    with pytest.raises(ValueError, match="keynorm_disp: keys"):
        measure(agreement, attention, entropy)
    with pytest.raises(ValueError, match="entropy: no such signal"):
        measure(agreement, attention, names=["drop", "entropy"])


def test_the_deployed_options_are_the_papers() -> None:
    assert DropOptions() == profile.DEPLOYED
    assert (profile.DEPLOYED.top_k, profile.DEPLOYED.bins, profile.DEPLOYED.late_bin) == (
        32,
        "third",
        "equal",
    )
