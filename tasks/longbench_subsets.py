"""LongBench's data sets, and the protocols they can be run under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PROTOCOLS = ("longbench", "page", "kvpress")
_KVPRESS_EXTRA = 20


@dataclass(frozen=True)
class Subset:
    """What LongBench fixes for one of its data sets.

    Attributes:
        category: one of LongBench's six.
        metric: a key of `longbench_scores.METRICS`.
        max_new_tokens: of LongBench's own protocol.
        e: whether LongBench-E has it as well.
        page: whether the PAGE paper reports on it.
        chat: whether the prompt goes through a chat template.
        first_line: whether only the answer's first line is scored.
        until: stop strings.
    """

    category: str
    metric: str
    max_new_tokens: int
    e: bool = False
    page: bool = False
    chat: bool = True
    first_line: bool = False
    until: tuple[str, ...] = ()


_RAW: Any = {"chat": False, "first_line": True}

SUBSETS: dict[str, Subset] = {
    "narrativeqa": Subset("single", "qa_f1", 128),
    "qasper": Subset("single", "qa_f1", 128, e=True, page=True),
    "multifieldqa_en": Subset("single", "qa_f1", 64, e=True, page=True),
    "multifieldqa_zh": Subset("single", "qa_f1_zh", 64),
    "hotpotqa": Subset("multi", "qa_f1", 32, e=True, page=True),
    "2wikimqa": Subset("multi", "qa_f1", 32, e=True),
    "musique": Subset("multi", "qa_f1", 32),
    "dureader": Subset("multi", "rouge_l_zh", 128),
    "gov_report": Subset("summarization", "rouge_l", 512, e=True),
    "qmsum": Subset("summarization", "rouge_l", 512),
    "multi_news": Subset("summarization", "rouge_l", 512, e=True),
    "vcsum": Subset("summarization", "rouge_l_zh", 512),
    "trec": Subset("fewshot", "classification", 64, e=True, page=True, **_RAW),
    "triviaqa": Subset("fewshot", "qa_f1", 32, e=True, page=True, **_RAW),
    "samsum": Subset("fewshot", "rouge_l", 128, e=True, until=("\n",), **_RAW),
    "lsht": Subset("fewshot", "classification", 64, **_RAW),
    "passage_count": Subset("synthetic", "count", 32, e=True, page=True),
    "passage_retrieval_en": Subset("synthetic", "retrieval", 32, e=True, page=True),
    "passage_retrieval_zh": Subset("synthetic", "retrieval_zh", 32),
    "lcc": Subset("code", "code_similarity", 64, e=True, page=True, chat=False),
    "repobench-p": Subset("code", "code_similarity", 64, e=True, page=True, chat=False),
}
"""The 21 data sets."""

SUBSETS_E = tuple(f"{name}_e" for name, rules in SUBSETS.items() if rules.e)
"""The 13 data sets of LongBench-E, each under the rules of the one it is named after."""

PAGE_SUBSETS = tuple(name for name, rules in SUBSETS.items() if rules.page)
"""Those that the PAGE paper reports on."""


def rules_of(subset: str) -> Subset:
    """The rules of one of `SUBSETS` or `SUBSETS_E`."""
    return SUBSETS[subset.removesuffix("_e")]


def max_new_tokens(subset: str, protocol: str) -> int:
    """How long an answer may be, in tokens."""
    own = rules_of(subset).max_new_tokens
    if protocol == "longbench":
        return own
    if protocol == "page":
        return 32 if subset == "passage_count" else max(own + _KVPRESS_EXTRA, 128)
    return own + _KVPRESS_EXTRA
