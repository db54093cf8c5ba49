"""LongBench's rows, from a local copy or the Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.tasks.local_rows import SUFFIXES, rows_in
from page_bench.tasks.longbench_subsets import SUBSETS, rules_of
from page_bench.tasks.metadata import first_line

HUB = "Xnhyacinth/LongBench"
VARIABLE = "PAGE_BENCH_LONGBENCH"

_REMEDY = (
    f"name a copy of {HUB} with --metadata '{{\"longbench_data\": PATH}}' or the environment "
    f"variable {VARIABLE}, or let the Hub be reached"
)


def rows_of(subset: str, metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The rows of one subset, in the data set's order.

    Args:
        subset: the name of a configuration of the Hub's data set.
        metadata: `longbench_data` names a local copy; left out, the environment variable
            `PAGE_BENCH_LONGBENCH` does; without either the rows come from the Hub. A copy is
            a folder with `SUBSET.jsonl`, `SUBSET.parquet`, or a folder `SUBSET` (or all of these
            inside `data`), or one such file with the rows of several subsets, told apart by their
            field `dataset` or `task`.

    Returns:
        Rows with `context`, `answers`, and `question` or `input`.

    Raises:
        UsageError: the copy, the Hub, or the rows in them are not there.
    """
    place = metadata.get("longbench_data") or os.environ.get(VARIABLE)
    if not isinstance(place, str | os.PathLike | None):
        raise UsageError(f"longbench_data={place!r} is not a path; give one, or leave it out.")
    copy = user_path(place, "longbench_data") if place else None
    rows = _from_hub(subset) if copy is None else _from_copy(subset, copy)
    if not rows:
        raise UsageError(f"LongBench's {subset} has no rows in {place or HUB}: {_REMEDY}.")
    lacking = [field for field in ("context", "answers") if field not in rows[0]]
    if "question" not in rows[0] and "input" not in rows[0]:
        lacking.append("question")
    if lacking:
        raise UsageError(
            f"the rows of LongBench's {subset} in {place or HUB} have no {' or '.join(lacking)}: "
            f"{_REMEDY}."
        )
    return rows


def check_row(row: Mapping[str, Any], subset: str, number: int) -> None:
    """Raise UsageError for a row that cannot be asked, or whose answers could not be scored."""
    where = f"row {number} of LongBench's {subset}"
    other = _subset_of(row).removesuffix("_e")
    if other in SUBSETS and other != subset.removesuffix("_e"):
        raise UsageError(f"{where} says that it is of {other}: {_REMEDY}.")
    asked = "question" if "question" in row else "input"
    for name in ("context", asked):
        if not isinstance(row.get(name), str):
            raise UsageError(f"{where} has no text in its field `{name}`: {_REMEDY}.")
    answers = row["answers"]
    # A text would count as a list of its letters.
    if not isinstance(answers, list | tuple) or not all(type(a) in (str, int) for a in answers):
        raise UsageError(
            f"{where} has {answers!r} as its `answers`, which must be a list of texts: {_REMEDY}."
        )
    metric = rules_of(subset).metric
    pattern = {"retrieval": r"Paragraph \d", "retrieval_zh": r"段落\d"}.get(metric)
    if pattern and not all(re.search(pattern, str(answer)) for answer in answers):
        raise UsageError(f"{where} has references that name no paragraph, {answers}: {_REMEDY}.")
    classes = row.get("all_classes")
    if metric == "classification" and (not classes or not isinstance(classes, list | tuple)):
        raise UsageError(
            f"{where} has no list `all_classes`, without which every answer is wrong: {_REMEDY}."
        )


def _from_hub(subset: str) -> Sequence[Mapping[str, Any]]:
    import datasets

    try:
        rows: Sequence[Mapping[str, Any]] = datasets.load_dataset(HUB, subset, split="test")
    except (OSError, ValueError, RuntimeError) as err:
        raise UsageError(
            f"LongBench's {subset} could not be loaded from the Hub "
            f"({first_line(err).rstrip('. ')}): {_REMEDY}."
        ) from err
    return rows


def _from_copy(subset: str, place: Path) -> Sequence[Mapping[str, Any]]:
    if place.is_file():
        return [row for row in _read(place) if _subset_of(row) == subset]
    for folder in (place, place / "data"):
        for file in (folder / f"{subset}.jsonl", folder / f"{subset}.parquet"):
            if file.is_file():
                return _read(file)
        files = sorted(p for p in (folder / subset).glob("*") if p.suffix in SUFFIXES)
        if files:
            return [row for file in files for row in _read(file)]
    raise UsageError(
        f"there is no {subset}.jsonl, {subset}.parquet or {subset}/ in {place}: {_REMEDY}."
    )


def _subset_of(row: Mapping[str, Any]) -> str:
    """The subset that a row says it is of; empty for none."""
    dataset, task = row.get("dataset"), row.get("task")
    # Rows of LongBench-E may have the name of the subset they were taken from in one of the two.
    return str((task if not dataset or task == f"{dataset}_e" else dataset) or "")


def _read(file: Path) -> Sequence[Mapping[str, Any]]:
    try:
        rows = rows_in(file)
    except Exception as err:  # pyarrow raises what its many readers raise
        raise UsageError(f"{file} could not be read ({first_line(err)}): {_REMEDY}.") from err
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not row.get("answers"):
            raise UsageError(f"row {number} of {file} has no `answers`: {_REMEDY}.")
    return rows
