"""Decoding over a cache that may have lost entries, with transformers' own rules for tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.cache_utils import Cache, DynamicCache

from page_bench.inputs.errors import UsageError, not_a_number
from page_bench.model.answer_signs import token_entropy
from page_bench.model.cache import as_one, empty_cache
from page_bench.model.prefill import base_model, forward, text_config
from page_bench.model.rotation import Rotation
from page_bench.model.support import layer_windows


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

    @property
    def record(self) -> dict[str, Any]:
        """For the trace."""
        return {"max_new_tokens": self.max_new_tokens, "stop": list(self.stop), **self.arguments}


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


@dataclass
class Row:
    """One answer in the making.

    Attributes:
        cache: the prompt's entries, in full or what is left; grows in place.
        logits: `[1, vocab]`, for the first answer token; None where part of the prompt has still
            to be read through this cache.
        rules: see `decoding_rules`; criteria keep a state, so no two rows share them. None where
            nothing is generated.
        seed: of the random numbers when sampling; they depend on nothing else, so that a gated
            answer equals the plain or the full one.
    """

    cache: Cache
    logits: Tensor | None
    rules: DecodingRules | None
    seed: int


@dataclass(frozen=True)
class Decoded:
    """An answer.

    Attributes:
        ids: its token ids, a final end-of-sequence token included.
        mean_token_entropy: mean over these of the entropy of the distribution that each was chosen
            from, in nats.
    """

    ids: list[int]
    mean_token_entropy: float


@torch.inference_mode()
def read(model: PreTrainedModel, rows: Sequence[Row], unread: Tensor, start: int) -> None:
    """Read the rest of a prompt through caches that lack it, and set their rows' logits.

    Args:
        model: the model.
        rows: the rows without logits.
        unread: int64 `[1, n]`, the tokens from position `start` on.
        start: true position of the first of them.
    """
    if not rows:
        return
    length = start + unread.shape[1]
    positions = torch.arange(start, length, device=unread.device)
    with Rotation(model).of_length(length):
        logits = forward(
            model,
            unread.expand(len(rows), -1),
            as_one([row.cache for row in rows]),
            positions.expand(len(rows), -1),
        )
    for i, row in enumerate(rows):
        row.logits = logits[i : i + 1, -1]


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    rows: Sequence[Row],
    input_ids: Tensor,
    max_new_tokens: int,
    follows: bool = False,
) -> list[Decoded]:
    """Answer one prompt through several caches together; a row that is done leaves.

    Args:
        model: the model.
        rows: caches that are complete, each with its first logits.
        input_ids: int64 `[1, T]`, the whole prompt; answer tokens take positions T, T+1, ….
        max_new_tokens: tokens at most.
        follows: whether a rotation that changes with length does so as the answer grows, as in
            `generate`: right for the full cache alone. Else the prompt's is kept.

    Returns:
        Per row the answer.

    Raises:
        UsageError: logits are not a number.
    """
    length = input_ids.shape[1]
    texts = [_Text(row, input_ids, max_new_tokens) for row in rows]
    active = list(range(len(rows)))
    cache = as_one([row.cache for row in rows])
    rotation = Rotation(model)
    for end in range(length + 1, length + max_new_tokens + 1):
        going = [i for i in active if not texts[i].append(end)]
        if end == length + max_new_tokens or not going:
            break
        if len(going) < len(active):
            cache = as_one([rows[i].cache for i in going])
        active = going
        tokens = torch.cat([texts[i].ids[:, end - 1 : end] for i in active])
        if follows and rotation.change(end - 1, end) and _starts_anew(model, texts[0].ids, end):
            tokens, cache = texts[0].ids[:, :end], _new_cache(model, end, max_new_tokens)
        positions = torch.arange(end - tokens.shape[1], end, device=tokens.device)
        with rotation.of_length(end if follows else length):
            logits = forward(model, tokens, cache, positions.expand_as(tokens))
        for row, i in enumerate(active):
            texts[i].logits = logits[row : row + 1, -1]
    return [text.decoded(length) for text in texts]


def _starts_anew(model: PreTrainedModel, ids: Tensor, end: int) -> bool:
    """Whether `generate` computes the first `end` tokens again: their keys are rotated otherwise.

    Some families do so once (Phi-3), others go on with keys of both rotations. The model is asked.
    """
    inner = base_model(model)
    prepare = inner.prepare_inputs_for_generation
    accepted = inspect.signature(prepare).parameters
    name = "cache" if "cache" in accepted else "past_key_values"
    held = DynamicCache()
    # All that is asked of it is how long it is.
    held.update(torch.zeros(1, 1, end - 1, 1), torch.zeros(1, 1, end - 1, 1), 0)
    inputs = prepare(
        ids[:, :end],
        next_sequence_length=1,
        attention_mask=torch.ones_like(ids[:, :end]),
        use_cache=True,
        **{name: held},
    )
    return inputs.get(name) is None


def _new_cache(model: PreTrainedModel, length: int, room: int) -> Cache:
    return empty_cache(layer_windows(text_config(model)), length + room)


class _Text:
    """Prompt and answer so far of one row, and how it goes on."""

    def __init__(self, row: Row, input_ids: Tensor, max_new_tokens: int) -> None:
        assert row.logits is not None
        assert row.rules is not None
        self.logits, self.rules = row.logits, row.rules
        self.end = input_ids.shape[1]
        self.ids = input_ids.new_empty((1, self.end + max_new_tokens))
        self.ids[:, : self.end] = input_ids
        self.entropies: list[Tensor] = []
        self.generator = None
        if self.rules.do_sample:
            self.generator = torch.Generator(row.logits.device).manual_seed(row.seed)

    def append(self, end: int) -> bool:
        """Choose the token at position `end - 1`, and say whether it ends the answer."""
        before = self.ids[:, : end - 1]
        scores = self.rules.processors(before, self.logits.to(torch.float32, copy=True))
        if self.generator is None:
            token = scores.argmax(-1, keepdim=True)
        else:
            chances = scores.softmax(-1)
            if not bool(chances.isfinite().all()):
                raise not_a_number()
            token = torch.multinomial(chances, 1, generator=self.generator)
        self.entropies.append(token_entropy(scores))
        self.ids[:, end - 1 : end] = token
        self.end = end
        return bool(self.rules.criteria(self.ids[:, :end], scores).all())

    def decoded(self, length: int) -> Decoded:
        """The answer, which begins at position `length`."""
        entropy = float(torch.cat(self.entropies).mean())
        # That of each token's distribution; no other look at the logits is needed.
        if not math.isfinite(entropy):
            raise not_a_number()
        return Decoded(self.ids[0, length : self.end].tolist(), entropy)
