"""Prompts of the group `page_quickstart`, written here and sized to the model's own tokenizer.

In the manner of RULER, a fact is hidden in a text of no interest and asked for at its end. The
three tasks share the filler, the frame and the length, and differ in the fact:

- `needle_number`: a seven-digit number, said once. A digit is attended to only when the one
  before it has been written, so the prompt's last tokens do not yet show which entries the answer
  will need: an evictor that goes by them loses the number.
- `needle_word`: an object, said once. One entry answers the question, and the question already
  attends to it: eviction is safe.
- `repeated_fact`: a place, said after every fourth sentence. Some copy always survives.

A sample depends on its task and index alone (and on the tokenizer, through the length).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from datasets import Dataset

from page_bench.inputs.errors import UsageError
from page_bench.tasks.metadata import check_names, number_in
from page_bench.tasks.tokenizer import tokenizer_of

SAMPLES = 8
PROMPT_TOKENS = 1000
MOST_TOKENS = 1_000_000

_FILLER = (
    *("A light rain fell over the harbour.", "Small boats came and went all day."),
    *("The market opened early and closed late.", "Nobody was in a hurry."),
    *("The old clock struck the hour.", "Children fed the birds near the bridge."),
    *("A dog slept in front of the bakery.", "The wind turned to the north."),
    *("Somebody played an accordion by the fountain.", "The ferry arrived on time."),
)
_COLOURS = ("blue", "green", "silver", "crimson", "yellow", "purple", "orange", "black")
_OBJECTS = (
    *("lantern", "ladder", "bicycle", "kettle", "compass", "umbrella", "violin", "suitcase"),
    *("telescope", "hammock"),
)
_PEOPLE = ("captain", "teacher", "gardener", "doctor", "painter", "tailor", "judge", "pilot")
_CITIES = ("Rome", "Paris", "Berlin", "Madrid", "Vienna", "Lisbon", "Oslo", "Dublin")

Tokenizer = Callable[[str], Any]


@dataclass(frozen=True)
class Fact:
    """What one prompt hides and asks for.

    Attributes:
        sentence: the fact as the text says it.
        question: what the prompt asks, its frame included.
        stem: the beginning of the answer's sentence, which the model has to go on from.
        answer: the reference.
        every: said after every so many filler sentences; None for once.
    """

    sentence: str
    question: str
    stem: str
    answer: str
    every: int | None = None


def needle_number(**metadata: Any) -> dict[str, Dataset]:
    """The data set of `page_quickstart_needle_number`; see `build`."""
    return build("needle_number", _number, metadata)


def needle_word(**metadata: Any) -> dict[str, Dataset]:
    """The data set of `page_quickstart_needle_word`; see `build`."""
    return build("needle_word", _purchase, metadata)


def repeated_fact(**metadata: Any) -> dict[str, Dataset]:
    """The data set of `page_quickstart_repeated_fact`; see `build`."""
    return build("repeated_fact", _home, metadata)


def build(
    task: str, fact_of: Callable[[random.Random], Fact], metadata: dict[str, Any]
) -> dict[str, Dataset]:
    """Make the samples of one task, as lm-eval's `custom_dataset` wants them.

    Args:
        task: the seed, together with the sample's index.
        fact_of: draws a sample's fact.
        metadata: what lm-eval passes: the model arguments and `--metadata`. Read are `tokenizer`
            or `pretrained` (left out: the default model) with their loading arguments, and
            `prompt_tokens`, the upper limit on a prompt's length without chat template.

    Raises:
        UsageError: `prompt_tokens` is no whole number, or not even one sentence of filler fits into
            it; or the metadata has a protocol or a draw seed, which these prompts do not know.
    """
    check_names(metadata)
    for name in ("protocol", "draw_seed"):
        if metadata.get(name) is not None:
            raise UsageError(
                f"page_quickstart has one wording and one order, so {name} changes nothing in it: "
                "leave it out, or run page_quickstart by itself."
            )
    limit = number_in(metadata, "prompt_tokens", at_most=MOST_TOKENS) or PROMPT_TOKENS
    tokenizer = tokenizer_of(metadata)
    rows = []
    for index in range(SAMPLES):
        rng = random.Random(f"page_quickstart {task} {index}")
        fact = fact_of(rng)
        depth = (index + 0.5) / SAMPLES
        prompt, length = _longest(fact, _filler(rng), depth, tokenizer, limit)
        rows.append(
            {
                "prompt": prompt,
                "answer_prefix": _answer_prefix(fact),
                "answers": [fact.answer],
                "match": "all",
                "depth": depth,
                "prompt_tokens": length,
            }
        )
    return {"test": Dataset.from_list(rows)}


def _number(rng: random.Random) -> Fact:
    thing = f"{rng.choice(_COLOURS)} {rng.choice(_OBJECTS)}"
    number = str(rng.randrange(10**6, 10**7))
    return Fact(
        sentence=f"The secret number of the {thing} is {number}.",
        question=f"The text gives the secret number of the {thing}. What are its seven digits?",
        stem=f"The secret number of the {thing} is",
        answer=number,
    )


def _purchase(rng: random.Random) -> Fact:
    person, thing = rng.choice(_PEOPLE), rng.choice(_OBJECTS)
    return Fact(
        sentence=f"The {person} bought a new {thing}.",
        question=f"The text says what the {person} bought. What did the {person} buy?",
        stem=f"The {person} bought a new",
        answer=thing,
    )


def _home(rng: random.Random) -> Fact:
    person, city = rng.choice(_PEOPLE), rng.choice(_CITIES)
    return Fact(
        sentence=f"The {person} lives in {city}.",
        question=f"The text says where the {person} lives. Where does the {person} live?",
        stem=f"The {person} lives in",
        answer=city,
        every=4,
    )


def _filler(rng: random.Random) -> Iterator[str]:
    """Sentences without end; none comes twice before all have come."""
    while True:
        yield from rng.sample(_FILLER, len(_FILLER))


def _longest(
    fact: Fact, filler: Iterator[str], depth: float, tokenizer: Tokenizer, limit: int
) -> tuple[str, int]:
    """The prompt with the most filler whose tokens, answer prefix included, are within `limit`."""
    sentences = list(islice(filler, limit))  # a sentence has more than one token

    def measured(n: int) -> tuple[str, int]:
        prompt = _prompt(fact, sentences[:n], depth)
        return prompt, len(tokenizer(prompt + _answer_prefix(fact)).input_ids)

    low, high = 1, len(sentences)
    if not sentences or measured(low)[1] > limit:
        raise UsageError(f"prompt_tokens={limit} leaves no room for a text: take 100 or more.")
    while low < high:
        middle = (low + high + 1) // 2
        if measured(middle)[1] <= limit:
            low = middle
        else:
            high = middle - 1
    return measured(low)


def _prompt(fact: Fact, sentences: list[str], depth: float) -> str:
    """Instruction, text with its fact, question; what follows is the answer prefix."""
    if fact.every is None:
        at = round(depth * len(sentences))
        text = [*sentences[:at], fact.sentence, *sentences[at:]]
    else:
        text = []
        for i, sentence in enumerate(sentences, start=1):
            text += [sentence, fact.sentence] if i % fact.every == 0 else [sentence]
    return (
        f"Read the text, then answer the question.\n{' '.join(text)}\nQuestion: {fact.question}\n"
    )


def _answer_prefix(fact: Fact) -> str:
    return f"Answer: {fact.stem}"
