"""One prompt after its prefill: what was seen, and answers under any evictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.config import PageConfig, budget_for, forced_count
from page_bench.engine.decode_batches import DECODE_ROWS, CacheSize, KeepJob, jobs_of, rows_that_fit
from page_bench.engine.prompt import Prompt
from page_bench.gating.signals import NEEDS_ENTROPY, agreements, measure, pair_agreement
from page_bench.model.answer_signs import repetition
from page_bench.model.attention import MEAN_ALONE, SpreadOptions
from page_bench.model.cache import allocated_bytes, entry_count, kv_bytes
from page_bench.model.continuations import ContinuationRequest, score_continuations
from page_bench.model.decode import DecodingRules, Row, decode, decoding_rules, read
from page_bench.model.keep_plan import KeepPlan, evict, positions_to_keep
from page_bench.model.prefill import Prefill, device_of, devices_of, prefill
from page_bench.model.rotation import Rotation
from page_bench.model.scoring import Scorer
from page_bench.records.trace import Answered, Seen

GATE_CLOSED = "gate closed"


@dataclass(frozen=True, kw_only=True)
class ArmAnswer(Answered):
    """An answer under one eviction, or under the full cache, with its token ids."""

    answer_ids: list[int]

    @property
    def own_decode_s(self) -> float:
        """This answer's share of the seconds of all that were decoded with it."""
        return self.decode_s / self.decode_rows


class PromptPass:
    """A prompt, prefilled once.

    Attributes:
        prompt_tokens: T.
        size: of its full cache.
        new_tokens: tokens of all answers so far.
        prefill_s, evict_s, decode_s: seconds so far.

    Args:
        model: a model whose attention implementation is one of `attention.register`.
        tokenizer: its tokenizer.
        prompt: the sample.
        evictions: the arms whose evictions will be asked for.
        window: observation window w.
        spread: what is measured of the window's rows besides their mean.
        seed: of the random numbers when sampling.
        decode_rows: answers decoded together, whatever memory holds; None means `DECODE_ROWS`, or
            what memory holds.
        on_plan: called with an eviction and its keep sets once these are known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        prompt: Prompt,
        evictions: Sequence[PageConfig],
        window: int,
        spread: SpreadOptions,
        seed: int,
        decode_rows: int | None,
        on_plan: Callable[[PageConfig, KeepPlan], object] = lambda *_: None,
    ) -> None:
        self._model, self._tokenizer, self._prompt = model, tokenizer, prompt
        self._on_plan = on_plan
        self._seed, self._decode_rows = seed, decode_rows
        self._devices = devices_of(model)
        self._rotation = Rotation(model)
        self._input_ids = torch.tensor([prompt.input_ids], device=device_of(model))
        length, split = len(prompt.input_ids), prompt.compressed_tokens
        # Only the context is observed and evicted where the question is read afterwards.
        self._room = length - split + prompt.request.max_new_tokens
        start = seconds(self._devices)
        self._filled: Prefill | None = prefill(
            model,
            self._input_ids[:, :split],
            window=window,
            room=self._room,
            scorers=[
                Scorer(eviction.make_evictor(), n_keep)
                for eviction in evictions
                if isinstance(n_keep := budget_for(eviction, split), int)
            ],
            prompt_seed=prompt.seed,
            spread=spread,
            prompt_tokens=length,
        )
        self.prompt_tokens = length
        self.new_tokens = 0
        self.prefill_s = seconds(self._devices) - start
        self.evict_s = self.decode_s = 0.0
        self.size = CacheSize.of(self._filled.cache, length, split)

    def seen(self, config: PageConfig) -> Seen:
        """What the prefill showed, as far as a configuration asks for it."""
        assert self._filled is not None, "the full cache has been used up"
        start = seconds(self._devices)
        observation, options = self._filled.observation, config.drop_options
        window_attention, row_entropy = observation.window_attention, observation.row_entropy
        agreement = agreements(window_attention, options)
        cache = self._filled.cache
        signals = measure(
            agreement,
            window_attention,
            row_entropy,
            (cache.layers[i].keys[0] for i in observation.layers),
            options,
            config.signal_names,
        )
        pairs = None
        if config.signals == "pairs":
            pairs = pair_agreement(window_attention, options.top_k).tolist()
        margin = None if config.signals == "gate" else observation.margin
        return Seen(
            prompt_tokens=len(self._prompt.input_ids),
            context_tokens=self._prompt.context_tokens,
            agreement=agreement.tolist(),
            full_attention_layers=list(observation.layers),
            drop=signals["drop"],
            signals=signals,
            pair_agreement=pairs,
            margin=None if margin is None else margin.tolist(),
            kv_bytes_full=self.size.bytes,
            prefill_s=self.prefill_s,
            gate_s=seconds(self._devices) - start,
        )

    def answers(self, evictions: Sequence[PageConfig | None], last: bool) -> list[ArmAnswer]:
        """Answer under several evictions; those that keep the same entries are decoded once.

        Args:
            evictions: arms whose evictor acts; None stands for the full cache.
            last: no more answers will be asked for, so that nothing need be kept for them. An
                answer from the full cache uses that cache up.
        """
        plans, planned_s = [], []
        for eviction in evictions:
            start = seconds(self._devices)
            plans.append(self._plan(eviction))
            planned_s.append(seconds(self._devices) - start)
        self.evict_s += sum(planned_s)
        jobs = jobs_of(plans, self.size)
        results: dict[int, ArmAnswer] = {}
        limit, lowered = self._limit, False
        while jobs:
            together = self._together(jobs)
            batch = together[:limit]
            if self._decode_rows is None:
                batch = batch[: rows_that_fit(batch, self.size, self._room)]
            # Those that come after fewer rows have other company, too.
            lowered = lowered or len(batch) < min(limit, len(together))
            del jobs[: len(batch)]
            for job, answer in zip(batch, self._decode(batch, last and not jobs), strict=True):
                for i in job.wanted_by:
                    plan = plans[i]
                    results[i] = replace(
                        answer,
                        kept_all_because=plan if isinstance(plan, str) else None,
                        must_keep=self._must_keep(evictions[i], plan),
                        **self._evidence(job.keep),
                        evict_s=answer.evict_s + planned_s[i],
                        decode_rows_limit=limit,
                        decode_rows_lowered=lowered,
                    )
        return [results[i] for i in range(len(evictions))]

    def _evidence(self, keep: KeepPlan | None) -> dict[str, Any]:
        """How much of the evidence a keep set holds."""
        if not self._prompt.evidence:
            return {}
        share, best = 1.0, 1.0
        if keep is not None:
            # What is read after the eviction is there whole.
            size = keep.members.shape[-1]
            inside = [place for place in self._prompt.evidence if place < size]
            after = len(self._prompt.evidence) - len(inside)
            by_head = keep.members[..., inside].sum(-1).double() + after
            by_head /= len(self._prompt.evidence)
            share, best = float(by_head.mean()), float(by_head.max())
        return {
            "evidence_kept": share,
            "evidence_kept_best_head": best,
            "evidence_sha256": self._prompt.evidence_sha256,
        }

    def _plan(self, eviction: PageConfig | None) -> KeepPlan | str:
        assert self._filled is not None, "the full cache has been used up"
        if eviction is None:
            return GATE_CLOSED
        plan = positions_to_keep(eviction.make_evictor(), self._filled, eviction)
        if isinstance(plan, KeepPlan):
            self._on_plan(eviction, plan)
        return plan

    def _together(self, jobs: Sequence[KeepJob]) -> Sequence[KeepJob]:
        """The next jobs that may be decoded together."""
        if not self._is_turning:
            return jobs
        # The full cache goes on under a rotation that the others do not follow.
        return [job for job in jobs if job.keep is not None] or jobs

    @property
    def _is_turning(self) -> bool:
        """Whether the model may rotate the end of the answer otherwise than the prompt."""
        longest = self.prompt_tokens + self._prompt.request.max_new_tokens
        return self._rotation.change(self.prompt_tokens, longest) is not None

    def _must_keep(self, eviction: PageConfig | None, plan: KeepPlan | str) -> float | None:
        if isinstance(plan, KeepPlan) or eviction is None:
            return plan.must_keep if isinstance(plan, KeepPlan) else None
        return forced_count(eviction, self._prompt.compressed_tokens)

    @property
    def _limit(self) -> int:
        """How many answers are decoded together, at most."""
        assert self._filled is not None
        if self._filled.observation.latent:
            # The model unfolds its latents before it attends: rows of unequal length cannot.
            return 1
        return self._decode_rows or DECODE_ROWS

    def _decode(self, batch: Sequence[KeepJob], last: bool) -> list[ArmAnswer]:
        """Evict and answer some keep sets together."""
        assert self._filled is not None
        length = len(self._prompt.input_ids)
        split = self._prompt.compressed_tokens
        # With no question to read, an evicted cache reads the last prompt token again.
        unread = min(split, length - 1)
        rules = [self._rules() for _ in batch]
        rows, own = [], []
        for job, its_rules in zip(batch, rules, strict=True):
            start = seconds(self._devices)
            if job.keep is None:
                cache: Cache = self._filled.cache
                logits = self._filled.logits if split == length else None
            else:
                room = self._room + split - unread
                cache, logits = evict(self._filled, job.keep, room, unread < split), None
            rows.append(Row(cache, logits, its_rules, self._seed))
            own.append(seconds(self._devices) - start)
        # While decoding, neither the full cache nor what was observed is needed any more.
        if last or any(job.keep is None for job in batch):
            self._filled = None
        evicted = seconds(self._devices)
        waiting = [row for row in rows if row.logits is None]
        read(self._model, waiting, self._input_ids[:, unread:], unread)
        kept = [(entry_count(row.cache), kv_bytes(row.cache)) for row in rows]
        for job, (entries, _) in zip(batch, kept, strict=True):
            if entries != job.entries:
                raise RuntimeError(
                    f"the cache holds {entries} entries after {length} tokens, not {job.entries} "
                    f"as planned; this is a fault of page-bench, please report it."
                )
        allocated = [allocated_bytes(row.cache) for row in rows]
        said = self._said(rows, follows=self._is_turning and batch[0].keep is None)
        decode_s = seconds(self._devices) - evicted
        self.evict_s += sum(own)
        self.decode_s += decode_s
        return [
            ArmAnswer(
                kept_all_because=None,
                kept_tokens=length * entries / self.size.entries,
                kept_kv=entries / self.size.entries,
                kv_bytes_kept=size,
                kv_bytes_allocated=buffers,
                evict_s=evict_s,
                decode_s=decode_s,
                decode_rows=len(batch),
                **answer,
            )
            for (entries, size), buffers, evict_s, answer in zip(
                kept, allocated, own, said, strict=True
            )
        ]

    def _said(self, rows: Sequence[Row], follows: bool) -> list[dict[str, Any]]:
        """What is answered through each row's cache: fields of `ArmAnswer`.

        Args:
            rows: caches with their first logits.
            follows: whether the rotation follows the answer's length, see `decode`.
        """
        request = self._prompt.request
        if isinstance(request, ContinuationRequest):
            caches = [(row.cache, row.logits) for row in rows if row.logits is not None]
            scored = score_continuations(self._model, caches, request, self._input_ids, follows)
            self.new_tokens += len(rows) * sum(map(len, request.continuations))
            nothing = {
                "answer_ids": [],
                "mean_token_entropy": nan,
                "repetition": nan,
                "rotation_changed": self._is_turning,
            }
            return [{**nothing, **asdict(one)} for one in scored]
        answers = decode(self._model, rows, self._input_ids, request.max_new_tokens, follows)
        self.new_tokens += sum(len(answer.ids) for answer in answers)
        return [
            {
                "answer_ids": answer.ids,
                "mean_token_entropy": answer.mean_token_entropy,
                "repetition": repetition(answer.ids),
                # The last token is not read.
                "rotation_changed": self._rotation.change(
                    self.prompt_tokens, self.prompt_tokens + len(answer.ids) - 1
                )
                is not None,
            }
            for answer in answers
        ]

    def _rules(self) -> DecodingRules | None:
        request = self._prompt.request
        if isinstance(request, ContinuationRequest):
            return None
        return decoding_rules(self._model, self._tokenizer, self._input_ids, request)


def seconds(devices: Iterable[torch.device]) -> float:
    """A clock, read once all work queued on the devices is done."""
    for device in devices:
        if device.type == "mps":
            torch.mps.synchronize()  # there is one
        elif device.type != "cpu":
            getattr(torch, device.type).synchronize(device)
    return time.perf_counter()


def spread_for(configs: Sequence[PageConfig]) -> SpreadOptions:
    """What arms read of the window's rows besides their mean; they share `top_k`."""
    return SpreadOptions(
        entropy=any(NEEDS_ENTROPY & {*config.signal_names} for config in configs),
        margin=any(config.signals != "gate" for config in configs),
        top_k=configs[0].top_k if configs else MEAN_ALONE.top_k,
    )
