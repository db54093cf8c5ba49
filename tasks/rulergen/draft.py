"""A sample whose amount of text is still open, and the search for the amount that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class SampleText(NamedTuple):
    """The fields of the data set `simonjegou/ruler`.

    Attributes:
        context: everything before the question, instructions and one-shot example included.
        question: what is asked.
        answer_prefix: the beginning of the answer, with the space before it.
        answer: the references.
    """

    context: str
    question: str
    answer_prefix: str
    answer: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """A sample as a function of how many units of text surround what it asks for.

    Attributes:
        build: number of units → the sample. More units, more tokens; called with the same number,
            it returns the same.
        least: fewest units that hold what is asked for.
        most: no sample has more.
        unit: what is added, with its article left out.
        haystack: the kind of text, which the sample records.
        end: why there are no more than `most`.
    """

    build: Callable[[int], SampleText]
    least: int
    most: int
    unit: str
    haystack: str
    end: str = "the text is at its end"


def longest(
    measure: Callable[[int], int], low: int, high: int, limit: int
) -> tuple[int, int] | None:
    """The largest number of units, `low` to `high`, within a limit of tokens, and its tokens.

    `measure` (units → tokens) never falls. Units have about the same number of tokens each, so
    that a straight line through two measurements tells where to look next; every third step halves
    the interval, in case they have not. None when `low` is over the limit already.
    """
    tokens = measure(low)
    if tokens > limit:
        return None
    fits, over = (low, tokens), high + 1
    over_tokens: int | None = None
    step, tries = 8, 0
    while over - fits[0] > 1:
        tries += 1
        if over_tokens is None and tries == 1:
            guess = fits[0] + step
        elif tries % 3 == 0 and over_tokens is not None:
            guess = (fits[0] + over) // 2
        else:
            at, at_tokens = (over, over_tokens) if over_tokens is not None else (low, tokens)
            slope = (fits[1] - at_tokens) / (fits[0] - at) if fits[0] != at else 1.0
            guess = fits[0] + int((limit - fits[1]) / max(slope, 1e-3))
            if over_tokens is None and guess <= fits[0]:
                guess = fits[0] + 1
        guess = min(max(guess, fits[0] + 1), over - 1)
        measured = measure(guess)
        if measured <= limit:
            fits = guess, measured
        else:
            over, over_tokens = guess, measured
    return fits
