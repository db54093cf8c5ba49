"""Protocols: the wording of a RULER sample's prompt.

One row of RULER becomes three prompts that differ in a system message, in white space, and in
whether the answer's beginning is the user's or the model's. Each such difference changes what a
model answers, so a prompt names its protocol:

- `ruler`: no system message; the user turn is context and question, and the answer prefix begins
  the model's turn, with the space before it (RULER's own `prepare.py`).
- `page`: a system message; the user turn is context, blank line, question, one newline and the
  answer prefix; the model's turn begins empty (the PAGE paper).
- `kvpress`: as `ruler`, but the space before the answer prefix ends the user turn, and without a
  chat template a newline separates the two (kvpress's pipeline). kvpress also turns thinking
  off; with lm-eval that is the model argument `enable_thinking=False`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROTOCOLS = ("ruler", "page", "kvpress")
PAGE_SYSTEM = "Answer the question concisely."
_PAGE_ANSWER_TOKENS = 128


def answer_tokens(protocol: str, of_the_task: int) -> int:
    """Answer tokens at most: the task's own, under `page` at least the 128 of the paper's runs."""
    return max(of_the_task, _PAGE_ANSWER_TOKENS) if protocol == "page" else of_the_task


@dataclass(frozen=True)
class Rendered:
    """A prompt before the chat template.

    Attributes:
        system: the system message; empty for none.
        prompt: the user turn. It begins with the row's context.
        answer_prefix: the beginning of the model's turn; empty for none.
    """

    system: str
    prompt: str
    answer_prefix: str


def render(row: Mapping[str, Any], protocol: str) -> Rendered:
    """A row as the protocol words it.

    Args:
        row: `context`, `question`, `answer_prefix`. The space that RULER has between question and
            answer prefix may be at the end of the one or at the beginning of the other.
        protocol: one of `PROTOCOLS`.

    Raises:
        ValueError: there is no such protocol.
    """
    context, prefix = row["context"], row["answer_prefix"].lstrip(" ")
    # What space is between them ends the question.
    question = row["question"] + " " * (len(row["answer_prefix"]) - len(prefix))
    if protocol == "page":
        answer = f"\n{prefix}" if prefix else ""
        return Rendered(PAGE_SYSTEM, f"{context}\n\n{question}{answer}", "")
    if protocol == "kvpress":
        return Rendered("", context + question, prefix)
    if protocol == "ruler":
        if not prefix:
            return Rendered("", context + question, "")
        asked = question.rstrip(" ")
        return Rendered("", context + asked, question[len(asked) :] + prefix)
    raise ValueError(f"protocol is one of {PROTOCOLS}, not {protocol!r}")


def plain_text(doc: Mapping[str, Any]) -> str:
    """The whole prompt without chat template, from `protocol` and the fields of `Rendered`."""
    system = f"{doc['system']}\n\n" if doc["system"] else ""
    newline = "\n" if doc["protocol"] == "kvpress" else ""
    return f"{system}{doc['prompt']}{newline}{doc['answer_prefix']}"


def templated(rendered: Rendered, tokenizer: Any) -> str:
    """The whole prompt in the tokenizer's chat template."""
    from jinja2 import TemplateError

    prefix = rendered.answer_prefix
    turns = [{"role": "user", "content": rendered.prompt}]
    if prefix:
        turns.append({"role": "assistant", "content": prefix})
    system = [{"role": "system", "content": rendered.system}] if rendered.system else []
    options = {"add_generation_prompt": not prefix, "continue_final_message": bool(prefix)}
    try:
        return str(tokenizer.apply_chat_template(system + turns, tokenize=False, **options))
    except TemplateError:  # some templates refuse a system message, and lm-eval drops it then
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))
