"""Prefill statistics that a gate may read: head agreement per layer and its drop D."""

from __future__ import annotations

import torch
from torch import Tensor

from page_bench.selection import top_k_members

_CHUNK_BYTES = 8 * 2**20
"""Size of the buffer in which memberships are multiplied; small enough for a CPU's cache."""


def head_agreement(window_attention: Tensor, top_k: int = 32) -> Tensor:
    """Mean Jaccard similarity of the heads' top-k key sets, per layer (paper, section 3).

    Args:
        window_attention: fp32 `[L, H, T]`, each query head's attention averaged over the
            observation window.
        top_k: size of the key sets; a prompt shorter than this compares all its keys.

    Returns:
        fp64 `[L]` on the CPU, in [0, 1]. NaN where a layer has a single head (no pairs).
    """
    layers, heads, length = window_attention.shape
    if heads < 2:
        return torch.full((layers,), torch.nan, dtype=torch.float64)
    k = min(top_k, length)
    shared = _intersections(top_k_members(window_attention, k)).double().cpu()
    jaccard = shared / (2 * k - shared)
    # The diagonal is 1 for every head, and every pair stands twice.
    return (jaccard.sum((-2, -1)) - heads) / (heads * (heads - 1))


def _intersections(members: Tensor) -> Tensor:
    """Sizes of the intersections of all pairs of sets: bool `[L, H, T]` → fp32 `[L, H, H]`."""
    layers, heads, length = members.shape
    step = max(1, _CHUNK_BYTES // (heads * length * 4))
    # One buffer for all chunks: fresh memory would cost more than the product itself.
    buffer = torch.empty(min(step, layers), heads, length, device=members.device)
    shared = torch.empty(layers, heads, heads, device=members.device)
    for start in range(0, layers, step):
        chunk = members[start : start + step]
        sets = buffer[: len(chunk)].copy_(chunk)
        torch.bmm(sets, sets.mT, out=shared[start : start + step])
    return shared


def head_agreement_drop(agreement: Tensor) -> float:
    """D, the early minus the late agreement (paper, Eq. 3), with equal bins as deployed.

    Args:
        agreement: `[L]`, one value per layer.

    Returns:
        Mean of the first ⌊L/3⌋ layers minus mean of the last ⌊L/3⌋; NaN for fewer than three
        layers, where the bins are empty.
    """
    third = len(agreement) // 3
    if third == 0:
        return float("nan")
    return float(agreement[:third].mean() - agreement[-third:].mean())
