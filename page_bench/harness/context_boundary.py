"""Where a prompt's context ends, for runs that compress the context before the question is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from page_bench.inputs.errors import UsageError


def context_tokens(
    tokenizer: Any, text: str, ids: Sequence[int], doc: Mapping[str, Any], where: str
) -> int:
    """Tokens of the prompt up to the end of its context, what stands before it included.

    A token that reaches beyond the context counts to the question.

    Args:
        tokenizer: a fast tokenizer, which knows where its tokens stand in the text.
        text: the prompt, chat template included.
        ids: its tokens.
        doc: the sample; its field `context` is the context's text.
        where: the sample's name, for errors.

    Returns:
        Between 1 and T-1.

    Raises:
        UsageError: the context is not marked, does not stand in the prompt, or leaves no question;
            or the tokenizer cannot say where tokens stand.
    """
    context = str(doc.get("context") or "").strip()
    start = text.find(context) if context else -1
    if start < 0:
        raise UsageError(
            f"compress=context needs to know the context, but {where} has no field `context` that "
            f"stands in its prompt; use compress=prompt, or a task that marks it, such as those of "
            f"page_rulergen_4k and page_longbench."
        )
    if not tokenizer.is_fast:
        raise UsageError(
            "compress=context needs a fast tokenizer, which knows where its tokens stand in the "
            "text; use compress=prompt or use_fast_tokenizer=True."
        )
    end = start + len(context)
    offsets = token_offsets(tokenizer, text, ids)
    if offsets is None:
        raise UsageError(
            f"the tokens of {where} cannot be matched with its text, so that the end of its "
            f"context is unknown; use compress=prompt."
        )
    count = sum(1 for _, stop in offsets if stop <= end)
    if not 1 <= count < len(ids):
        raise UsageError(
            f"the context of {where} makes up its whole prompt, so that there is no question to "
            f"read after it; use compress=prompt."
        )
    return count


def token_offsets(tokenizer: Any, text: str, ids: Sequence[int]) -> list[tuple[int, int]] | None:
    """Where each token of a prompt stands in its text; None where that cannot be known.

    Special tokens that lm-eval's encoding adds stand before the text, at (0, 0).

    Args:
        tokenizer: of the model.
        text: the prompt.
        ids: its tokens.
    """
    if not tokenizer.is_fast:
        return None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    added = len(ids) - len(encoded.input_ids)
    if added < 0 or list(ids[added:]) != list(encoded.input_ids):
        return None
    return [(0, 0)] * added + list(encoded.offset_mapping)
