"""Protocols: which words of a sample stand where in the prompt.

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

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from page_bench.inputs.errors import UsageError

PROTOCOLS = ("ruler", "page", "kvpress")
DEFAULT = "ruler"
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


def protocol_of(metadata: Mapping[str, Any]) -> str:
    """The protocol that a task's metadata asks for under the key `protocol`.

    Raises:
        UsageError: there is no protocol of that name.
    """
    name = metadata.get("protocol", DEFAULT)
    if name not in PROTOCOLS:
        near = difflib.get_close_matches(str(name), PROTOCOLS, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"there is no protocol {name!r}: choose one of {', '.join(PROTOCOLS)}, for example "
            f'--metadata \'{{"protocol": "{near}"}}\'.'
        )
    return str(name)


def render(row: Mapping[str, Any], protocol: str) -> Rendered:
    """A row as the protocol words it.

    Args:
        row: `context`, `question`, `answer_prefix`. The space that RULER has between question and
            answer prefix may stand at the end of the one or at the beginning of the other.
        protocol: one of `PROTOCOLS`.

    Raises:
        ValueError: there is no such protocol.
    """
    context, question, prefix = _parts(row)
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
    """The whole prompt for a model without chat template.

    Args:
        doc: `protocol` and the fields of `Rendered`.
    """
    system = f"{doc['system']}\n\n" if doc["system"] else ""
    newline = "\n" if doc["protocol"] == "kvpress" else ""
    return f"{system}{doc['prompt']}{newline}{doc['answer_prefix']}"


def _parts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Context, question and answer prefix; what space is between the last two ends the question."""
    prefix = row["answer_prefix"].lstrip(" ")
    space = row["answer_prefix"][: len(row["answer_prefix"]) - len(prefix)]
    return row["context"], row["question"] + space, prefix
