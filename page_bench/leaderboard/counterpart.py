"""Which of our runs ask what the PAGE paper asked, and why others do not."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from page_bench.analysis.cells import Cell
from page_bench.analysis.outcomes import metric_of
from page_bench.analysis.pairs import Family, Pair, families
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

_UNUSED = (
    *("plain_score", "full_score", "plain_bytes", "full_bytes"),
    *("prefill_s", "gate_s", "plain_s", "full_s"),
)
"""Columns of a cell that no comparison reads."""


@dataclass(frozen=True)
class Refused:
    """Inputs of ours that no reported number is about.

    Attributes:
        what: the arm or suite.
        n: prompts of it, over all budgets.
        reason: a phrase.
    """

    what: str
    n: int
    reason: str


def counterparts(
    arms: Mapping[Arm, list[Pair]], any_numerics: bool = False
) -> tuple[list[Cell], list[Refused]]:
    """Cells in the paper's names, one per model, context and evictor, with all their budgets.

    Args:
        arms: plain and full answers, see `pair_runs`.
        any_numerics: take runs of another dtype or attention implementation as well.

    Returns:
        Cells of metric `METRIC` whose gate `page` stands at τ = 0, to be set anew for each number;
        `suite` is the paper's context. And what was left out.
    """
    cells: list[Cell] = []
    refused: list[Refused] = []
    for family in families(arms):
        by_context: dict[str | None, list[Pair]] = {}
        for pair in family.pairs:
            by_context.setdefault(_place(pair.sample.task)[0], []).append(pair)
        for context, pairs in by_context.items():
            reasons = _reasons(family, context, pairs, any_numerics)
            if reasons or context is None:
                what = f"{family.arm.model} {family.label}{f' at {context}' if context else ''}"
                refused.append(Refused(what, len(pairs), "; ".join(reasons)))
            else:
                cells.append(_cell(family.arm, context, pairs))
    return cells, refused


def attention_of(model: str, context: str) -> str:
    """The attention implementation whose hidden states the authors saw, by the paper's names."""
    return "eager" if context == "4K" and model in _EAGER else "sdpa"


def _reasons(
    family: Family, context: str | None, pairs: Sequence[Pair], any_numerics: bool
) -> list[str]:
    """What sets these inputs apart from the paper's."""
    arm, model = family.arm, paper_name(family.arm.model)
    if context is None:
        return ["the paper has no such tasks (it has page_ruler_* and page_longbench_page_*)"]
    if model is None:
        return ["the paper has no such model"]
    found = [
        f"{name}={getattr(arm, name)}, the paper's is {wanted}"
        for name, wanted in _SETTINGS.items()
        if getattr(arm, name) != wanted
    ]
    if not any_numerics:
        numerics = (("dtype", "bfloat16"), ("attn_implementation", attention_of(model, context)))
        for name, wanted in numerics:
            if getattr(arm, name) != wanted:
                found.append(f"{name}={getattr(arm, name)}, the paper's is {wanted}")
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


def _place(task: str) -> tuple[str | None, str]:
    """The paper's context and name of a task; None for tasks that it does not have."""
    suite, name = split(task)
    found = _SUITE.fullmatch(suite)
    if found is None:
        return None, task
    return (found[1].upper() if found[1] else "LongBench"), name


def _cell(arm: Arm, context: str, pairs: Sequence[Pair]) -> Cell:
    import pandas as pd

    number: dict[tuple[str, int, int], int] = {}
    rows: dict[tuple[int, float], dict[str, object]] = {}
    for pair in pairs:
        plain, full, sample = pair.plain, pair.full, pair.sample
        task = _place(sample.task)[1]
        # The suites mixed4 and partition6 share inputs, which count once.
        key = number.setdefault((task, sample.doc_id, sample.repeat), len(number))
        rows[key, plain.budget] = {
            "task": task,
            "doc_id": sample.doc_id,
            "repeat": sample.repeat,
            "input": key,
            "budget": plain.budget,
            "prompt_tokens": plain.prompt_tokens,
            "drop": plain.drop,
            "open": plain.drop >= 0,
            "plain": metric_of(plain, METRIC),
            "full": metric_of(full, METRIC),
            "plain_kept": plain.kept_kv,
            "full_kept": full.kept_kv,
            **dict.fromkeys(_UNUSED, math.nan),
        }
    table = pd.DataFrame(list(rows.values())).sort_values(["input", "budget"], ignore_index=True)
    name = paper_name(arm.model) or arm.model
    evictor = f"{arm.evictor} {arm.granularity}"
    return Cell(name, context, evictor, "page", 0.0, None, METRIC, table, None)
