"""KeyDiff, ManifoldKV, Knorm, LagKV and leverage scores against plain references."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from evictor_cases import (
    CASES,
    LENGTH,
    PROTECTED,
    case,
    engine_keep,
    engine_scores,
    hand_made,
    plain_keep,
    random_layer,
    reference_scores,
)
from reference_inputs import LayerInputs
from torch import Tensor

from page_bench.evictors import make_evictor
from page_bench.evictors.base import GRANULARITIES, Granularity
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.lagkv import _ranked
from page_bench.inputs.errors import UsageError


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-5, rtol=1e-5)


def norm(vector: list[float]) -> float:
    return math.sqrt(sum(x * x for x in vector))


def mean_vector(vectors: list[list[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def distinctness(keys: list[list[float]], of_directions: bool) -> list[float]:
    """Minus the cosine of each key to the mean key, or to the mean direction."""
    members = [[x / norm(key) for x in key] for key in keys] if of_directions else keys
    anchor = mean_vector(members)
    dots = [sum(a * b for a, b in zip(key, anchor, strict=True)) for key in keys]
    return [-dot / (norm(key) * norm(anchor)) for dot, key in zip(dots, keys, strict=True)]


def distances(keys: list[list[float]], window: int) -> list[float]:
    """Distance of each key to the mean key of its window."""
    result = []
    for start in range(0, len(keys), window):
        part = keys[start : start + window]
        centre = mean_vector(part)
        result += [math.dist(key, centre) for key in part]
    return result


def after_blocks(keys: list[list[float]], n_keep: int, block: int) -> list[int]:
    """The positions left once a prompt has gone through a cache of `n_keep` block by block."""
    kept = list(range(n_keep))
    for start in range(n_keep, len(keys), block):
        joined = kept + list(range(start, min(start + block, len(keys))))
        score = distinctness([keys[i] for i in joined], of_directions=True)
        ranked = sorted(zip(score, joined, strict=True), key=lambda pair: (-pair[0], pair[1]))
        kept = sorted(i for _, i in ranked[:n_keep])
    return kept


def per_head(states: Tensor, of_head: Callable[..., list[float]], *args: object) -> Tensor:
    return torch.tensor([of_head(head, *args) for head in states.double().tolist()])


def lag_scores(layer: LayerInputs, n_sink: int, lag: int, ranked: bool) -> Tensor:
    """Ranks within partitions, by the spread over channels in the next partition's ranges.

    A rank is raised by the share of partitions whose score of that rank is lower.
    """
    length = layer.k.shape[1]
    scores = torch.zeros(len(layer.k), length, dtype=torch.float64)
    for head in range(len(layer.k)):
        for i in range(length):
            scores[head, i] = math.inf if i < n_sink else 1 + i / length
        totals = []
        for p in range((length - n_sink) // lag - 1):
            here = range(n_sink + p * lag, n_sink + (p + 1) * lag)
            total = [0.0] * lag
            for states in (layer.k[head].double(), layer.v[head].double()):
                following = states[here.stop : here.stop + lag]
                low, high = following.min(0).values, following.max(0).values
                spread = [float(((states[i] - low) / (high - low)).std()) for i in here]
                powers = [math.exp(s - max(spread)) for s in spread]
                for n, power in enumerate(powers):
                    total[n] += power / sum(powers) / 2
            totals.append(total)
        for p, total in enumerate(totals):
            for n, score in enumerate(total):
                i = n_sink + p * lag + n
                better = sum(t > score or (t == score and m < n) for m, t in enumerate(total))
                at_rank = [sorted(one, reverse=True)[better] for one in totals]
                raised = sum(other < score for other in at_rank) / len(totals)
                scores[head, i] = (lag - 1 - better + raised) / lag if ranked else score
    return scores


@pytest.mark.parametrize("family", CASES)
def test_lagkv_keeps_what_its_authors_keep_of_each_partition(family: str) -> None:
    """Their quota where the budget gives each partition as much; the rest where most stands out."""
    lag, tail = 16, range(84, LENGTH)
    scores = reference_scores(family, lambda i, x: lag_scores(x, 4, lag, ranked=False)).tolist()
    cases = 0
    for quota, extra in [(0, 0), (1, 0), (3, 0), (8, 0), (12, 0), (15, 0), (0, 4), (7, 1), (7, 3)]:
        n_keep = 4 + len(tail) + 5 * quota + extra
        kept = engine_keep(family, "lagkv", {"lag": lag}, "head", n_keep)
        for rows, sets in zip(scores, kept, strict=True):
            for row, positions in zip(rows, sets, strict=True):
                expected, next_best = [*range(4), *tail], []
                for start in range(4, 84, lag):
                    ranked = sorted(range(start, start + lag), key=lambda i: -row[i])
                    expected += ranked[:quota]
                    next_best.append(ranked[quota])
                expected += sorted(next_best, key=lambda i: -row[i])[:extra]
                assert positions == sorted(expected)
                cases += 1
    assert cases == 9 * len(scores) * len(scores[0])


def leverages(keys: Tensor, sketch: Tensor) -> Tensor:
    """Diagonal of X(XᵀX + 0.01·I)⁻¹Xᵀ, X the centred keys `[n, d]` times the sketch `[d, m]`."""
    x = (keys.double() - keys.double().mean(0)) @ sketch
    inverse = torch.linalg.inv(x.T @ x + 0.01 * torch.eye(x.shape[1], dtype=torch.float64))
    return torch.stack([row @ inverse @ row for row in x])


def leverage_scores(index: int, layer: LayerInputs, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 65536 + index)
    heads, _, dim = layer.k_pre.shape
    sketch = torch.randn(heads, dim, size, generator=generator, dtype=torch.float64)
    raw = torch.stack(
        [leverages(k, s / math.sqrt(size)) for k, s in zip(layer.k_pre, sketch, strict=True)]
    )
    return (raw - raw.mean()) / raw.std()


Form = tuple[dict[str, object], Callable[[int, LayerInputs], Tensor]]
"""Options, and a layer's scores by the layer's index and inputs."""

REFERENCES: dict[str, list[Form]] = {
    "keydiff": [
        ({"variant": "published"}, lambda i, x: per_head(x.k, distinctness, True)),
        ({"variant": "paper"}, lambda i, x: per_head(x.k, distinctness, False)),
    ],
    "manifoldkv": [
        ({}, lambda i, x: per_head(x.k, distances, LENGTH)),
        ({"rope": "pre"}, lambda i, x: per_head(x.k_pre, distances, LENGTH)),
        ({"centroid_window": 32}, lambda i, x: per_head(x.k, distances, 32)),
    ],
    "knorm": [({}, lambda i, x: -per_head(x.k, lambda keys: [norm(key) for key in keys]))],
    "lagkv": [
        ({"lag": 16}, lambda i, x: lag_scores(x, 4, 16, ranked=True)),
        ({"lag": 16, "n_sink": 0, "ranked": False}, lambda i, x: lag_scores(x, 0, 16, False)),
        ({"lag": 64}, lambda i, x: lag_scores(x, 4, 64, ranked=True)),
    ],
    "leverage": [
        ({"sketch_size": 8}, lambda i, x: leverage_scores(i, x, 8, 0)),
        # More columns than keys have dimensions: only the ridge makes it invertible.
        ({"seed": 5}, lambda i, x: leverage_scores(i, x, 48, 5)),
    ],
}
EXAMPLES = [
    pytest.param(name, *form, id=f"{name}-{number}")
    for name, forms in REFERENCES.items()
    for number, form in enumerate(forms)
]


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(("name", "options", "of_layer"), EXAMPLES)
def test_scores_and_kept_positions_are_the_references(
    family: str,
    name: str,
    options: dict[str, object],
    of_layer: Callable[[int, LayerInputs], Tensor],
) -> None:
    expected = reference_scores(family, of_layer)
    found = engine_scores(family, name, options)
    assert found.dtype == torch.float32
    assert_close(found, expected)
    for granularity in GRANULARITIES:
        kept = engine_keep(family, name, options, granularity)
        assert kept == plain_keep(expected, granularity)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("block", [1, 7, 128])
def test_keydiff_in_blocks_keeps_what_a_bounded_cache_would_hold(family: str, block: int) -> None:
    """Protected positions aside, a keep set holds survivors only, and the best of them."""
    n_keep, ends = 40, {*range(4), *range(LENGTH - PROTECTED["recent"], LENGTH)}
    kept = engine_keep(family, "keydiff", {"block": block}, "head", n_keep)
    for layer, sets in zip(case(family).layers, kept, strict=True):
        for keys, positions in zip(layer.k.double().tolist(), sets, strict=True):
            survivors = after_blocks(keys, n_keep, block)
            score = distinctness([keys[i] for i in survivors], of_directions=True)
            ranked = [i for _, i in sorted(zip([-s for s in score], survivors, strict=True))]
            free = [i for i in ranked if i not in ends][: n_keep - len(ends)]
            assert positions == sorted({*free, *ends})


def test_keydiff_in_blocks_ranks_by_how_long_a_position_stayed() -> None:
    layer = random_layer(length=50)
    scores = make_evictor("keydiff", {"block": 10, "variant": "published"}, "head").score(layer, 20)
    for keys, row in zip(layer.keys.double().tolist(), scores, strict=True):
        gone_before: set[int] = set()
        for length in (30, 40, 50):
            gone = set(range(length)) - set(after_blocks(keys[:length], 20, 10))
            later = [i for i in range(length) if i not in gone_before]
            assert row[sorted(gone - gone_before)].max() < row[sorted(set(later) - gone)].min()
            if gone_before:
                assert row[sorted(gone_before)].max() < row[later].min()
            gone_before = gone


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keydiff", {"variant": "paper"}),
        ("keydiff", {"variant": "published"}),
        ("manifoldkv", {}),
        ("manifoldkv", {"rope": "pre"}),
    ],
)
def test_scores_follow_a_permutation_of_positions(name: str, options: dict[str, object]) -> None:
    layer = random_layer()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    keys, queries = layer.keys[:, order], layer.queries_before_rotation[:, order]
    shuffled = hand_made(keys, layer.values[:, order], queries)
    evictor = make_evictor(name, options, "head")
    assert_close(evictor.score(shuffled), evictor.score(layer)[:, order])


def test_equal_keys_score_exactly_alike() -> None:
    """So position decides, not rounding."""
    keys = random_layer(length=8).keys.repeat(1, 4, 1)
    layer = hand_made(keys, keys, keys)
    for name in ("keydiff", "manifoldkv", "knorm"):
        scores = make_evictor(name, {}, "head").score(layer).view(2, 4, 8)
        assert torch.equal(scores, scores[:, :1].expand(-1, 4, -1))


def test_lagkv_ranks_ties_by_position() -> None:
    states = torch.ones(1, 96, 4) * torch.arange(4)
    scores = make_evictor("lagkv", {"lag": 32, "n_sink": 0}, "head").score(
        hand_made(states, states, states)
    )
    expected = torch.arange(31, -1, -1) / 32
    assert torch.equal(scores[0, :32], expected)
    assert torch.equal(scores[0, 32:64], expected)


def test_lagkv_tells_equal_ranks_apart_by_hand() -> None:
    # Of the best the second partition's is higher, of the next both are equal, of the last the
    # first one's is.
    found = _ranked(torch.tensor([[[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]]]))
    assert_close(found, torch.tensor([[[4, 2, 1], [5, 0, 2]]]) / 6)


def test_lagkv_is_finite_where_a_channel_does_not_vary() -> None:
    layer = random_layer(length=64)
    keys = layer.keys.clone()
    keys[:, 16:, 3] = 0.5
    flat = dataclasses.replace(layer, keys=keys, values=torch.zeros_like(layer.values))
    scores = make_evictor("lagkv", {"lag": 16, "n_sink": 0, "ranked": False}, "head").score(flat)
    assert torch.isfinite(scores).all()
    assert_close(scores[:, :16].sum(1), torch.ones(2))


@pytest.mark.parametrize("n_keep", [18, 20, 22])
def test_lagkv_below_its_tail_keeps_sinks_and_the_latest(n_keep: int) -> None:
    # Seven partitions of 13 after 4 sinks leave 5: the tail is 18.
    for layer in engine_keep("llama", "lagkv", {"lag": 13}, "head", n_keep):
        assert layer == [[*range(4), *range(LENGTH - n_keep + 4, LENGTH)]] * 2


def test_lagkv_keeps_a_short_prompt_by_recency() -> None:
    scores = make_evictor("lagkv", {"lag": 32}, "head").score(random_layer(length=60))
    assert bool((scores[:, 4:].diff() > 0).all())
    assert bool((scores[:, :4] > scores[:, 4:].max()).all())


def test_leverage_depends_on_its_seed_alone() -> None:
    layer = random_layer()
    first, again, other = (
        make_evictor("leverage", {"seed": seed, "sketch_size": 6}, "head").score(layer)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("granularity", ["layer", "head"])
def test_knorm_skips_layers_and_keeps_the_budget(granularity: Granularity) -> None:
    plan = BudgetPlan(100, 50, 4, 10, 4, 2, granularity)
    evictor = make_evictor("knorm", {"skip_layers": 1}, granularity)
    counts = evictor.allocate(torch.zeros(4, 2, 100), plan)
    assert counts.tolist() == [[100, 100], [34, 34], [33, 33], [33, 33]]


@pytest.mark.parametrize(
    ("skipped", "granularity", "message"),
    [
        (1, "shared", "evictor.skip_layers=1 keeps more in some layers"),
        (4, "head", "evictor.skip_layers=4 of 4 layers leaves too little"),
        (2, "layer", "evictor.skip_layers=2 of 4 layers leaves too little"),
    ],
)
def test_knorm_says_why_layers_cannot_be_skipped(
    skipped: int, granularity: Granularity, message: str
) -> None:
    plan = BudgetPlan(100, 50, 4, 10, 4, 2, granularity)
    with pytest.raises(UsageError, match=message):
        make_evictor("knorm", {"skip_layers": skipped}, granularity).allocate(
            torch.zeros(4, 2, 100), plan
        )


@pytest.mark.parametrize("length", [1, 2, 13, 40])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keydiff", {}),
        ("keydiff", {"block": 4}),
        ("manifoldkv", {"centroid_window": 4}),
        ("knorm", {}),
        ("lagkv", {"lag": 2}),
        ("leverage", {}),
    ],
)
def test_scores_are_numbers_on_few_and_on_empty_states(
    name: str, options: dict[str, object], length: int
) -> None:
    evictor = make_evictor(name, options, "head")
    zero = torch.zeros(2, length, 8)
    for layer in (random_layer(length), hand_made(zero, zero, zero)):
        scores = evictor.score(layer, n_keep=max(1, length // 2))
        assert scores.shape == (2, length)
        assert (scores > -math.inf).all()


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("keydiff", "block", -1),
        ("keydiff", "anchor", "values"),
        ("manifoldkv", "centroid_window", -4096),
        ("manifoldkv", "rope", "none"),
        ("knorm", "skip_layers", -1),
        ("lagkv", "lag", 0),
        ("lagkv", "n_sink", -1),
        ("leverage", "sketch_size", 0),
        ("leverage", "seed", -1),
    ],
)
def test_impossible_options_are_named(name: str, option: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"evictor\.{option}="):
        make_evictor(name, {option: value}, "head")


@pytest.mark.parametrize("title", ["knorm", "keydiff", "manifoldkv", "lagkv"])
def test_half_precision_keys_are_scored_in_fp32(title: str) -> None:
    layer = random_layer()
    half = dataclasses.replace(layer, keys=layer.keys.bfloat16(), values=layer.values.bfloat16())
    whole = dataclasses.replace(layer, keys=half.keys.float(), values=half.values.float())
    evictor = make_evictor(title, {"lag": 16} if title == "lagkv" else {}, "head")
    assert torch.equal(evictor.score(half), evictor.score(whole))
