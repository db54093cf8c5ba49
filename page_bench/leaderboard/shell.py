"""Commands as one line of text: words quoted for a shell, and read back."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable

_WORD = re.compile(
    r"""\s+
      | (?P<escaped>\$'(?:[^'\\]|\\.)*')(?=\s|$)
      | (?P<quoted>(?:'[^']*' | "(?:[^"\\]|\\.)*" | \\. | (?!\$['"])[^\s'"\\])+)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|U[0-9a-f]{8}|x[0-9a-f]{2}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


def joined(words: Iterable[str]) -> str:
    """The command of these words, without a control character.

    A word that holds one is written as `$'…'`, which bash, zsh and ksh read.
    """
    return " ".join(_escaped(word) if _is_escaped(word) else shlex.quote(word) for word in words)


def split(command: str) -> list[str]:
    """The words of a command that `joined` wrote, or that a shell reads alike.

    Raises:
        ValueError: a quotation is not closed.
    """
    words, at = [], 0
    while at < len(command):
        found = _WORD.match(command, at)
        if found is None:
            raise ValueError("No closing quotation")
        if found["escaped"]:
            words.append(_ESCAPE.sub(_character, found["escaped"][2:-1]))
        elif found["quoted"]:
            words += shlex.split(found["quoted"])
        at = found.end()
    return words


def _is_escaped(word: str) -> bool:
    return any(unicodedata.category(character).startswith("C") for character in word)


def _escaped(word: str) -> str:
    names = {character: name for name, character in _LETTERS.items()}
    made = []
    for character in word:
        if character in names:
            made.append(f"\\{names[character]}")
        elif character in "\\'":
            made.append(f"\\{character}")
        elif not _is_escaped(character):
            made.append(character)
        elif ord(character) < 0x10000:
            made.append(f"\\u{ord(character):04x}")
        else:
            made.append(f"\\U{ord(character):08x}")
    return f"$'{''.join(made)}'"


def _character(escape: re.Match[str]) -> str:
    text = escape[1]
    return chr(int(text[1:], 16)) if len(text) > 1 else _LETTERS.get(text, text)
