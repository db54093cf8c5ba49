"""English words: the keys of needles, and the lists of cwe."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

# Some entries are numbers or several words, which a numbered list cannot show.
_ONE_WORD = "[a-z]+(-[a-z]+)*"


@dataclass(frozen=True)
class Words:
    """The lists of the package wonderwords, sorted.

    Attributes:
        nouns, adjectives: what keys are made of.
        every: nouns, adjectives and verbs, each word once.
    """

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    every: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes with any of the words."""
        text = "\n".join((*self.nouns, "", *self.adjectives, "", *self.every))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def key(self, rng: random.Random) -> str:
        """An adjective and a noun, joined by a hyphen."""
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"


@lru_cache(maxsize=1)
def load() -> Words:
    """The words."""
    from wonderwords import RandomWord

    lists = RandomWord(enhanced_prefixes=False)

    def of(*categories: str) -> tuple[str, ...]:
        return tuple(sorted(lists.filter(include_categories=categories, regex=_ONE_WORD)))

    return Words(of("noun"), of("adjective"), of("noun", "adjective", "verb"))
