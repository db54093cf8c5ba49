"""Where the evidence for an answer stands in a prompt, as far as the document says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from page_bench.tasks.rulergen import templates

_NONE_STANDS = "no reference stands in the prompt"
_ASSIGNMENT = r"VAR {} = (?:VAR )?\w+"
_BREAK = re.compile(r"(?<=[.!?])\s|\n")


def evidence_of(doc: object, text: str) -> tuple[list[tuple[int, int]], str | None]:
    """The parts of a prompt that an answer needs.

    - RULER's niah tasks: the sentences or lines that hold a reference, the needles.
    - vt: every assignment of the chain.
    - cwe, fwe: every occurrence of the words that are counted, in the list that is asked about.
    - all others: every occurrence of a reference, as whole words, whatever its case.

    Args:
        doc: lm-eval's document.
        text: the prompt, chat template included.

    Returns:
        Spans of characters in order, none overlapping; and, where there are none, the reason.
    """
    references = doc.get("answers") if isinstance(doc, Mapping) else None
    if not isinstance(references, Sequence) or isinstance(references, str) or not references:
        return [], "the document has no references"
    assert isinstance(doc, Mapping)
    task = str(doc.get("task") or "")
    start, end = _context(doc, text)
    region = text[start:end]
    if task == "vt":
        found = _all([_ASSIGNMENT.format(re.escape(str(name))) for name in references], region)
    else:
        words = [rf"(?<!\w){re.escape(str(one).strip())}(?!\w)" for one in references]
        found = _all(words, region)
        if task.startswith("niah"):
            found = [_needle(span, region) for span in found]
    spans = _joined([(start + a, start + b) for a, b in found])
    return spans, None if spans else _NONE_STANDS


def _context(doc: Mapping[str, Any], text: str) -> tuple[int, int]:
    """Where the document's context stands; all of the prompt where it has none."""
    context = str(doc.get("context") or "").strip()
    start = text.find(context) if context else -1
    return (0, len(text)) if start < 0 else (start, start + len(context))


def _all(patterns: Sequence[str], text: str) -> list[tuple[int, int]]:
    return [
        found.span() for one in patterns for found in re.finditer(one, text, flags=re.IGNORECASE)
    ]


def _needle(span: tuple[int, int], text: str) -> tuple[int, int]:
    """The sentence or line around a span, from where RULER's needle begins in it."""
    start = max((found.end() for found in _BREAK.finditer(text, 0, span[0])), default=0)
    # An essay may be cut within a sentence before it.
    start = max(start, text.rfind(_needle_begins(), start, span[0]))
    after = _BREAK.search(text, span[1])
    return start, len(text) if after is None else after.start()


@cache
def _needle_begins() -> str:
    return templates.load().needle.partition("{")[0]


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
