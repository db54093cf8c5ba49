"""What the checks compare with: transformers' own ways, and definitions written out plainly.

Nothing here shares code with the recording, evicting and decoding that it is held against.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


def generated(
    model: Any, ids: Tensor, n_new: int, arguments: Mapping[str, Any]
) -> tuple[list[int], Tensor]:
    """Greedy tokens by transformers' `generate`, and the logits `[n_new, vocab]` they come from.

    Args:
        model: the model, under its stock attention.
        ids: int64 `[1, T]`.
        n_new: tokens, none of which ends the sequence.
        arguments: further ones of `generate`.
    """
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=n_new,
        max_new_tokens=n_new,
        output_scores=True,
        **arguments,
        return_dict_in_generate=True,
    )
    tokens: list[int] = out.sequences[0, ids.shape[1] :].tolist()
    return tokens, torch.cat(out.scores).float()


def eager_agreement(model: PreTrainedModel, ids: Tensor, window: int, top_k: int) -> list[float]:
    """Mean head agreement by layer, from whole attention matrices (paper, section 3).

    Args:
        model: the model itself, without a wrapper; it computes eagerly while this runs.
        ids: int64 `[1, T]`; memory grows with its square.
        window: w, last query rows that are averaged.
        top_k: size of a head's key set.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            attentions = model(ids, output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)
    agreements = []
    for layer in attentions:
        rows = layer[0, :, -window:].float().mean(1).cpu()
        # Stable, so that the lower position comes first among equals.
        order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :top_k].tolist()
        pairs = list(combinations([set(keys) for keys in order], 2))
        agreements.append(sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs))
    return agreements


def masked(
    model: PreTrainedModel,
    ids: Tensor,
    keep: Sequence[int],
    n_new: int,
    banned: Sequence[int],
    shift: int = 0,
) -> tuple[list[int], Tensor]:
    """Greedy answer with nothing removed: evicted positions are masked out instead.

    Args:
        model: the model.
        ids: int64 `[1, T]`.
        keep: prompt positions that stay visible to the last prompt token and the answer.
        n_new: answer tokens.
        banned: tokens that are not to be said, such as the end of a sequence.
        shift: added to all true positions after the prefill, to see what a wrong one would do.

    Returns:
        The tokens, and the logits `[n_new, vocab]` they come from, fp32.
    """
    length = ids.shape[1]
    visible = torch.zeros(length + n_new, dtype=torch.bool, device=ids.device)
    visible[list(keep)] = True
    visible[length - 1 :] = True
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = DynamicCache()
    token, tokens, logits = ids[:, -1:], [], []
    with torch.inference_mode():
        model(ids[:, :-1], use_cache=True, **{name: cache})
        for position in range(length - 1, length - 1 + n_new):
            mask = torch.zeros(1, 1, 1, position + 1, dtype=model.dtype, device=ids.device)
            mask[..., ~visible[: position + 1]] = torch.finfo(model.dtype).min
            step = model(
                token,
                use_cache=True,
                attention_mask=mask,
                position_ids=torch.tensor([[position + shift]], device=ids.device),
                **{name: cache},
            )
            logits.append(step.logits[0, -1].float())
            logits[-1][list(banned)] = -torch.inf
            token = logits[-1].argmax().view(1, 1)
            tokens.append(int(token))
    return tokens, torch.stack(logits)


def first_gap(
    said: Sequence[int], expected: Sequence[int], logits: Tensor
) -> tuple[float, int | None]:
    """Where two answers part, and how far the logits of the two tokens lie apart there.

    Args:
        said: the tokens that are examined.
        expected: the tokens of the reference.
        logits: `[n, vocab]`, those that `expected` come from.
    """
    for i, (ours, theirs) in enumerate(zip(said, expected, strict=True)):
        if ours != theirs:
            return float(logits[i, theirs] - logits[i, ours]), i
    return 0.0, None


def mean_entropy(logits: Tensor) -> float:
    """Mean over rows `[n, vocab]` of the entropy of their softmax, nats."""
    logs = logits.cpu().double().log_softmax(-1)
    # What has no probability adds nothing.
    return float(-(logs.exp() * logs.clamp(min=-1e30)).sum(-1).mean())


@contextmanager
def in_fp32(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute in fp32; afterwards every tensor is what it was, to the last bit.

    `model.to(dtype)` would not do: it casts the rotary frequencies too, which a model of half
    precision keeps in fp32.
    """
    weights = [(w, w.dtype) for w in model.parameters() if w.is_floating_point()]
    buffers = [(b, b.data) for b in model.buffers() if b.is_floating_point()]
    try:
        for tensor in [tensor for tensor, _ in (*weights, *buffers)]:
            tensor.data = tensor.data.float()
        yield
    finally:
        for weight, dtype in weights:
            weight.data = weight.data.to(dtype)
        for buffer, data in buffers:
            buffer.data = data


def storage_bytes(held: Any) -> int:
    """Bytes of all storages that an object's tensors stand in, each counted once."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [held]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif hasattr(one, "__dict__"):
            waiting += vars(one).values()
    return sum(found.values())
