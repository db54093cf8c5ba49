"""LongBench's nine metrics, each in [0, 1].

Seven are lm-eval's own functions. Three things there are not as in LongBench, and are put right:

- Code similarity: lm-eval looks at the first line that is not blank, LongBench at the first line
  after any newlines, be it blank. And the ratio of fuzzywuzzy is another number where
  python-Levenshtein is installed; LongBench's was difflib's.
- ROUGE-L: the package recurses once per word and lm-eval scores the error 0. Chinese texts, which
  have no "." to be split at, are long enough for that.
- lm-eval stops at the first newline where LongBench scores the first line that is not empty; an
  answer that begins with a newline is worth nothing there.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Any

from page_bench.tasks import scorers
from page_bench.tasks.longbench_subsets import rules_of

Metric = Callable[[str, str, Sequence[str]], float]


def qa_f1(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the words, without articles, punctuation and case."""
    return float(_lm_eval().qa_f1_score(answer, reference))


def qa_f1_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the Chinese words that jieba finds, without punctuation and case."""
    return float(_lm_eval().qa_f1_zh_score(answer, reference))


def rouge_l(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of ROUGE-L, as the package `rouge` has it: of distinct words, sentences split at "."."""
    with _recursion(len(answer.split()) + len(reference.split())):
        return float(_lm_eval().rouge_score(answer, reference))


def rouge_l_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`rouge_l` of the Chinese words that jieba finds."""
    with _recursion(len(answer) + len(reference)):
        return float(_lm_eval().rouge_zh_score(answer, reference))


def classification(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """1/n if the answer names the right class among n, parts of its name not counted; else 0."""
    return float(_lm_eval().classification_score(answer, reference, all_classes=classes))


def count(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the answer's numbers that are the reference."""
    return float(_lm_eval().count_score(answer, reference))


def retrieval(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of the answer's numbers that are the number of the reference's paragraph."""
    return float(_lm_eval().retrieval_score(answer, reference))


def retrieval_zh(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """`retrieval` for Chinese references."""
    return float(_lm_eval().retrieval_zh_score(answer, reference))


def code_similarity(answer: str, reference: str, classes: Sequence[str] = ()) -> float:
    """difflib's ratio, to two places, of the reference and the answer's first line of code.

    That is the first line after any newlines that has no mark of a comment or a code block.
    """
    lines = answer.lstrip("\n").split("\n")
    code = next((s for s in lines if not any(mark in s for mark in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, code, reference).ratio()) / 100


METRICS: dict[str, Metric] = {
    "qa_f1": qa_f1,
    "qa_f1_zh": qa_f1_zh,
    "rouge_l": rouge_l,
    "rouge_l_zh": rouge_l_zh,
    "classification": classification,
    "count": count,
    "retrieval": retrieval,
    "retrieval_zh": retrieval_zh,
    "code_similarity": code_similarity,
}


def best(metric: str, answer: str, references: Sequence[str], classes: Sequence[str] = ()) -> float:
    """The highest score over the references; 0.0 without any."""
    return max((METRICS[metric](answer, ref, classes) for ref in references), default=0.0)


def contains_any(answer: str, references: Sequence[str]) -> float:
    """1.0 if a reference that is not blank stands in the answer, letter case aside; else 0.0."""
    return float(any(scorers.contains(answer, ref) for ref in references if ref.strip()))


def score(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer to a LongBench document (lm-eval's `process_results`).

    Args:
        doc: as `longbench.load` makes it.
        results: the answer, alone in a list.

    Returns:
        The numbers of `scorers.report`: `score` is the subset's metric, `correct` the PAGE paper's
        verdict. Both look at what LongBench reads of the answer, which on some subsets is its first
        line; but under the protocol `page` `correct` looks at all of it.
    """
    rules, answer = rules_of(doc["subset"]), results[0]
    read = str(answer)
    if doc["protocol"] == "kvpress":
        read = read.lstrip()
    if rules.first_line:
        read = read.lstrip("\n").split("\n")[0]
    worth = best(rules.metric, read, doc["answers"], doc["all_classes"])
    seen = str(answer) if doc["protocol"] == "page" else read
    return scorers.report(answer, worth, contains_any(seen, doc["answers"]))


def _lm_eval() -> Any:
    # Imported late: it needs packages that only LongBench does. One of them warns that
    # python-Levenshtein is not there, which gives another number than LongBench's.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using slow pure-python SequenceMatcher")
        from lm_eval.tasks.longbench import metrics

    return metrics


@contextmanager
def _recursion(depth: int) -> Iterator[None]:
    """Room for so many nested calls more than there are now."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, len(inspect.stack(0)) + depth + 200))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
