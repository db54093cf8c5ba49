"""Questions on documents: RULER's tasks qa_1 (SQuAD) and qa_2 (HotpotQA)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.tasks.metadata import first_line
from page_bench.tasks.rulergen.draft import Draft, SampleText
from page_bench.tasks.rulergen.templates import Templates, fill

SOURCES = {"qa_1": "squad", "qa_2": "hotpotqa"}
"""Task → metadata key that names its file."""
VARIABLES = {"squad": "PAGE_BENCH_SQUAD", "hotpotqa": "PAGE_BENCH_HOTPOTQA"}
HUB = {"squad": ("rajpurkar/squad_v2", None), "hotpotqa": ("hotpotqa/hotpot_qa", "distractor")}
"""Data set and configuration on the Hub."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """A question, its references, each once, and its documents, as numbers in the corpus.

    The answer is in the `needed` ones. The `related` ones are added first: the article's others, or
    HotpotQA's distractors.
    """

    text: str
    answers: tuple[str, ...]
    needed: tuple[int, ...]
    related: tuple[int, ...]


@dataclass(frozen=True)
class Corpus:
    """Questions in the data set's order, and the documents of them all, sorted, each once.

    Questions without an answer, or without all documents that it needs, are left out.
    """

    name: str
    documents: tuple[str, ...]
    questions: tuple[Question, ...]

    @property
    def digest(self) -> str:
        """Changes with any document or question."""
        text = json.dumps([self.documents, [vars(q) for q in self.questions]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def draft(
    corpus: Corpus, question: Question, seed: str, length: int, templates: Templates
) -> Draft:
    """A qa sample: the documents of the answer among related ones, then among any of the corpus."""
    rng = random.Random(f"{seed} documents")
    related = rng.sample(question.related, len(question.related))
    own = {*question.needed, *question.related}
    # A document has four tokens at least, its number and line breaks included.
    most = min(len(corpus.documents), max(length // 4, len(own)))
    others = rng.sample(range(len(corpus.documents)), most)
    order = [*question.needed, *related, *(i for i in others if i not in own)][:most]

    def build(units: int) -> SampleText:
        chosen = order[:units]
        random.Random(f"{seed} order").shuffle(chosen)
        text = "\n\n".join(
            templates.document.format(i=i, document=corpus.documents[number])
            for i, number in enumerate(chosen, start=1)
        )
        context, asked = fill(templates.qa, text, query=question.text)
        return SampleText(context, asked, f" {templates.qa_prefix}", question.answers)

    name, end = f"documents: {corpus.name}", "all documents are in it"
    return Draft(build, len(question.needed), len(order), "document", name, end)


@lru_cache(maxsize=2)
def load(kind: str, source: str | None = None) -> Corpus:
    """A corpus.

    Args:
        kind: "squad" (version 2, dev) or "hotpotqa" (dev, distractor).
        source: a JSON file in the data set's original schema. None for what the environment
            variable (`VARIABLES`) says, else the data set on the Hub.

    Raises:
        UsageError: there is no such file, it has another schema, or the Hub is out of reach.
    """
    name = source or os.environ.get(VARIABLES[kind])
    try:
        if name is None:
            name, rows = HUB[kind][0], _hub(kind)
            read = _flat_squad if kind == "squad" else _hub_hotpotqa
            return _corpus(name, read(rows))
        raw = json_text.parse(user_path(name, kind).read_bytes(), nan=True, twice=True)
        return _corpus(name, _squad(raw) if kind == "squad" else _hotpotqa(raw))
    except Exception as error:  # datasets raises what its many readers raise
        raise UsageError(
            f"The documents of RULER's qa tasks could not be read from {name} "
            f"({first_line(error)}): give a "
            f'JSON file in the original schema with --metadata \'{{"{kind}": "FILE"}}\' or in the '
            f"environment variable {VARIABLES[kind]}, or let it come from the Hub."
        ) from error


Entry = tuple[str, list[str], list[str], list[str]]
"""Question, answers, needed documents (none where one is missing), related documents."""


def _corpus(name: str, entries: Iterable[Entry]) -> Corpus:
    given = list(entries)
    for question, answers, needed, related in given:
        if not all(isinstance(text, str) for text in (question, *answers, *needed, *related)):
            raise ValueError(f"question {question!r}, its answer or a document is no text")
    # Nobody could answer the others, or any answer would do.
    kept = [entry for entry in given if entry[2] and all(text.strip() for text in entry[1])]
    if len(kept) < len(given):
        _log.warning(
            "%s: %d of %d questions are left out, whose answer is blank or whose supporting "
            "documents are not all there",
            *(name, len(given) - len(kept), len(given)),
        )
    if not kept:
        raise ValueError("it holds no question with an answer in its documents")
    documents = sorted({d for _, _, needed, related in kept for d in (*needed, *related)})
    number = {text: i for i, text in enumerate(documents)}

    def numbers(texts: list[str], without: Iterable[str] = ()) -> tuple[int, ...]:
        return tuple(number[text] for text in dict.fromkeys(texts) if text not in without)

    questions = tuple(
        Question(text, tuple(dict.fromkeys(answers)), numbers(needed), numbers(related, needed))
        for text, answers, needed, related in kept
    )
    return Corpus(name, tuple(documents), questions)


def _squad(raw: Mapping[str, Any]) -> Iterable[Entry]:
    for article in raw["data"]:
        paragraphs = [p["context"] for p in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                answers = [a["text"] for a in qa["answers"]]
                if answers and not qa.get("is_impossible", False):
                    yield qa["question"], answers, [paragraph["context"]], paragraphs


def _flat_squad(rows: Iterable[Mapping[str, Any]]) -> Iterable[Entry]:
    kept = list(rows)
    articles: dict[str, dict[str, None]] = {}  # by title, its paragraphs, each once
    for row in kept:
        articles.setdefault(row["title"], {})[row["context"]] = None
    for row in kept:
        answers = list(row["answers"]["text"])
        if answers:
            yield row["question"], answers, [row["context"]], list(articles[row["title"]])


def _hotpotqa(raw: Iterable[Mapping[str, Any]]) -> Iterable[Entry]:
    for row in raw:
        documents = {title: f"{title}\n{''.join(text)}" for title, text in row["context"]}
        facts = dict.fromkeys(title for title, _ in row["supporting_facts"])
        # In the fullwiki setting some are missing, which leaves the question without any.
        needed = [documents[title] for title in facts] if set(facts) <= set(documents) else []
        yield row["question"], [row["answer"]], needed, list(documents.values())


def _hub_hotpotqa(rows: Iterable[Mapping[str, Any]]) -> Iterable[Entry]:
    for row in rows:
        context, facts = row["context"], row["supporting_facts"]
        pairs = list(zip(context["title"], context["sentences"], strict=True))
        titles = [(title, 0) for title in facts["title"]]
        yield from _hotpotqa([{**row, "context": pairs, "supporting_facts": titles}])


def _hub(kind: str) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    path, name = HUB[kind]
    rows: Iterable[Mapping[str, Any]] = load_dataset(path, name, split="validation")
    return rows
