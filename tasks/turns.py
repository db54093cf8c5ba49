"""Chat templates that leave out words of a prompt.

Some templates refuse a system message, and lm-eval then renders the messages without it; others
drop it by themselves. A prompt without these words is another prompt. So the system message moves
to the beginning of the user's turn there, and a template that loses anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from page_bench.inputs.errors import UsageError

FOLDED = "system_in_user_turn"
"""The name under which records say that a system message is in the user's turn."""

Messages = Sequence[dict[str, str]]
"""`role` and `content` each."""


def rendered(
    messages: Messages, template: Callable[[Messages], str], where: str
) -> tuple[str, bool]:
    """Messages as a chat template words them, and whether the system message had to move.

    `where` names the document. UsageError: the template leaves out a part of the prompt.
    """
    from jinja2 import TemplateError

    ways = [(messages, False)]
    if messages and messages[0]["role"] == "system":
        ways.append((folded(messages), True))
    reason = ""
    for turns, is_folded in ways:
        try:
            text = template(turns)
        except (TemplateError, ValueError) as error:
            # ValueError: transformers misses the beginning of the answer in what was rendered, and
            # goes on to repeat all of it.
            reason = f"refuses a part ({str(error).partition('!')[0]:.100})"
            continue
        missing = _missing(turns, text)
        if missing is None:
            return text, is_folded
        reason = f"leaves out the {missing} turn"
    raise UsageError(
        f"the chat template {reason} of the prompt of {where}; give another tokenizer or "
        f"chat template, or leave --apply_chat_template out."
    )


def folded(messages: Messages) -> Messages:
    """The messages with the system message at the beginning of the first user's turn."""
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _missing(messages: Messages, text: str) -> str | None:
    """The role of the first message whose words are not all there; white space is free."""
    contents = [_words(message["content"]) for message in messages]
    shown = _words(text)
    for message, own in zip(messages, contents, strict=True):
        # Words of a system message may stand in the user's as well.
        if own and shown.count(own) < sum(other.count(own) for other in contents):
            return message["role"]
    return None


def _words(text: str) -> str:
    return " ".join(text.split())
