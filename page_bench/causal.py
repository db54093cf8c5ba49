"""Causal softmax attention, summed over query rows without a matrix of all of them."""

from __future__ import annotations

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
    heads, rows, dim = query.shape
    kv_heads, length, _ = key.shape
    keys = key.float().mT
    sums = torch.zeros(kv_heads, heads // kv_heads, length, device=query.device)
    step = max(1, _BLOCK_BYTES // (heads * length * 4))
    # Mixed precision is for the model; what is observed stays in fp32.
    with torch.autocast(query.device.type, enabled=False):
        for start in range(length - rows, length, step):
            end = min(start + step, length)
            first = start - (length - rows)
            block = query[:, first : first + end - start].float() * scaling
            logits = (block.reshape(kv_heads, -1, dim) @ keys[..., :end]).view(
                kv_heads, -1, end - start, end
            )
            # Keys before the block are visible to all its rows.
            future = torch.ones(end - start, end - start, dtype=torch.bool, device=query.device)
            logits[..., start:].masked_fill_(future.triu(1), -torch.inf)
            sums[..., :end] += logits.softmax(-1).sum(-2)
    return sums.view(heads, length)
