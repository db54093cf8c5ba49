"""One sample by its index: the same whatever else is made, in any order, in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.tasks.ruler import RULES
from page_bench.tasks.rulergen import (
    essays,
    frequency,
    needles,
    questions,
    templates,
    variables,
    words,
)
from page_bench.tasks.rulergen.cache import Store
from page_bench.tasks.rulergen.draft import Draft, Parts
from page_bench.tasks.rulergen.meter import Meter
from page_bench.tasks.rulergen.sizing import longest

GENERATOR_VERSION = 2
"""Raise when any sample changes, so that none of an earlier version is taken from the disk."""
FULL = 0.95
"""A sample that fills less of its length says why."""

# Sample i asks the first of the questions i, i + 500, i + 1000 … whose documents fit: none of the
# first 500 samples, RULER's number, asks what another asks, and none depends on another.
_QUESTION_STRIDE = 500


@dataclass(frozen=True)
class Settings:
    """What decides a set of samples, its tokenizer aside.

    Attributes:
        task: one of RULER's 13 (`ruler.RULES`).
        length: of a sample in tokens: prompt and answer.
        seed: of all samples.
        near_tie_keys: see `needles.form_of`.
        essays: see `essays.load`.
        squad, hotpotqa: see `questions.load`.
    """

    task: str
    length: int
    seed: int = 42
    near_tie_keys: int | None = None
    essays: str | None = None
    squad: str | None = None
    hotpotqa: str | None = None


class Generator:
    """Makes the samples of one set.

    Args:
        settings: of the set.
        meter: of the tokenizer.
        keep: whether samples are kept on disk and taken from there.
    """

    def __init__(self, settings: Settings, meter: Meter, keep: bool = True) -> None:
        self.settings = settings
        self._meter = meter
        self._keep = keep

    def sample(self, index: int) -> dict[str, Any]:
        """The sample of an index.

        Returns:
            `context`, `question`, `answer_prefix`, `answer`, `task`, `max_new_tokens`, as in the
            data set simonjegou/ruler; `index`; `length`; `prompt_tokens`, of the longest of its
            prompts (`protocols.PROTOCOLS`), which with the answer's tokens is never over `length`;
            `fill`, the share of `length` that these make; `shortfall`, why that is less than
            `FULL`, else empty; `units`, how much text there is; `haystack`, which text.

        Raises:
            UsageError: not even the shortest sample fits, or what it is made from is missing.
        """
        stored = self._store.read(index) if self._keep else None
        if stored is not None:
            return stored
        row = self._make(index)
        if self._keep:
            self._store.write(row)
        return row

    @cached_property
    def _templates(self) -> templates.Templates:
        return templates.load()

    @cached_property
    def _form(self) -> needles.Form | None:
        task = self.settings.task
        known = task in needles.FORMS
        return needles.form_of(task, self.settings.near_tie_keys) if known else None

    @cached_property
    def _words(self) -> words.Words | None:
        wanted = self.settings.task == "cwe" or (self._form and self._form.key == "words")
        return words.load() if wanted else None

    @cached_property
    def _essay(self) -> essays.Essay | None:
        wanted = self._form and self._form.haystack == "essay"
        return essays.load(self.settings.essays) if wanted else None

    @cached_property
    def _corpus(self) -> questions.Corpus | None:
        kind = questions.SOURCES.get(self.settings.task)
        return questions.load(kind, getattr(self.settings, kind)) if kind else None

    @cached_property
    def _store(self) -> Store:
        sources = (self._templates, self._words, self._essay, self._corpus)
        identity = {
            "version": GENERATOR_VERSION,
            "task": self.settings.task,
            "length": self.settings.length,
            "seed": self.settings.seed,
            "form": vars(self._form) if self._form else None,
            "tokenizer": self._meter.fingerprint,
            "sources": [source.digest for source in sources if source is not None],
        }
        return Store(f"{self.settings.task}_{self.settings.length}", identity)

    def _make(self, index: int) -> dict[str, Any]:
        settings = self.settings
        reserved = RULES[settings.task].max_new_tokens
        for draft in self._drafts(index):
            row = self._fit(draft, settings.length - reserved)
            if row is not None:
                break
        else:
            if self._corpus is not None and index >= len(self._corpus.questions):
                raise UsageError(
                    f"sample {index} of {settings.task} has no question: its documents hold "
                    f"{len(self._corpus.questions)}; give num_samples that many at most."
                )
            raise UsageError(
                f"{settings.task} does not fit into {settings.length} tokens with this tokenizer, "
                f"of which the answer takes {reserved}; choose a longer one of the "
                "page_rulergen tasks."
            )
        fill = (row["prompt_tokens"] + reserved) / settings.length
        at_end = row["units"] == draft.most
        why = draft.end if at_end else f"one more {draft.unit} would not fit"
        return {
            **row,
            "index": index,
            "length": settings.length,
            "fill": fill,
            "shortfall": "" if fill >= FULL else why,
            **draft.facts,
        }

    def _drafts(self, index: int) -> Iterator[Draft]:
        """The sample of an index, and what takes its place when it does not fit."""
        task, length = self.settings.task, self.settings.length
        seed = f"page_rulergen {task} {length} {self.settings.seed} {index}"
        if self._form is not None:
            form, text = self._form, self._templates
            yield needles.draft(form, seed, length, text, self._words, self._essay)
        elif task == "vt":
            yield variables.draft(seed, length, self._templates, self._meter.text)
        elif task == "cwe":
            assert self._words is not None
            yield frequency.cwe_draft(seed, length, self._templates, self._words)
        elif task == "fwe":
            yield frequency.fwe_draft(seed, length, self._templates)
        else:
            assert self._corpus is not None
            for question in self._corpus.questions[index::_QUESTION_STRIDE]:
                yield questions.draft(self._corpus, question, seed, length, self._templates)

    def _fit(self, draft: Draft, limit: int) -> dict[str, Any] | None:
        """The longest form of a draft whose every prompt is within the limit; None for none."""
        row = _Memo(lambda units: self._row(draft.build(units)))
        lengths = self._meter.prompts(row(draft.least))
        # All prompts say the same between their beginnings and ends: what is longest stays so.
        longest_protocol = max(lengths, key=lambda protocol: lengths[protocol])
        found = longest(
            lambda units: self._meter.prompt(row(units), longest_protocol),
            draft.least,
            draft.most,
            limit,
        )
        if found is None:
            return None
        others = [protocol for protocol in lengths if protocol != longest_protocol]
        tokens = found[1]
        for units in range(found[0], draft.least - 1, -1):
            # Save for a token where a prompt joins its parts, so each is counted in the end.
            if units != found[0]:
                tokens = self._meter.prompt(row(units), longest_protocol)
            tokens = max(tokens, *(self._meter.prompt(row(units), p) for p in others))
            if tokens <= limit:
                return {**row(units), "prompt_tokens": tokens, "units": units}
        return None

    def _row(self, parts: Parts) -> dict[str, Any]:
        task = self.settings.task
        return {
            **{**vars(parts), "answer": list(parts.answer)},
            "task": task,
            "max_new_tokens": RULES[task].max_new_tokens,
        }


class _Memo:
    """A function that remembers its last few results."""

    def __init__(self, function: Callable[[int], Mapping[str, Any]]) -> None:
        self._function = function
        self._known: dict[int, Mapping[str, Any]] = {}

    def __call__(self, units: int) -> Mapping[str, Any]:
        if units not in self._known:
            if len(self._known) >= 4:
                self._known.pop(next(iter(self._known)))
            self._known[units] = self._function(units)
        return self._known[units]
