"""Prefill statistics that a gate may read: head agreement, its drop D, and the alternatives.

The five alternatives are those that the PAGE paper compares D with (appendix A.3, Table 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from page_bench.evictors.base.selection import top_k_members
from page_bench.gating.profile import (
    DEPLOYED,
    DropOptions,
    Profile,
    drop_of,
    late_plateau,
    mean_of_pairs,
    monotonicity,
    slope,
)

__all__ = [
    "NEEDS_ENTROPY",
    "NEEDS_KEYS",
    "SIGNALS",
    "DropOptions",
    "Signal",
    "agreements",
    "drop_of",
    "entropy_drop",
    "entropy_norm",
    "head_agreement",
    "head_agreement_drop",
    "keynorm_disp",
    "max_share",
    "measure",
    "pair_agreement",
    "topk_mass_share",
]

Signal = Literal[
    "drop",
    "entropy_norm",
    "topk_mass_share",
    "max_share",
    "keynorm_disp",
    "entropy_drop",
    "late_plateau",
    "slope",
    "monotonicity",
]

SIGNALS: tuple[Signal, ...] = get_args(Signal)
"""Names of all signals, in the order of the record."""

NEEDS_ENTROPY = frozenset({"entropy_norm", "entropy_drop"})
"""Signals that read the entropy of the window's rows."""

NEEDS_KEYS = frozenset({"keynorm_disp"})
"""Signals that read the cached keys."""

_CHUNK_BYTES = 8 * 2**20
"""Size of the buffers that are filled part by part; small enough for a CPU's cache."""


def measure(
    agreement: Profile,
    window_attention: Tensor,
    row_entropy: Tensor | None = None,
    keys: Iterable[Tensor] | None = None,
    options: DropOptions = DEPLOYED,
    names: Collection[str] = SIGNALS,
) -> dict[str, float]:
    """Signals of one prompt, by name.

    Args:
        agreement: `[L]`, from `agreements`.
        window_attention: fp32 `[L, H, T]`, per query head the attention averaged over the
            observation window.
        row_entropy: `[L, H]`, nats, entropy of the window's rows, averaged over them; only signals
            of `NEEDS_ENTROPY` read it.
        keys: per layer `[H_kv, T, d]`, as cached, in any dtype; only signals of `NEEDS_KEYS` read
            them.
        options: how D is taken; `late_plateau` and `entropy_drop` have the same bins.
        names: signals wanted, of `SIGNALS`.

    Raises:
        ValueError: an unknown name, or a signal whose inputs are not given.
    """
    length = window_attention.shape[-1]
    if unknown := set(names) - set(SIGNALS):
        raise ValueError(f"{', '.join(sorted(unknown))}: no such signal")
    if row_entropy is None and (unfed := NEEDS_ENTROPY & set(names)):
        raise ValueError(f"{', '.join(sorted(unfed))}: row_entropy is needed")
    if keys is None and (unfed := NEEDS_KEYS & set(names)):
        raise ValueError(f"{', '.join(sorted(unfed))}: keys are needed")
    entropy = torch.empty(0) if row_entropy is None else row_entropy
    ways: dict[str, Callable[[], float]] = {
        "drop": lambda: drop_of(agreement, options),
        "entropy_norm": lambda: entropy_norm(entropy, length),
        "topk_mass_share": lambda: topk_mass_share(window_attention, options.top_k),
        "max_share": lambda: max_share(window_attention),
        "keynorm_disp": lambda: keynorm_disp(() if keys is None else keys),
        "entropy_drop": lambda: entropy_drop(entropy, length, options),
        "late_plateau": lambda: late_plateau(agreement, options),
        "slope": lambda: slope(agreement),
        "monotonicity": lambda: monotonicity(agreement),
    }
    return {name: ways[name]() for name in SIGNALS if name in names}


def agreements(window_attention: Tensor, options: DropOptions = DEPLOYED) -> Tensor:
    """The agreement profile, over all head pairs or the share that the options choose.

    Args:
        window_attention: fp32 `[L, H, T]`, as in `head_agreement`.
        options: top_k, share of pairs and its seed. All layers are there, whatever the stride.

    Returns:
        fp64 `[L]` on the CPU, in [0, 1]. NaN where a layer has a single head (no pairs).
    """
    if options.head_pairs == 1:
        return head_agreement(window_attention, options.top_k)
    return mean_of_pairs(pair_agreement(window_attention, options.top_k), options)


def head_agreement(window_attention: Tensor, top_k: int = 32) -> Tensor:
    """Mean Jaccard similarity of the heads' top-k key sets, per layer (paper, section 3).

    Args:
        window_attention: fp32 `[L, H, T]`, each query head's attention averaged over the
            observation window.
        top_k: size of the key sets; a prompt shorter than this compares all its keys.

    Returns:
        fp64 `[L]` on the CPU, in [0, 1]. NaN where a layer has a single head (no pairs).
    """
    layers, heads, _ = window_attention.shape
    if heads < 2:
        return torch.full((layers,), torch.nan, dtype=torch.float64)
    # The diagonal is 1 for every head, and every pair stands twice.
    jaccard = _jaccard(window_attention, top_k)
    return (jaccard.sum((-2, -1)) - heads) / (heads * (heads - 1))


def pair_agreement(window_attention: Tensor, top_k: int = 32) -> Tensor:
    """Jaccard similarity of each pair of heads' top-k key sets, per layer.

    Args:
        window_attention, top_k: as in `head_agreement`.

    Returns:
        fp64 `[L, H(H-1)/2]` on the CPU, pairs i < j in lexicographic order.
    """
    heads = window_attention.shape[1]
    first, second = torch.triu_indices(heads, heads, offset=1)
    return _jaccard(window_attention, top_k)[:, first, second]


def head_agreement_drop(agreement: Tensor) -> float:
    """D, the early minus the late agreement (paper, Eq. 3), with equal bins as deployed.

    Args:
        agreement: `[L]`, one value per layer.

    Returns:
        Mean of the first ⌊L/3⌋ layers minus mean of the last ⌊L/3⌋; NaN for fewer than three
        layers, where the bins are empty.
    """
    return drop_of(agreement)


def entropy_norm(row_entropy: Tensor, prompt_tokens: int) -> float:
    """Entropy of the window's attention rows over ln T, mean over rows, heads and layers.

    Args:
        row_entropy: `[L, H]`, nats, averaged over the rows.
        prompt_tokens: T.

    Returns:
        In [0, 1]; 1 is attention that is spread evenly. NaN for T = 1.
    """
    return float(_entropy_profile(row_entropy, prompt_tokens).mean())


def entropy_drop(row_entropy: Tensor, prompt_tokens: int, options: DropOptions = DEPLOYED) -> float:
    """Early minus late bin of the entropy over ln T, with the bins and layers of D.

    Args:
        row_entropy, prompt_tokens: as in `entropy_norm`.
        options: bins and layer stride.
    """
    return drop_of(_entropy_profile(row_entropy, prompt_tokens), options)


def topk_mass_share(window_attention: Tensor, top_k: int = 32) -> float:
    """Share of the k highest scores in the sum of all, scores as in the paper's SnapKV.

    Args:
        window_attention: fp32 `[L, H, T]`; its mean over heads and layers is the score.
        top_k: k; a prompt shorter than this has a share of 1.
    """
    score = window_attention.mean((0, 1))
    return float(score.topk(min(top_k, len(score))).values.sum() / score.sum())


def max_share(window_attention: Tensor) -> float:
    """Share of the highest score in the sum of all, scores as in `topk_mass_share`."""
    return topk_mass_share(window_attention, 1)


def keynorm_disp(keys: Iterable[Tensor]) -> float:
    """Sample standard deviation over mean of the key norms over positions.

    Args:
        keys: per layer `[H_kv, T, d]`, in any dtype; norms are fp32, never a copy of all keys.

    Returns:
        Mean over KV heads, then layers. NaN for T = 1.
    """
    layers = [_dispersion(_norms(layer)).cpu() for layer in keys]
    return float(torch.stack(layers).double().mean())


def _entropy_profile(row_entropy: Tensor, prompt_tokens: int) -> Tensor:
    return row_entropy.double().mean(-1) / math.log(prompt_tokens)


def _norms(keys: Tensor) -> Tensor:
    """L2 norms, `[H_kv, T, d]` → fp32 `[H_kv, T]`."""
    kv_heads, length, dim = keys.shape
    norms = torch.empty(kv_heads, length, device=keys.device)
    step = max(1, _CHUNK_BYTES // (kv_heads * dim * 4))
    for start in range(0, length, step):
        part = keys[:, start : start + step].float()
        torch.linalg.vector_norm(part, dim=-1, out=norms[:, start : start + step])
    return norms


def _dispersion(norms: Tensor) -> Tensor:
    spread = norms.std(-1) if norms.shape[-1] > 1 else norms.new_full(norms.shape[:1], torch.nan)
    return (spread / norms.mean(-1)).mean()


def _jaccard(window_attention: Tensor, top_k: int) -> Tensor:
    """Jaccard similarity of all pairs of top-k sets: fp32 `[L, H, T]` → fp64 `[L, H, H]`."""
    k = min(top_k, window_attention.shape[-1])
    shared = _intersections(top_k_members(window_attention, k)).cpu().double()
    return shared / (2 * k - shared)


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
