"""A sample whose amount of text is still open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Parts:
    """What a sample says, in the fields of the data set `simonjegou/ruler`.

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
        end: why there are no more than `most`.
        facts: what else the sample records of itself.
    """

    build: Callable[[int], Parts]
    least: int
    most: int
    unit: str
    end: str = "the text is at its end"
    facts: Mapping[str, Any] = field(default_factory=dict)
