"""`page_hf`: lm-eval's `hf` model with gated KV-cache eviction. No tensor work happens here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text

from page_bench.config import PageConfig
from page_bench.engine.decision import calibration_warnings
from page_bench.engine.decode_batches import DECODE_ROWS
from page_bench.engine.engine import Engine, Outcome
from page_bench.engine.grid_work import Compute, Filled
from page_bench.engine.make_trace import brief, trace_of
from page_bench.engine.memory import Memory
from page_bench.engine.prompt import Prompt
from page_bench.engine.summary import RunSummary, per_bin
from page_bench.harness.generation_checks import check_generation, end_tokens, is_cut
from page_bench.harness.loaded_lm import LoadedLM
from page_bench.harness.progress import PromptBar
from page_bench.harness.requests import PromptMaker
from page_bench.harness.run_output import RunRecord
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest
from page_bench.model.keep_plan import KeepPlan
from page_bench.records.store.store import RunStore
from page_bench.records.trace import Answer, Likelihood

log = logging.getLogger(__name__)


@register_model("page_hf")
class PageLM(LoadedLM):
    """lm-eval's `hf` model, answering `generate_until` through prefill, gate and evictor.

    Args and errors are those of `LoadedLM`.
    """

    def __init__(self, pretrained: Any = None, **kwargs: Any) -> None:
        super().__init__(pretrained, **kwargs)
        self._chat = False
        self._record = self._new_record()
        self.on_plan: Callable[[Prompt, PageConfig, KeepPlan], object] = lambda *_: None

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer lm-eval's requests; each answer carries its trace."""
        if not requests:
            return []
        counted, places = self.counted(requests)
        answers = self._run("generate_until", self.prompts(counted), disable_tqdm)
        return [answers[i] for i in places]

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Likelihoods of continuations, read through the cache that is left of their context.

        A context is prefilled once for all its continuations; each carries its trace.
        """
        if not requests:
            return []
        self.counted(requests)
        prompts, places = self.contexts(requests)
        answers = self._run("loglikelihood", prompts, disable_tqdm)
        return [Likelihood.of(answers[i], number) for i, number in places]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> Any:
        """Refused: the likelihood of a whole text has no prompt after which to evict."""
        asked = ", ".join(sorted({str(request.task_name) for request in requests}))
        raise UsageError(
            f"page_hf gives no rolling likelihoods: a text that is all answer has no prompt whose "
            f"cache could lose entries; leave out {asked}, or use --model hf for them."
        )

    def _run(self, request_type: str, prompts: Sequence[Prompt], hidden: bool) -> list[Answer]:
        """Answer all prompts of one type of request, and record what came of them."""
        if self._record.is_over_for(request_type):
            self._record = self._new_record()
        facts, processes = self.model_facts(), self.processes
        asked = [fact for share in processes.gather([p.facts for p in prompts]) for fact in share]
        warnings = calibration_warnings(self.page, facts, asked, self._chat)
        description = f"page_hf: {self.page.evictor}, gate {self.page.gate}"
        with self.engine() as engine, self._bar(len(prompts), description, hidden) as bar:
            answered = self._record.started(self._told, bar.answered)
            outcomes, decided = engine.run(prompts, answered)
            self._record.compare(engine.memory, prompts)
        traces = [
            trace_of(
                facts,
                self.page,
                prompt,
                outcome,
                decided.threshold,
                self._said(prompt, outcome),
                self._chat,
                self._was_cut(prompt, outcome),
            )
            for prompt, outcome in zip(prompts, outcomes, strict=True)
        ]
        everywhere = [t for share in processes.gather([*map(brief, traces)]) for t in share]
        summary = RunSummary.of(self.page, everywhere, decided, warnings)
        if self.rank == 0:
            self._say(summary)
        answers = [Answer(trace.answer, trace) for trace in traces]
        self._record.add(request_type, summary, answers)
        return answers

    def _say(self, summary: RunSummary) -> None:
        if summary.drop_layers is not None:
            log.info(
                "D compares %s of those with full attention.",
                per_bin(summary.drop_layers, self.page.drop_options),
            )
        for warning in summary.warnings:
            log.warning(warning)

    def gather_object(self, obj: Any, dst: int = 0) -> Any:
        """Gather lm-eval's scores; the traces, scored by then, go the same way."""
        self._record.gather(super().gather_object)
        return super().gather_object(obj, dst)

    def _new_record(self) -> RunRecord:
        return RunRecord(self.page.trace if self.rank == 0 else None, self.rank)

    def fill(
        self,
        requests: list[Instance],
        configs: Sequence[PageConfig],
        disable_tqdm: bool = False,
        compute: Compute | None = None,
    ) -> Filled:
        """Compute what the arms of a grid need into the store: one prefill per request.

        Args:
            requests: as for `generate_until`.
            configs: the arms; they share what decides the prefill with this model's own.
            disable_tqdm: whether to show no progress.
            compute: see `Engine.fill`.

        Returns:
            What it took.
        """
        prompts = self.prompts([r for r in requests if r.request_type == "generate_until"])
        prompts += self.contexts([r for r in requests if r.request_type == "loglikelihood"])[0]
        description = f"page_hf: {len(configs)} arms"
        with self.engine() as engine, self._bar(len(prompts), description, disable_tqdm) as bar:
            return engine.fill(prompts, configs, bar.filled, compute)

    def with_page(self, page: PageConfig) -> PageLM:
        """The same loaded model under another arm."""
        other = copy(self)
        other.page = page
        other._record = other._new_record()
        other._check_shape(self._inner.config)
        return other

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """The engine, while the model's attention is observed and the store is open."""
        mixed = self.mixed_precision_dtype
        asked = self.batch_size_per_gpu
        # lm-eval passes 1 where nothing is given, so 1 bounds nothing.
        rows = asked if isinstance(asked, int) and asked > 1 else None
        with ExitStack() as stack:
            memory = None
            if self.page.store is not None:
                store = stack.enter_context(RunStore(Path(self.page.store)))
                seed, limit = torch.initial_seed(), rows or DECODE_ROWS
                memory = Memory(store, self.stored_model(), seed, limit)
            stack.enter_context(torch.autocast(self.device.type, mixed, mixed is not None))
            stack.enter_context(attention.observing(self._inner))
            yield Engine(
                self.model,
                self.tokenizer,
                self.page,
                torch.initial_seed(),
                memory,
                rows,
                self.processes,
                self.on_plan,
            )

    def _bar(self, total: int, doing: str, hidden: bool) -> PromptBar:
        return PromptBar(total, doing, hidden or self.rank != 0)

    def prompts(self, requests: Sequence[Instance]) -> list[Prompt]:
        """What the engine is given for lm-eval's requests.

        Raises:
            UsageError: a request that cannot be answered.
        """
        prompts = self._prompt_maker().prompts(requests, self.page)
        for prompt in prompts:
            assert isinstance(prompt.request, AnswerRequest)
            where = f"{prompt.task} document {prompt.doc_id}"
            check_generation(self._inner.generation_config, prompt.request, where)
        return prompts

    def contexts(self, requests: Sequence[Instance]) -> tuple[list[Prompt], list[tuple[int, int]]]:
        """The same for requests of likelihoods, see `PromptMaker.contexts`.

        Raises:
            UsageError: a request that cannot be answered.
        """
        dtype = self.softmax_dtype or torch.float32
        return self._prompt_maker().contexts(requests, self.page, dtype)

    def _prompt_maker(self) -> PromptMaker:
        return PromptMaker(
            lambda text: self.tok_batch_encode([text])[0][0].tolist(),
            self._pair,
            self._text,
            self.tokenizer,
            self.tok_decode(self.eot_token_id, skip_special_tokens=False),
            self.max_length,
            self.max_gen_toks,
        )

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of a context and its continuation, as lm-eval's `hf` model takes them."""
        if context:
            pair: tuple[list[int], list[int]] = self._encode_pair(context, continuation)
            return pair
        ids = self.tok_encode(continuation, add_special_tokens=False)
        if ids[:1] == [self.prefix_token_id]:
            return ids[:1], ids[1:]
        return [self.prefix_token_id], ids

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        """As in `hf`; τ belongs to prompts with a template or to prompts without."""
        self._chat = True
        templated: str = super().apply_chat_template(*args, **kwargs)
        return templated

    @property
    def chat(self) -> bool:
        """Whether a chat template was applied."""
        return self._chat

    def take_rendering(self, chat: bool) -> None:
        """Know of requests that another copy of this model rendered whether it used a template."""
        self._chat = chat

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refused: lm-eval's --use_cache keys ignore the model, the evictor and the budget."""
        raise UsageError(
            "use_cache does not work with page_hf: its keys ignore the evictor and the budget, so "
            "one arm would be answered from another's cache; leave it out."
        )

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to `results["config"]`; called once the answers are scored."""
        info: dict[str, Any] = super().get_model_info()
        info["page"] = self._record.close(self._told)
        return info

    @property
    def _told(self) -> dict[str, Any]:
        return {**self.settings, "chat_template": self._chat}

    def _said(self, prompt: Prompt, outcome: Outcome) -> str:
        """The answer's text; empty where continuations were given."""
        if isinstance(prompt.request, ContinuationRequest):
            return ""
        return self._text(outcome.answer.answer_ids, prompt.request.stop)

    def _was_cut(self, prompt: Prompt, outcome: Outcome) -> bool | None:
        """Whether nothing but the length limit ended the answer; None for given continuations."""
        if isinstance(prompt.request, ContinuationRequest):
            return None
        ends = end_tokens(self._inner.generation_config, prompt.request)
        text = self.tok_decode(outcome.answer.answer_ids, skip_special_tokens=False)
        return is_cut(outcome.answer.answer_ids, text, prompt.request, ends)

    def _text(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Answer tokens as lm-eval's `hf` model hands them to the task."""
        end = self.think_end_token
        if isinstance(end, int) and end in ids:
            ids = ids[len(ids) - list(reversed(ids)).index(end) :]
            text = self.tok_decode(list(ids)).lstrip()
        else:
            text = self.tok_decode(list(ids))
        return postprocess_generated_text(text, list(stop), end if isinstance(end, str) else None)
