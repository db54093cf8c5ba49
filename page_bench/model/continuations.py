"""How likely given continuations of a prompt are, through caches that may have lost entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.inputs.errors import not_a_number
from page_bench.model.cache import as_one, empty_cache, rewound
from page_bench.model.prefill import forward, text_config
from page_bench.model.rotation import Rotation
from page_bench.model.support import layer_windows


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
    input_ids: Tensor,
    follows: bool = False,
) -> list[Likelihoods]:
    """Score all continuations through several caches together; the caches end as they began.

    Continuations that differ in their last token alone are read once.

    Args:
        model: the model.
        caches: per row the prompt's entries, in full or what is left, and `[1, vocab]` logits for
            the token that follows them.
        request: the continuations.
        input_ids: int64 `[1, T]`, the whole prompt; continuations take positions T, T+1, ….
        follows: whether a rotation that changes with length is, as for lm-eval's `hf`, that of
            prompt and continuation together: right for the full cache alone. Else it is the
            prompt's.

    Raises:
        UsageError: logits are not a number.
    """
    first = torch.cat([logits for _, logits in caches])[:, None]
    cache = as_one([cache for cache, _ in caches])
    length, rotation = input_ids.shape[1], Rotation(model)
    found: dict[tuple[int, ...], list[tuple[float, bool]]] = {}
    for prefix in sorted({ids[:-1] for ids in request.continuations}):
        logits = first
        if prefix and follows and rotation.change(length, length + len(prefix)):
            logits = _read_anew(model, input_ids, prefix)
        elif prefix:
            ids = torch.tensor([prefix], device=first.device).expand(len(caches), -1)
            positions = torch.arange(length, length + len(prefix), device=first.device)
            with rewound(cache), rotation.of_length(length):
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


def _read_anew(model: PreTrainedModel, input_ids: Tensor, prefix: tuple[int, ...]) -> Tensor:
    """Logits `[1, n+1, vocab]` from the prompt's last token on, all under one rotation."""
    ids = torch.cat([input_ids, input_ids.new_tensor([prefix])], 1)
    cache = empty_cache(layer_windows(text_config(model)), ids.shape[1])
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    with Rotation(model).of_length(ids.shape[1]):
        return forward(model, ids, cache, positions, last=len(prefix) + 1)
