"""The columns of the leaderboard: what each holds, in which unit, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from page_bench.analysis.estimates import LEAST
from page_bench.analysis.partition import CAPACITY, DILUTION, UNDECIDED
from page_bench.config import COMPRESSIONS, SCORE_NORMS
from page_bench.evictors.base import GRANULARITIES

Kind = Literal["text", "names", "json", "date", "flag", "integer", "number"]
Part = Literal["mark", "identity", "figure", "provenance"]

SOURCES = ("measured", "published")
_SHARE = (0.0, 1.0)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as in the file's first line.
        kind: `names` is a list of words separated by single spaces, `json` an object with sorted
            keys, `date` a day as YYYY-MM-DD, `flag` true or false.
        part: `identity` columns say which arm a row is of; `row` is made of them alone.
        meaning: one sentence.
        unit: of a number; None for a text, or a number without.
        source: where the value or its definition comes from.
        always: whether a measured row must have a value; empty means that it is not known.
        least, most: bounds of a number, both allowed.
        choices: all texts that are allowed; empty allows any.
    """

    name: str
    kind: Kind
    part: Part
    meaning: str
    unit: str | None = None
    source: str = "results JSON"
    always: bool = False
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()


def _mark(name: str, kind: Kind, meaning: str, source: str, **more: object) -> Column:
    return Column(name, kind, "mark", meaning, source=source, **more)  # type: ignore[arg-type]


def _identity(name: str, kind: Kind, meaning: str, **more: object) -> Column:
    return Column(name, kind, "identity", meaning, **{"always": True, **more})  # type: ignore[arg-type]


def _figure(
    name: str,
    meaning: str,
    unit: str | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    interval: str = "",
    always: bool = False,
) -> list[Column]:
    """A number, and the ends of its 95 % interval where `interval` says how that is taken."""
    least, most = bounds
    shared = {"unit": unit, "source": "trace", "least": least, "most": most, "always": always}
    made = [Column(name, "number", "figure", meaning, **shared)]  # type: ignore[arg-type]
    # Few inputs have a value and no interval.
    shared["always"] = False
    for end in ("low", "high") if interval else ():
        text = f"{end.capitalize()} end of the 95 % interval of {name} ({interval})."
        made.append(Column(f"{name}_{end}", "number", "figure", text, **shared))  # type: ignore[arg-type]
    return made


def _provenance(name: str, kind: Kind, meaning: str, **more: object) -> Column:
    return Column(name, kind, "provenance", meaning, **more)  # type: ignore[arg-type]


_WILSON = "Wilson"
_BOOTSTRAP = f"bootstrap over documents; empty where fewer than {LEAST} carry it"

ROW = Column(
    "row",
    "text",
    "mark",
    "First 12 hexadecimal digits of the SHA-256 of the identity columns.",
    source="identity columns",
    always=True,
)

COLUMNS: tuple[Column, ...] = (
    ROW,
    _mark("source", "text", "Who measured.", "page-bench", always=True, choices=SOURCES),
    _mark(
        "demonstration",
        "flag",
        "Whether the row shows the mechanism alone and is no evidence about a method.",
        "page-bench",
        always=True,
    ),
    _mark("why", "text", "What makes it a demonstration.", "page-bench"),
    _identity("model", "text", "Name of the model, with revision and adapter."),
    _identity("dtype", "text", "dtype of the weights, and of mixed precision."),
    _identity("attn_implementation", "text", "Attention implementation, `sdpa` or `eager`."),
    _identity("suite", "text", "Tasks that belong together, of one prompt length."),
    _identity("length", "text", "Nominal prompt length, such as `4k`.", always=False),
    _identity("protocol", "text", "How the tasks word their prompts.", always=False),
    _identity("chat_template", "flag", "Whether a chat template was applied."),
    _identity("compress", "text", "What was observed and evicted.", choices=tuple(COMPRESSIONS)),
    _identity("evictor", "text", "Title of the evictor; `none` for the full cache."),
    _identity("evictor_args", "json", "Its options, defaults and variant included."),
    _identity(
        "granularity",
        "text",
        "One keep set for all layers and heads, per layer, or per layer and KV head.",
        choices=tuple(GRANULARITIES),
    ),
    _identity(
        "score_norm",
        "text",
        "What makes heads and layers comparable before their scores are averaged or compete.",
        choices=tuple(SCORE_NORMS),
    ),
    _identity("n_sink", "integer", "First positions that are always kept.", unit="tokens", least=0),
    _identity("recent", "integer", "Last positions that are always kept.", unit="tokens", least=0),
    _identity("window", "integer", "Query rows of the observation window.", unit="tokens", least=1),
    _identity("top_k", "integer", "Size of the key sets that D compares.", unit="keys", least=1),
    _identity("gate", "text", "Name of the gate; `open` is plain eviction, `closed` full cache."),
    _identity("gate_args", "json", "Its options, and what its rule for τ was given."),
    _identity("tau_variant", "text", "Rule for τ; empty where the gate reads none.", always=False),
    _identity(
        "budget",
        "number",
        "Nominal share of prompt positions kept per layer and KV head; 1 for the full cache.",
        unit="share",
        least=0,
        most=1,
    ),
    _identity(
        "data",
        "json",
        "What else the prompts and answers depend on: task versions, metadata, answer lengths and "
        "generation settings, other model arguments.",
    ),
    Column("n", "integer", "figure", "Answers.", "answers", "trace", always=True, least=1),
    Column("n_tasks", "integer", "figure", "Tasks.", "tasks", "trace", always=True, least=1),
    Column("tasks", "names", "figure", "Names without the suite's.", None, "trace", always=True),
    Column(
        "inputs",
        "text",
        "figure",
        "First 12 hex digits of the SHA-256 over task, number and prompt of each input.",
        None,
        "trace",
        always=True,
    ),
    *_figure("tau", "Threshold; empty where the gate reads none."),
    *_figure("score", "Mean of the benchmark's own metric.", "score", _SHARE, _BOOTSTRAP, True),
    *_figure("correct", "Share of right answers.", "share", _SHARE, _WILSON, True),
    *_figure("full_score", "Mean score of the full cache on the same inputs.", "score", _SHARE),
    *_figure("full_correct", "Its share of right answers.", "share", _SHARE),
    *_figure(
        "delta",
        "correct minus that of plain eviction by the same arm, input by input; empty for plain "
        "eviction itself and the full cache.",
        "share",
        (-1.0, 1.0),
        _BOOTSTRAP,
    ),
    *_figure(
        "harm",
        "Share of answers that are wrong, and right with the full cache.",
        "share",
        _SHARE,
        _WILSON,
    ),
    *_figure(
        "rho",
        "Share of answers that are wrong with the full cache, and right under plain eviction at "
        "this budget (paper, Eq. 1).",
        "share",
        _SHARE,
        _WILSON,
    ),
    *_figure("open", "Share of inputs whose gate opens.", "share", _SHARE, _WILSON, True),
    *_figure(
        "kept_kv",
        "Kept entries / full entries over all layers and KV heads, as achieved; mean over inputs.",
        "share",
        _SHARE,
        _BOOTSTRAP,
        True,
    ),
    *_figure("compression", "1 / kept_kv.", "×", (1.0, math.inf), always=True),
    *_figure("kv_bytes", "Mean size of what is left of a prompt's cache.", "bytes", (0, math.inf)),
    *_figure("kv_bytes_full", "The same where nothing is evicted.", "bytes", (0, math.inf)),
    *_figure(
        "auc_drop",
        "Probability that D of an input that plain eviction harms lies below D of another.",
        "probability",
        _SHARE,
        _BOOTSTRAP,
    ),
    *_figure(
        "decode_speedup",
        "Seconds per answer token with the full cache / seconds here; empty unless all answers of "
        "both were decoded alone, on the same device.",
        "×",
        (0, math.inf),
    ),
    _provenance("page_bench", "text", "Version of page-bench."),
    _provenance("lm_eval", "text", "Version of lm-eval.", always=True),
    _provenance("torch", "text", "Version of torch."),
    _provenance("transformers", "text", "Version of transformers.", always=True),
    _provenance(
        "commit",
        "text",
        "Commit of page-bench's checkout, -dirty where files differed; where it is installed, of "
        "the folder that the run was started in.",
    ),
    _provenance("device", "text", "Kind of the device, and its name.", always=True),
    _provenance("date", "date", "Day of the run, UTC.", always=True),
    _provenance(
        "command", "text", "Reproduces the row; local paths are cut to names.", always=True
    ),
    _provenance(
        "digest", "text", "SHA-256 of all other columns.", source="page-bench", always=True
    ),
)

TASK_COLUMNS: tuple[Column, ...] = (
    ROW,
    Column("task", "text", "identity", "Name without the suite's.", None, "trace", always=True),
    Column("n", "integer", "figure", "Answers.", "answers", "trace", always=True, least=1),
    *_figure("score", "Mean of the benchmark's own metric.", "score", _SHARE, always=True),
    *_figure("correct", "Share of right answers.", "share", _SHARE, _WILSON, True),
    *_figure("full_correct", "That of the full cache.", "share", _SHARE),
    *_figure("delta", "correct minus that of plain eviction.", "share", (-1.0, 1.0)),
    *_figure("harm", "As in the row.", "share", _SHARE, _WILSON),
    *_figure("rho", "As in the row.", "share", _SHARE),
    *_figure("open", "Share of inputs whose gate opens.", "share", _SHARE, always=True),
    *_figure("kept_kv", "As in the row.", "share", _SHARE, always=True),
    *_figure("drop", "Mean D."),
    Column(
        "class",
        "text",
        "figure",
        "Class that ρ's whole interval speaks for at this budget alone.",
        None,
        "page_bench.analysis.partition",
        choices=(DILUTION, CAPACITY, UNDECIDED),
    ),
    _provenance(
        "digest", "text", "SHA-256 of all other columns.", source="page-bench", always=True
    ),
)

IDENTITY = tuple(column for column in COLUMNS if column.part == "identity")


def named(columns: Iterable[Column]) -> dict[str, Column]:
    """The columns by name."""
    return {column.name: column for column in columns}


def intervals(columns: Iterable[Column]) -> list[str]:
    """Names of the figures that have an interval."""
    names = set(named(columns))
    return [name for name in sorted(names) if {f"{name}_low", f"{name}_high"} <= names]
