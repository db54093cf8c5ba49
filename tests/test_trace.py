"""The record and the answer that carries it."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from page_bench.inputs.errors import UsageError
from page_bench.records.trace import SCHEMA_VERSION, Answer, Trace, writable_folder, write_traces


def some_trace(**changes: Any) -> Trace:
    """A trace whose fields have values of their types."""
    samples = {"str": "x", "int": 1, "float": 0.5, "bool": True, "list[float]": [0.5]}
    values = {
        field.name: samples.get(str(field.type).removesuffix(" | None"), {})
        for field in dataclasses.fields(Trace)
        if field.default is dataclasses.MISSING
    }
    return Trace(**{**values, **changes})


def test_an_answer_is_its_text() -> None:
    answer = Answer("seven", some_trace())
    assert answer == "seven"
    assert json.dumps([answer]) == '["seven"]'
    assert isinstance(answer.strip(), str)


def test_references_can_be_cast_to_the_type_of_an_answer() -> None:
    answer = Answer("7", some_trace())
    assert type(answer)(7) == answer  # as lm-eval's exact match does
    assert type(answer)(7).trace is None


def test_an_answer_keeps_its_trace_when_copied_or_pickled() -> None:
    answer = Answer("seven", some_trace(drop=0.25))
    for other in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), copy.copy(answer)):
        assert other == "seven"
        assert other.trace == answer.trace


def test_traces_are_lines_of_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    traces = [some_trace(drop=float("nan"), answer="日本\n"), some_trace(agreement=[float("inf")])]
    write_traces(path, traces)
    rows = [json.loads(line, parse_constant=_refuse) for line in path.read_text().splitlines()]
    assert rows[0]["drop"] is None
    assert rows[0]["answer"] == "日本\n"
    assert rows[1]["agreement"] == [None]
    assert {row["schema_version"] for row in rows} == {SCHEMA_VERSION}
    assert [p.name for p in path.parent.iterdir()] == ["trace.jsonl"]


def test_no_character_of_an_answer_ends_the_line(tmp_path: Path) -> None:
    answer = "one\u2028two\x85three"
    write_traces(tmp_path / "trace.jsonl", [some_trace(answer=answer)])
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(line)["answer"] == answer


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_an_error_at_once(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the trace cannot be written to"):
        writable_folder(str(tmp_path / place))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
