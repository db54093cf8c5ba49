"""How likely given continuations of a prompt are, through caches that may have lost entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.cache import as_one, rewound
from page_bench.errors import not_a_number
from page_bench.prefill import forward


@dataclass(frozen=True)
class ContinuationRequest:
    """Continuations of one prompt whose likelihoods are asked for.

    Attributes:
        continuations: token ids of each, none of them empty.
        softmax_dtype: of the log-softmax over the vocabulary, as `hf` takes it by that name.
    """

    continuations: tuple[tuple[int, ...], ...]
    softmax_dtype: torch.dtype = torch.float32

    @property
    def max_new_tokens(self) -> int:
        """Tokens that are read after the prompt, at most."""
        return max(len(ids) for ids in self.continuations) - 1

    @property
    def record(self) -> dict[str, Any]:
        """For the trace."""
        return {"continuations": len(self.continuations)}


@dataclass(frozen=True)
class Likelihoods:
    """What came of one cache, continuation by continuation.

    Attributes:
        log_likelihoods: sums over each continuation's tokens, in nats.
        greedy: whether greedy decoding would give it.
    """

    log_likelihoods: list[float]
    greedy: list[bool]


@torch.inference_mode()
def score_continuations(
    model: PreTrainedModel,
    caches: Sequence[tuple[Cache, Tensor]],
    request: ContinuationRequest,
    length: int,
) -> list[Likelihoods]:
    """Score all continuations through several caches together; the caches end as they began.

    Continuations that differ in their last token alone are read once.

    Args:
        model: the model.
        caches: per row the prompt's entries, in full or what is left, and `[1, vocab]` logits for
            the token that follows them.
        request: the continuations.
        length: T; continuations take positions T, T+1, ….

    Raises:
        UsageError: logits are not a number.
    """
    first = torch.cat([logits for _, logits in caches])[:, None]
    cache = as_one([cache for cache, _ in caches])
    found: dict[tuple[int, ...], list[tuple[float, bool]]] = {}
    for prefix in sorted({ids[:-1] for ids in request.continuations}):
        logits = first
        if prefix:
            ids = torch.tensor([prefix], device=first.device).expand(len(caches), -1)
            positions = torch.arange(length, length + len(prefix), device=first.device)
            with rewound(cache):
                read = forward(model, ids, cache, positions.expand_as(ids), last=len(prefix))
            logits = torch.cat([first, read], 1)
        chances = logits.log_softmax(-1, dtype=request.softmax_dtype)
        best = logits.argmax(-1)
        for whole in {ids for ids in request.continuations if ids[:-1] == prefix}:
            target = torch.tensor(whole, device=first.device).expand(len(caches), -1)
            sums = chances.gather(-1, target[..., None])[..., 0].sum(-1)
            if bool(sums.isnan().any()):
                raise not_a_number()
            greedy = (best == target).all(-1)
            found[whole] = list(zip(sums.tolist(), greedy.tolist(), strict=True))
    columns = [found[ids] for ids in request.continuations]
    return [
        Likelihoods([column[row][0] for column in columns], [column[row][1] for column in columns])
        for row in range(len(caches))
    ]
