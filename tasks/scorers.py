"""Scores of page tasks: the worth of an answer, and the cost of its cache.

`recall` and its kind are pure functions of texts. The functions that a task's YAML names as
`process_results` take lm-eval's (doc, results) and end in `report`, so that every page task
emits the same five numbers.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.records.trace import answer_of


def contains(answer: str, reference: str) -> bool:
    """Whether the answer contains the reference, letter case aside."""
    return reference.lower() in answer.lower()


def recall(answer: str, references: Sequence[str]) -> float:
    """The share of the references that the answer contains, in [0, 1].

    Raises:
        ValueError: there is no reference, or an empty one, which every answer would contain.
    """
    if not references or not all(references):
        raise ValueError(f"every document needs references that are not empty, not {references!r}")
    return sum(contains(answer, reference) for reference in references) / len(references)


def printable(answer: str) -> str:
    """The answer as RULER compares it: no space around it, newlines for control characters."""
    return re.sub(r"[\x00-\x1f]", "\n", answer.strip()).strip()


def report(
    answer: str, score: float, correct: float, correct_paper: float | None = None
) -> dict[str, float]:
    """The numbers that every page task gives for one sample; they go into its trace as well.

    Args:
        answer: the text of an answer of `page_hf`, whose trace receives the scores (see
            `trace.answer_of`); or that of any other model, which keeps its whole cache and has no
            gate.
        score: the benchmark's own metric, in [0, 1].
        correct: 1.0 or 0.0.
        correct_paper: 1.0 or 0.0 as the PAGE paper counted; None where it is `correct`. It goes
            into the trace alone.

    Returns:
        score, correct; kept_kv, the kept share of the prompt's KV entries; gate_open, 1.0 where
        the evictor was let act; head_drop, the signal D (NaN where none was measured).

    Raises:
        UsageError: it is not known which of several answers of `page_hf` this is.
    """
    traced = answer_of(answer)
    if traced is None or traced.trace is None:
        cost = {"kept_kv": 1.0, "gate_open": 0.0, "head_drop": math.nan}
    else:
        trace = traced.trace
        paper = correct if correct_paper is None else correct_paper
        traced.trace = dataclasses.replace(trace, score=score, correct=correct, correct_paper=paper)
        cost = {
            "kept_kv": float(trace.kept_kv),
            "gate_open": float(trace.gate_open),
            "head_drop": float(trace.drop),
        }
    return {"score": score, "correct": correct, **cost}


def over_answers(
    results: Sequence[str | Sequence[str]], scored: Callable[[str], dict[str, float]]
) -> dict[str, float]:
    """The mean over a document's answers, number by number.

    `results` holds what lm-eval's filters leave, one text or a list of them, alone in a list;
    UsageError: they leave something else.
    """
    given = results[0]
    texts = [given] if isinstance(given, str) else given
    fits = isinstance(texts, list | tuple) and texts
    if not fits or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"the task's filters hand its scorer {given!r:.60}, not a text; leave out the filter "
            f"that makes something else of an answer."
        )
    found = [scored(text) for text in texts]
    return {name: statistics.fmean(one[name] for one in found) for name in found[0]}


def reference_match(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer by the references it contains (lm-eval's `process_results`).

    Args:
        doc: `answers`, the references; `match`, how they count. "all": each is a part of the
            answer (RULER's string_match_all). "any": each is another name of the same answer
            (RULER's string_match_part). `match_paper`, how they counted in the PAGE paper, if
            otherwise.
        results: the answer, or a list of several, alone in a list.

    Returns:
        The numbers of `report`, their means over several answers. With "all" `score` is the recall
        over the references, with "any" it is 1.0 if one of them is found.
    """
    references, match = doc["answers"], doc["match"]

    def scored(answer: str) -> dict[str, float]:
        found = recall(printable(answer), references)
        correct = is_correct(found, match)
        paper = is_correct(found, doc.get("match_paper", match))
        return report(answer, found if match == "all" else correct, correct, paper)

    return over_answers(results, scored)


def is_correct(found: float, match: str) -> float:
    """Whether a recall in [0, 1] is enough, 1.0 or 0.0: "all" of the references, or "any"."""
    if match == "all":
        return float(found == 1.0)
    if match == "any":
        return float(found > 0.0)
    raise ValueError(f"match is 'all' or 'any', not {match!r}")
