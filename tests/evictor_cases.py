"""Tiny models with what their layers compute, the engine's scores on them, and plain keep sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from reference_inputs import LayerInputs, layer_inputs, mean_rotations
from tiny_models import tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.evictors import make_evictor
from page_bench.evictors.base import Granularity, LayerView
from page_bench.model.attention import observing
from page_bench.model.keep_plan import KeepPlan, positions_to_keep, scores_of
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer

CASES = ("llama", "qwen2", "qwen3")
"""Keys of `tiny_models.FAMILIES`: grouped queries; with biases; with query and key norms."""
LENGTH = 100
WINDOW = 16
PROTECTED = {"n_sink": 4, "recent": 10}
"""Positions that the engine protects, as arguments of `PageConfig`."""
FUTURE = 512


@dataclass(frozen=True)
class Case:
    """A tiny model, a prompt of `LENGTH` tokens, and what each layer computes on it."""

    model: PreTrainedModel
    ids: Tensor
    layers: list[LayerInputs]
    rotations: list[Tensor]


@cache
def case(family: str) -> Case:
    """One per family; it stays as it is."""
    model = tiny_model(family)
    # Like the reference's own model, so that rounding in the layers before does not differ.
    model.set_attn_implementation("eager")
    # No token twice: the first layer's keys of equal tokens differ by their rotation alone, and
    # rounding would decide between them.
    ids = torch.randperm(256, generator=torch.Generator().manual_seed(0))[None, :LENGTH]
    return Case(model, ids, layer_inputs(model, ids), mean_rotations(model, LENGTH, FUTURE))


def engine_scores(
    family: str,
    title: str,
    options: Mapping[str, object],
    n_keep: int = 40,
    granularity: Granularity = "head",
) -> Tensor:
    """The package's scores, fp32 `[L, H_kv, T]`."""
    evictor = make_evictor(title, options, granularity)
    model = case(family).model
    with observing(model):
        filled = prefill(
            model, case(family).ids, window=WINDOW, room=1, scorers=[Scorer(evictor, n_keep)]
        )
    return scores_of(evictor, filled, n_keep)


def engine_keep(
    family: str,
    title: str,
    options: Mapping[str, object],
    granularity: Granularity,
    n_keep: int = 40,
) -> list[list[list[int]]]:
    """The positions that the package keeps, per keep set of layer and head."""
    config = PageConfig(
        evictor=title,
        evictor_args=options,
        granularity=granularity,
        budget=n_keep / LENGTH,
        window=WINDOW,
        **PROTECTED,  # type: ignore[arg-type]
    )
    evictor, model = config.make_evictor(), case(family).model
    with observing(model):
        filled = prefill(
            model, case(family).ids, window=WINDOW, room=1, scorers=[Scorer(evictor, n_keep)]
        )
    plan = positions_to_keep(evictor, filled, config)
    assert isinstance(plan, KeepPlan)
    return [[[i for i, stays in enumerate(s) if stays] for s in row] for row in plan.members]


def reference_scores(family: str, of_layer: Callable[[int, LayerInputs], Tensor]) -> Tensor:
    """A reference's scores of all layers, `[L, H_kv, T]`."""
    return torch.stack([of_layer(i, layer) for i, layer in enumerate(case(family).layers)])


def averaged(scores: Tensor, granularity: str) -> Tensor:
    """Means over what shares a keep set: heads of a layer first, then layers."""
    if granularity == "head":
        return scores
    by_layer = torch.stack([torch.stack([*layer]).mean(0, keepdim=True) for layer in scores])
    return by_layer if granularity == "layer" else by_layer.mean(0, keepdim=True)


def plain_keep(scores: Tensor, granularity: str, n_keep: int = 40) -> list[list[list[int]]]:
    """First, last and best-scored positions of each keep set, by sorting."""
    rows = averaged(scores, granularity).tolist()
    return [[best_and_ends(row, n_keep) for row in layer] for layer in rows]


def best_and_ends(row: list[float], n_keep: int) -> list[int]:
    """The protected positions and the best of the others, ascending."""
    n_sink, recent = PROTECTED["n_sink"], PROTECTED["recent"]
    middle = range(n_sink, LENGTH - recent)
    best = sorted(middle, key=lambda i: (-row[i], i))[: n_keep - n_sink - recent]
    return sorted([*best, *range(n_sink), *range(LENGTH - recent, LENGTH)])


def hand_made(keys: Tensor, values: Tensor, queries: Tensor, **changes: Any) -> LayerView:
    """A layer made of these tensors, without rotation, that shows all that an evictor may need.

    Args:
        keys: `[H_kv, T, d]`.
        values: `[H_kv, T, d_v]`.
        queries: `[H, T, d]`.
        changes: attributes that differ.
    """
    heads, length, dim = queries.shape
    recorded = {
        "queries_before_rotation": queries,
        "keys_before_rotation": keys,
        "window_queries": queries,
        "future_rotation": torch.eye(dim),
        "output_projection": torch.randn(
            heads, values.shape[-1], 12, generator=torch.Generator().manual_seed(3)
        ),
        "hidden_states": queries.transpose(0, 1).flatten(1),
        "attention_mass": torch.ones(heads, length),
    }
    known: dict[str, Any] = {
        "index": 0,
        "layer": 0,
        "n_layers": 2,
        "n_model_layers": 2,
        "prompt_tokens": length,
        "keys": keys,
        "values": values,
        "scaling": dim**-0.5,
        "window": WINDOW,
        "window_attention": torch.full((heads, length), 1 / length),
        "prompt_seed": 0,
        "recorded": recorded,
    }
    return LayerView(**{**known, **changes})


def random_layer(length: int = 60, dim: int = 16, seed: int = 0) -> LayerView:
    """`hand_made` of random keys, values and queries: two KV heads, four query heads."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 2, length, dim, generator=generator)
    return hand_made(keys, values, torch.randn(4, length, dim, generator=generator))
