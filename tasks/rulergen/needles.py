"""Needles in a haystack: RULER's eight niah tasks."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from page_bench.inputs.errors import UsageError
from page_bench.tasks.rulergen.draft import Draft, SampleText
from page_bench.tasks.rulergen.essays import Essay
from page_bench.tasks.rulergen.templates import Templates, fill
from page_bench.tasks.rulergen.words import Words

# RULER hides needles in essays at 40 depths from 0 to 100 % of the sentences, none twice.
_DEPTHS = tuple(round(100 * i / 39) for i in range(40))


@dataclass(frozen=True)
class Form:
    """What is hidden, where, and how much of it is asked for.

    Attributes:
        haystack: "noise" (one line again and again), "essay", or "needles" (others of their kind).
        key: "words" or "uuids".
        value: "numbers" (of seven digits) or "uuids".
        keys: needles' keys.
        values: needles for each key.
        queries: keys that are asked for.
    """

    haystack: str
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


FORMS = {
    "niah_single_1": Form("noise"),
    "niah_single_2": Form("essay"),
    "niah_single_3": Form("essay", value="uuids"),
    "niah_multikey_1": Form("essay", keys=4),
    "niah_multikey_2": Form("needles"),
    "niah_multikey_3": Form("needles", key="uuids", value="uuids"),
    "niah_multivalue": Form("essay", values=4),
    "niah_multiquery": Form("essay", keys=4, queries=4),
}


def form_of(task: str, near_tie_keys: int | None = None) -> Form:
    """The form of a task, a key of `FORMS`.

    Args:
        near_tie_keys: for the multikey tasks, exactly so many keys of the task's own kind, one of
            them asked for, in an essay; None for RULER's own number and haystack.

    Raises:
        UsageError: the essay has no room for so many needles.
    """
    form = FORMS[task]
    if near_tie_keys is None or not task.startswith("niah_multikey"):
        return form
    if near_tie_keys > len(_DEPTHS):
        raise UsageError(
            f"near_tie_keys={near_tie_keys} is more than the {len(_DEPTHS)} depths at which RULER "
            "hides needles in an essay; give fewer."
        )
    return replace(form, haystack="essay", keys=near_tie_keys)


def draft(
    form: Form,
    seed: str,
    length: int,
    templates: Templates,
    words: Words | None = None,
    essay: Essay | None = None,
) -> Draft:
    """A niah sample; `words` for keys that are words, `essay` for haystacks that are essays."""
    fresh = _Fresh(random.Random(f"{seed} needles"), words)
    keys = [fresh.draw(form.key) for _ in range(form.keys)]
    values = [[fresh.draw(form.value) for _ in range(form.values)] for _ in keys]
    rng = random.Random(f"{seed} order")
    asked = rng.sample(range(form.keys), form.queries)

    def needle(key: str, value: str) -> str:
        return templates.needle.format(type_needle_v=form.value, key=key, value=value)

    needles = [needle(k, v) for k, row in zip(keys, values, strict=True) for v in row]
    rng.shuffle(needles)
    haystack: Callable[[int], str]
    if form.haystack == "essay":
        assert essay is not None
        haystack = _in_essay(essay, needles, seed)
        unit, least, name = "word of the essay", 1, f"essay: {essay.name}"
    else:
        others = _Fresh(random.Random(f"{seed} haystack"), words, fresh.drawn)
        lines: list[str] = []

        def line(i: int) -> str:
            if form.haystack == "noise":
                return templates.line
            while len(lines) <= i:
                lines.append(needle(others.draw(form.key), others.draw(form.value)))
            return lines[i]

        haystack = _in_lines(line, needles, seed)
        unit, least, name = f"line of {form.haystack}", len(needles), form.haystack

    template, prefix, kind = _worded(form, templates)
    query = _listed([keys[i] for i in asked])

    worded_prefix = " " + prefix.format(type_needle_v=kind, query=query)
    answer = tuple(value for i in asked for value in values[i])

    def build(units: int) -> SampleText:
        context, question = fill(template, haystack(units), type_needle_v=kind, query=query)
        return SampleText(context, question, worded_prefix, answer)

    return Draft(build, least, length, unit, name)


class _Fresh:
    """Draws keys and values, none twice, and none that was drawn elsewhere."""

    def __init__(
        self, rng: random.Random, words: Words | None, drawn: Collection[str] = ()
    ) -> None:
        self._rng, self._words, self.drawn = rng, words, set(drawn)

    def draw(self, kind: str) -> str:
        while True:
            text = self._text(kind)
            if text not in self.drawn:
                self.drawn.add(text)
                return text

    def _text(self, kind: str) -> str:
        if kind == "words":
            assert self._words is not None
            return self._words.key(self._rng)
        if kind == "numbers":
            return str(self._rng.randrange(10**6, 10**7))
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))


def _in_lines(line: Callable[[int], str], needles: list[str], seed: str) -> Callable[[int], str]:
    def haystack(units: int) -> str:
        text = [line(i) for i in range(units)]
        places = random.Random(f"{seed} places").sample(range(units), len(needles))
        for place, needle in zip(sorted(places, reverse=True), needles, strict=True):
            text.insert(place, needle)
        return "\n".join(text)

    return haystack


def _in_essay(essay: Essay, needles: list[str], seed: str) -> Callable[[int], str]:
    depths = sorted(random.Random(f"{seed} places").sample(_DEPTHS, len(needles)))

    def haystack(units: int) -> str:
        sentences = essay.sentences(units)
        places = [int(len(sentences) * depth / 100) for depth in depths]
        for place, needle in zip(reversed(places), needles, strict=True):
            sentences.insert(place, needle)
        return " ".join(sentences)

    return haystack


def _worded(form: Form, templates: Templates) -> tuple[str, str, str]:
    """Template, answer prefix and kind of value; RULER speaks of a single value in the singular."""
    if form.queries * form.values > 1:
        return templates.niah, templates.niah_prefix_plural, form.value
    template = templates.niah.replace("Some", "A").replace("are all", "is").replace("are", "is")
    return template, templates.niah_prefix, form.value.removesuffix("s")


def _listed(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"
