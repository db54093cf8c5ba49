"""Where LongBench's rows come from: a local copy, else the Hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_bench.errors import UsageError

HUB = "Xnhyacinth/LongBench"
VARIABLE = "PAGE_BENCH_LONGBENCH"

Row = Mapping[str, Any]


def rows_of(subset: str, metadata: Mapping[str, Any]) -> Sequence[Row]:
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
    rows = _from_hub(subset) if not place else _from_copy(subset, Path(place).expanduser())
    if not rows:
        raise UsageError(f"LongBench's {subset} has no rows in {place or HUB}: {_remedy()}.")
    lacking = [field for field in ("context", "answers") if field not in rows[0]]
    if "question" not in rows[0] and "input" not in rows[0]:
        lacking.append("question")
    if lacking:
        raise UsageError(
            f"the rows of LongBench's {subset} in {place or HUB} have no {' or '.join(lacking)}: "
            f"{_remedy()}."
        )
    return rows


def _from_hub(subset: str) -> Sequence[Row]:
    import datasets

    try:
        rows: Sequence[Row] = datasets.load_dataset(HUB, subset, split="test")
    except (OSError, ValueError, RuntimeError) as err:
        said = str(err).strip().splitlines()
        raise UsageError(
            f"LongBench's {subset} could not be loaded from the Hub "
            f"({said[0].rstrip('. ') if said else type(err).__name__}): {_remedy()}."
        ) from err
    return rows


def _from_copy(subset: str, place: Path) -> Sequence[Row]:
    if place.is_file():
        return [
            row for row in _read(place) if subset in (row.get("dataset") or "", row.get("task"))
        ]
    for folder in (place, place / "data"):
        for file in (folder / f"{subset}.jsonl", folder / f"{subset}.parquet"):
            if file.is_file():
                return _read(file)
        inside = folder / subset
        files = sorted(p for p in inside.glob("*") if p.suffix in (".jsonl", ".parquet"))
        if files:
            return [row for file in files for row in _read(file)]
    raise UsageError(
        f"there is no {subset}.jsonl, {subset}.parquet or {subset}/ in {place}: {_remedy()}."
    )


def _read(file: Path) -> Sequence[Row]:
    try:
        rows = _parsed(file)
    except Exception as err:  # datasets raises what its many readers raise
        raise UsageError(
            f"{file} could not be read ({str(err).strip().partition(chr(10))[0]}): {_remedy()}."
        ) from err
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not row.get("answers"):
            raise UsageError(f"row {number} of {file} has no `answers`: {_remedy()}.")
    return rows


def _parsed(file: Path) -> Sequence[Row]:
    if file.suffix == ".parquet":
        import datasets

        rows: Sequence[Row] = datasets.load_dataset("parquet", data_files=str(file), split="train")
        return rows
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _remedy() -> str:
    return (
        f"name a copy of {HUB} with --metadata '{{\"longbench_data\": PATH}}' or the environment "
        f"variable {VARIABLE}, or let the Hub be reached"
    )
