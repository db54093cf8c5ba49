"""Lines of the paper's released JSONL logs, told apart by their fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from page_bench.inputs import json_text
from page_bench.records.finished_runs import TRACE_PATTERN

Kind = Literal["gated", "arms", "memory", "agreement"]
"""`gated`: one evictor (gated_*, capkv_longbench_*); `arms`: several, the full cache's outcome in
each row (adakv_*, capbound_*); `memory`: budgets in tokens (gated_dbtrimkv_*); `agreement`: no
answers (drops_*)."""

_COMMON = {"id": int, "task": str, "budget": (int, float), "T": int, "drop": (int, float)}
_GATED = {
    **_COMMON,
    "gate_open": bool,
    "n_kept_plain": int,
    "correct_plain": bool,
    "correct_gated": bool,
}
_FIELDS: dict[Kind, dict[str, Any]] = {
    "gated": _GATED,
    "memory": {**_GATED, "tau": (int, float)},
    "arms": {**_COMMON, "gate_open": bool, "correct_full": bool},
    "agreement": {"task": str, "T": int, "head_agreement_per_layer": list},
}
_OTHERS = {
    "t_prefill_ms": "times of single decodes; `page-bench latency` measures these",
    "configs": "times of single decodes; `page-bench latency` measures these",
    "pair_jaccard_per_layer": "agreement of single head pairs without answers",
    "drop_D": "prefill statistics without answers",
    "kappa_median": "margins κ without answers",
    "correct_uniform": "neither the full cache's answers nor what its counts of kept tokens mean",
    "drop_value": "times of the gate on synthetic input",
    "synthetic": "times of the gate on synthetic input",
    "meta": "times of the gate on synthetic input",
    "pred": "answers without D and prompt length, on which no gate can be decided",
}
"""By a field that only they have, logs that hold no inputs with answers to decide on."""

ARM = "correct_plain_"


@dataclass(frozen=True)
class Log:
    """A log's rows.

    Attributes:
        path: its file.
        kind: see `Kind`; None where a report cannot use it.
        rows: objects, in order.
        lines: of each, the number of its line, from 1 on.
        unreadable: numbers of lines that are not whole, such as those with a run of NUL.
        why: what the file holds instead, where `kind` is None.
    """

    path: Path
    kind: Kind | None
    rows: Sequence[dict[str, Any]]
    lines: Sequence[int]
    unreadable: Sequence[int]
    why: str = ""

    @property
    def arms(self) -> list[str]:
        """Names of the evictors of a log of several."""
        return [key.removeprefix(ARM) for key in self.rows[0] if key.startswith(ARM)]


def read_log(path: Path) -> Log:
    """A log, its kind told by the fields of its first readable line."""
    found, broken = [], []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = _object(line)
            if row is None:
                broken.append(number)
            else:
                found.append((number, row))
    kind, why = _kind(found[0][1]) if found else (None, "no line of JSON")
    whole = found
    if kind is not None:
        wanted = dict(_FIELDS[kind])
        optional = {"correct_full"} - wanted.keys()
        if kind == "arms":
            arms = [key.removeprefix(ARM) for key in found[0][1] if key.startswith(ARM)]
            wanted |= {f"{ARM}{arm}": bool for arm in arms}
            wanted |= {f"n_kept_{arm}": (int, float) for arm in arms}
            optional = {f"correct_gated_{arm}" for arm in arms}
        whole = [(n, row) for n, row in found if _is_whole(row, wanted, optional)]
        broken += [n for n, row in found if not _is_whole(row, wanted, optional)]
    return Log(path, kind, [r for _, r in whole], [n for n, _ in whole], sorted(broken), why)


def is_trace(path: Path) -> bool:
    """Whether a file holds page-bench's own traces, by its name or its first line."""
    if path.match(TRACE_PATTERN):
        return True
    with path.open("rb") as file:
        row = _object(file.readline())
    return row is not None and "schema_version" in row


def ranges(numbers: Iterable[int], most: int = 8) -> str:
    """Whole numbers in few words: `0–45, 50`."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    said = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:most]]
    return ", ".join(said) + (f" and {len(runs) - most} more" if len(runs) > most else "")


def _kind(row: dict[str, Any]) -> tuple[Kind | None, str]:
    if _has(row, _FIELDS["agreement"]):
        return "agreement", ""
    if _has(row, _FIELDS["arms"]) and any(key.startswith(ARM) for key in row):
        return "arms", ""
    if _has(row, _FIELDS["memory"]):
        return "memory", ""
    if _has(row, _GATED):
        return "gated", ""
    for field, held in _OTHERS.items():
        if field in row:
            return None, held
    return None, f"rows with the fields {', '.join(sorted(row)[:6])}, which are no known log"


def _has(row: dict[str, Any], fields: dict[str, Any]) -> bool:
    # To Python a bool is a whole number as well.
    return all(
        isinstance(row.get(name), kind) and (kind is bool or not isinstance(row[name], bool))
        for name, kind in fields.items()
    )


def _is_whole(row: dict[str, Any], fields: dict[str, Any], optional: Iterable[str]) -> bool:
    """Whether a row has all fields, numbers where they are due, and a verdict or nothing else.

    D alone may be no number, which opens no gate.
    """
    if not _has(row, fields) or any(type(row.get(n)) not in (bool, type(None)) for n in optional):
        return False
    layers = row.get("head_agreement_per_layer", []) if "head_agreement_per_layer" in fields else []
    numbers = [row[name] for name in fields if name != "drop" and type(row[name]) is float]
    return (
        not math.isinf(row.get("drop", 0) if "drop" in fields else 0)
        and all(type(value) in (int, float) for value in layers)
        and all(map(math.isfinite, [*numbers, *layers]))
    )


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json_text.parse(line, nan=True, twice=True, halves=None)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
