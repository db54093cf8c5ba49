"""What keeps a prompt from being answered as asked: refusals before the first prefill and after."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from page_bench.config import TOO_SHORT, PageConfig, budget_for
from page_bench.engine.prompt import Prompt
from page_bench.inputs.errors import UsageError
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest, decoding_rules
from page_bench.model.prefill import device_of
from page_bench.records.trace import Seen


def check_arms(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    configs: Sequence[PageConfig],
) -> None:
    """Raise for what cannot be done, before the first prompt is run.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        prompts: all that is asked.
        configs: the arms.

    Raises:
        UsageError: generation arguments that cannot be had, or a gate that needs scores which the
            documents do not give.
    """
    tried: list[AnswerRequest] = []
    for prompt in prompts:
        request = prompt.request
        if isinstance(request, AnswerRequest) and request not in tried:
            ids = torch.tensor([prompt.input_ids[-1:]], device=device_of(model))
            decoding_rules(model, tokenizer, ids, request)
            tried.append(request)
    given = sorted({p.task for p in prompts if isinstance(p.request, ContinuationRequest)})
    unscored = sorted({p.task for p in prompts if p.score is None})
    for config in configs:
        wanted = config.make_gate().needs_answers
        if wanted and given:
            raise UsageError(
                f"gate={config.gate} reads generated answers, but {', '.join(given)} asks for "
                f"the likelihoods of given ones; choose another gate, or leave the task out."
            )
        if "full" in wanted and unscored:
            raise UsageError(
                f"gate={config.gate} must score answers while it decides, which the documents "
                f"of {', '.join(unscored)} do not allow; give tasks of page-bench alone."
            )


def check_signal(prompt: Prompt, config: PageConfig, seen: Seen) -> None:
    """Raise where a gate would decide by what is not a number, and so stay closed in silence.

    Args:
        prompt: the sample.
        config: the arm.
        seen: what its prefill showed.

    Raises:
        UsageError: the gate's signal is not finite, and the prompt is long enough to lose entries.
    """
    signal = config.make_gate().signal
    if signal is None or math.isfinite(seen.signals.get(signal, math.nan)):
        return
    # Of a prompt so short nothing can be evicted, whatever the gate says.
    if budget_for(config, prompt.compressed_tokens) == TOO_SHORT:
        return
    raise UsageError(
        f"gate={config.gate} reads {signal}, which is not a number; where D is taken, layer_stride "
        f"and bins must leave layers to compare, and where a model overflows in half precision, "
        f"dtype=float32 helps."
    )


@contextmanager
def naming(prompt: Prompt) -> Iterator[None]:
    """What is refused of one prompt says which it is."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{prompt.task} document {prompt.doc_id}: {error}") from error
