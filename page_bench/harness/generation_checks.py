"""How an answer is asked for and how it ends, by the arguments of transformers' `generate`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.model.decode import AnswerRequest

_CACHES = ("cache_implementation", "cache_config", "past_key_values", "cache", "use_cache")
_HARMLESS = (("cache_implementation", "dynamic"), ("use_cache", True))
"""What page_hf does anyhow."""


def check_generation(config: Any, request: AnswerRequest, where: str) -> None:
    """Check that an answer can be made as it is asked for and as the model's own defaults say.

    Args:
        config: the model's generation config; None where it has none.
        request: how to answer.
        where: the sample's name, for errors.

    Raises:
        UsageError: another cache than the one that entries leave, or a number of tokens for which
            lm-eval's `hf` model would not listen to the task.
    """
    for name, value in request.arguments.items():
        if name == "prefill_chunk_size" and value is not None:
            raise UsageError(
                f"prefill_chunk_size={value} of {where} reads a prompt in pieces, but page_hf "
                f"observes it in one; leave it out."
            )
        if name in _CACHES and value is not None and (name, value) not in _HARMLESS:
            raise UsageError(
                f"{name}={value!r:.40} of {where} asks for another KV cache than the one that "
                f"page_hf keeps and entries leave; leave it out."
            )
    if getattr(config, "cache_implementation", None) == "quantized":
        raise UsageError(
            "the model's generation config asks for a quantised KV cache, but page_hf keeps keys "
            "and values as they are; take cache_implementation out of it."
        )
    most = getattr(config, "max_new_tokens", None)
    if most is not None and most > request.max_new_tokens:
        raise UsageError(
            f"the model's generation config sets max_new_tokens={most}, which lm-eval's hf model "
            f"follows in place of the {request.max_new_tokens} tokens of {where}; take it out "
            f"there, or ask for as many: --gen_kwargs max_gen_toks={most}."
        )


def end_tokens(config: Any, request: AnswerRequest) -> frozenset[int]:
    """Tokens that end an answer.

    Args:
        config: the model's generation config; None where it has none.
        request: how to answer; its own arguments win, as in `generate`.
    """
    given = request.arguments.get("eos_token_id")
    ends = getattr(config, "eos_token_id", None) if given is None else given
    if ends is None:
        return frozenset()
    return frozenset({ends} if isinstance(ends, int) else ends)


def is_cut(ids: Sequence[int], text: str, request: AnswerRequest, ends: Collection[int]) -> bool:
    """Whether an answer ends because it may be no longer.

    Args:
        ids: its tokens.
        text: the same, decoded with special tokens.
        request: how it was asked for.
        ends: see `end_tokens`.
    """
    if len(ids) < request.max_new_tokens or ids[-1] in ends:
        return False
    return not any(stop in text for stop in request.stop)
