"""The prose that needles hide in."""

from __future__ import annotations

import glob
import hashlib
import os
import random
import re
from dataclasses import dataclass
from functools import lru_cache

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import is_there, user_path
from page_bench.tasks.metadata import first_line

HUB_ESSAYS = "baber/paul_graham_essays"
SYNTHETIC = "synthetic"
VARIABLE = "PAGE_BENCH_ESSAYS"

_SYNTHETIC_WORDS = 120_000

_SUBJECTS = (
    *("a young merchant", "the old librarian", "my neighbour", "the committee"),
    *("one of the sailors", "every apprentice", "the editor of the paper", "her brother"),
    *("a careful reader", "the village council", "nobody in the office", "the second engineer"),
)
_VERBS = (
    *("described", "defended", "forgot about", "returned to", "was proud of"),
    *("wrote at length about", "never understood", "kept a record of", "argued over"),
    *("slowly gave up", "could not explain", "learned from"),
)
_OBJECTS = (
    *("the plan for a new bridge", "the quiet habits of the town"),
    *("an idea that had seemed foolish", "the price of timber", "a long and uncertain journey"),
    *("the work of earlier generations", "the garden behind the mill"),
    *("a letter without a signature", "the first draft of the report"),
    *("the customs of the coast", "an argument about money", "the sound of the evening train"),
)
_OPENINGS = (
    *("", "", "", "In those years ", "As a rule ", "To everyone's surprise ", "Later that week "),
    *("Before the winter ", "For reasons of its own kind "),
)
_ENDINGS = (
    *("", "", "", ", which changed very little", ", although the weather was poor"),
    *(", and most people agreed", " while the others waited", " without asking for advice"),
    ", or so it was told",
)


@dataclass(frozen=True)
class Essay:
    """A text as its words, named after its data set or file, or "synthetic"."""

    name: str
    words: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes with any of the words."""
        return hashlib.sha256(" ".join(self.words).encode()).hexdigest()[:16]

    def sentences(self, words: int) -> list[str]:
        """The first so many words, cut into sentences; the text begins anew where it ends.

        A sentence ends at a full stop, question mark or exclamation mark before a space, an
        abbreviation's included.
        """
        times, rest = divmod(words, len(self.words))
        text = " ".join(self.words * times + self.words[:rest])
        return re.split(r"(?<=[.!?]) |(?<=[.!?][\"')\]”’]) ", text)


@lru_cache(maxsize=2)
def load(source: str | None = None) -> Essay:
    """A text by its name.

    Args:
        source: a text file; a data set, local or on the Hub, with a split "train" and a column
            "text"; or "synthetic" for sentences put together at random, which need no file. None
            for what the environment variable `PAGE_BENCH_ESSAYS` says, else the essays on the Hub
            that lm-eval takes.

    Raises:
        UsageError: there is no such text, or no words in it.
    """
    name = source or os.environ.get(VARIABLE) or HUB_ESSAYS
    if name == SYNTHETIC:
        return Essay(SYNTHETIC, _synthetic())
    file = user_path(name, "essays")
    if file.is_file():
        try:
            text = text_file.read(file)
        except (OSError, text_file.NotText) as error:
            raise UsageError(
                f"the essays in {file} cannot be read ({error}); save them as UTF-8, or name "
                f"another text."
            ) from error
    else:
        text = _data_set(name)
    words = tuple(text.split())
    if not words:
        raise UsageError(f"the essays in {name} hold no words; name another text as `essays`.")
    return Essay(name, words)


def _data_set(name: str) -> str:
    from datasets import load_dataset

    if is_there(name) and glob.has_magic(name):
        raise UsageError(
            f"the folder {name} has one of * ? [ in its name, which the package datasets takes for "
            f"a pattern of others; rename it, or name another text as `essays`."
        )
    try:
        return " ".join(load_dataset(name, split="train")["text"])
    except Exception as error:  # datasets raises what its many readers raise
        raise UsageError(
            f"The essays of RULER's haystack could not be loaded from {name} "
            f"({first_line(error)}): give a text "
            'file or a data set with --metadata \'{"essays": "FILE"}\' or in the environment '
            f'variable {VARIABLE}, or "synthetic" for sentences put together at random.'
        ) from error


def _synthetic() -> tuple[str, ...]:
    rng = random.Random("synthetic prose")
    words: list[str] = []
    while len(words) < _SYNTHETIC_WORDS:
        opening, subject = rng.choice(_OPENINGS), rng.choice(_SUBJECTS)
        clause = f"{subject} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice(_ENDINGS)}"
        text = f"{opening}{clause}"
        words += f"{text[0].upper()}{text[1:]}.".split()
    return tuple(words)
