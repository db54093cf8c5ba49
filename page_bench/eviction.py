"""An evictor applied to a prefilled prompt: the keep set, and the smaller cache."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from page_bench.budget import BudgetPlan, is_too_short, keep_count, kept_positions
from page_bench.cache import evicted_cache
from page_bench.config import PageConfig
from page_bench.errors import UsageError
from page_bench.evictors.base import Evictor, LayerView
from page_bench.prefill import Prefill


def positions_to_keep(
    evictor: Evictor, prompt: Prefill, config: PageConfig, prompt_seed: int
) -> Tensor | str:
    """One keep set for all layers and KV heads (granularity `shared`), as the paper ran it.

    Each layer's score is averaged over its KV heads, then over the layers.

    Args:
        evictor: the method.
        prompt: the prompt after its dense pass.
        config: budget and protected positions.
        prompt_seed: a number that depends on the prompt alone.

    Returns:
        int64 `[n]`, ascending; or, where nothing is to be evicted, the reason.

    Raises:
        UsageError: a score is not a number, or counts that one keep set cannot have.
    """
    length, n_sink, recent = prompt.prompt_tokens, config.n_sink, config.n_recent
    if is_too_short(length, n_sink, recent):
        return "prompt too short"
    n_keep = keep_count(config.budget, length, n_sink, recent)
    if n_keep == length:
        return "budget keeps all"
    views = _layer_views(prompt, prompt_seed)
    plan = BudgetPlan(length, n_keep, n_sink, recent, len(views), views[0].n_kv_heads)
    # Mixed precision is for the model; scores stay in fp32.
    with torch.autocast(views[0].keys.device.type, enabled=False):
        scores = [evictor.score(view, n_keep) for view in views]
        count = _shared_count(evictor, scores, plan)
    if count == length:
        return "evictor keeps all"
    device = scores[0].device
    total = torch.stack([score.float().mean(0).to(device) for score in scores]).mean(0)
    if not torch.isfinite(total.sum()):
        raise UsageError(
            f"evictor {evictor.name} gave a position a score that is infinite or not a number; "
            f"where a model overflows in half precision, dtype=float32 helps."
        )
    return kept_positions(total, count, n_sink, recent)


def _shared_count(evictor: Evictor, scores: list[Tensor], plan: BudgetPlan) -> int:
    """The number of positions to keep, the same in all layers and heads, after checks.

    Raises:
        UsageError: scores or counts are not what `Evictor` promises, or differ between heads.
    """
    expected = (plan.n_kv_heads, plan.prompt_tokens)
    for score in scores:
        if tuple(score.shape) != expected or not score.is_floating_point():
            raise UsageError(
                f"evictor {evictor.name} scored with {score.dtype} of shape {tuple(score.shape)}; "
                f"it must give floating point of shape (KV heads, positions) = {expected}."
            )
    counts = evictor.allocate(scores, plan)
    if tuple(counts.shape) != (plan.n_layers, plan.n_kv_heads):
        raise UsageError(
            f"evictor {evictor.name} allocated counts of shape {tuple(counts.shape)}; it must give "
            f"(layers, KV heads) = {(plan.n_layers, plan.n_kv_heads)}."
        )
    count = int(counts.flatten()[0])
    if not bool((counts == count).all()):
        raise UsageError(
            f"evictor {evictor.name} keeps different numbers of positions in different layers or "
            f"heads, which one shared keep set cannot do; choose another evictor."
        )
    if not plan.n_protected <= count <= plan.prompt_tokens:
        raise UsageError(
            f"evictor {evictor.name} keeps {count} positions; it must keep the {plan.n_protected} "
            f"protected ones and at most all {plan.prompt_tokens}."
        )
    return count


def evict(prompt: Prefill, positions: Tensor, room: int, without_last: bool) -> Cache:
    """The cache without the evicted entries.

    Args:
        prompt: what went through the dense pass; its own cache is left as it is.
        positions: int64 `[n]`, ascending, the last one being the last of the dense pass.
        room: entries the cache must have room for besides the kept ones.
        without_last: leave the last token's entry out as well. It is then to be fed again through
            this cache, so that the first answer token already depends on what was kept, and must
            not stand there twice.
    """
    kept = positions[:-1] if without_last else positions
    return evicted_cache(prompt.cache, [kept] * len(prompt.cache.layers), room)


def _layer_views(prompt: Prefill, prompt_seed: int) -> list[LayerView]:
    layers = prompt.cache.layers
    mass = prompt.observation.attention_mass
    return [
        LayerView(
            index=i,
            n_layers=len(layers),
            prompt_tokens=prompt.prompt_tokens,
            keys=layer.keys[0],
            values=layer.values[0],
            window_attention=prompt.observation.window_attention[i],
            recorded_mass=None if mass is None else mass[i],
            prompt_seed=prompt_seed,
        )
        for i, layer in enumerate(layers)
    ]
