"""Evictors that read attention: scores, counts and keep sets against references in plain loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from attention_references import (
    LENGTH,
    N_SINK,
    WINDOW,
    Rows,
    ada_counts,
    counts_by_need,
    h2o,
    kept,
    mean_rows,
    need_of,
    pyramid_line,
    pyramid_weights,
    rounded,
    snapkv,
    tova,
    within,
)
from reference import keep_count
from reference_inputs import LayerInputs, layer_inputs
from tiny_models import random_prompt, tiny_model
from torch import Tensor

from page_bench.config import PageConfig
from page_bench.evictors import make_evictor
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.snapkv import SnapKV
from page_bench.inputs.errors import UsageError
from page_bench.model.attention import observing
from page_bench.model.keep_plan import KeepPlan, positions_to_keep, scores_of
from page_bench.model.prefill import Prefill, prefill
from page_bench.model.scoring import Scorer

FAMILIES = ("llama", "qwen2", "qwen3")


@functools.cache
def inputs_of(family: str) -> list[LayerInputs]:
    return layer_inputs(tiny_model(family), random_prompt(LENGTH))


def filled(family: str, evictor: Evictor, window: int = WINDOW, length: int = LENGTH) -> Prefill:
    model = tiny_model(family)
    with observing(model):
        scorers = [Scorer(evictor, 0)]
        return prefill(model, random_prompt(length), window=window, room=1, scorers=scorers)


def members_of(
    family: str, title: str, granularity: str, options: dict[str, Any], **arguments: Any
) -> Tensor:
    """What the engine keeps, bool `[L', H', T]`."""
    config = PageConfig(
        evictor=title,
        evictor_args=options,
        granularity=granularity,  # type: ignore[arg-type]
        **{"window": WINDOW, **arguments},
    )
    evictor = config.make_evictor()
    keep = positions_to_keep(evictor, filled(family, evictor, config.window), config)
    assert isinstance(keep, KeepPlan)
    return keep.members


# --- scores and keep sets on models ------------------------------------------------------------

BUDGET = 0.41
N_KEEP = keep_count(BUDGET, LENGTH, N_SINK, WINDOW)
Case = tuple[str, dict[str, Any], Callable[[LayerInputs], Rows]]
CASES: dict[str, Case] = {
    "snapkv paper": ("snapkv", {"variant": "paper"}, lambda x: snapkv(x, "paper")),
    "snapkv": ("snapkv", {"variant": "published"}, lambda x: snapkv(x, "published")),
    "snapkv max": (
        "snapkv",
        {"variant": "published", "kernel_size": 7, "pooling": "max", "reduction": "max"},
        lambda x: snapkv(x, "published", WINDOW, 7, "max", "max"),
    ),
    "snapkv window": (
        "snapkv",
        {"variant": "published", "window": 9, "kernel_size": 3, "reduction": "sum"},
        lambda x: snapkv(x, "published", 9, 3, "avg", "sum"),
    ),
    "snapkv long window": (
        "snapkv",
        {"variant": "published", "window": 30, "pooling": "max"},
        lambda x: snapkv(x, "published", 30, 5, "max"),
    ),
    "snapkv paper window": (
        "snapkv",
        {"variant": "paper", "window": 9},
        lambda x: snapkv(x, "paper", 9),
    ),
    "h2o paper": ("h2o", {"variant": "paper"}, lambda x: h2o(x, "paper", N_KEEP)),
    "h2o": ("h2o", {"variant": "published"}, lambda x: h2o(x, "published", N_KEEP)),
    "h2o max": (
        "h2o",
        {"variant": "published", "reduction": "max"},
        lambda x: h2o(x, "published", N_KEEP, "max"),
    ),
    "h2o age": (
        "h2o",
        {"variant": "published", "reduction": "sum", "normalise_by_age": True},
        lambda x: h2o(x, "published", N_KEEP, "sum", True),
    ),
    "tova": ("tova", {}, tova),
    "streamingllm": (
        "streamingllm",
        {},
        # It always keeps the last position itself.
        lambda x: [[*map(float, range(LENGTH - 1)), math.inf] for _ in range(len(x.k))],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_scores_equal_the_reference(family: str, case: str) -> None:
    title, options, expected = CASES[case]
    evictor = make_evictor(title, options, "head")
    found = scores_of(evictor, filled(family, evictor), N_KEEP)
    assert found.dtype == torch.float32
    rows = torch.tensor([expected(layer) for layer in inputs_of(family)])
    torch.testing.assert_close(found, rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_kept_positions_equal_the_reference(family: str, case: str, granularity: str) -> None:
    title, options, expected = CASES[case]
    members = members_of(family, title, granularity, options, budget=BUDGET)
    scores = [expected(layer) for layer in inputs_of(family)]
    counts = [[N_KEEP] * len(layer) for layer in scores]
    assert members.double().tolist() == kept(scores, counts, granularity, WINDOW)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_positions_of_the_window_stay_where_they_are_not_protected(granularity: str) -> None:
    members = members_of(
        "llama", "snapkv", granularity, {"variant": "published"}, budget=0.3, recent=3
    )
    assert bool(members[..., -WINDOW:].all())
    scores = [snapkv(layer, "published") for layer in inputs_of("llama")]
    counts = [[45] * len(layer) for layer in scores]
    assert members.double().tolist() == kept(scores, counts, granularity, recent=3)


@pytest.mark.parametrize("granularity", ["layer", "head"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["paper", "published"])
def test_pyramidkv_equals_the_reference(family: str, form: str, granularity: str) -> None:
    layers = inputs_of(family)
    weights = pyramid_weights(len(layers), Fraction(2), Fraction(1, 2))
    counts = rounded(within(weights, len(layers) * N_KEEP, N_SINK + WINDOW, LENGTH))
    if form == "published":
        protected = N_SINK + WINDOW
        line = pyramid_line(len(layers), N_KEEP - protected, Fraction(20), LENGTH - protected)
        counts = [protected + n for n in rounded(line)]
    scores = [snapkv(layer, form) for layer in layers]
    members = members_of(family, "pyramidkv", granularity, {"variant": form}, budget=BUDGET)
    expected = kept(scores, [[n] * len(layers[0].k) for n in counts], granularity, WINDOW)
    assert members.double().tolist() == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_pyramidkv_weighs_the_layers_of_one_shared_keep_set(family: str) -> None:
    layers = inputs_of(family)
    weights = pyramid_weights(len(layers), Fraction(2), Fraction(1, 2))
    scores = [
        [[float(weight) * value for value in row] for row in snapkv(layer, "paper")]
        for weight, layer in zip(weights, layers, strict=True)
    ]
    counts = [[N_KEEP] * len(layer) for layer in scores]
    evictor = make_evictor("pyramidkv", {}, "shared")
    found = scores_of(evictor, filled(family, evictor), N_KEEP)
    torch.testing.assert_close(found, torch.tensor(scores), atol=1e-5, rtol=0)
    members = members_of(family, "pyramidkv", "shared", {}, budget=BUDGET)
    assert members.double().tolist() == kept(scores, counts, "shared", WINDOW)


ADA_CASES: dict[str, tuple[dict[str, Any], str, Fraction]] = {
    "published": ({}, "adakv", Fraction(1, 5)),
    "no floor": ({"floor_alpha": 0.0}, "adakv", Fraction(0)),
    "kvpress": ({"allocation": "kvpress", "floor_alpha": 0.8}, "kvpress", Fraction(4, 5)),
    "paper": ({"variant": "paper"}, "page", Fraction(1, 2)),
}


def free_scores(layer: Rows) -> numpy.ndarray:
    return numpy.array(layer, dtype=numpy.float32)[:, N_SINK : LENGTH - WINDOW]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("base", ["paper", "published"])
@pytest.mark.parametrize("case", ADA_CASES)
def test_adakv_equals_the_reference(family: str, case: str, base: str) -> None:
    options, allocation, alpha = ADA_CASES[case]
    scores = [snapkv(layer, base) for layer in inputs_of(family)]
    protected = N_SINK + WINDOW
    counts = []
    for layer in scores:
        total = len(layer) * (N_KEEP - protected)
        free = ada_counts(free_scores(layer), total, allocation, alpha, protected)
        counts.append([protected + n for n in free])
    assert any(len(set(per_head)) > 1 for per_head in counts)
    options = {**options, "base.variant": base}
    members = members_of(family, "adakv(snapkv)", "head", options, budget=BUDGET)
    assert members.double().tolist() == kept(scores, counts, "head", WINDOW)


@pytest.mark.parametrize("family", FAMILIES)
def test_adakv_weighs_heads_by_the_part_of_their_best(family: str) -> None:
    scores = [snapkv(layer, "published") for layer in inputs_of(family)]
    protected, mean = N_SINK + WINDOW, N_KEEP - N_SINK - WINDOW
    counts = []
    for layer in scores:
        weighed = []
        for row in free_scores(layer).tolist():
            part = sum(sorted(row, reverse=True)[:mean]) / sum(row)
            weighed.append([part * value for value in row])
        total = mean * len(layer)
        free = ada_counts(numpy.array(weighed), total, "adakv", Fraction(1, 5), protected)
        counts.append([protected + n for n in free])
    members = members_of(family, "adakv(snapkv)", "head", {"normalise": True}, budget=BUDGET)
    assert members.sum(-1).tolist() == counts


@pytest.mark.parametrize("family", FAMILIES)
def test_adakv_shares_out_what_its_base_gives_a_layer(family: str) -> None:
    pyramid = members_of(family, "pyramidkv", "head", {}, budget=BUDGET).sum((1, 2))
    both = members_of(family, "adakv(pyramidkv)", "head", {}, budget=BUDGET).sum(-1)
    assert both.sum(1).tolist() == pyramid.tolist()
    assert bool((both[:, 0] != both[:, 1]).any())


@pytest.mark.parametrize("granularity", ["layer", "head"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_ratio", [1, 10])
def test_dynamickv_equals_the_reference(family: str, max_ratio: int, granularity: str) -> None:
    layers = inputs_of(family)
    scores = [snapkv(layer, "published", size=7) for layer in layers]
    heads, mean = len(layers[0].k), N_KEEP - N_SINK - WINDOW
    entries = []
    for index, layer in enumerate(scores):
        for row in free_scores(layer).tolist():
            best = sorted(row, reverse=True)[: max_ratio * mean]
            entries += [(value, index) for value in best]
    entries.sort(key=lambda entry: -entry[0])
    counts = [0] * len(layers)
    for _, index in entries[: len(layers) * heads * mean]:
        counts[index] += 1
    free = rounded([Fraction(count, heads) for count in counts])
    assert (len(set(free)) > 1) == (max_ratio > 1)
    members = members_of(family, "dynamickv", granularity, {"max_ratio": max_ratio}, budget=BUDGET)
    expected = [[N_SINK + WINDOW + n] * heads for n in free]
    assert members.double().tolist() == kept(scores, expected, granularity, WINDOW)


BUDGETS_OF_DYNAMICKV = (0.0625, 0.125, 0.25, 0.3, 0.41, 0.5, 0.625, 0.75)
"""The two smallest both keep the least of 24 positions."""


@pytest.mark.parametrize("granularity", ["layer", "head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dynamickv_of_the_paper_equals_the_reference(family: str, granularity: str) -> None:
    scores = [snapkv(layer, "paper") for layer in inputs_of(family)]
    needs = [need_of(mean_rows(layer)) for layer in scores]
    of_middle = [need_of(mean_rows(layer)[N_SINK : LENGTH - WINDOW]) for layer in scores]
    parted = 0
    for budget in BUDGETS_OF_DYNAMICKV:
        mean = keep_count(budget, LENGTH, N_SINK, WINDOW) - N_SINK - WINDOW
        free = counts_by_need(needs, mean)
        parted += free != counts_by_need(of_middle, mean)
        assert max(free) <= LENGTH - N_SINK - WINDOW
        counts = [[N_SINK + WINDOW + n] * len(scores[0]) for n in free]
        options = {"variant": "paper"}
        members = members_of(family, "dynamickv", granularity, options, budget=budget)
        assert members.double().tolist() == kept(scores, counts, granularity, WINDOW)
    # What is protected counts, or the counts would be others.
    assert parted > 2


def test_dynamickv_of_the_paper_counts_attention_on_sinks_by_hand() -> None:
    scores = torch.ones(2, 1, 164)
    scores[0, 0, 0] = 100
    plan = BudgetPlan(164, 64, 4, 32, 2, 1, "layer")
    counts = make_evictor("dynamickv", {"variant": "paper"}, "layer").allocate(scores, plan)
    # Needs 100/263 and 100/164. Of 28 free entries each, 5 are certain; the other 46 in all are
    # shared out as 164 : 263, so 17.7 and 28.3.
    assert counts.tolist() == [[4 + 32 + 5 + 18], [4 + 32 + 5 + 28]]


@pytest.mark.parametrize(
    ("needs", "expected", "unfilled"),
    [
        # 3.3, 2.4, 2.4, 1.45 and 0.45 miss two when rounded, which go to the neediest.
        ((330, 240, 240, 145, 45), [4, 3, 2, 1, 0], [4, 3, 2, 1, 0]),
        # 0.6, 0.7, 1.7, 3.4 and 3.6 are one too much, which the least needy gives.
        ((60, 70, 170, 340, 360), [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        # There are six positions: what the third layer cannot have the others share, or nobody.
        ((40, 45, 765, 71, 79), [1, 1, 6, 1, 1], [0, 0, 6, 1, 1]),
    ],
)
def test_dynamickv_of_the_paper_rounds_by_hand(
    needs: tuple[int, ...], expected: list[int], unfilled: list[int]
) -> None:
    # Beside one best position five others, so that the need is n/2000; ten entries to share out.
    scores = torch.tensor([[1 - n / 2000] + [n / 10_000] * 5 for n in needs])[:, None]
    for fill, counts in ((True, expected), (False, unfilled)):
        options = {"variant": "paper", "best": 1, "floor": 0.0, "fill": fill}
        evictor = make_evictor("dynamickv", options, "layer")
        found = evictor.allocate(scores, BudgetPlan(6, 2, 0, 0, 5, 1, "layer"))
        assert found[:, 0].tolist() == counts


# --- invariants --------------------------------------------------------------------------------

HEAD_TITLES = ("adakv(snapkv)", "adakv(h2o)", "adakv(tova)", "adakv(dynamickv)")
ARMS = [
    *((title, g) for title in ("snapkv", "h2o", "streamingllm", "tova") for g in GRANULARITIES),
    *(("pyramidkv", g) for g in GRANULARITIES),
    *(("dynamickv", g) for g in ("layer", "head")),
    *((title, "head") for title in HEAD_TITLES),
]


@pytest.mark.parametrize(("title", "granularity"), ARMS)
def test_counts_are_conserved_and_protected_positions_stay(title: str, granularity: str) -> None:
    members = members_of("qwen2", title, granularity, {}, budget=0.35)
    counts = members.sum(-1)
    assert int(counts.sum()) == counts.numel() * 52
    assert bool(members[..., :N_SINK].all())
    assert bool(members[..., -WINDOW:].all())


@pytest.mark.parametrize(("title", "granularity"), ARMS)
def test_the_whole_budget_keeps_everything(title: str, granularity: Granularity) -> None:
    config = PageConfig(evictor=title, granularity=granularity, budget=1.0, window=WINDOW)
    evictor = config.make_evictor()
    prompt = filled("qwen2", evictor)
    assert positions_to_keep(evictor, prompt, config) == "budget keeps all"
    plan = BudgetPlan(LENGTH, LENGTH, N_SINK, WINDOW, 3, 2, granularity)
    scores = scores_of(evictor, prompt, LENGTH)
    assert bool((evictor.allocate(scores, plan) == LENGTH).all())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"fill": False}])
def test_streamingllm_keeps_the_same_at_every_granularity(
    family: str, options: dict[str, Any]
) -> None:
    shared, layer, head = (members_of(family, "streamingllm", g, options) for g in GRANULARITIES)
    assert bool((layer == shared).all())
    assert bool((head == shared).all())
    recent = WINDOW if options else keep_count(0.125, LENGTH, N_SINK, WINDOW) - N_SINK
    assert shared[0, 0].nonzero().squeeze(-1).tolist() == [
        *range(N_SINK),
        *range(LENGTH - recent, LENGTH),
    ]


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("snapkv", {"variant": "paper"}),
        ("snapkv", {"variant": "published"}),
        ("h2o", {"variant": "published"}),
        ("tova", {}),
    ],
)
def test_granularities_agree_where_all_heads_and_layers_score_alike(
    title: str, options: dict[str, Any]
) -> None:
    # Layers without weight in the residual stream see the same input; one KV head serves all.
    model = tiny_model("llama", num_key_value_heads=1)
    first = model.model.layers[0].state_dict()
    for layer in model.model.layers:
        layer.load_state_dict(first)
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    sets = []
    for granularity in GRANULARITIES:
        config = PageConfig(
            evictor=title,
            evictor_args=options,
            granularity=granularity,
            budget=BUDGET,
            window=WINDOW,
        )
        evictor = config.make_evictor()
        with observing(model):
            prompt = prefill(
                model, random_prompt(LENGTH), window=WINDOW, room=1, scorers=[Scorer(evictor, 0)]
            )
        keep = positions_to_keep(evictor, prompt, config)
        assert isinstance(keep, KeepPlan)
        sets.append(keep.members)
    assert bool((sets[1] == sets[0]).all())
    assert bool((sets[2] == sets[0]).all())


@pytest.mark.parametrize("title", ["adakv(streamingllm)", "adakv(tova)"])
def test_heads_that_score_alike_keep_equally_many(title: str) -> None:
    members = members_of("llama", title, "head", {}, budget=BUDGET)
    alone = members_of("llama", title[6:-1], "head", {}, budget=BUDGET)
    assert members.tolist() == alone.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_mass_sums_to_the_rows_that_gave_it(family: str) -> None:
    evictor = make_evictor("h2o", {}, "head")
    prompt = filled(family, evictor)
    for number, layer in enumerate(inputs_of(family)):
        mass = prompt.view(number).attention_mass
        torch.testing.assert_close(mass.sum(-1), torch.full((len(layer.q),), float(LENGTH)))


def test_tova_gives_all_heads_of_a_layer_the_same_scores() -> None:
    evictor = make_evictor("tova", {}, "head")
    scores = scores_of(evictor, filled("llama", evictor), N_KEEP)
    assert bool((scores[:, 0] == scores[:, 1]).all())


@pytest.mark.parametrize("title", ["snapkv", "pyramidkv", "dynamickv", "h2o", "tova"])
@pytest.mark.parametrize("length", [1, 5, WINDOW, WINDOW + 1])
def test_scores_of_short_prompts_are_numbers(title: str, length: int) -> None:
    evictor = make_evictor(title, {}, "head")
    scores = scores_of(evictor, filled("llama", evictor, length=length), length)
    assert scores.shape == (4, 2, length)
    assert bool((scores > -torch.inf).all())


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "options", "granularity", "message"),
    [
        ("snapkv", {"window": 0}, "head", "evictor.window=0 is not allowed"),
        ("snapkv", {"kernel_size": 4}, "head", "evictor.kernel_size=4 has no middle"),
        ("snapkv", {"pooling": "min"}, "head", "give avg or max"),
        ("snapkv", {"beta": 20}, "head", "evictor.beta is not an option of snapkv"),
        ("h2o", {"reduction": "median"}, "head", "give mean or max or sum"),
        ("pyramidkv", {"variant": "published"}, "shared", "each layer its own count"),
        ("pyramidkv", {"beta": 0.5}, "head", "evictor.beta=0.5 is not allowed"),
        ("pyramidkv", {"bottom": 0}, "shared", "evictor.bottom=0.0 is not allowed"),
        ("pyramidkv", {"bottom": 3}, "head", "give evictor.variant=paper"),
        ("pyramidkv", {"beta": 3}, "shared", "give evictor.variant=published"),
        ("dynamickv", {}, "shared", "give granularity=layer or head"),
        ("dynamickv", {"max_ratio": 0}, "head", "evictor.max_ratio=0 is not allowed"),
        ("dynamickv", {"floor": 0.5}, "head", "give evictor.variant=paper"),
        ("dynamickv", {"variant": "paper", "floor": 1.5}, "head", "at least 0 and at most 1"),
        ("adakv(snapkv)", {}, "shared", "give granularity=head"),
        ("adakv(streamingllm)", {}, "shared", "give granularity=head"),
        ("adakv(snapkv)", {}, "layer", "give granularity=head"),
        ("adakv(snapkv)", {"floor_alpha": -0.1}, "head", "evictor.floor_alpha=-0.1 is not"),
        ("adakv(snapkv)", {"allocation": "best"}, "head", "give adakv or kvpress or page"),
        ("adakv", {}, "head", "adakv(snapkv)"),
    ],
)
def test_mistakes_are_named(
    title: str, options: dict[str, Any], granularity: Granularity, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_evictor(title, options, granularity)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("title", "options"),
    [("adakv(snapkv)", {"normalise": True}), ("dynamickv", {"variant": "paper"})],
)
def test_parts_of_a_sum_need_scores_that_are_not_negative(
    title: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="below 0"):
        members_of("llama", title, "head", options, budget=BUDGET, score_norm="zscore")


def test_an_evictor_made_by_hand_is_the_form_of_one_shared_keep_set() -> None:
    evictor = SnapKV()
    scores = scores_of(evictor, filled("llama", evictor), N_KEEP)
    expected = torch.tensor([snapkv(layer, "paper") for layer in inputs_of("llama")])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_the_window_of_the_run_is_read_from_the_layer() -> None:
    attention = torch.rand(2, 40)
    keys = torch.rand(1, 40, 8)
    layer = LayerView(0, 0, 1, 1, 40, keys, keys, 1.0, 10, attention, prompt_seed=0)
    scores = SnapKV(variant="published").score(layer, 20)
    assert int((scores == scores.max()).sum()) == 10
