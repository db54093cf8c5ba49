"""An evictor applied to a prefilled prompt: the keep sets, and the smaller cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from page_bench.budget import BudgetPlan, is_too_short, keep_count, kept_members
from page_bench.cache import SlidingLayer, evicted_layer
from page_bench.config import PageConfig
from page_bench.errors import UsageError
from page_bench.evictors.base import Evictor
from page_bench.prefill import LayerScores, Prefill, score_layer
from page_bench.scoring import normalised


@dataclass(frozen=True)
class KeepPlan:
    """Which prompt positions stay, for every layer with full attention.

    Attributes:
        members: bool `[L', H', T]`; L' and H' are 1 where all layers or all KV heads of a layer
            keep the same positions.
    """

    members: Tensor

    def of_layer(self, number: int) -> Tensor:
        """bool `[H', T]` for the `number`-th layer with full attention."""
        return self.members[number if len(self.members) > 1 else 0]

    def without_last(self) -> KeepPlan:
        """The same without the last position."""
        members = self.members.clone()
        members[..., -1] = False
        return KeepPlan(members)


def budget_for(config: PageConfig, length: int) -> int | str:
    """Positions to keep per layer and KV head; or, where nothing is to be evicted, the reason."""
    if is_too_short(length, config.n_sink, config.n_recent):
        return "prompt too short"
    n_keep = keep_count(config.budget, length, config.n_sink, config.n_recent)
    return "budget keeps all" if n_keep == length else n_keep


def positions_to_keep(
    evictor: Evictor, prompt: Prefill, config: PageConfig, prompt_seed: int
) -> KeepPlan | str:
    """The keep sets of a prompt at the granularity that the configuration asks for.

    With one set for several heads or layers, their scores are averaged, heads first.

    Args:
        evictor: the method.
        prompt: the prompt after its dense pass.
        config: budget, granularity, normalisation and protected positions.
        prompt_seed: a number that depends on the prompt alone.

    Returns:
        The keep sets; or, where nothing is to be evicted, the reason.

    Raises:
        UsageError: a score is not a number, or scores or counts are not what `Evictor` promises.
    """
    length, n_sink, recent = prompt.prompt_tokens, config.n_sink, config.n_recent
    n_keep = budget_for(config, length)
    if isinstance(n_keep, str):
        return n_keep
    layers = _layer_scores(evictor, prompt, n_keep, prompt_seed)
    n_layers, n_kv_heads = len(layers), prompt.view(0, prompt_seed).n_kv_heads
    plan = BudgetPlan(length, n_keep, n_sink, recent, n_layers, n_kv_heads, config.granularity)
    raw = _stacked(evictor, [layer.score for layer in layers], plan)
    scores = normalised(raw, config.score_norm, n_sink, recent)
    counts = evictor.allocate(scores, plan)
    _check_counts(evictor, counts, plan)
    if bool((counts == length).all()):
        return "evictor keeps all"
    rows = scores
    if config.granularity != "head":
        votes = normalised(evictor.vote(raw), config.score_norm, n_sink, recent)
        rows = _averaged(votes, config.granularity)
    rows_keep = counts[: rows.shape[0], : rows.shape[1]]
    factors = [layer.factor for layer in layers]
    if all(factor is not None for factor in factors):
        factor = _stacked(evictor, [f for f in factors if f is not None], plan)
        rows = evictor.refine(
            rows.flatten(0, 1),
            _averaged(factor, config.granularity).flatten(0, 1),
            rows_keep.flatten().to(rows.device),
            plan,
        ).view(rows.shape)
    members = kept_members(rows.flatten(0, 1), rows_keep.flatten(), n_sink, recent)
    return KeepPlan(members.view(rows.shape))


def scores_of(evictor: Evictor, prompt: Prefill, n_keep: int, prompt_seed: int) -> Tensor:
    """Raw scores, fp32 `[L, H_kv, T]`, before normalisation, averaging and refinement."""
    scores = [layer.score for layer in _layer_scores(evictor, prompt, n_keep, prompt_seed)]
    return torch.stack([score.to(scores[0].device) for score in scores])


def evict(prompt: Prefill, keep: KeepPlan, room: int, without_last: bool) -> Cache:
    """The cache without the evicted entries.

    Args:
        prompt: what went through the dense pass; its own cache is left as it is.
        keep: its keep sets; the last position of the pass is in all of them.
        room: entries the cache must have room for besides the kept ones.
        without_last: leave the last token's entry out as well. It is then to be fed again through
            this cache, so that the first answer token already depends on what was kept, and must
            not stand there twice.
    """
    kept = keep.without_last() if without_last else keep
    numbers = {layer: number for number, layer in enumerate(prompt.observation.layers)}
    layers = []
    for i, layer in enumerate(prompt.cache.layers):
        if isinstance(layer, SlidingLayer):
            layers.append(layer.without_last() if without_last else layer)
        else:
            layers.append(evicted_layer(layer, kept.of_layer(numbers[i]), room))
    return Cache(layers=layers)


def _layer_scores(
    evictor: Evictor, prompt: Prefill, n_keep: int, prompt_seed: int
) -> tuple[LayerScores, ...]:
    if prompt.scores is not None:
        return prompt.scores
    numbers = range(len(prompt.observation.layers))
    return tuple(score_layer(evictor, prompt.view(i, prompt_seed), n_keep) for i in numbers)


def _stacked(evictor: Evictor, rows: list[Tensor], plan: BudgetPlan) -> Tensor:
    """fp32 `[L, H_kv, T]` on the first layer's device, checked."""
    expected = (plan.n_kv_heads, plan.prompt_tokens)
    for row in rows:
        if tuple(row.shape) != expected or not row.is_floating_point():
            raise UsageError(
                f"evictor {evictor.title} scored with {row.dtype} of shape {tuple(row.shape)}; "
                f"it must give floating point of shape (KV heads, positions) = {expected}."
            )
    stacked = torch.stack([row.float().to(rows[0].device) for row in rows])
    if not torch.isfinite(stacked.sum()):
        raise UsageError(
            f"evictor {evictor.title} gave a position a score that is infinite or not a number; "
            f"where a model overflows in half precision, dtype=float32 helps."
        )
    return stacked


def _check_counts(evictor: Evictor, counts: Tensor, plan: BudgetPlan) -> None:
    """Raise UsageError where counts are not what `Evictor.allocate` promises."""
    if tuple(counts.shape) != (plan.n_layers, plan.n_kv_heads):
        raise UsageError(
            f"evictor {evictor.title} allocated counts of shape {tuple(counts.shape)}; it must "
            f"give (layers, KV heads) = {(plan.n_layers, plan.n_kv_heads)}."
        )
    alike = {"shared": counts[:1, :1], "layer": counts[:, :1], "head": counts}[plan.granularity]
    if not bool((counts == alike).all()):
        raise UsageError(
            f"evictor {evictor.title} keeps different numbers of positions where "
            f"granularity={plan.granularity} keeps the same; give granularity=head, or choose "
            f"another evictor."
        )
    least, most = int(counts.min()), int(counts.max())
    if least < plan.n_protected or most > plan.prompt_tokens:
        raise UsageError(
            f"evictor {evictor.title} keeps {least if least < plan.n_protected else most} "
            f"positions; it must keep the {plan.n_protected} protected ones and at most all "
            f"{plan.prompt_tokens}."
        )


def _averaged(scores: Tensor, granularity: str) -> Tensor:
    """fp32 `[L', H', T]`, see `KeepPlan`."""
    if granularity == "head":
        return scores
    by_layer = scores.mean(1, keepdim=True)
    return by_layer if granularity == "layer" else by_layer.mean(0, keepdim=True)
