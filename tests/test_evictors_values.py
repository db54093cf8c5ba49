"""CapKV, expected attention, Compactor and CriticalKV against plain references."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable

import pytest
import torch
from evictor_cases import (
    CASES,
    LENGTH,
    PROTECTED,
    WINDOW,
    averaged,
    best_and_ends,
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
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.capkv import _say_capped
from page_bench.evictors.criticalkv import CriticalKV
from page_bench.evictors.expected_attention import ExpectedAttention
from page_bench.inputs.errors import UsageError

N_KEEP = 40

OfLayer = Callable[[int, LayerInputs, Tensor], Tensor]
"""A layer's scores by its index, its inputs and its mean rotation over the positions to come."""


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-5, rtol=1e-5)


def ridge_leverages(values: Tensor, weights: Tensor, extra: float = 0.0) -> Tensor:
    """w·vᵀA⁻¹v with A = I + Σ (w + extra)·v·vᵀ, the sum taken term by term."""
    matrix = torch.eye(values.shape[1], dtype=torch.float64)
    for v, w in zip(values, weights, strict=True):
        matrix = matrix + (w + extra) * torch.outer(v, v)
    inverse = torch.linalg.inv(matrix)
    return torch.stack([w * (v @ inverse @ v) for v, w in zip(values, weights, strict=True)])


def capkv_of_the_page_paper(index: int, layer: LayerInputs, rotation: Tensor) -> Tensor:
    rows = []
    for head in range(len(layer.k)):
        keys, values = layer.k[head].double(), layer.v[head].double()
        queries = [layer.q_pre[j, -WINDOW:].double() for j in layer.group(head)]
        mean = torch.cat(queries).mean(0)
        exponents = 5 * keys @ mean / math.sqrt(keys.shape[1])
        rows.append(ridge_leverages(values, (exponents - exponents.max()).exp()))
    return torch.stack(rows)


def capkv_as_published(index: int, layer: LayerInputs, rotation: Tensor, beta: float) -> Tensor:
    rows = []
    for head in range(len(layer.k)):
        keys, values = layer.k[head].double(), layer.v[head].double()
        scores = torch.zeros(LENGTH, dtype=torch.float64)
        for j in layer.group(head):
            mean = layer.q_pre[j].double().mean(0) @ rotation.double()
            exponents = beta * keys @ mean / math.sqrt(keys.shape[1])
            scores += ridge_leverages(values, exponents.exp()) / len(layer.group(head))
        rows.append(scores)
    return torch.stack(rows)


def capkv_of_kvpress(index: int, layer: LayerInputs, rotation: Tensor) -> Tensor:
    rows = []
    for head in range(len(layer.k)):
        keys, values = layer.k[head, 4:].double(), layer.v[head, 4:].double()
        scores = torch.zeros(LENGTH - 4, dtype=torch.float64)
        for j in layer.group(head):
            rotated = [query @ rotation.double() for query in layer.q_pre[j, 4:].double()]
            mean = torch.stack(rotated).mean(0)
            cosines = torch.stack([k @ mean / k.norm() / mean.norm() for k in keys])
            weights = (5 * cosines - 5 * cosines.max()).exp()
            scores += ridge_leverages(values, weights, extra=1e-6) / len(layer.group(head))
        rows.append(scores)
    return with_ends(torch.stack(rows), 4, 0)


def with_ends(scores: Tensor, first: int, last: int) -> Tensor:
    """Scores between positions that a method always keeps."""
    return torch.nn.functional.pad(scores, (first, last), value=math.inf)


def expected_attention(
    index: int,
    layer: LayerInputs,
    rotation: Tensor,
    epsilon: float = 0.0,
    n_sink: int = 4,
    use_covariance: bool = True,
    use_vnorm: bool = True,
) -> Tensor:
    rows = []
    turn = rotation.double()
    for head in range(len(layer.k)):
        keys, values = layer.k[head, n_sink:].double(), layer.v[head, n_sink:].double()
        dim = keys.shape[1]
        attention = torch.zeros(len(keys), dtype=torch.float64)
        for j in layer.group(head):
            queries = layer.q_pre[j, n_sink:].double()
            mean = queries.mean(0)
            spread = torch.zeros(dim, dim, dtype=torch.float64)
            for query in queries:
                spread += torch.outer(query - mean, query - mean) / len(queries)
            spread = turn.T @ spread @ turn
            z = torch.stack(
                [
                    k @ (mean @ turn) / math.sqrt(dim)
                    + (k @ spread @ k / (2 * dim) if use_covariance else 0)
                    for k in keys
                ]
            )
            attention += (z - z.max()).exp() / (z - z.max()).exp().sum() / len(layer.group(head))
        norms = torch.stack([v.norm() for v in values])
        rows.append((attention + epsilon) * norms if use_vnorm else attention)
    return with_ends(torch.stack(rows), n_sink, 0)


def standardised(scores: Tensor) -> Tensor:
    mean = scores.sum() / scores.numel()
    variance = ((scores - mean) ** 2).sum() / (scores.numel() - 1)
    return (scores - mean) / variance.sqrt()


def compactor(
    index: int,
    layer: LayerInputs,
    rotation: Tensor,
    chunk: int,
    size: int = 48,
    seed: int = 0,
    weight: float = 1 - N_KEEP / LENGTH,
    scaling: float = 1.0,
) -> Tensor:
    kv_heads, _, dim = layer.k.shape
    generator = torch.Generator().manual_seed(seed * 65536 + index)
    sketches = torch.randn(kv_heads, dim, size, generator=generator, dtype=torch.float64)
    spreads, received = [], []
    for head in range(kv_heads):
        x = layer.k_pre[head, 8:-4].double()
        x = (x - x.mean(0)) @ (sketches[head] / math.sqrt(size))
        inverse = torch.linalg.inv(x.T @ x + 0.01 * torch.eye(size, dtype=torch.float64))
        spreads.append(torch.stack([row @ inverse @ row for row in x]))
        keys, values = layer.k[head, 8:-4].double(), layer.v[head, 8:-4].double()
        sums = torch.zeros(len(keys), dtype=torch.float64)
        for j in layer.group(head):
            queries = layer.q[j, 8:-4].double()
            for i, query in enumerate(queries):
                tile = slice(i // chunk * chunk, min((i // chunk + 1) * chunk, len(keys)))
                logits = keys[tile] @ query * scaling
                sums[tile] += logits.softmax(0) / len(layer.group(head))
        weighted = [0.0, *(sums * values.norm(dim=1)).tolist(), 0.0]
        received.append([sum(weighted[i : i + 3]) / 3 for i in range(len(keys))])
    attention = standardised(torch.tensor(received, dtype=torch.float64))
    return with_ends(weight * standardised(torch.stack(spreads)) + attention, 8, 4)


Form = tuple[dict[str, object], OfLayer]

REFERENCES: dict[str, list[Form]] = {
    "capkv": [
        ({"variant": "paper"}, capkv_of_the_page_paper),
        (
            {"variant": "published", "temperature": 0.25},
            lambda i, x, r: capkv_as_published(i, x, r, 0.25),
        ),
        ({"variant": "kvpress"}, capkv_of_kvpress),
    ],
    "expected_attention": [
        ({}, expected_attention),
        ({"epsilon": 0.01}, lambda i, x, r: expected_attention(i, x, r, epsilon=0.01)),
        ({"use_vnorm": False}, lambda i, x, r: expected_attention(i, x, r, use_vnorm=False)),
        (
            {"use_covariance": False, "n_sink": 0},
            lambda i, x, r: expected_attention(i, x, r, n_sink=0, use_covariance=False),
        ),
    ],
    "compactor": [
        ({}, lambda i, x, r: compactor(i, x, r, chunk=256)),
        (
            {"chunk_size": 16, "sketch_size": 8, "seed": 3, "blending": 0.35},
            lambda i, x, r: compactor(i, x, r, chunk=16, size=8, seed=3, weight=0.35),
        ),
        (
            {"chunk_size": 32, "scaled": True},
            lambda i, x, r: compactor(i, x, r, chunk=32, scaling=x.scaling),
        ),
    ],
}
EXAMPLES = [
    pytest.param(name, *form, id=f"{name}-{number}")
    for name, forms in REFERENCES.items()
    for number, form in enumerate(forms)
]


def reference(family: str, of_layer: OfLayer) -> Tensor:
    rotations = case(family).rotations
    return reference_scores(family, lambda i, layer: of_layer(i, layer, rotations[i]))


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(("name", "options", "of_layer"), EXAMPLES)
def test_scores_and_kept_positions_are_the_references(
    family: str, name: str, options: dict[str, object], of_layer: OfLayer
) -> None:
    expected = reference(family, of_layer)
    found = engine_scores(family, name, options, N_KEEP)
    assert found.dtype == torch.float32
    assert_close(found, expected)
    for granularity in GRANULARITIES:
        kept = engine_keep(family, name, options, granularity, N_KEEP)
        assert kept == plain_keep(expected, granularity, N_KEEP)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("variant", ["paper", "published", "kvpress"])
def test_capkv_scores_are_leverages(
    family: str, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each lies in (0, 1), those of a head sum to at most the dimension of the values."""
    scores = engine_scores(family, "capkv", {"variant": variant, "n_sink": 0})
    dim = case(family).layers[0].v.shape[-1]
    assert bool((scores > 0).all())
    assert bool((scores < 1).all())
    assert bool((scores.sum(-1) <= dim).all())
    assert bool((scores.sum(-1) > 1).any())


def test_capkv_says_once_when_it_caps_an_exponent(caplog: pytest.LogCaptureFixture) -> None:
    _say_capped.cache_clear()
    layer = random_layer()
    large = dataclasses.replace(layer, keys=layer.keys * 1e4)
    evictor = make_evictor("capkv", {"variant": "published"}, "head")
    with caplog.at_level(logging.WARNING):
        evictor.score(layer)
        assert not caplog.records
        scores = evictor.score(large)
        evictor.score(large)
    assert len(caplog.records) == 1
    assert "caps exponents of its published weights above 20" in caplog.text
    assert bool((scores <= 1).all())
    assert bool((scores.sum(-1) <= 16).all())


def test_capkv_takes_the_paper_form_for_one_shared_keep_set() -> None:
    variants = [make_evictor("capkv", {}, granularity).variant for granularity in GRANULARITIES]  # type: ignore[attr-defined]
    assert variants == ["paper", "published", "published"]


def test_compactor_depends_on_its_seed_alone() -> None:
    layer = random_layer()
    first, again, other = (
        make_evictor("compactor", {"seed": seed, "sketch_size": 6}, "head").score(layer, 20)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def two_stages(
    score: list[float], size: list[float], count: int, share: float, epsilon: float
) -> list[int]:
    """The positions kept: ends, then the best by score, then the best by score times size."""
    ends = best_and_ends(score, PROTECTED["n_sink"] + PROTECTED["recent"])
    middle = [i for i in range(LENGTH) if i not in ends]
    by_score = sorted(middle, key=lambda i: (-score[i], i))
    first = by_score[: max(0, math.floor(count * share) - len(ends))]
    low = min(0.0, *(score[i] for i in middle))
    product = {i: (score[i] - low + epsilon) * size[i] for i in middle if i not in first}
    second = sorted(product, key=lambda i: (-product[i], i))
    return sorted([*ends, *first, *second[: count - len(ends) - len(first)]])


def projected_sizes(layer: LayerInputs) -> Tensor:
    rows = []
    for head in range(len(layer.v)):
        sizes = [
            sum(float((v @ layer.w_o[j].double()).abs().sum()) for j in layer.group(head))
            / len(layer.group(head))
            for v in layer.v[head].double()
        ]
        rows.append(torch.tensor(sizes, dtype=torch.float64))
    return torch.stack(rows)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(
    ("base", "options", "share", "epsilon"),
    [
        ("expected_attention", {"base.use_vnorm": False}, 0.5, 1e-4),
        # All scores below 0.
        ("knorm", {"first_stage": 0.7, "epsilon": 0.1}, 0.7, 0.1),
        # The first stage is no more than the protected positions.
        ("knorm", {"first_stage": 0.1}, 0.1, 1e-4),
        ("knorm", {"first_stage": 1}, 1.0, 1e-4),
    ],
)
def test_criticalkv_keeps_two_stages(
    family: str, base: str, options: dict[str, object], share: float, epsilon: float
) -> None:
    if base == "knorm":
        scores = reference_scores(family, lambda i, layer: -layer.k.double().norm(dim=-1))
    else:
        scores = reference(family, lambda i, x, r: expected_attention(i, x, r, use_vnorm=False))
    sizes = reference_scores(family, lambda i, layer: projected_sizes(layer))
    for granularity in GRANULARITIES:
        kept = engine_keep(family, f"criticalkv({base})", options, granularity, N_KEEP)
        expected = [
            [
                two_stages(score, size, N_KEEP, share, epsilon)
                for score, size in zip(*rows, strict=True)
            ]
            for rows in zip(
                averaged(scores, granularity).tolist(),
                averaged(sizes, granularity).tolist(),
                strict=True,
            )
        ]
        assert kept == expected


@pytest.mark.parametrize(
    ("title", "options", "expected"),
    [
        ("expected_attention", {}, True),
        ("expected_attention", {"use_vnorm": False}, False),
        ("adakv(expected_attention)", {}, True),
        ("criticalkv(expected_attention)", {}, False),
        ("criticalkv(adakv(expected_attention))", {}, False),
        ("adakv(criticalkv(expected_attention))", {}, False),
        ("criticalkv(expected_attention)", {"base.use_vnorm": True}, True),
    ],
)
def test_criticalkv_alone_counts_the_norms_of_values(
    title: str, options: dict[str, object], expected: bool
) -> None:
    evictor = make_evictor(title, options, "head")
    recorded = dataclasses.asdict(evictor)
    while "base" in recorded:
        recorded = recorded["base"]
    assert recorded["use_vnorm"] is expected
    layer = random_layer()
    alone = make_evictor("expected_attention", {"use_vnorm": expected}, "head")
    assert torch.equal(evictor.score(layer), alone.score(layer))
    by_hand = CriticalKV(ExpectedAttention())
    without = ExpectedAttention(use_vnorm=False)
    assert torch.equal(by_hand.score(layer), without.score(layer))


def test_criticalkv_keeps_what_its_base_always_keeps() -> None:
    scores = torch.rand(1, LENGTH, generator=torch.Generator().manual_seed(0))
    scores[0, 50:60] = torch.inf
    sizes = torch.zeros(1, LENGTH)
    plan = BudgetPlan(LENGTH, 40, PROTECTED["n_sink"], PROTECTED["recent"], 1, 1, "head")
    evictor = make_evictor("criticalkv(knorm)", {"first_stage": 0.0}, "head")
    refined = evictor.refine(scores, sizes, torch.tensor([40]), plan)
    assert refined[0].isposinf().nonzero().flatten().tolist() == list(range(50, 60))
    assert not refined.isnan().any()


def test_criticalkv_spends_half_of_each_heads_own_count() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, sizes = torch.rand(2, 3, LENGTH, generator=generator)
    counts = torch.tensor([20, 41, 100])
    plan = BudgetPlan(LENGTH, 40, PROTECTED["n_sink"], PROTECTED["recent"], 1, 3, "head")
    evictor = make_evictor("criticalkv(knorm)", {}, "head")
    refined = evictor.refine(scores, sizes, counts, plan)
    for row, count in enumerate(counts.tolist()):
        kept = best_and_ends(refined[row].tolist(), count)
        rows = scores[row].double().tolist(), sizes[row].double().tolist()
        assert kept == two_stages(*rows, count, 0.5, 1e-4)


def test_criticalkv_leaves_the_counts_of_heads_to_the_evictor_inside() -> None:
    counts = [
        [
            [len(positions) for positions in layer]
            for layer in engine_keep("llama", title, {}, "head")
        ]
        for title in ("adakv(knorm)", "criticalkv(adakv(knorm))")
    ]
    assert counts[0] == counts[1]
    assert counts[0] != [[40, 40]] * 4


def test_criticalkv_sizes_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = random_layer()
    evictor = make_evictor("criticalkv(knorm)", {}, "head")
    whole = evictor.factor(layer)
    monkeypatch.setattr("page_bench.evictors.base.causal._BLOCK_BYTES", 7 * 12 * 4)
    blocks = evictor.factor(layer)
    assert whole is not None
    assert blocks is not None
    assert_close(blocks, whole)


ALL = [
    ("capkv", {"variant": "paper"}),
    ("capkv", {"variant": "published"}),
    ("capkv", {"variant": "kvpress"}),
    ("expected_attention", {}),
    ("compactor", {"chunk_size": 4}),
]


@pytest.mark.parametrize("length", [1, 2, 5, 13, 40])
@pytest.mark.parametrize(("name", "options"), ALL)
def test_scores_are_numbers_on_few_and_on_empty_states(
    name: str, options: dict[str, object], length: int
) -> None:
    zero = torch.zeros(2, length, 8)
    for layer in (random_layer(length), hand_made(zero, zero, zero)):
        scores = make_evictor(name, options, "head").score(layer, n_keep=max(1, length // 2))
        assert scores.shape == (2, length)
        assert (scores > -math.inf).all()


@pytest.mark.parametrize(("name", "options"), ALL)
def test_values_may_be_wider_than_keys(name: str, options: dict[str, object]) -> None:
    layer = random_layer()
    values = torch.randn(2, 60, 24, generator=torch.Generator().manual_seed(2))
    wide: LayerView = hand_made(layer.keys, values, layer.queries_before_rotation)
    evictor: Evictor = make_evictor(f"criticalkv({name})", prefixed(options), "head")
    for scores in (evictor.score(wide, n_keep=20), evictor.factor(wide)):
        assert scores is not None
        assert scores.shape == (2, 60)


def prefixed(options: dict[str, object]) -> dict[str, object]:
    return {f"base.{name}": value for name, value in options.items()}


@pytest.mark.parametrize(
    ("title", "option", "value"),
    [
        ("capkv", "temperature", -1.0),
        ("capkv", "n_sink", -1),
        ("capkv", "variant", "cosine"),
        ("expected_attention", "n_sink", -1),
        ("expected_attention", "epsilon", -0.01),
        ("compactor", "chunk_size", 0),
        ("compactor", "sketch_size", 0),
        ("compactor", "n_recent", -1),
        ("compactor", "blending", -0.5),
        ("compactor", "seed", 2**33),
        ("criticalkv(knorm)", "first_stage", 1.5),
        ("criticalkv(knorm)", "epsilon", -1e-4),
    ],
)
def test_impossible_options_are_named(title: str, option: str, value: object) -> None:
    granularity: Granularity = "head"
    with pytest.raises(UsageError, match=rf"evictor\.{option}="):
        make_evictor(title, {option: value}, granularity)
