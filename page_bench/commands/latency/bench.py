"""What a full, an evicted and a gated cache cost, phase by phase (paper, Table 26).

Decoding is forced: every run makes the same number of new tokens, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from page_bench.config import PageConfig, budget_for
from page_bench.engine.decode_batches import CacheSize
from page_bench.engine.prefilled_prompt import PromptPass, seconds, spread_for
from page_bench.engine.prompt import Prompt
from page_bench.harness.load_model import load_lm
from page_bench.inputs.errors import UsageError
from page_bench.model.attention import MEAN_ALONE, observing
from page_bench.model.cache import empty_cache, kv_bytes
from page_bench.model.decode import AnswerRequest, Row, decode, decoding_rules
from page_bench.model.prefill import base_model, devices_of, forward, text_config
from page_bench.model.support import layer_windows

FULL, PLAIN, OPEN, CLOSED = "full", "plain", "gated, open", "gated, closed"

Ignored = Callable[[], object]


@dataclass(frozen=True)
class Run:
    """One prompt under one configuration, once.

    Attributes:
        prefill_s: the prompt's pass, with what is observed in it.
        gate_s: D, and whatever else the gate reads; None without a gate.
        evict_s: scores, keep sets and the smaller cache; None where the full cache is used.
        decode_s: from the complete or evicted cache to the last new token.
        decode_steps: passes of the model in that time. The full cache has the logits of the first
            token from its prefill; an evicted one must be asked for them.
        kv_bytes: the prompt's keys and values while decoding, as measured.
        kv_formula_bytes: the same by what the layers of the full cache take per token and KV head.
        kept_all_because: why an evictor kept everything; None where it did not or was not asked.
    """

    prefill_s: float
    gate_s: float | None
    evict_s: float | None
    decode_s: float
    decode_steps: int
    kv_bytes: int
    kv_formula_bytes: int
    kept_all_because: str | None = None

    @property
    def total_s(self) -> float:
        """From the prompt to the last new token."""
        return self.prefill_s + (self.gate_s or 0.0) + (self.evict_s or 0.0) + self.decode_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Passes of the model per second of decoding, one token each."""
        return self.decode_steps / self.decode_s


@dataclass(frozen=True)
class Bench:
    """A loaded model under one arm.

    Attributes:
        model: a model that page-bench can run, under its own attention implementation.
        tokenizer: its tokenizer.
        config: the arm: evictor, budget and gate. τ has no bearing on what a decision costs.
        new_tokens: tokens that every run makes.
        mixed_precision: dtype of autocast; None without.

    Raises:
        UsageError: fewer than two new tokens, or an arm whose cost is not that of one pass and one
            answer.
    """

    model: PreTrainedModel
    tokenizer: Any
    config: PageConfig
    new_tokens: int
    mixed_precision: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.new_tokens < 2:
            raise UsageError(
                f"{self.new_tokens} new tokens leave no step to measure; give at least 2."
            )
        if self.config.make_gate().needs_answers:
            raise UsageError(
                f"gate={self.config.gate} decodes before it decides, so that it costs what its "
                f"answers cost; choose a gate that reads the prefill, or gate=open."
            )
        if self.config.compress != "prompt":
            raise UsageError(
                "compress=context needs prompts with a question, which random tokens do not have; "
                "leave it out."
            )

    @property
    def configurations(self) -> tuple[str, ...]:
        """What is compared: gated runs only where the gate reads the prefill."""
        gated = (OPEN, CLOSED) if self.config.make_gate().signal is not None else ()
        return (FULL, PLAIN, *gated)

    def prompt(self, length: int) -> Prompt:
        """A prompt of so many random tokens, none of them special; the same at every call."""
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        size = min(len(self.tokenizer), text_config(self.model).vocab_size)
        plain = torch.tensor([i for i in range(size) if i not in special])
        generator = torch.Generator().manual_seed(length)
        chosen = plain[torch.randint(len(plain), (length,), generator=generator)]
        # transformers' own way of ignoring the end of a sequence.
        forced = {"do_sample": False, "min_new_tokens": self.new_tokens}
        return Prompt(
            task="latency",
            doc_id=0,
            repeat=0,
            protocol=None,
            text=f"{length} random tokens",
            input_ids=tuple(chosen.tolist()),
            context_tokens=None,
            truncated_tokens=0,
            request=AnswerRequest(self.new_tokens, (), forced),
        )

    def run(self, name: str, prompt: Prompt, decoding: Ignored = lambda: None) -> Run:
        """Answer a prompt under one configuration.

        Args:
            name: one of `configurations`.
            prompt: see `prompt`.
            decoding: called when the model begins to decode.

        Raises:
            UsageError: the model's generation config ends an answer early.
        """
        mixed = self.mixed_precision
        with torch.autocast(self.model.device.type, mixed, mixed is not None):
            if name == FULL:
                return self._full(prompt, decoding)
            with observing(base_model(self.model)):
                return self._observed(name, prompt, decoding)

    def _full(self, prompt: Prompt, decoding: Ignored) -> Run:
        """What the model costs by itself: nothing is observed."""
        model, length = self.model, len(prompt.input_ids)
        ids, devices = torch.tensor([prompt.input_ids], device=model.device), devices_of(model)
        start = seconds(devices)
        cache = empty_cache(layer_windows(text_config(model)), length + self.new_tokens)
        logits = forward(model, ids, cache)[:, -1]
        prefilled = seconds(devices)
        size, formula = kv_bytes(cache), CacheSize.of(cache, length).bytes
        # Decoding is page-bench's own in all configurations.
        with observing(base_model(model)):
            assert isinstance(prompt.request, AnswerRequest)
            rules = decoding_rules(model, self.tokenizer, ids, prompt.request)
            begun = seconds(devices)
            with _counting(model, decoding) as steps:
                row = Row(cache, logits, rules, prompt.seed)
                (answer,) = decode(model, [row], ids, self.new_tokens)
            decode_s = seconds(devices) - begun
        self._check(answer.ids)
        return Run(
            prefill_s=prefilled - start,
            gate_s=None,
            evict_s=None,
            decode_s=decode_s,
            decode_steps=steps(),
            kv_bytes=size,
            kv_formula_bytes=formula,
        )

    def _observed(self, name: str, prompt: Prompt, decoding: Ignored) -> Run:
        """One arm, as the engine runs it, with the gate's decision given."""
        config, length = self.config, len(prompt.input_ids)
        devices = devices_of(self.model)
        start = seconds(devices)
        passed = PromptPass(
            self.model,
            self.tokenizer,
            prompt,
            [config],
            window=config.window,
            spread=MEAN_ALONE if name == PLAIN else spread_for([config]),
            seed=prompt.seed,
            decode_rows=1,
        )
        prefill_s = seconds(devices) - start
        gate_s = None if name == PLAIN else passed.seen(config).gate_s
        with _counting(self.model, decoding) as steps:
            (answer,) = passed.answers([None if name == CLOSED else config], last=True)
        self._check(answer.answer_ids)
        evicted = answer.kept_all_because is None
        n_keep = budget_for(config, length) if evicted else length
        assert isinstance(n_keep, int)
        return Run(
            prefill_s=prefill_s,
            gate_s=gate_s,
            evict_s=None if name == CLOSED else answer.evict_s,
            decode_s=answer.decode_s,
            decode_steps=steps(),
            kv_bytes=answer.kv_bytes_kept,
            kv_formula_bytes=passed.size.bytes_at(n_keep),
            kept_all_because=None if name == CLOSED else answer.kept_all_because,
        )

    def _check(self, ids: Sequence[int]) -> None:
        if len(ids) != self.new_tokens:
            raise UsageError(
                f"the answer ended after {len(ids)} of {self.new_tokens} tokens: the model's "
                f"generation config stops it (max_time or stop strings); take that out of it."
            )


def load(model_args: str, device: str | None, new_tokens: int) -> tuple[Bench, str, int]:
    """Load what model arguments name.

    Args:
        model_args: as for lm-eval.
        device: such as `cuda`; None means the GPU, or the CPU where there is none.
        new_tokens: tokens that every run makes.

    Returns:
        The bench, the model's name, and positions for prompt and answer.

    Raises:
        UsageError: arguments that cannot be honoured, or a model that cannot be run.
    """
    lm = load_lm(model_args, device, "latency")
    bench = Bench(lm.model, lm.tokenizer, lm.page, new_tokens, lm.mixed_precision_dtype)
    return bench, lm.model_name, int(lm.max_length)


@contextmanager
def _counting(model: PreTrainedModel, first: Ignored) -> Iterator[Callable[[], int]]:
    """Counts the passes of a model while the context lasts; `first` is called before the first."""
    passes = 0

    def passing(*args: object) -> None:
        nonlocal passes
        if passes == 0:
            first()
        passes += 1

    handle = model.register_forward_pre_hook(passing)
    try:
        yield lambda: passes
    finally:
        handle.remove()
