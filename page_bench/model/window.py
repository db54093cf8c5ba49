"""What the last query rows of a prompt attend to, how spread out it is, and by what margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from page_bench.evictors.base.causal import attention_sums, empty_sums, logit_blocks


@dataclass(frozen=True)
class WindowStatistics:
    """One layer's attention over the observation window of n query rows.

    Attributes:
        mean_attention: fp32 `[H, T]`, per query head the attention averaged over the rows.
        row_entropy: fp32 `[H]`, nats, entropy of a row averaged over the rows; None if not asked.
        margin: fp32 `[H]`, κ, the median over the rows; None if not asked. NaN where no row has
            two keys besides its top-k, infinite where these all have the same logit.
    """

    mean_attention: Tensor
    row_entropy: Tensor | None
    margin: Tensor | None


def window_statistics(
    query: Tensor,
    key: Tensor,
    scaling: float,
    top_k: int = 32,
    *,
    with_entropy: bool = True,
    with_margin: bool = True,
) -> WindowStatistics:
    """Read the causal softmax of the last queries once; two blocks of rows are alive at most.

    κ, the margin-to-noise ratio (paper, appendix G, "The margin-to-noise ratio, measured"), of one
    query row: R = its k largest attention logits before the softmax, N = the logits of all other
    keys that the row may see, κ = (mean R − mean N) / sd N with the sample standard deviation. The
    paper takes each row of the last 32, of prompts without a chat template, and reports quantiles
    over layers, heads and rows.

    Args:
        query: `[H, n, d]`, the queries of positions T-n … T-1, after the rotary embedding.
        key: `[H_kv, T, d]`, after the rotary embedding.
        scaling: factor of the logits.
        top_k: k of κ.
        with_entropy: whether to measure the entropy.
        with_margin: whether to measure κ.
    """
    rows = query.shape[1]
    if not with_entropy and not with_margin:
        return WindowStatistics(attention_sums(query, key, scaling) / rows, None, None)
    sums = empty_sums(query, key)
    entropies, margins = [], []
    for logits, future in logit_blocks(query, key, scaling):
        attention = logits.softmax(-1)
        sums[..., : logits.shape[-1]] += attention.sum(-2)
        top = (
            logits.topk(min(top_k, logits.shape[-1]), sorted=False).values if with_margin else None
        )
        visible = _centre(logits, top, future)
        if with_entropy:
            entropies.append(_entropy(attention, logits))
        del attention
        if top is not None:
            margins.append(_margin(top, logits, visible - top_k))
    return WindowStatistics(
        mean_attention=sums.flatten(0, 1) / rows,
        row_entropy=torch.cat(entropies, -1).mean(-1).flatten() if with_entropy else None,
        margin=torch.cat(margins, -1).nanquantile(0.5, -1).flatten() if with_margin else None,
    )


def required_margin(layers: int, heads: int, tokens: int, beta: float = 1.0) -> float:
    """The κ from which the paper's bound on a wrongly opened gate is at most β (Eq. 25 and 27).

    A bound of 1 says nothing, so this is the least κ that would certify anything.

    Args:
        layers: L.
        heads: query heads H.
        tokens: T.
        beta: β, in (0, 1].
    """
    return 2 * math.sqrt(math.log(2 * heads**2 * layers * tokens**2 / beta))


def _centre(logits: Tensor, top: Tensor | None, future: Tensor) -> Tensor:
    """Subtract each row's mean over its visible keys, in place, from `logits` and `top`.

    Neither entropy nor κ depends on it, and small numbers lose less to rounding. Keys that a row
    does not see are 0 afterwards.

    Returns:
        Visible keys per row, `[m]`.
    """
    rows, end = logits.shape[-2:]
    unseen = logits[..., end - rows :]
    visible = end - future.sum(-1)
    unseen.masked_fill_(future, 0)
    mean = logits.sum(-1, keepdim=True) / visible[:, None]
    logits -= mean
    unseen.masked_fill_(future, 0)
    if top is not None:
        top -= mean
    return visible


def _entropy(attention: Tensor, centred: Tensor) -> Tensor:
    """Entropy of each row, `[..., m]`; overwrites `attention`.

    −Σ p·ln p with ln p = z − max z + ln max p, which takes one logarithm a row. The largest
    centred logit is not negative, so the zeros of unseen keys are never above it.
    """
    peak = centred.amax(-1) - attention.amax(-1).log()
    # A product that autocast leaves alone, in the memory that is there.
    return peak - attention.mul_(centred).sum(-1)


def _margin(top: Tensor, centred: Tensor, n_rest: Tensor) -> Tensor:
    """κ of each row, `[..., m]`, from centred logits, which it overwrites; NaN without a rest."""
    top_sum = top.sum(-1)
    # Centred logits sum to 0.
    rest_mean = -top_sum / n_rest
    squares = centred.square_().sum(-1) - top.square().sum(-1)
    variance = (squares - n_rest * rest_mean**2).clamp_min(0) / (n_rest - 1)
    margin = (top_sum / top.shape[-1] - rest_mean) / variance.sqrt()
    return margin.masked_fill(n_rest < 2, torch.nan)
