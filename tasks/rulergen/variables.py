"""Variable tracking: RULER's task vt."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable

from page_bench.tasks.ruler import RULES
from page_bench.tasks.rulergen.draft import Draft, SampleText, longest
from page_bench.tasks.rulergen.templates import Templates, fill

HOPS = 4
EXAMPLE_TOKENS = 500
"""What the one-shot example has at most, room for its answer included."""


def draft(seed: str, length: int, templates: Templates, count: Callable[[str], int]) -> Draft:
    """A vt sample: one chain of five variables in noise, after an example of the same kind.

    `count` gives a text's tokens, for the length of the example. Where not even one line of noise
    fits into it, as with one token for each byte, it has that one line.
    """
    rng = random.Random(f"{seed} chain")
    value, value_shown = (str(v) for v in rng.sample(range(10_000, 100_000), 2))
    names, names_shown = _names(rng, 5), _names(rng, 3)

    def shown(lines: int) -> str:
        context, question, prefix = _parts(templates, names_shown, value_shown, lines, seed + " x")
        return f"{context}{question}{prefix} {' '.join(names_shown)}"

    most = EXAMPLE_TOKENS
    found = longest(lambda n: count(shown(n)), 1, most, EXAMPLE_TOKENS - RULES["vt"].max_new_tokens)
    example = shown(1 if found is None else found[0])

    def build(units: int) -> SampleText:
        context, question, prefix = _parts(templates, names, value, units, seed)
        return SampleText(f"{example}\n\n\n\n{context}", question, prefix, tuple(names))

    return Draft(build, 1, length, "line of noise", "noise")


def _names(rng: random.Random, letters: int) -> list[str]:
    names: dict[str, None] = {}  # in the order drawn
    while len(names) < HOPS + 1:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    return list(names)


def _parts(
    templates: Templates, names: list[str], value: str, lines: int, seed: str
) -> tuple[str, str, str]:
    """Context, question, answer prefix."""
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {name} = VAR {before} " for before, name in itertools.pairwise(names)]
    text = [templates.vt_line] * lines
    if lines < len(chain):  # the assignments go between sentences
        text = [f"{s.strip()}." for s in templates.vt_line.split(".") if s.strip()] * lines
    places = sorted(random.Random(f"{seed} places").sample(range(len(text)), len(chain)))
    for place, assignment in zip(reversed(places), reversed(chain), strict=True):
        text.insert(place, assignment)
    context, question = fill(templates.vt, " ".join(text), query=value)
    return context, question, " " + templates.vt_prefix.format(num_v=len(names), query=value)
