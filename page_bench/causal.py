"""Causal softmax attention of the last queries, read without a matrix of all rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK_BYTES = 32 * 2**20
"""Upper bound for the attention logits of one block of query rows."""


def attention_sums(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """Sum of the causal softmax rows of the last queries; never more than a block of rows alive.

    Args:
        query: `[H, n, d]`, the queries of positions T-n … T-1.
        key: `[H_kv, T, d]`; query head j reads KV head ⌊j·H_kv/H⌋.
        scaling: factor of the logits.

    Returns:
        fp32 `[H, T]`.
    """
    sums = empty_sums(query, key)
    for logits, _ in logit_blocks(query, key, scaling):
        sums[..., : logits.shape[-1]] += logits.softmax(-1).sum(-2)
    return sums.flatten(0, 1)


def empty_sums(query: Tensor, key: Tensor) -> Tensor:
    """Zeros, fp32 `[H_kv, H/H_kv, T]`, to which blocks of rows are added."""
    kv_heads, length, _ = key.shape
    return torch.zeros(kv_heads, query.shape[0] // kv_heads, length, device=query.device)


def logit_blocks(query: Tensor, key: Tensor, scaling: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The attention logits of the last queries before the softmax, block by block of rows.

    Args:
        query, key, scaling: as in `attention_sums`.

    Yields:
        The logits, fp32 `[H_kv, H/H_kv, m, E]`, of m rows whose last one is at position E-1, -inf
        where a key is later than its query; they are the caller's to overwrite. And where that
        is: bool `[m, m]`, for the last m keys; earlier ones are visible to all m rows.
    """
    heads, rows, dim = query.shape
    kv_heads, length, _ = key.shape
    keys = key.float().mT
    step = max(1, _BLOCK_BYTES // (heads * length * 4))
    for start in range(length - rows, length, step):
        end = min(start + step, length)
        first = start - (length - rows)
        block = query[:, first : first + end - start].float() * scaling
        # Mixed precision is for the model; what is observed stays in fp32.
        with torch.autocast(query.device.type, enabled=False):
            product = block.reshape(kv_heads, -1, dim) @ keys[..., :end]
        logits = product.view(kv_heads, -1, end - start, end)
        future = torch.ones(end - start, end - start, dtype=torch.bool, device=query.device).triu(1)
        logits[..., start:].masked_fill_(future, -torch.inf)
        del block, product
        yield logits, future
        # The next block is computed when this one is gone.
        del logits
