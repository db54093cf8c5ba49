"""Our runs that ask what the PAGE paper asked, and why others do not."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pandas as pd

from page_bench.analysis.pairs import Pair, families
from page_bench.config import PageConfig
from page_bench.evictors import is_in_file
from page_bench.evictors.base import Granularity
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.published import paper_name
from page_bench.records.finished_runs import Arm
from page_bench.records.suites import split
from page_bench.records.trace import Trace

METRIC = "correct_paper"
_SUITE = re.compile(r"page_ruler_(\d+k)(?:_mixed4|_partition6)?|page_longbench_page")
_ANSWER_TOKENS = 128
_SETTINGS = {
    "score_norm": "none",
    "n_sink": 4,
    "recent": 32,
    "window": 32,
    "top_k": 32,
    "compress": "prompt",
    "protocol": "page",
    "chat_template": "true",
}
"""Fields of an arm that the paper never varies."""
_EAGER = {"Qwen2.5-1.5B", "Qwen2.5-3B", "Mistral-7B-v0.3", "Qwen3-4B"}
"""Models that the authors prefilled with eager attention at 4K; all else by SDPA, with the window
read afterwards."""

Cells = dict[tuple[str, str, str], pd.DataFrame]
"""Inputs by the paper's model and context and our evictor with its granularity, such as
`snapkv shared`. One row per input and budget, ordered by both: `task`; `input`, a number; `budget`;
`drop`, D; `plain` and `full`, 0 or 1; `plain_kept` and `full_kept`, shares of the cache."""


@dataclass(frozen=True)
class Refused:
    """An arm or suite of n prompts, over all budgets, that no reported number is about, and why."""

    what: str
    n: int
    reason: str


def counterparts(
    arms: Mapping[Arm, list[Pair]], any_numerics: bool = False
) -> tuple[Cells, list[Refused]]:
    """Cells in the paper's names, and what was left out.

    Args:
        arms: plain and full answers, see `pair_runs`.
        any_numerics: take runs of another dtype or attention implementation as well.
    """
    cells: Cells = {}
    refused: list[Refused] = []
    for family in families(arms):
        arm = family.arm
        by_context: dict[str, list[Pair]] = defaultdict(list)
        for pair in family.pairs:
            by_context[_context(pair.sample.task)].append(pair)
        for context, pairs in by_context.items():
            model = paper_name(arm.model)
            reasons = _reasons(arm, model, context, pairs, any_numerics)
            if reasons or model is None:
                what = f"{arm.model} {family.label}{f' at {context}' if context else ''}"
                refused.append(Refused(what, len(pairs), "; ".join(reasons)))
            else:
                key = model, context, f"{arm.evictor} {arm.granularity}"
                cells.setdefault(key, _cell(pairs))
    return cells, refused


def attention_of(model: str, context: str) -> str:
    """The attention implementation whose hidden states the authors saw, by the paper's names."""
    return "eager" if context == "4K" and model in _EAGER else "sdpa"


def _reasons(
    arm: Arm, model: str | None, context: str, pairs: Sequence[Pair], any_numerics: bool
) -> list[str]:
    """What sets these inputs apart from the paper's."""
    if not context:
        return ["the paper has no such tasks (it has page_ruler_* and page_longbench_page_*)"]
    if model is None:
        return ["the paper has no such model"]
    numerics = {"dtype": "bfloat16", "attn_implementation": attention_of(model, context)}
    found = [
        f"{name}={getattr(arm, name)}, the paper's is {wanted}"
        for name, wanted in {**_SETTINGS, **({} if any_numerics else numerics)}.items()
        if getattr(arm, name) != wanted
    ]
    plain = pairs[0].plain
    options = _paper_options(plain)
    if options is not None and plain.evictor_args != options:
        found.append(f"{arm.evictor} has other options than in the paper ({arm.evictor_args})")
    if context == "4K" and model == "Qwen2.5-14B" and arm.evictor == "h2o":
        found.append("under the authors' two-pass prefill H2O equals SnapKV on this model")
    traces = [trace for pair in pairs for trace in (pair.plain, pair.full)]
    if any(trace.truncated_tokens for trace in traces):
        found.append("prompts were truncated")
    asked = {str(t.asked.get("max_new_tokens")) for t in traces if t.asked is not None}
    if asked - {str(_ANSWER_TOKENS)}:
        found.append(
            f"answers of at most {', '.join(sorted(asked))} tokens, the paper's {_ANSWER_TOKENS}"
        )
    if any(getattr(trace, METRIC) is None for trace in traces):
        found.append(f"the records hold no {METRIC}")
    return found


def _paper_options(trace: Trace) -> dict[str, object] | None:
    """The evictor's options in the paper's form; None where that cannot be told."""
    given = trace.evictor_args
    parts = {"variant": given, "base.variant": given.get("base") or {}}
    options = {name: "paper" for name, part in parts.items() if "variant" in part}
    try:
        # The title is data: to look up a class in a file would run the file.
        if is_in_file(trace.evictor):
            return None
        page = PageConfig(trace.evictor, options, cast(Granularity, trace.granularity))
    except UsageError:
        return None
    return dataclasses.asdict(page.make_evictor())


def _context(task: str) -> str:
    """The paper's context of a task; empty for tasks that it does not have."""
    found = _SUITE.fullmatch(split(task)[0])
    if found is None:
        return ""
    return found[1].upper() if found[1] else "LongBench"


def _cell(pairs: Sequence[Pair]) -> pd.DataFrame:
    number: dict[tuple[str, int, int], int] = {}
    rows: dict[tuple[int, float], dict[str, object]] = {}
    for pair in pairs:
        plain, full, sample = pair.plain, pair.full, pair.sample
        task = split(sample.task)[1]
        # The suites mixed4 and partition6 share inputs, which count once.
        key = number.setdefault((task, sample.doc_id, sample.repeat), len(number))
        rows[key, plain.budget] = {
            "task": task,
            "input": key,
            "budget": plain.budget,
            "drop": plain.drop,
            "plain": getattr(plain, METRIC),
            "full": getattr(full, METRIC),
            "plain_kept": plain.kept_kv,
            "full_kept": full.kept_kv,
        }
    return pd.DataFrame(list(rows.values())).sort_values(["input", "budget"], ignore_index=True)
