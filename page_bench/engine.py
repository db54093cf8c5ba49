"""Prompts in, answers out: prefill, observe, decide, evict, decode."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from page_bench import gates
from page_bench.cache import allocated_bytes, entry_count, full_size, kv_bytes
from page_bench.calibration import Threshold, select_pilot, zscore_threshold
from page_bench.config import PageConfig
from page_bench.decode import AnswerRequest, decode, decoding_rules
from page_bench.eviction import KeepPlan, budget_for, evict, positions_to_keep
from page_bench.prefill import forward, prefill
from page_bench.signals import head_agreement, head_agreement_drop
from page_bench.trace import Measured


@dataclass(frozen=True)
class Prompt:
    """One sample to answer.

    Attributes:
        task, doc_id: the sample.
        repeat: 0, or which of several answers to the same sample this is.
        protocol: how the task words its prompts; None where it does not say.
        text: the prompt's text.
        input_ids: its tokens, after truncation.
        context_tokens: how many of them are the context, with all before it; None where the whole
            prompt is compressed.
        truncated_tokens: tokens that truncation removed.
        request: how to answer.
    """

    task: str
    doc_id: int
    repeat: int
    protocol: str | None
    text: str
    input_ids: tuple[int, ...]
    context_tokens: int | None
    truncated_tokens: int
    request: AnswerRequest

    @property
    def sha256(self) -> str:
        """Hash of the prompt's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def seed(self) -> int:
        """A number below 2**56 that depends on the prompt's text alone."""
        return int(self.sha256[:14], 16)


@dataclass(frozen=True, kw_only=True)
class Outcome(Measured):
    """What came of one prompt: what was measured, and the answer's token ids."""

    answer_ids: list[int]


class Engine:
    """Answers prompts under one arm.

    Args:
        model: a model whose attention implementation is one of `attention.register`.
        tokenizer: its tokenizer.
        config: the arm.
        sampling_seed: enters the random numbers of every prompt when sampling.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, config: PageConfig, sampling_seed: int = 0
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.evictor = config.make_evictor()
        self.sampling_seed = sampling_seed

    def run(
        self, prompts: Sequence[Prompt], progress: Callable[[int], None] = lambda n: None
    ) -> tuple[list[Outcome], Threshold | None]:
        """Answer all prompts.

        Args:
            prompts: in any order.
            progress: called with 1 after each prompt that is done.

        Returns:
            Outcomes in the order of the prompts, and τ with its origin (None if no gate reads it).

        Raises:
            UsageError: the threshold needs a pilot and there are fewer than two prompts.
        """
        self._check_requests(prompts)
        done: dict[int, Outcome] = {}
        threshold = None
        if self.config.needs_pilot:
            done, threshold = self._run_pilot(prompts, progress)
        elif self.config.gate == "page":
            assert self.config.fixed_tau is not None
            threshold = Threshold(self.config.fixed_tau, self.config.tau_variant)
        # Longest first: if memory runs out, it does so at once.
        for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i].input_ids)):
            if i not in done:
                done[i] = self._answer(
                    prompts[i], lambda drop: gates.opens(self.config.gate, drop, threshold)
                )
                progress(1)
        return [done[i] for i in range(len(prompts))], threshold

    def _run_pilot(
        self, prompts: Sequence[Prompt], progress: Callable[[int], None]
    ) -> tuple[dict[int, Outcome], Threshold]:
        """Answer the pilot's prompts and find τ, keeping no cache.

        τ is known only after the last of them, so each is decoded as the threshold of those
        before it suggests; the few that τ decides otherwise are answered again.
        """
        first = [i for i, prompt in enumerate(prompts) if prompt.repeat == 0]
        chosen = select_pilot(
            [(prompts[i].task, prompts[i].doc_id) for i in first], self.config.pilot_size
        )
        theta_z = self.config.theta_z
        if len(chosen) < 2:
            zscore_threshold([0.0] * len(chosen), theta_z)
        drops: list[float] = []

        def guess(drop: float) -> bool:
            drops.append(drop)
            so_far = zscore_threshold(drops if len(drops) > 1 else drops * 2, theta_z)
            return gates.opens("page", drop, so_far)

        done: dict[int, Outcome] = {}
        for i in (first[j] for j in chosen):
            done[i] = self._answer(prompts[i], guess)
            progress(1)
        threshold = zscore_threshold(drops, theta_z)
        for i, outcome in done.items():
            if outcome.gate_open != gates.opens("page", outcome.drop, threshold):
                done[i] = self._answer(
                    prompts[i], lambda drop: gates.opens("page", drop, threshold)
                )
        return done, threshold

    def _answer(self, prompt: Prompt, decide: Callable[[float], bool]) -> Outcome:
        """Prefill one prompt, let `decide` read its D, evict if it says so, and decode."""
        input_ids = torch.tensor([prompt.input_ids], device=self.model.device)
        length = input_ids.shape[1]
        # Only the context is observed and evicted where the question is read afterwards.
        split = prompt.context_tokens or length
        room = length - split + prompt.request.max_new_tokens
        start = self._now()
        n_keep = budget_for(self.config, split)
        may_evict = self.config.gate != "closed" and isinstance(n_keep, int)
        filled = prefill(
            self.model,
            input_ids[:, :split],
            window=self.config.window,
            room=room,
            evictor=self.evictor if may_evict else None,
            n_keep=n_keep if isinstance(n_keep, int) else None,
            prompt_seed=prompt.seed,
        )
        after_prefill = self._now()
        agreement = head_agreement(filled.observation.window_attention, self.config.top_k)
        drop = head_agreement_drop(agreement)
        gate_open = decide(drop)
        after_gate = self._now()
        keep: KeepPlan | str = "gate closed"
        if gate_open:
            keep = positions_to_keep(self.evictor, filled, self.config, prompt.seed)
        cache, logits, unread = filled.cache, filled.logits, split
        full_entries, full_bytes = full_size(cache, length)
        layers = list(filled.observation.layers)
        if isinstance(keep, KeepPlan):
            # With no question to read, the last prompt token is read again.
            unread = min(split, length - 1)
            cache = evict(filled, keep, room + split - unread, without_last=unread < split)
        # While decoding, neither the full cache nor what was observed is needed any more.
        del filled
        after_eviction = self._now()
        if unread < length:
            positions = torch.arange(unread, length, device=input_ids.device)[None]
            logits = forward(self.model, input_ids[:, unread:], cache, positions)
        kept_entries, kept_bytes = entry_count(cache), kv_bytes(cache)
        allocated = allocated_bytes(cache)
        answer_ids = decode(
            self.model,
            cache,
            logits,
            input_ids,
            decoding_rules(self.model, self.tokenizer, input_ids, prompt.request),
            prompt.request.max_new_tokens,
            seed=(prompt.seed + prompt.repeat + self.sampling_seed) % 2**63,
        )
        return Outcome(
            prompt_tokens=length,
            context_tokens=prompt.context_tokens,
            agreement=agreement.tolist(),
            full_attention_layers=layers,
            drop=drop,
            gate_open=gate_open,
            kept_all_because=keep if isinstance(keep, str) else None,
            kept_tokens=length * kept_entries / full_entries,
            kept_kv=kept_entries / full_entries,
            kv_bytes_full=full_bytes,
            kv_bytes_kept=kept_bytes,
            kv_bytes_allocated=allocated,
            prefill_s=after_prefill - start,
            gate_s=after_gate - after_prefill,
            evict_s=after_eviction - after_gate,
            decode_s=self._now() - after_eviction,
            answer_ids=answer_ids,
        )

    def _check_requests(self, prompts: Sequence[Prompt]) -> None:
        """Raise for a way of decoding that cannot be had, before the first prompt is run."""
        tried: list[AnswerRequest] = []
        for prompt in prompts:
            if prompt.request not in tried:
                ids = torch.tensor([prompt.input_ids[-1:]], device=self.model.device)
                decoding_rules(self.model, self.tokenizer, ids, prompt.request)
                tried.append(prompt.request)

    def _now(self) -> float:
        """Seconds on a clock, once all work queued on the device is done."""
        device = self.model.device.type
        if device != "cpu":
            getattr(torch, device).synchronize()
        return time.perf_counter()
