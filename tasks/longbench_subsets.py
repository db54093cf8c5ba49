"""What LongBench fixes for each of its data sets, and the protocols it can be run under."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from page_bench.inputs.errors import UsageError

PROTOCOLS = ("longbench", "page", "kvpress")
_KVPRESS_EXTRA = 20


@dataclass(frozen=True)
class Subset:
    """What LongBench fixes for one of its data sets.

    Attributes:
        category: one of LongBench's six.
        metric: a key of `longbench_scores.METRICS`.
        max_new_tokens: of LongBench's own protocol.
        chat: whether the prompt goes through a chat template.
        first_line: whether only the answer's first line is scored.
        until: stop strings.
    """

    category: str
    metric: str
    max_new_tokens: int
    chat: bool = True
    first_line: bool = False
    until: tuple[str, ...] = ()


SUBSETS: dict[str, Subset] = {
    "narrativeqa": Subset("single", "qa_f1", 128),
    "qasper": Subset("single", "qa_f1", 128),
    "multifieldqa_en": Subset("single", "qa_f1", 64),
    "multifieldqa_zh": Subset("single", "qa_f1_zh", 64),
    "hotpotqa": Subset("multi", "qa_f1", 32),
    "2wikimqa": Subset("multi", "qa_f1", 32),
    "musique": Subset("multi", "qa_f1", 32),
    "dureader": Subset("multi", "rouge_l_zh", 128),
    "gov_report": Subset("summarization", "rouge_l", 512),
    "qmsum": Subset("summarization", "rouge_l", 512),
    "multi_news": Subset("summarization", "rouge_l", 512),
    "vcsum": Subset("summarization", "rouge_l_zh", 512),
    "trec": Subset("fewshot", "classification", 64, chat=False, first_line=True),
    "triviaqa": Subset("fewshot", "qa_f1", 32, chat=False, first_line=True),
    "samsum": Subset("fewshot", "rouge_l", 128, chat=False, first_line=True, until=("\n",)),
    "lsht": Subset("fewshot", "classification", 64, chat=False, first_line=True),
    "passage_count": Subset("synthetic", "count", 32),
    "passage_retrieval_en": Subset("synthetic", "retrieval", 32),
    "passage_retrieval_zh": Subset("synthetic", "retrieval_zh", 32),
    "lcc": Subset("code", "code_similarity", 64, chat=False),
    "repobench-p": Subset("code", "code_similarity", 64, chat=False),
}
"""The 21 data sets."""

SUBSETS_E: tuple[str, ...] = tuple(
    f"{name}_e"
    for name in (
        "qasper",
        "multifieldqa_en",
        "hotpotqa",
        "2wikimqa",
        "gov_report",
        "multi_news",
        "trec",
        "triviaqa",
        "samsum",
        "passage_count",
        "passage_retrieval_en",
        "lcc",
        "repobench-p",
    )
)
"""The 13 data sets of LongBench-E, each under the rules of the one it is named after."""

PAGE_SUBSETS: tuple[str, ...] = (
    "lcc",
    "repobench-p",
    "hotpotqa",
    "qasper",
    "triviaqa",
    "trec",
    "multifieldqa_en",
    "passage_count",
    "passage_retrieval_en",
)
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


def protocol_of(metadata: Mapping[str, Any]) -> str:
    """The protocol named by the metadata key `protocol`.

    Raises:
        UsageError: LongBench has no such protocol.
    """
    name = str(metadata.get("protocol", PROTOCOLS[0]))
    if name not in PROTOCOLS:
        near = difflib.get_close_matches(name, PROTOCOLS, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"LongBench has no protocol {name!r}: choose one of {', '.join(PROTOCOLS)}, for "
            f'example --metadata \'{{"protocol": "{near}"}}\'.'
        )
    return name
