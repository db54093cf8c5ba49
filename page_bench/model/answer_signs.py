"""Signs, seen while an answer is written, that something was lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def repetition(token_ids: Sequence[int], n: int = 4) -> float:
    """Share of an answer's n-grams of tokens that stood in it before (arXiv 1908.04319, seq-rep).

    Args:
        token_ids: the answer.
        n: tokens of an n-gram.

    Returns:
        1 − distinct/all, in [0, 1); 0 for an answer of fewer than n tokens.
    """
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def token_entropy(logits: Tensor) -> Tensor:
    """Entropy of next-token distributions in nats: `[..., vocab]` → fp32 `[...]`.

    A token ruled out by −inf counts as impossible.
    """
    log_p = torch.log_softmax(logits.float(), -1)
    return -(log_p.exp() * log_p.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
