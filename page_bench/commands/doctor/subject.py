"""The model that is examined, with one prompt of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from lm_eval.api.instance import Instance
from torch import Tensor
from transformers import PreTrainedModel

from page_bench.commands.doctor import references
from page_bench.config import PageConfig
from page_bench.engine.engine import Outcome
from page_bench.engine.prompt import Prompt
from page_bench.harness.lm import PageLM
from page_bench.model.decode import AnswerRequest
from page_bench.model.prefill import base_model, device_of, text_config
from page_bench.model.support import layer_windows
from page_bench.tasks import quickstart

CLOSENESS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""How far logits of two right ways of computing may lie apart, by dtype of the products."""

GREEDY = {"do_sample": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
"""Arguments of `generate` that switch off what a generation config may add to the logits."""


@dataclass(frozen=True)
class Subject:
    """A loaded model, and how it is examined.

    Attributes:
        lm: the model as lm-eval has it, under the arm asked for.
        tokens: about how long the prompt is.
        new_tokens: of every answer.
        chat: whether prompts get the chat template.
    """

    lm: PageLM
    tokens: int
    new_tokens: int
    chat: bool

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, without a wrapper."""
        return base_model(self.lm.model)

    @property
    def page(self) -> PageConfig:
        """The arm, evicting from every prompt, one keep set for all layers and heads."""
        return replace(self.lm.page, gate="open", gate_args={}, granularity="shared", store=None)

    @property
    def closeness(self) -> float:
        """See `CLOSENESS`."""
        return CLOSENESS.get(self.computes_in, CLOSENESS[torch.bfloat16])

    @property
    def computes_in(self) -> torch.dtype:
        """The dtype of the model's products, under mixed precision too."""
        mixed = self.lm.mixed_precision_dtype
        return self.model.dtype if mixed is None else mixed

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The mixed precision that the model runs in, for what is compared with it."""
        mixed = self.lm.mixed_precision_dtype
        with torch.autocast(self.lm.device.type, mixed, mixed is not None):
            yield

    def expected(
        self, keep: Sequence[int] | None = None, shift: int = 0, ids: Tensor | None = None
    ) -> tuple[list[int], Tensor]:
        """The answer by transformers' own ways, with the logits `[new_tokens, vocab]` behind it.

        Args:
            keep: prompt positions that stay, the others masked out; None means all, by `generate`.
            shift: see `references.masked`.
            ids: int64 `[1, T]`; None for those of `prompt`.
        """
        ids = self.ids if ids is None else ids
        with self.precision():
            if keep is None:
                return references.generated(self.lm.model, ids, self.new_tokens, GREEDY)
            return references.masked(self.model, ids, keep, self.new_tokens, self.ends, shift=shift)

    @property
    def slides(self) -> bool:
        """Whether some layers see a window only."""
        return any(window is not None for window in layer_windows(text_config(self.model)))

    @property
    def ends(self) -> list[int]:
        """Tokens that end a sequence, none of which is said before the last token of an answer."""
        found = self.model.generation_config.eos_token_id
        return [] if found is None else found if isinstance(found, list) else [found]

    @cached_property
    def text(self) -> str:
        """A prompt with a fact in it and a question."""
        metadata = {"tokenizer": self.lm.tokenizer, "prompt_tokens": self.tokens}
        document = quickstart.needle_number(**metadata)["test"][0]
        return str(document["prompt"] + document["answer_prefix"])

    def prompt_of(self, text: str) -> Prompt:
        """A text as page_hf hands it to the engine, to be answered by so many tokens."""
        # Whatever the model's own defaults ask for, so many are read below.
        most = self.model.generation_config.max_new_tokens or 0
        request = Instance(
            request_type="generate_until",
            doc={},
            arguments=(text, {"until": [], "max_gen_toks": max(self.new_tokens, most)}),
            idx=0,
            metadata=("doctor", 0, 1),
        )
        (prompt,) = self.lm.with_page(self.page).prompts([request])
        forced = {**GREEDY, "min_new_tokens": self.new_tokens}
        return replace(prompt, request=AnswerRequest(self.new_tokens, (), forced))

    def templated(self, text: str) -> str:
        """The text as the user's turn, where there is a chat template."""
        lm = self.lm.with_page(self.page)
        return str(lm.apply_chat_template([{"role": "user", "content": text}]))

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt that most checks use."""
        return self.prompt_of(self.templated(self.text) if self.chat else self.text)

    @cached_property
    def ids(self) -> Tensor:
        """Its tokens, int64 `[1, T]`."""
        return torch.tensor([self.prompt.input_ids], device=device_of(self.lm.model))

    @contextmanager
    def engine(self, page: PageConfig) -> Iterator[Any]:
        """The engine under an arm."""
        with self.lm.with_page(page).engine() as engine:
            yield engine

    def prompt_of_length(self, tokens: int) -> Prompt:
        """As many tokens as asked for: those of `prompt`, as often as they are needed."""
        ids = self.prompt.input_ids
        return replace(self.prompt, input_ids=(ids * (tokens // len(ids) + 1))[:tokens])

    def answer(self, page: PageConfig, prompt: Prompt | None = None) -> Outcome:
        """What the engine makes of a prompt, that which most checks use, under an arm."""
        with self.engine(page) as engine:
            (outcome,), _ = engine.run([prompt or self.prompt])
        return outcome
