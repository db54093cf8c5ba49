"""LongBench's nine metrics, each in [0, 1].

Written anew after LongBench: importing lm-eval's functions needs the package fuzzywuzzy, which is
under the GPL. They are equal but for three things, which differ from LongBench there:

- Code similarity: lm-eval looks at the first line that is not blank, LongBench at the first line
  after any newlines, even a blank one. And the ratio of fuzzywuzzy is another number where
  python-Levenshtein is installed; LongBench's was difflib's.
- ROUGE-L: the package recurses once per word and lm-eval scores the error 0. Chinese texts, which
  have no "." to be split at, are long enough for that.
- lm-eval stops at the first newline where LongBench scores the first line that is not empty; an
  answer that begins with a newline is worth nothing there.
"""

from __future__ import annotations

import inspect
import logging
import re
import string
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from page_bench.tasks import scorers
from page_bench.tasks.longbench_subsets import rules_of

Metric = Callable[[str, str, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CHINESE_PUNCTUATION = (
    *((0x2013, 0x2014), (0x2018, 0x2019), (0x201B, 0x201F), (0x2026, 0x2027), (0x3001, 0x3003)),
    *((0x300B, 0x3011), (0x3014, 0x301F), (0x3030, 0x3030), (0x303E, 0x303F), (0xFE4F, 0xFE4F)),
    *((0xFF01, 0xFF0D), (0xFF0F, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF64)),
)
"""First and last code points of the runs of characters that LongBench leaves out."""
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_ALL_PUNCTUATION = _PUNCTUATION | dict.fromkeys(
    code for first, last in _CHINESE_PUNCTUATION for code in range(first, last + 1)
)


def qa_f1(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the words, without articles, punctuation and case."""

    def words(text: str) -> list[str]:
        return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()

    return _f1(words(answer), words(reference))


def qa_f1_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the Chinese words that jieba finds, without punctuation and case."""

    def words(text: str) -> list[str]:
        bare = ("".join(w.lower().translate(_ALL_PUNCTUATION).split()) for w in _chinese(text))
        return [word for word in bare if word]

    return _f1(words(answer), words(reference))


def rouge_l(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of ROUGE-L, as the package `rouge` has it: of distinct words, sentences split at "."."""
    with _recursion(len(answer.split()) + len(reference.split())):
        try:
            (found,) = _rouge().get_scores(answer, reference)
        except ValueError:  # one of them holds no words
            return 0.0
    return float(found["rouge-l"]["f"])


def rouge_l_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`rouge_l` of the Chinese words that jieba finds."""
    return rouge_l(" ".join(_chinese(answer)), " ".join(_chinese(reference)))


def classification(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """1/n if the answer names the right class among n, parts of its name not counted; else 0."""
    named = [name for name in classes if name in answer]
    place = 0
    # As in LongBench, the class after one that is left out is not looked at.
    while place < len(named):
        if named[place] in reference and named[place] != reference:
            named.remove(named[place])
        place += 1
    return 1 / len(named) if reference in named else 0.0


def count(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the answer's numbers that are the reference."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the answer's numbers that are the number of the reference's paragraph."""
    return count(answer, re.findall(r"Paragraph (\d+)", reference)[0])


def retrieval_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`retrieval` for Chinese references."""
    return count(answer, re.findall(r"段落(\d+)", reference)[0])


def code_similarity(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """difflib's ratio, to two places, of the reference and the answer's first line of code.

    That is the first line after any newlines that has no mark of a comment or a code block.
    """
    lines = answer.lstrip("\n").split("\n")
    code = next((s for s in lines if not any(mark in s for mark in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, code, reference).ratio()) / 100


_ALL = (
    *(qa_f1, qa_f1_zh, rouge_l, rouge_l_zh, classification, count, retrieval, retrieval_zh),
    code_similarity,
)
METRICS: dict[str, Metric] = {metric.__name__: metric for metric in _ALL}


def best(metric: str, answer: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The highest score over the references; 0.0 without any."""
    return max((METRICS[metric](answer, ref, classes) for ref in references), default=0.0)


def contains_any(answer: str, references: Sequence[str]) -> float:
    """1.0 if the answer contains a reference that is not blank, letter case aside; else 0.0."""
    return float(any(scorers.contains(answer, ref) for ref in references if ref.strip()))


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer to a LongBench document (lm-eval's `process_results`).

    Args:
        doc: as `longbench.load` makes it.
        results: the answer, or a list of several, alone in a list.

    Returns:
        The numbers of `scorers.report`, their means over several answers: `score` is the subset's
        metric, `correct` the PAGE paper's verdict. Both look at what LongBench reads of the answer,
        which on some subsets is its first line; but under the protocol `page` `correct` looks at
        all of it.
    """
    rules = rules_of(doc["subset"])

    def scored(answer: str) -> dict[str, float]:
        read = str(answer)
        if doc["protocol"] == "kvpress":
            read = read.lstrip()
        if rules.first_line:
            read = read.lstrip("\n").split("\n")[0]
        worth = best(rules.metric, read, doc["answers"], doc["all_classes"])
        seen = str(answer) if doc["protocol"] == "page" else read
        return scorers.report(answer, worth, contains_any(seen, doc["answers"]))

    return scorers.over_answers(results, scored)


def _f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    same = sum((Counter(answer) & Counter(reference)).values())
    if not same:
        return 0.0
    precision, recall = same / len(answer), same / len(reference)
    return 2 * precision * recall / (precision + recall)


@cache
def _rouge() -> Any:
    from rouge import Rouge

    return Rouge(metrics=["rouge-l"])


@cache
def _jieba() -> Any:
    # Imported late: it reads its dictionary, and says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba

    jieba.setLogLevel(logging.WARNING)
    return jieba


def _chinese(text: str) -> list[str]:
    """Words of a Chinese text."""
    return list(_jieba().lcut(text, cut_all=False))


@contextmanager
def _recursion(depth: int) -> Iterator[None]:
    """Room for so many nested calls more than there are now."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, len(inspect.stack(0)) + depth + 200))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
