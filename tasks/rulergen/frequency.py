"""Counting words: RULER's tasks cwe (common words) and fwe (frequent words)."""

from __future__ import annotations

import math
import random
import string

from page_bench.tasks.rulergen.draft import Draft, SampleText
from page_bench.tasks.rulergen.templates import Templates, fill
from page_bench.tasks.rulergen.words import Words

_COMMON = 10
_ZETA_2 = math.pi**2 / 6
# From here on, the five most frequent words of fwe differ in their counts.
_FEWEST_CODED_WORDS = 80


def cwe_draft(seed: str, length: int, templates: Templates, words: Words) -> Draft:
    """A cwe sample: a numbered list in which ten words come more often than the others.

    Below 4,096 tokens the ten come six times and the others once, else 30 and three times. A list
    of 20 or 40 other words with its answer goes before. All that is drawn depends on the seed.
    """
    short = length < 4096
    shown, often_shown, seldom_shown = (20, 3, 1) if short else (40, 10, 3)
    often, seldom = (6, 1) if short else (30, 3)
    order = random.Random(f"{seed} words").sample(words.every, len(words.every))
    example_words, own = order[:shown], order[shown:]

    def listed(chosen: list[str], common: int, uncommon: int, name: str) -> str:
        items = chosen[:_COMMON] * common + chosen[_COMMON:] * uncommon
        random.Random(f"{seed} {name}").shuffle(items)
        return _numbered(items)

    context, question = fill(
        templates.cwe, listed(example_words, often_shown, seldom_shown, "example")
    )
    answer = _numbered(example_words[:_COMMON])
    example = f"{context}{question} {templates.cwe_prefix} {answer}\n"

    def build(units: int) -> SampleText:
        chosen = own[: _COMMON + units]
        context, question = fill(templates.cwe, listed(chosen, often, seldom, "list"))
        prefix, answer = f" {templates.cwe_prefix}", tuple(own[:_COMMON])
        return SampleText(example + context, question, prefix, answer)

    unit, end = f"uncommon word (×{seldom})", "the word list is at its end"
    return Draft(build, 1, len(own) - _COMMON, unit, "word list", end)


def fwe_draft(seed: str, length: int, templates: Templates) -> Draft:
    """An fwe sample: made-up words, of which the k-th most frequent has a share of k⁻²/ζ(2).

    The most frequent "word" is "..."; the three after it are asked for. There are length/50 words.
    """
    rng = random.Random(f"{seed} vocabulary")
    vocabulary: dict[str, None] = {"...": None}  # in the order drawn
    while len(vocabulary) < max(length // 50, 5):
        vocabulary["".join(rng.choices(string.ascii_lowercase, k=6))] = None
    ranked = list(vocabulary)

    def build(units: int) -> SampleText:
        text = [
            word
            for rank, word in enumerate(ranked, start=1)
            for _ in range(int(units / (rank * rank * _ZETA_2)))
        ]
        random.Random(f"{seed} order").shuffle(text)
        context, question = fill(templates.fwe, " ".join(text))
        return SampleText(context, question, f" {templates.fwe_prefix}", tuple(ranked[1:4]))

    # Three in five words are dots of at least one token.
    return Draft(build, _FEWEST_CODED_WORDS, 2 * length, "coded word", "coded words")


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))
