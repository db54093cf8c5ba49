"""Plain references, written from the definitions and sharing no code with the package.

Slow on purpose: whole attention matrices, Python sets, masks in place of smaller caches.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


def eager_attentions(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """L matrices `[H, T, T]`: the attention of an eager fp32 copy over the prompt `[1, T]`."""
    eager = copy.deepcopy(model).float().eval()
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = eager(ids, output_attentions=True).attentions
    return [attention[0] for attention in attentions]


def window_mean(attentions: Sequence[Tensor], window: int) -> list[Tensor]:
    """L rows `[H, T]`: each head's attention averaged over the last `window` queries."""
    return [attention[:, -window:].mean(1) for attention in attentions]


def eager_attention_window(model: PreTrainedModel, ids: Tensor, window: int) -> list[Tensor]:
    """`window_mean` of `eager_attentions`."""
    return window_mean(eager_attentions(model, ids), window)


def top_keys(row: Tensor, k: int) -> set[int]:
    """The k positions of largest value, the lower position first where values are equal."""
    values = row.tolist()
    return set(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k])


def head_agreements(window_attention: Sequence[Tensor], top_k: int) -> list[float]:
    """Per layer `[H, T]`, the mean Jaccard similarity of the heads' top-k key sets."""
    agreements = []
    for layer in window_attention:
        pairs = list(combinations([top_keys(head, top_k) for head in layer], 2))
        agreements.append(sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs))
    return agreements


def head_agreement_drop(window_attention: Sequence[Tensor], top_k: int) -> float:
    """D: mean agreement of the first ⌊L/3⌋ layers minus that of the last ⌊L/3⌋."""
    agreements = head_agreements(window_attention, top_k)
    third = len(agreements) // 3
    return sum(agreements[:third]) / third - sum(agreements[-third:]) / third


def keep_count(budget: float, length: int, n_sink: int = 4, recent: int = 32) -> int:
    """max(⌊b·T⌋, n_sink + recent + 4), at most T."""
    return min(length, max(int(Fraction(str(budget)) * length), n_sink + recent + 4))


def keep_positions(
    name: str,
    attentions: Sequence[Tensor],
    budget: float,
    n_sink: int = 4,
    recent: int = 32,
    window: int = 32,
    fill: bool = True,
) -> list[int]:
    """The one keep set of all layers and heads, as the paper ran each evictor.

    Args:
        name: `snapkv`, `h2o`, `pyramidkv` or `streamingllm`.
        attentions: L matrices `[H, T, T]`.
        budget: b.
        n_sink: first positions, always kept.
        recent: last positions, always kept.
        window: queries that SnapKV and PyramidKV average over.
        fill: whether StreamingLLM spends its whole budget on recent positions.

    Returns:
        Ascending positions.
    """
    length, layers = attentions[0].shape[-1], len(attentions)
    count = keep_count(budget, length, n_sink, recent)
    if count == length:
        return list(range(length))
    if name == "streamingllm":
        last = count - n_sink if fill else recent
        return [*range(n_sink), *range(length - last, length)]
    rows = length if name == "h2o" else window
    weight = [2 - 1.5 * i / (layers - 1) if name == "pyramidkv" else 1.0 for i in range(layers)]
    score = sum(
        w * attention[:, -rows:].double().mean((0, 1))
        for w, attention in zip(weight, attentions, strict=True)
    )
    assert isinstance(score, Tensor)
    free = top_keys(score[n_sink : length - recent], count - n_sink - recent)
    middle = sorted(n_sink + i for i in free)
    return [*range(n_sink), *middle, *range(length - recent, length)]


def forward(model: PreTrainedModel, ids: Tensor, cache: DynamicCache, **kwargs: Any) -> Any:
    """The model's output for `ids` `[1, n]` on a cache, whichever name transformers gives it."""
    known = inspect.signature(model.forward).parameters
    kwargs["cache" if "cache" in known else "past_key_values"] = cache
    return model(ids, **kwargs)


def greedy_with_mask(
    model: PreTrainedModel, ids: Tensor, keep: Sequence[int], n_new: int
) -> tuple[list[int], Tensor]:
    """Decode with nothing removed: evicted prompt positions are masked out instead.

    All prompt tokens but the last see every earlier position. The last one is fed once more,
    and it and the answer's tokens see kept positions, themselves and each other only.

    Args:
        model: the model.
        ids: int64 `[1, T]`.
        keep: prompt positions that stay visible; T-1 need not be among them.
        n_new: answer tokens, whatever they are.

    Returns:
        The tokens, and the logits `[n_new, vocab]` that each was chosen from.
    """
    length = ids.shape[1]
    visible = torch.zeros(length + n_new, dtype=torch.bool)
    visible[list(keep)] = True
    visible[length - 1 :] = True
    cache = DynamicCache()
    token, tokens, logits = ids[:, -1:], [], []
    with torch.no_grad():
        forward(model, ids[:, :-1], cache)
        for position in range(length - 1, length - 1 + n_new):
            hidden = ~visible[: position + 1]
            mask = torch.zeros(1, 1, 1, position + 1)
            mask[..., hidden] = torch.finfo(torch.float32).min
            position_ids = torch.tensor([[position]])
            step = forward(model, token, cache, position_ids=position_ids, attention_mask=mask)
            logits.append(step.logits[0, -1])
            token = logits[-1].argmax().view(1, 1)
            tokens.append(int(token))
    return tokens, torch.stack(logits)


def greedy_after_context(
    model: PreTrainedModel, ids: Tensor, split: int, keep: Sequence[int], n_new: int
) -> list[int]:
    """Decode where a context was compressed before the question was read, again by masking.

    Context tokens see all earlier ones. The question's tokens and the answer's see the kept
    context positions, and each other causally.

    Args:
        model: the model.
        ids: int64 `[1, T]`.
        split: tokens of the context.
        keep: context positions that stay visible.
        n_new: answer tokens, whatever they are.
    """
    tokens = ids
    with torch.no_grad():
        for _ in range(n_new):
            length = tokens.shape[1]
            visible = torch.ones(length, length, dtype=torch.bool).tril()
            evicted = [i for i in range(split) if i not in set(keep)]
            visible[split:, evicted] = False
            mask = torch.zeros(1, 1, length, length)
            mask[0, 0][~visible] = torch.finfo(torch.float32).min
            position_ids = torch.arange(length)[None]
            logits = model(tokens, attention_mask=mask, position_ids=position_ids).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    answer: list[int] = tokens[0, ids.shape[1] :].tolist()
    return answer
