"""Causal softmax attention of the last queries, read without a matrix of all rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK_BYTES = 32 * 2**20
"""Upper bound for the attention logits of one block of query rows on a CPU, by its caches."""

_ACCELERATOR_BLOCK_BYTES = 256 * 2**20
"""The same elsewhere: each kernel then takes far longer than its launch. A constant, since sums
depend on the blocks in their last bits, and must not depend on the memory that happens to be free.
"""


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


def mean_attention(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """Mean of the causal softmax rows of the last queries, fp32 `[H, T]`; see `attention_sums`."""
    return attention_sums(query, key, scaling) / query.shape[1]


def empty_sums(query: Tensor, key: Tensor) -> Tensor:
    """Zeros, fp32 `[H_kv, H/H_kv, T]`, to which blocks of rows are added."""
    kv_heads, length, _ = key.shape
    return torch.zeros(kv_heads, query.shape[0] // kv_heads, length, device=query.device)


def block_bytes(device: torch.device) -> int:
    """Size of what is computed at a time, where all at once would take too much memory."""
    return _BLOCK_BYTES if device.type == "cpu" else _ACCELERATOR_BLOCK_BYTES


def logit_blocks(query: Tensor, key: Tensor, scaling: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The attention logits of the last queries before the softmax, block by block of rows.

    The last rows come first. Earlier ones see fewer keys, so that more of them go together; no
    block is larger than the first, so that the memory of that one serves all others. Arguments as
    in `attention_sums`.

    Yields:
        The logits, fp32 `[H_kv, H/H_kv, m, E]`, of m rows whose last one is at position E-1, -inf
        where a key is later than its query; they are the caller's to overwrite. And where that
        is: bool `[m, m]`, for the last m keys; earlier ones are visible to all m rows.
    """
    heads, rows, dim = query.shape
    kv_heads, length, _ = key.shape
    keys = key.float().mT
    begin, end = length - rows, length
    # Logits of one head in a block.
    most = max(1, block_bytes(query.device) // (heads * length * 4)) * length
    while end > begin:
        start = max(begin, end - most // end)
        block = query[:, start - begin : end - begin].float() * scaling
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
        end = start
