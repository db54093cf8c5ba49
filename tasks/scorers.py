"""Scores of page tasks: what an answer is worth, and what its cache cost.

`recall` and its kind are pure functions of texts. The functions that a task's YAML names as
`process_results` take lm-eval's (doc, results) and end in `report`, so that every page task
emits the same five numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from page_bench.trace import Answer


def contains(answer: str, reference: str) -> bool:
    """Whether the reference stands in the answer, letter case aside."""
    return reference.lower() in answer.lower()


def recall(answer: str, references: Sequence[str]) -> float:
    """The share of the references that the answer contains, in [0, 1].

    Raises:
        ValueError: there is no reference, or an empty one, which every answer would contain.
    """
    if not references or not all(references):
        raise ValueError(f"every document needs references that are not empty, not {references!r}")
    return sum(contains(answer, reference) for reference in references) / len(references)


def report(answer: str, score: float, correct: float) -> dict[str, float]:
    """The numbers that every page task gives for one sample, and the trace completed by them.

    Args:
        answer: an `Answer` of `page_hf`, whose trace receives `score` and `correct`; or the plain
            text of any other model, which keeps its whole cache and has no gate.
        score: the benchmark's own metric, in [0, 1].
        correct: 1.0 or 0.0.

    Returns:
        score, correct; kept_kv, the kept share of the prompt's KV entries; gate_open, 1.0 where
        the evictor was let act; head_drop, the signal D (NaN where none was measured).
    """
    if not isinstance(answer, Answer) or answer.trace is None:
        cost = {"kept_kv": 1.0, "gate_open": 0.0, "head_drop": math.nan}
    else:
        trace = answer.trace
        answer.trace = dataclasses.replace(trace, score=score, correct=correct)
        cost = {
            "kept_kv": float(trace.kept_kv),
            "gate_open": float(trace.gate_open),
            "head_drop": float(trace.drop),
        }
    return {"score": score, "correct": correct, **cost}


def reference_match(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score an answer by the references it contains (lm-eval's `process_results`).

    Args:
        doc: `answers`, the references; `match`, how many of them a correct answer contains:
            "all" or "any".
        results: the answer, alone in a list.

    Returns:
        The numbers of `report`; `score` is the recall over the references.
    """
    answer = results[0]
    score = recall(answer, doc["answers"])
    if doc["match"] == "all":
        correct = float(score == 1.0)
    elif doc["match"] == "any":
        correct = float(score > 0.0)
    else:
        raise ValueError(f"match is 'all' or 'any', not {doc['match']!r}")
    return report(answer, score, correct)
