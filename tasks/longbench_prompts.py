"""LongBench's prompts: their parts, and the cut to length.

The templates are not here. A row of the Hub's `Xnhyacinth/LongBench` carries its own: the
instruction in `context`, "Question:" in `question`, and `answer_prefix` beside them. lm-eval 0.4.13
puts its template around such a row a second time. A row of the original data (`context`, `input`)
has none, and gets lm-eval's, with the white space that it lost put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
import yaml

from page_bench.inputs.errors import UsageError

_CONTEXT, _QUESTION = "{{context}}", "{{question}}"
# LongBench's templates end in these; lm-eval's in none.
_ENDINGS = {"passage_count": " ", "passage_retrieval_en": " ", "lcc": "\n", "repobench-p": "\n"}
# LongBench has a blank line between context and question here; lm-eval a newline.
_BLANK_LINE = ("triviaqa", "samsum")


@dataclass(frozen=True)
class PromptParts:
    """A prompt in three pieces, which follow each other without anything between.

    Attributes:
        context: all that is before the question, instructions included.
        question: empty for some subsets.
        answer_prefix: the line that the answer goes on from.
    """

    context: str
    question: str
    answer_prefix: str

    @property
    def asked(self) -> str:
        """Question and answer prefix; the prefix once only.

        The Hub's samsum says it twice: at the end of `question`, too.
        """
        said = self.answer_prefix.strip()
        if said and self.question.rstrip().endswith(said):
            return self.question
        return self.question + self.answer_prefix


@dataclass(frozen=True)
class Cut:
    """A prompt within its limit, which begins with what is left of its context.

    `tokens` counts those before the cut, None where nobody counted; `cut_tokens` those gone.
    """

    prompt: str
    context: str
    tokens: int | None
    cut_tokens: int


@cache
def template_of(subset: str) -> str:
    """A subset's template, with {{context}} and, if it has one, {{question}}.

    Read from the installed lm-eval; white space as in LongBench. UsageError: there is none.
    """
    base = subset.removesuffix("_e")
    file = Path(lm_eval.__file__).parent / "tasks" / "longbench" / f"{base}.yaml"
    try:
        template = yaml.load(file.read_text(encoding="utf-8"), _Loader)["doc_to_text"]
        head, rest = template.split(_CONTEXT)
    except (OSError, KeyError, ValueError) as err:
        raise UsageError(
            f"the installed lm-eval has no LongBench template for {base} in {file}: "
            "install a release that page-bench is tested with (constraints.txt)."
        ) from err
    if base in _BLANK_LINE:
        rest = f"\n\n{rest.lstrip()}"
    ending = _ENDINGS.get(base, "")
    return f"{head}{_CONTEXT}{rest.rstrip() + ending if ending else rest}"


def parts_of(row: Mapping[str, Any], template: str) -> PromptParts:
    """The parts of a row's prompt; the same for a row with and without its own template.

    Args:
        row: `context`; `question` or `input`; `answer_prefix` where the row has its own template.
        template: the result of `template_of`.

    Raises:
        UsageError: the row has its own template, but no answer prefix.
    """
    head, rest = template.split(_CONTEXT)
    context = row["context"]
    question = row["question"] if "question" in row else row["input"]
    if context.startswith(head):
        if row.get("answer_prefix") is None:
            raise UsageError(
                "a LongBench row has its instruction in `context`, but no field `answer_prefix`: "
                "take the rows as they are on the Hub (Xnhyacinth/LongBench), or the original ones."
            )
        return PromptParts(context, question, row["answer_prefix"])
    if _QUESTION not in rest:  # the instruction after the context takes the question's place
        start = len(rest) - len(rest.lstrip("\n"))
        before, prefix = _last_line(rest[start:])
        return PromptParts(head + context + rest[:start], before, prefix)
    between, tail = rest.split(_QUESTION)
    start = between.rfind("\n") + 1
    context, question = head + context + between[:start], between[start:] + question
    if tail:
        before, prefix = _last_line(tail)
        return PromptParts(context, question + before, prefix)
    return PromptParts(context, *_last_line(question))


def cut_middle(context: str, question: str, tokenizer: Any, longest: int) -> Cut:
    """Keep the first and the last half of a prompt's tokens, as LongBench does.

    `longest` counts the BOS; an odd limit loses one, as in LongBench. UsageError: the tokenizer is
    no fast one, which knows where its tokens are in the text.
    """
    prompt = context + question
    ends = _token_ends(prompt, tokenizer)
    if len(ends) <= longest:
        return Cut(prompt, context, len(ends), 0)
    half = longest // 2
    # Cut in the text, not by decoding, which some tokenizers do with loss.
    left, right = ends[half - 1], ends[len(ends) - half - 1]
    kept = prompt[:left] + prompt[right:]
    of_context = min(left, len(context)) + max(0, len(context) - right)
    return Cut(kept, kept[:of_context], len(ends), len(ends) - 2 * half)


def cut_right(context: str, question: str, tokenizer: Any, longest: int) -> Cut:
    """Cut the end of a context so that it has at most `longest` tokens, as kvpress does."""
    ends = _token_ends(context, tokenizer)
    kept = context if len(ends) <= longest else context[: ends[longest - 1]]
    return Cut(kept + question, kept, len(ends), max(0, len(ends) - longest))


def _last_line(text: str) -> tuple[str, str]:
    """A text in two: up to its last line that is not blank, and the rest."""
    start = text.rstrip().rfind("\n") + 1
    return text[:start], text[start:]


def _token_ends(text: str, tokenizer: Any) -> list[int]:
    """Where each token of a text ends, in characters."""
    if not tokenizer.is_fast:
        raise UsageError(
            f"LongBench's prompts cannot be cut with {type(tokenizer).__name__}, which does not "
            "tell where a token is in the text: name a tokenizer that transformers loads as a "
            "fast one with --metadata '{\"tokenizer\": NAME}'."
        )
    return [end for _, end in tokenizer(text, return_offsets_mapping=True).offset_mapping]


class _Loader(yaml.SafeLoader):
    """Reads lm-eval's YAML without resolving its functions."""


_Loader.add_constructor("!function", lambda loader, node: node.value)
