"""`page_hf`: lm-eval's `hf` model with gated KV-cache eviction. No tensor work happens here."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from tqdm import tqdm

from page_bench import attention, default_model, loading, support
from page_bench.boundary import context_tokens
from page_bench.calibration import Threshold
from page_bench.config import PageConfig, is_ours
from page_bench.decode import AnswerRequest
from page_bench.engine import Engine, Outcome, Prompt
from page_bench.errors import UsageError
from page_bench.prefill import base_model
from page_bench.summary import RunSummary
from page_bench.trace import Answer, Trace, writable_folder, write_traces

log = logging.getLogger(__name__)


@register_model("page_hf")
class PageLM(HFLM):
    """lm-eval's `hf` model, answering `generate_until` through prefill, gate and evictor.

    Args:
        pretrained: as for `hf`; left out, the default model (see `default_model`).
        kwargs: every argument of lm-eval's `hf` model, and those of `config.PageConfig`.

    Raises:
        UsageError: an argument or a model that cannot be run, before weights are loaded where
            that is possible.
    """

    def __init__(self, pretrained: Any = None, **kwargs: Any) -> None:
        self.page = PageConfig.from_arguments({k: v for k, v in kwargs.items() if is_ours(k)})
        passed_on = {k: v for k, v in kwargs.items() if not is_ours(k)}
        passed_on.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
        name = default_model.default_pretrained() if pretrained is None else pretrained
        by_name = isinstance(name, str)
        loading.refuse_unsupported(passed_on, by_name)
        self._for_configuration = loading.configuration_arguments(passed_on)
        if not by_name:
            loading.refuse_unknown(self._for_configuration, None)
        self._asked_length = passed_on.get("max_length")
        self._trace_folder = None if self.page.trace is None else writable_folder(self.page.trace)
        self.model_name = loading.full_name(
            name if by_name else str(getattr(name, "name_or_path", type(name).__name__)), passed_on
        )
        try:
            path = default_model.resolve(name) if by_name else name
            super().__init__(pretrained=path, **passed_on)
        except OSError as error:
            if name == default_model.HUB_ID:
                raise default_model.explain_missing(error) from error
            reason = str(error).strip().partition("\n")[0]
            if by_name and name.startswith(("/", ".", "~")) and not Path(name).is_dir():
                reason = "there is no such folder."
            raise UsageError(f"{self.model_name} could not be loaded: {reason}") from error
        support.check_model(self.model, self._asked_length)
        self._inner = base_model(self.model)
        self._check_shape(self._inner.config)
        self.attn_implementation = str(self._inner.config._attn_implementation)
        loading.check_implementation(self.attn_implementation)
        if self.batch_size != 1:
            log.warning("batch_size=%s: page_hf decodes one prompt at a time", self.batch_size)
        self._summary = RunSummary()
        self._trace_file: Path | None = None
        self._untraced: str | None = None
        self._answers: list[Answer] = []

    def _get_config(self, pretrained: str, **kwargs: Any) -> None:
        """Load the configuration, and refuse what cannot be run while no weight is loaded."""
        super()._get_config(pretrained, **kwargs)
        loading.refuse_unknown(self._for_configuration, self._config)
        support.check_config(self._config, self._asked_length)
        # What is set on top of the configuration shows only once the model is loaded.
        if not self._for_configuration:
            self._check_shape(self._config)

    def _check_shape(self, config: Any) -> None:
        support.check_gate(config, self.page.gate)
        self.page.make_evictor().check(config.get_text_config())
        support.check_length(config, self._asked_length)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer lm-eval's requests; each answer carries its trace."""
        if not requests:
            return []
        seen: Counter[int] = Counter()
        prompts = []
        for request in requests:
            prompts.append(self._prompt(request, repeat=seen[id(request)]))
            seen[id(request)] += 1
        engine = Engine(self.model, self.tokenizer, self.page, torch.initial_seed())
        description = f"page_hf: {self.page.evictor}, gate {self.page.gate}"
        hidden = disable_tqdm or self.rank != 0
        mixed = self.mixed_precision_dtype
        with (
            tqdm(total=len(prompts), desc=description, disable=hidden, unit="prompt") as bar,
            torch.autocast(self.device.type, mixed, mixed is not None),
            attention.observing(self._inner),
        ):
            outcomes, threshold = engine.run(prompts, bar.update)
        self._summary = RunSummary.of(self.page, prompts, outcomes, threshold)
        for warning in self._summary.warnings:
            log.warning(warning)
        self._answers = [
            self._answer(prompt, outcome, threshold)
            for prompt, outcome in zip(prompts, outcomes, strict=True)
        ]
        if self._trace_folder is not None:
            stamp = datetime.now().isoformat().replace(":", "-")
            self._trace_file = self._trace_folder / f"trace_{stamp}.jsonl"
            self._write_traces()
            if self._untraced is None:
                log.info("trace: %s", self._trace_file)
        return list(self._answers)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> Any:
        """Refused: a likelihood is computed without a cache, so nothing would be evicted."""
        asked = ", ".join(sorted({f"{r.task_name} ({r.request_type})" for r in requests}))
        raise UsageError(
            f"page_hf answers generate_until tasks only so far; leave out {asked}, or use "
            f"--model hf for them."
        )

    loglikelihood_rolling = loglikelihood

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refused: lm-eval's --use_cache keys ignore the model, the evictor and the budget."""
        raise UsageError(
            "use_cache does not work with page_hf: its keys ignore the evictor and the budget, so "
            "one arm would be answered from another's cache; leave it out."
        )

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to `results["config"]`; called once the answers are scored."""
        info: dict[str, Any] = super().get_model_info()
        if self._trace_file is not None:
            self._write_traces()
        info["page"] = {
            "model": self.model_name,
            "dtype": self._dtype_name,
            "attn_implementation": self.attn_implementation,
            "device": str(self.device),
            **{k: v for k, v in asdict(self.page).items() if k != "doc_ids"},
            "evictor_args": asdict(self.page.make_evictor()),
            "recent": self.page.n_recent,
            **self._summary.to_config(),
            "trace_file": str(self._trace_file)
            if self._trace_file and not self._untraced
            else None,
        }
        if self._untraced:
            info["page"]["warnings"].append(self._untraced)
        return info

    @property
    def _dtype_name(self) -> str:
        name = str(self._inner.dtype).removeprefix("torch.")
        mixed = self.mixed_precision_dtype
        return name if mixed is None else f"{name}, autocast {str(mixed).removeprefix('torch.')}"

    def _prompt(self, request: Instance, repeat: int) -> Prompt:
        """A request with its token ids, equal to those of lm-eval's `hf` model."""
        text, arguments = request.args
        where = f"{request.task_name} document {request.doc_id}"
        try:
            rest: dict[str, Any] = dict(normalize_gen_kwargs(arguments, self.max_gen_toks))
            eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
            stop = handle_stop_sequences(rest.pop("until", None), eos=eos)
        except (TypeError, ValueError) as error:
            raise UsageError(f"generation arguments of {where} do not fit: {error}") from error
        max_new_tokens = rest.pop("max_gen_toks")
        if not rest.get("do_sample"):
            # Greedy decoding reads no temperature, and transformers warns of one that is set.
            rest.pop("temperature", None)
        if "max_length" in rest or max_new_tokens < 1:
            raise UsageError(
                f"the answer to {where} needs a length: give max_gen_toks as a whole number from 1 "
                f"on (not {rest.get('max_length', max_new_tokens)}, and no max_length)."
            )
        ids = self.tok_batch_encode([text])[0][0].tolist() if text else []
        if not ids:
            raise UsageError(f"the prompt of {where} is empty; leave the document out.")
        boundary = None
        if self.page.compress == "context":
            boundary = context_tokens(self.tokenizer, text, ids, request.doc, where)
        kept = _fit(range(len(ids)), self.max_length - max_new_tokens, self.page.truncation)
        if kept is None:
            raise UsageError(
                f"the prompt of {where} has {len(ids)} tokens, but {self.max_length} positions "
                f"less {max_new_tokens} answer tokens leave {self.max_length - max_new_tokens}; "
                f"give truncation=left or truncation=middle, or leave the document out."
            )
        if boundary is not None:
            boundary = sum(i < boundary for i in kept)
            if not 0 < boundary < len(kept):
                raise UsageError(
                    f"truncation leaves nothing of the context or of the question of {where}; "
                    f"give a larger max_length, or use compress=prompt."
                )
        doc_ids = self.page.doc_ids.get(request.task_name or "")
        return Prompt(
            task=request.task_name or "",
            doc_id=request.doc_id if doc_ids is None else doc_ids[request.doc_id],
            repeat=repeat,
            protocol=request.doc.get("protocol") if isinstance(request.doc, Mapping) else None,
            text=text,
            input_ids=tuple(ids[i] for i in kept),
            context_tokens=boundary,
            truncated_tokens=len(ids) - len(kept),
            request=AnswerRequest(max_new_tokens, tuple(stop), rest),
        )

    def _answer(self, prompt: Prompt, outcome: Outcome, threshold: Threshold | None) -> Answer:
        fields = asdict(outcome)
        ids = fields.pop("answer_ids")
        text = self._text(ids, prompt.request.stop)
        trace = Trace(
            model=self.model_name,
            dtype=self._dtype_name,
            attn_implementation=self.attn_implementation,
            task=prompt.task,
            doc_id=prompt.doc_id,
            protocol=prompt.protocol,
            repeat=prompt.repeat,
            prompt_sha256=prompt.sha256,
            evictor=self.page.evictor,
            evictor_args=asdict(self.page.make_evictor()),
            granularity=self.page.granularity,
            score_norm=self.page.score_norm,
            budget=self.page.budget,
            n_sink=self.page.n_sink,
            recent=self.page.n_recent,
            window=self.page.window,
            top_k=self.page.top_k,
            compress=self.page.compress,
            gate=self.page.gate,
            tau_variant=None if threshold is None else threshold.rule,
            tau=None if threshold is None else threshold.tau,
            truncated_tokens=prompt.truncated_tokens,
            z=None if threshold is None else threshold.z(outcome.drop),
            new_tokens=len(ids),
            answer=text,
            **fields,
        )
        return Answer(text, trace)

    def _text(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Answer tokens as lm-eval's `hf` model hands them to the task."""
        end = self.think_end_token
        if isinstance(end, int) and end in ids:
            ids = ids[len(ids) - list(reversed(ids)).index(end) :]
            text = self.tok_decode(list(ids)).lstrip()
        else:
            text = self.tok_decode(list(ids))
        return postprocess_generated_text(text, list(stop), end if isinstance(end, str) else None)

    def _write_traces(self) -> None:
        """Write the trace as far as it is known; a full disk must not cost the answers."""
        assert self._trace_file is not None
        try:
            write_traces(self._trace_file, (a.trace for a in self._answers if a.trace is not None))
        except OSError as error:
            self._untraced = f"the trace could not be written to {self._trace_file}: {error}"
            log.error(self._untraced)
        else:
            self._untraced = None


def _fit(positions: range, limit: int, truncation: str | None) -> list[int] | None:
    """Positions that are left when cut to `limit`; None where they may not be cut."""
    if len(positions) <= limit:
        return list(positions)
    if truncation is None or limit < 1:
        return None
    head = 0 if truncation == "left" else limit // 2
    return [*positions[:head], *positions[len(positions) - (limit - head) :]]
