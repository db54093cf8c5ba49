"""One sample by its index: the same whatever else is made, in any order, in any process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.model import default_model
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
from page_bench.tasks.rulergen.draft import Draft, SampleText, longest
from page_bench.tasks.rulergen.meter import Meter

GENERATOR_VERSION = 2
"""Raise when any sample changes, so that none of an earlier version is taken from the disk."""
FULL = 0.95
"""A sample that fills less of its length says why."""

# Sample i asks the first of the questions i, i + 500, i + 1000 … whose documents fit: none of the
# first 500 samples, RULER's number, asks what another asks, and none depends on another.
_QUESTION_STRIDE = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleSettings:
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

    On disk each sample is one file, so that processes which make the same set do not wait for each
    other.

    Args:
        settings: of the set.
        meter: of the tokenizer.
        keep: whether samples are kept on disk and taken from there.
    """

    def __init__(self, settings: SampleSettings, meter: Meter, keep: bool = True) -> None:
        self.settings = settings
        self._meter = meter
        self._keep = keep
        self._reported = False

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
        row = self._read(index) if self._keep else None
        if row is None:
            row = self._make(index)
            if self._keep:
                self._write(row)
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
    def _folder(self) -> Path:
        """The folder of the set, named after everything that decides what its samples are."""
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
        text = json.dumps(identity, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        name = f"{self.settings.task}_{self.settings.length}_{key}"
        return default_model.cache_root() / "rulergen" / name

    def _read(self, index: int) -> dict[str, Any] | None:
        """A sample on disk; None when it is not there or not whole."""
        try:
            row = json_text.parse((self._folder / f"{index:05d}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) and row.get("index") == index else None

    def _write(self, row: Mapping[str, Any]) -> None:
        """Keep a sample on disk; where that fails, say so once and go on without."""
        file = self._folder / f"{row['index']:05d}.json"
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(dict(row), ensure_ascii=False), encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            if not self._reported:
                _log.warning("Generated samples cannot be kept in %s: %s", self._folder, error)
            self._reported = True

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
            "haystack": draft.haystack,
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
        row = lru_cache(maxsize=4)(lambda units: self._row(draft.build(units)))
        lengths = self._meter.prompts(row(draft.least))
        # All prompts say the same between their beginnings and ends: what is longest stays so.
        longest_protocol = max(lengths, key=lambda protocol: lengths[protocol])

        def measure(units: int) -> int:
            return self._meter.prompt(row(units), longest_protocol)

        found = longest(measure, draft.least, draft.most, limit)
        if found is None:
            return None
        others = [protocol for protocol in lengths if protocol != longest_protocol]
        for units in range(found[0], draft.least - 1, -1):
            # Save for a token where a prompt joins its parts, so each is counted in the end.
            tokens = found[1] if units == found[0] else measure(units)
            tokens = max(tokens, *(self._meter.prompt(row(units), p) for p in others))
            if tokens <= limit:
                return {**row(units), "prompt_tokens": tokens, "units": units}
        return None

    def _row(self, text: SampleText) -> dict[str, Any]:
        task = self.settings.task
        return {
            **{**text._asdict(), "answer": list(text.answer)},
            "task": task,
            "max_new_tokens": RULES[task].max_new_tokens,
        }
