"""The one exception for what a user can put right."""

from __future__ import annotations

import unicodedata

_LONGEST = 2000
"""Characters of a sentence; of a longer one the middle is left out."""
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of characters that a terminal obeys, reorders by or cannot show."""


class UsageError(ValueError):
    """A mistake in what was asked for: one sentence on what was wrong, what is allowed, what to do.

    The command line prints it without a traceback and exits with status 1. What it quotes may come
    from anywhere, so that it is made one line of visible characters here.
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(one_line(str(sentence)))


def one_line(text: str) -> str:
    """A text on one line, in characters that a terminal shows; the middle of a long one is cut."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST * 2 // 3]} … {text[-_LONGEST // 4 :]}"
    if text.isprintable():
        return text
    line = " ".join(text.splitlines()).strip()
    return "".join(_shown(character) for character in line)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def not_a_number() -> UsageError:
    """The error for a model whose logits are not a number."""
    return UsageError(
        "the model's logits are not a number on this prompt; some models overflow in half "
        "precision: try dtype=float32."
    )
