"""LongBench: the documents that its rows become under a protocol.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from page_bench.config import check_integer
from page_bench.inputs.errors import UsageError
from page_bench.tasks import longbench_prompts as prompts
from page_bench.tasks.longbench_rows import check_row, rows_of
from page_bench.tasks.longbench_subsets import max_new_tokens, protocol_of, rules_of
from page_bench.tasks.metadata import check_names
from page_bench.tasks.protocols import render
from page_bench.tasks.tokenizer import tokenizer_of

PAGE_LONGBENCH_SYSTEM = "Answer the question based on the context. Be concise."
PAGE_LONGEST = 24_000
LONGEST = 31_500  # what LongBench gives its models of 32K
RESERVE = 596  # what LongBench keeps free in 4,096 positions: 512 for the answer, and the template

_log = logging.getLogger(__name__)


def load(longbench_subset: str, **metadata: Any) -> dict[str, Docs]:
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
    protocol = protocol_of(metadata)
    if metadata.get("draw_seed") is not None:
        raise UsageError("draw_seed draws from RULER's sets; LongBench is run whole: leave it out.")
    rows = rows_of(longbench_subset, metadata)
    tokenizer = tokenizer_of(metadata)
    template = prompts.template_of(longbench_subset)

    def parts_of(index: int) -> prompts.Parts:
        check_row(rows[index], longbench_subset, index)
        return prompts.parts_of(rows[index], template)

    if protocol == "page":
        longest = _number(metadata, "longbench_skip_above") or PAGE_LONGEST
        kept = [
            index
            for index in range(len(rows))
            if _fits(_page_prompt(parts_of(index)), tokenizer, longest)
        ]
        _report_skipped(longbench_subset, len(rows), len(kept), longest)
    else:
        longest = _limit(metadata, tokenizer)
        kept = list(range(len(rows)))

    def document(index: int) -> dict[str, Any]:
        parts = parts_of(index)
        if protocol == "page":
            prompt = _page_prompt(parts)
            cut = prompts.Cut(prompt, parts.context, None, 0)
            system, prefix = PAGE_LONGBENCH_SYSTEM, ""
        elif protocol == "kvpress":
            cut = prompts.cut_right(parts.context, parts.question, tokenizer, longest)
            system, prefix = "", parts.answer_prefix
        else:
            cut = prompts.cut_middle(parts.context, parts.asked, tokenizer, longest)
            system, prefix = "", ""
        return {
            "subset": longbench_subset,
            "row": index,
            "protocol": protocol,
            "system": system,
            "prompt": cut.prompt,
            "answer_prefix": prefix,
            "context": cut.context,
            "answers": [str(answer) for answer in rows[index]["answers"]],
            "match": "any",
            "match_paper": "any",
            "max_new_tokens": max_new_tokens(longbench_subset, protocol),
            "until": list(rules_of(longbench_subset).until) if protocol == "longbench" else [],
            "chat": protocol != "longbench" or rules_of(longbench_subset).chat,
            "all_classes": list(rows[index].get("all_classes") or []),
            "length": rows[index].get("length") or 0,
            "language": str(rows[index].get("language") or ""),
            "longest": longest,
            "prompt_tokens": cut.tokens,
            "cut_tokens": cut.cut_tokens,
            "skipped": len(rows) - len(kept),
        }

    return {"test": Docs(kept, document)}


class Docs(Sequence[dict[str, Any]]):
    """Documents that are made when they are first asked for.

    What lm-eval needs of a data set: length, items, `features`.
    """

    def __init__(self, rows: Sequence[int], document: Callable[[int], dict[str, Any]]) -> None:
        self._rows, self._document = rows, document
        self._made: dict[int, dict[str, Any]] = {}

    @property
    def features(self) -> dict[str, None]:
        return dict.fromkeys(self[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        if row not in self._made:
            self._made[row] = self._document(row)
        return dict(self._made[row])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))


def reference(doc: Mapping[str, Any]) -> str:
    """A document's first reference (lm-eval's `doc_to_target`)."""
    return str(doc["answers"][0])


def _page_prompt(parts: prompts.Parts) -> str:
    row = {
        "context": parts.context,
        "question": parts.question,
        "answer_prefix": parts.answer_prefix,
    }
    return render(row, "page").prompt


def _fits(prompt: str, tokenizer: Any, longest: int) -> bool:
    """Whether a prompt, system message and chat template included, has at most `longest` tokens."""
    if tokenizer.chat_template:
        text = _templated(prompt, tokenizer)
    else:
        text = f"{PAGE_LONGBENCH_SYSTEM}\n\n{prompt}"
    # No token has less than a byte, so a short text need not be tokenized.
    if len(text.encode()) <= longest:
        return True
    return len(tokenizer(text, add_special_tokens=False).input_ids) <= longest


def _templated(prompt: str, tokenizer: Any) -> str:
    from jinja2 import TemplateError

    turns = [{"role": "user", "content": prompt}]
    system = [{"role": "system", "content": PAGE_LONGBENCH_SYSTEM}]
    options = {"tokenize": False, "add_generation_prompt": True}
    try:
        return str(tokenizer.apply_chat_template(system + turns, **options))
    except TemplateError:  # some templates refuse a system message, and lm-eval drops it then
        return str(tokenizer.apply_chat_template(turns, **options))


def _report_skipped(subset: str, inputs: int, kept: int, longest: int) -> None:
    if not kept:
        raise UsageError(
            f"all {inputs} inputs of {subset} are longer than {longest} tokens, which the protocol "
            "page skips: raise the limit with --metadata '{\"longbench_skip_above\": N}'."
        )
    if kept < inputs:
        _log.warning(
            "%s: %d of %d inputs are longer than %d tokens and are skipped",
            subset,
            inputs - kept,
            inputs,
            longest,
        )


def _limit(metadata: Mapping[str, Any], tokenizer: Any) -> int:
    limit = _number(metadata, "longbench_max_length")
    if limit is None:
        windows = [int(tokenizer.model_max_length), _number(metadata, "max_length") or 10**9]
        limit = min(LONGEST, *(window - RESERVE for window in windows))
    if limit < 2:
        raise UsageError(
            f"a limit of {limit} tokens leaves nothing of LongBench's prompts: take a larger "
            f"max_length (it is lessened by {RESERVE}) or longbench_max_length."
        )
    return limit


def _number(metadata: Mapping[str, Any], name: str) -> int | None:
    if metadata.get(name) is None:
        return None
    check_integer(name, metadata[name], at_least=1)
    return int(metadata[name])
