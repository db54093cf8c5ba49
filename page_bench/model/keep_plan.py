"""An evictor applied to a prefilled prompt: the keep sets, and the smaller cache."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from page_bench.config import PageConfig, budget_for
from page_bench.evictors.base import Evictor
from page_bench.evictors.base.budget import BudgetPlan, keep_count, kept_members
from page_bench.evictors.base.foreign import blaming, lent
from page_bench.inputs.errors import UsageError
from page_bench.model.cache import evicted_layer
from page_bench.model.cache_layers import SlidingLayer
from page_bench.model.prefill import Prefill
from page_bench.model.scoring import normalised


@dataclass(frozen=True)
class KeepPlan:
    """Which prompt positions stay, for every layer with full attention.

    Attributes:
        members: bool `[L', H', T]`; L' and H' are 1 where all layers or all KV heads of a layer
            keep the same positions.
        must_keep: positions per layer and KV head on average, if the method had to keep more than
            the budget allows; else None.
    """

    members: Tensor
    must_keep: float | None = None

    def of_layer(self, number: int) -> Tensor:
        """bool `[H', T]` for the `number`-th layer with full attention."""
        return self.members[number if len(self.members) > 1 else 0]

    def positions(self, n_layers: int) -> list[int]:
        """Kept positions of each layer with full attention, summed over its rows H'."""
        return self.members.sum((1, 2)).tolist() * (n_layers // len(self.members))

    def key(self) -> tuple[tuple[int, ...], bytes]:
        """Equal for equal keep sets of one prompt."""
        packed = np.packbits(self.members.cpu().numpy())
        return tuple(self.members.shape), hashlib.sha256(packed.tobytes()).digest()

    def without_last(self) -> KeepPlan:
        """The same without the last position."""
        members = self.members.clone()
        members[..., -1] = False
        return dataclasses.replace(self, members=members)


def positions_to_keep(evictor: Evictor, prompt: Prefill, config: PageConfig) -> KeepPlan | str:
    """The keep sets of a prompt at the granularity that the configuration asks for.

    With one set for several heads or layers, their scores are averaged, heads first.

    Args:
        evictor: the method.
        prompt: the prompt after its dense pass.
        config: budget, granularity, normalisation and protected positions.

    Returns:
        The keep sets; or, where nothing is to be evicted, the reason.

    Raises:
        UsageError: the evictor failed, or scores or counts are not what `Evictor` promises.
    """
    length, n_sink, recent = prompt.prompt_tokens, config.n_sink, config.n_recent
    n_keep = budget_for(config, length)
    if isinstance(n_keep, str):
        return n_keep
    layers = prompt.scored_by(evictor, n_keep)
    plan = BudgetPlan(length, n_keep, n_sink, recent, *prompt.shape, config.granularity)
    with blaming(evictor.title, "failed in least_on_average"):
        plan = dataclasses.replace(plan, n_keep=max(n_keep, evictor.least_on_average(plan)))
    raw = _stacked(evictor, [layer.score for layer in layers], plan)
    _check_scores(evictor, raw)
    scores = normalised(raw, config.score_norm, n_sink, recent)
    with blaming(evictor.title, "failed in allocate"):
        counts = evictor.allocate(lent(evictor, scores), plan)
    _check_counts(evictor, counts, plan)
    if bool((counts == length).all()):
        return "evictor keeps all"
    rows = scores
    if config.granularity != "head":
        with blaming(evictor.title, "failed in vote"):
            votes = evictor.vote(lent(evictor, raw))
            _check_scores(evictor, votes)
        votes = normalised(votes, config.score_norm, n_sink, recent)
        rows = _averaged(votes, config.granularity)
    rows_keep = counts[: rows.shape[0], : rows.shape[1]]
    factors = [layer.factor for layer in layers]
    if all(factor is not None for factor in factors):
        factor = _stacked(evictor, [f for f in factors if f is not None], plan)
        rows = _refined(evictor, rows, _averaged(factor, config.granularity), rows_keep, plan)
    flat, flat_keep = rows.flatten(0, 1), rows_keep.flatten()
    flat = _latest_of_certain(flat, flat_keep, n_sink, recent)
    members = kept_members(flat, flat_keep, n_sink, recent)
    _check_members(members, flat_keep, n_sink, recent)
    if not bool(members[:, -1].all()):
        raise UsageError(
            f"evictor {evictor.title} dropped the last position, which it says it always keeps; "
            f"give recent=1."
        )
    entries = int(counts.sum())
    allowed = keep_count(config.budget, length, n_sink, recent) * counts.numel()
    must_keep = entries / counts.numel() if entries > allowed else None
    return KeepPlan(members.view(rows.shape), must_keep)


def scores_of(evictor: Evictor, prompt: Prefill, n_keep: int) -> Tensor:
    """Raw scores, fp32 `[L, H_kv, T]`, before normalisation, averaging and refinement."""
    scores = [layer.score for layer in prompt.scored_by(evictor, n_keep)]
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
            layers.append(layer.copied(without_last))
        else:
            layers.append(evicted_layer(layer, kept.of_layer(numbers[i]), room))
    return Cache(layers=layers)


def _stacked(evictor: Evictor, rows: list[Tensor], plan: BudgetPlan) -> Tensor:
    """fp32 `[L, H_kv, T]` on the first layer's device, their shape checked."""
    expected = (plan.n_kv_heads, plan.prompt_tokens)
    for row in rows:
        if not isinstance(row, Tensor):
            raise UsageError(
                f"evictor {evictor.title} scored with a {type(row).__name__}; it must give a "
                f"floating-point tensor of shape (KV heads, positions) = {expected}."
            )
        if tuple(row.shape) != expected or not row.is_floating_point():
            raise UsageError(
                f"evictor {evictor.title} scored with {row.dtype} of shape {tuple(row.shape)}; "
                f"it must give floating point of shape (KV heads, positions) = {expected}."
            )
    return torch.stack([row.float().to(rows[0].device) for row in rows])


def _check_scores(evictor: Evictor, scores: Tensor) -> None:
    """Raise UsageError for a score, or what else ranks positions, of NaN or -inf."""
    # A NaN is not above anything.
    if not bool((scores > -torch.inf).all()):
        raise UsageError(
            f"evictor {evictor.title} gave a position a score that is minus infinity or not a "
            f"number; where a model overflows in half precision, dtype=float32 helps."
        )


def _refined(
    evictor: Evictor, rows: Tensor, factor: Tensor, rows_keep: Tensor, plan: BudgetPlan
) -> Tensor:
    """The second stage, `[L', H', T]` like `rows` and `factor`, checked."""
    if not bool(torch.isfinite(factor).all()):
        raise UsageError(
            f"evictor {evictor.title} gave a position a factor that is infinite or not a number; "
            f"where a model overflows in half precision, dtype=float32 helps."
        )
    flat, flat_factor = lent(evictor, rows.flatten(0, 1)), lent(evictor, factor.flatten(0, 1))
    counts = lent(evictor, rows_keep.flatten().to(rows.device))
    with blaming(evictor.title, "failed in refine"):
        refined = evictor.refine(flat, flat_factor, counts, plan)
    if not isinstance(refined, Tensor) or refined.shape != flat.shape:
        raise UsageError(
            f"evictor {evictor.title} refined scores of shape {tuple(flat.shape)} to "
            f"{tuple(refined.shape) if isinstance(refined, Tensor) else type(refined).__name__}; "
            f"it must give the same shape."
        )
    _check_scores(evictor, refined)
    return refined.float().view(rows.shape)


def _latest_of_certain(rows: Tensor, counts: Tensor, n_sink: int, recent: int) -> Tensor:
    """Rows `[R, T]` in which, where a count is below the number of +inf, the latest +inf win."""
    certain = rows.isposinf()
    inside = certain[:, n_sink : rows.shape[-1] - recent].sum(-1)
    short = inside > counts.to(rows.device) - n_sink - recent
    if not bool(short.any()):
        return rows
    place = torch.arange(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    by_place = torch.where(certain, place, -1)
    return torch.where(short[:, None], by_place, rows)


def _check_counts(evictor: Evictor, counts: Tensor, plan: BudgetPlan) -> None:
    """Raise UsageError where counts are not what `Evictor.allocate` promises."""
    if not isinstance(counts, Tensor) or counts.is_floating_point() or counts.is_complex():
        kind = counts.dtype if isinstance(counts, Tensor) else type(counts).__name__
        raise UsageError(
            f"evictor {evictor.title} allocated counts of {kind}; it must give a tensor of whole "
            f"numbers."
        )
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
    total, most = int(counts.sum()), counts.numel() * plan.n_keep
    if total > most and int(counts.min()) < plan.prompt_tokens:
        raise UsageError(
            f"evictor {evictor.title} keeps {total} entries, but the budget of {plan.n_keep} "
            f"positions per layer and KV head is {most}; it must share out no more."
        )


def _check_members(members: Tensor, counts: Tensor, n_sink: int, recent: int) -> None:
    """Raise RuntimeError where keep sets `[R, T]` are not what was counted out for them."""
    kept = members.sum(-1).cpu()
    protected = members[:, :n_sink].all() & members[:, members.shape[-1] - recent :].all()
    if not torch.equal(kept, counts.cpu().long()) or not bool(protected):
        raise RuntimeError(
            f"keep sets hold {kept.tolist()} positions where {counts.tolist()} were counted out, "
            f"or lack protected ones; this is a fault of page-bench, please report it."
        )


def _averaged(scores: Tensor, granularity: str) -> Tensor:
    """fp32 `[L', H', T]`, see `KeepPlan`."""
    if granularity == "head":
        return scores
    by_layer = scores.mean(1, keepdim=True)
    return by_layer if granularity == "layer" else by_layer.mean(0, keepdim=True)
