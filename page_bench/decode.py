"""Decoding over a cache that may have lost entries, with transformers' own rules for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.cache_utils import Cache

from page_bench.errors import UsageError
from page_bench.prefill import base_model, forward


@dataclass(frozen=True)
class AnswerRequest:
    """How one prompt is to be answered.

    Attributes:
        max_new_tokens: tokens at most.
        stop: strings that end the answer, the end-of-sequence string included.
        arguments: further arguments of transformers' `generate`, such as `do_sample`.
    """

    max_new_tokens: int
    stop: tuple[str, ...]
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class DecodingRules:
    """What `generate` would apply to this prompt: processors, stopping criteria, sampling."""

    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    do_sample: bool


def decoding_rules(
    model: PreTrainedModel, tokenizer: Any, input_ids: Tensor, request: AnswerRequest
) -> DecodingRules:
    """The rules that transformers' `generate` sets up for a prompt, taken from `generate` itself.

    The model's generation config takes part, as it does for lm-eval's `hf` model: end-of-sequence
    lists and repetition penalties are honoured.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        input_ids: int64 `[1, T]`.
        request: how to answer.

    Raises:
        UsageError: a way of decoding that is not token by token from one sequence, or arguments
            that transformers refuses.
    """

    def capture(
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        **kwargs: Any,
    ) -> DecodingRules:
        mode = generation_config.get_generation_mode()
        if mode not in ("greedy_search", "sample") or generation_config.num_return_sequences > 1:
            raise UsageError(
                f"generation arguments ask for {mode.value} of "
                f"{generation_config.num_return_sequences} sequence(s), but page_hf decodes one "
                f"sequence token by token, by greedy search or sampling; leave beams, assistants "
                f"and num_return_sequences out."
            )
        return DecodingRules(logits_processor, stopping_criteria, bool(generation_config.do_sample))

    criteria = stop_sequences_criteria(tokenizer, list(request.stop), input_ids.shape[1], 1)
    try:
        rules: DecodingRules = base_model(model).generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            custom_generate=capture,
            stopping_criteria=criteria,
            max_length=input_ids.shape[1] + request.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            **request.arguments,
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"transformers does not take the generation arguments {dict(request.arguments)}, or "
            f"those in the model's generation config: {error}"
        ) from error
    return rules


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    cache: Cache,
    logits: Tensor,
    input_ids: Tensor,
    rules: DecodingRules,
    max_new_tokens: int,
    seed: int,
) -> list[int]:
    """Answer a prompt whose cache is complete.

    Args:
        model: the model.
        cache: the prompt's entries, in full or what is left; grows in place.
        logits: `[1, vocab]`, for the first answer token.
        input_ids: int64 `[1, T]`, the whole prompt; answer tokens take positions T, T+1, ….
        rules: see `decoding_rules`.
        max_new_tokens: tokens at most.
        seed: of the random numbers when sampling; they depend on nothing else, so that a gated
            answer equals the plain or the full one.

    Returns:
        The answer's token ids, a final end-of-sequence token included.
    """
    length = input_ids.shape[1]
    ids = input_ids.new_empty((1, length + max_new_tokens))
    ids[:, :length] = input_ids
    generator = torch.Generator(logits.device).manual_seed(seed) if rules.do_sample else None
    for end in range(length + 1, length + max_new_tokens + 1):
        scores = rules.processors(ids[:, : end - 1], logits.to(torch.float32, copy=True))
        if generator is None:
            token = scores.argmax(-1, keepdim=True)
        else:
            token = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        ids[:, end - 1 : end] = token
        if end == ids.shape[1] or bool(rules.criteria(ids[:, :end], scores).all()):
            break
        position = torch.full_like(token, end - 1)
        logits = forward(model, token, cache, position)
    answer: list[int] = ids[0, length:end].tolist()
    return answer
