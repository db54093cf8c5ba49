"""LongBench: the task and its documents under a protocol.

A task is a subset under a protocol (metadata key `protocol`):

- `longbench`, the default, is the benchmark's own: its prompt, cut in the middle when it is longer
  than the limit, and no chat template on six subsets.
- `page` is the PAGE paper's: system message, and inputs above 24,000 tokens skipped, not cut.
- `kvpress`: chat template on every subset, answer prefix in the model's turn, 20 tokens more for
  the answer, contexts cut on the right.

The document, not the model, is cut, so that every model with the same tokenizer reads the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.tasks import longbench_prompts as prompts
from page_bench.tasks.lazy_docs import LazyDocs
from page_bench.tasks.longbench_rows import check_row, rows_of
from page_bench.tasks.longbench_subsets import PROTOCOLS, max_new_tokens, rules_of
from page_bench.tasks.metadata import check_names, number_in, protocol_in
from page_bench.tasks.prompt_task import PromptTask
from page_bench.tasks.protocols import Rendered, plain_text, render, templated
from page_bench.tasks.tokenizer import tokenizer_of

PAGE_LONGBENCH_SYSTEM = "Answer the question based on the context. Be concise."
PAGE_LONGEST = 24_000
LONGEST = 31_500  # what LongBench gives its models of 32K
RESERVE = 596  # what LongBench keeps free in 4,096 positions: 512 for the answer, and the template

FIELDS = (
    *("subset", "row", "protocol", "system", "prompt", "answer_prefix", "context", "answers"),
    *("match", "match_paper", "max_new_tokens", "until", "chat", "all_classes", "length"),
    *("language", "longest", "prompt_tokens", "cut_tokens", "skipped"),
)
"""The fields of a document."""

_log = logging.getLogger(__name__)


class LongBenchTask(PromptTask):
    """A subset; its documents say whether LongBench leaves out even a chat template asked for."""

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> Any:
        templated = apply_chat_template and doc["chat"]
        return super().fewshot_context(doc, num_fewshot, system_instruction, templated, **kwargs)


def load(longbench_subset: str, **metadata: Any) -> dict[str, LazyDocs]:
    """The documents of one subset, as lm-eval's `custom_dataset` wants them.

    Args:
        longbench_subset: a name of `longbench_subsets.SUBSETS` or `SUBSETS_E`.
        metadata: what lm-eval passes: the model arguments and `--metadata`. Read are
            `protocol`;
            `longbench_data` or the environment variable `PAGE_BENCH_LONGBENCH`, see `rows_of`;
            `tokenizer` or `pretrained` (left out: the default model) with their loading arguments;
            `longbench_max_length`, the limit on a prompt in tokens before the chat template. Left
            out, it is the least of 31,500, the model argument `max_length` less 596, and the
            tokenizer's own limit less 596;
            `longbench_skip_above`, the limit of the protocol `page`: 24,000 tokens, chat template
            included.

    Returns:
        {"test": the documents}.

    Raises:
        UsageError: unknown protocol, no data, a package of the metrics is missing, or no input is
            short enough.
    """
    check_names(metadata)
    protocol = protocol_in(metadata, PROTOCOLS, "LongBench")
    if metadata.get("draw_seed") is not None:
        raise UsageError("draw_seed draws from RULER's sets; LongBench is run whole: leave it out.")
    rows = rows_of(longbench_subset, metadata)
    tokenizer = tokenizer_of(metadata)
    template = prompts.template_of(longbench_subset)
    rules = rules_of(longbench_subset)

    for number, row in enumerate(rows):
        check_row(row, longbench_subset, number)
    prompts.parts_of(rows[0], template)  # a copy of other fields ends here

    def parts_of(index: int) -> prompts.PromptParts:
        return prompts.parts_of(rows[index], template)

    kept = list(range(len(rows)))
    if protocol == "page":
        longest = number_in(metadata, "longbench_skip_above") or PAGE_LONGEST
        kept = [index for index in kept if _fits(parts_of(index), tokenizer, longest)]
        _report_skipped(longbench_subset, len(rows), len(kept), longest)
    else:
        longest = _limit(metadata, tokenizer)

    def document(index: int) -> dict[str, Any]:
        row, parts = rows[index], parts_of(index)
        if protocol == "page":
            cut = prompts.Cut(_page_prompt(parts).prompt, parts.context, None, 0)
        elif protocol == "kvpress":
            cut = prompts.cut_right(parts.context, parts.question, tokenizer, longest)
        else:
            cut = prompts.cut_middle(parts.context, parts.asked, tokenizer, longest)
        return {
            "subset": longbench_subset,
            "row": index,
            "protocol": protocol,
            "system": PAGE_LONGBENCH_SYSTEM if protocol == "page" else "",
            "prompt": cut.prompt,
            "answer_prefix": parts.answer_prefix if protocol == "kvpress" else "",
            "context": cut.context,
            "answers": [str(answer) for answer in row["answers"]],
            "match": "any",
            "match_paper": "any",
            "max_new_tokens": max_new_tokens(longbench_subset, protocol),
            "until": list(rules.until) if protocol == "longbench" else [],
            "chat": protocol != "longbench" or rules.chat,
            "all_classes": list(row.get("all_classes") or []),
            "length": row.get("length") or 0,
            "language": str(row.get("language") or ""),
            "longest": longest,
            "prompt_tokens": cut.tokens,
            "cut_tokens": cut.cut_tokens,
            "skipped": len(rows) - len(kept),
        }

    return {"test": LazyDocs(FIELDS, document, kept)}


def reference(doc: Mapping[str, Any]) -> str:
    """A document's first reference (lm-eval's `doc_to_target`)."""
    return str(doc["answers"][0])


def _page_prompt(parts: prompts.PromptParts) -> Rendered:
    return Rendered(PAGE_LONGBENCH_SYSTEM, render(vars(parts), "page").prompt, "")


def _fits(parts: prompts.PromptParts, tokenizer: Any, longest: int) -> bool:
    """Whether a prompt, system message and chat template included, has at most `longest` tokens."""
    rendered = _page_prompt(parts)
    if tokenizer.chat_template:
        text = templated(rendered, tokenizer)
    else:
        text = plain_text({**vars(rendered), "protocol": "page"})
    # No token has less than a byte, so a short text need not be tokenized.
    if len(text.encode()) <= longest:
        return True
    return len(tokenizer(text, add_special_tokens=False).input_ids) <= longest


def _report_skipped(subset: str, inputs: int, kept: int, longest: int) -> None:
    if not kept:
        raise UsageError(
            f"all {inputs} inputs of {subset} are longer than {longest} tokens, which the protocol "
            "page skips: raise the limit with --metadata '{\"longbench_skip_above\": N}'."
        )
    if kept < inputs:
        _log.warning(
            "%s: %d of %d inputs are longer than %d tokens and are skipped",
            *(subset, inputs - kept, inputs, longest),
        )


def _limit(metadata: Mapping[str, Any], tokenizer: Any) -> int:
    limit = number_in(metadata, "longbench_max_length")
    if limit is None:
        windows = [int(tokenizer.model_max_length), number_in(metadata, "max_length") or 10**9]
        limit = min(LONGEST, *(window - RESERVE for window in windows))
    if limit < 2:
        raise UsageError(
            f"a limit of {limit} tokens leaves nothing of LongBench's prompts: take a larger "
            f"max_length ({RESERVE} less is used) or longbench_max_length."
        )
    return limit
