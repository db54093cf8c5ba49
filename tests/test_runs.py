"""Stored traces are read back as they were, or refused with a reason."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from stored_traces import stored

from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Arm, Sample, parse_trace, read_runs, read_traces
from page_bench.records.trace import SCHEMA_VERSION, Trace, write_traces


def written(path: Path, *traces: Trace) -> Path:
    write_traces(path, traces)
    return path


def line(**changes: Any) -> str:
    return json.dumps({**json.loads(stored().to_json()), **changes})


def test_traces_come_back_as_they_were(tmp_path: Path) -> None:
    traces = [
        stored(doc_id=1, agreement=[0.1, 1 / 3], tau=0.07, z=None, context_tokens=None),
        stored(doc_id=2, answer="one\u2028two\x85\r\nthree\n", score=None, correct=None),
        stored(doc_id=3, evictor_args={"pool": 5, "mode": None}, kept_all_because="too short"),
    ]
    path = written(tmp_path / "trace_1.jsonl", *traces)
    records = read_runs([path])
    assert [record.trace for record in records] == traces
    assert [record.where for record in records] == [f"{path} line {i}" for i in (1, 2, 3)]


def test_null_is_nan_only_where_a_number_is_due() -> None:
    trace = parse_trace(stored(drop=math.nan, agreement=[0.5, math.nan], tau=None).to_json())
    assert math.isnan(trace.drop)
    assert trace.agreement[0] == 0.5
    assert math.isnan(trace.agreement[1])
    assert trace.tau is None


def test_whole_numbers_become_floats() -> None:
    trace = parse_trace(line(budget=1, kept_kv=1))
    assert isinstance(trace.budget, float)
    assert isinstance(trace.kept_kv, float)


def test_folders_are_read_with_all_below_them_and_nothing_twice(tmp_path: Path) -> None:
    first = written(tmp_path / "a" / "trace_1.jsonl", stored(doc_id=1))
    written(tmp_path / "a" / "deep" / "trace_2.jsonl", stored(doc_id=2))
    other = written(tmp_path / "b.jsonl", stored(doc_id=3))
    (tmp_path / "a" / "samples_vt.jsonl").write_text("not a trace\n")
    (tmp_path / "a" / "trace_3.partial").write_text("not finished")
    found = read_runs([tmp_path / "a", first, str(other), tmp_path / "a" / ".." / "b.jsonl"])
    assert [record.trace.doc_id for record in found] == [2, 1, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line()[:-20], r"line 2 is not complete JSON .* delete the line or run again"),
        ("\x00\x00\x00", "line 2 holds a NUL, as UTF-16 does .*restore the file"),
        ("", "line 2 is not complete JSON"),
        ("[1, 2]", "line 2 is not a trace"),
        ('{"task": "vt"}', "line 2 is not a trace: it has no schema_version"),
        (
            line(schema_version=SCHEMA_VERSION - 1),
            f"schema version {SCHEMA_VERSION - 1}, but this page-bench reads version",
        ),
        (line(schema_version=SCHEMA_VERSION + 1), f"has schema version {SCHEMA_VERSION + 1}"),
        (line(tempo=3), "has the unknown field tempo"),
        (line(kept_kv="all"), "kept_kv is 'all', not float"),
        (line(gate_open=1), "gate_open is 1, not bool"),
        (line(doc_id=1.5), "doc_id is 1.5, not int"),
        (line(doc_id=True), "doc_id is True, not int"),
        (line(agreement=[0.5, "x"]), r"agreement is .*, not list\[float\]"),
        (line(model=None), "model is None, not str"),
    ],
)
def test_a_line_that_is_no_trace_is_named(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "trace_1.jsonl"
    path.write_text(f"{line()}\n{text}\n")
    with pytest.raises(UsageError, match=reason) as error:
        read_traces(path)
    assert f"{path} line 2" in str(error.value)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    row = json.loads(stored().to_json())
    del row["drop"], row["budget"]
    with pytest.raises(UsageError, match="the line lacks budget, drop"):
        parse_trace(json.dumps(row))


def test_places_without_traces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "trace_0.jsonl").write_text("")
    with pytest.raises(UsageError, match="does not exist"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"holds no trace_\*\.jsonl"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(UsageError, match="is empty"):
        read_runs([tmp_path])


def test_arms_differ_by_eviction_and_not_by_gate_or_outcome() -> None:
    one = stored(evictor_args={"a": 1, "b": 2})
    same = dataclasses.replace(
        one, gate="page", tau=0.1, drop=0.9, score=0.0, evictor_args={"b": 2, "a": 1}, doc_id=7
    )
    assert Arm.of(one) == Arm.of(same)
    for change in (
        *({"evictor": "h2o"}, {"budget": 0.5}, {"top_k": 8}, {"granularity": "head"}),
        *({"protocol": "page"}, {"chat_template": True}, {"chat_template": False}),
    ):
        assert Arm.of(dataclasses.replace(one, **change)) != Arm.of(one)


def test_every_field_of_a_trace_has_its_place() -> None:
    """A new field has to be put into one of these sets, on purpose."""
    eviction = {f.name for f in dataclasses.fields(Arm)}
    sample = {f.name for f in dataclasses.fields(Sample)} | {
        "truncated_tokens",
        "asked",
        "system_in_user_turn",
    }
    decision = {"gate", "gate_args", "tau_variant", "tau", "gate_open", "z"}
    assert not eviction & sample
    assert eviction | sample <= {f.name for f in dataclasses.fields(Trace)}
    rest = {f.name for f in dataclasses.fields(Trace)} - eviction - sample - decision
    assert rest <= OUTCOMES, rest - OUTCOMES


OUTCOMES = {
    *("agreement", "full_attention_layers", "drop", "signals", "pair_agreement", "margin"),
    "discarded_s",
    *("context_tokens", "kept_all_because", "kept_tokens", "kept_kv"),
    *("kv_bytes_full", "kv_bytes_kept", "kv_bytes_allocated"),
    *("prefill_s", "gate_s", "evict_s", "decode_s", "decode_rows", "new_tokens", "answer"),
    *("score", "correct", "correct_paper", "metric", "mean_token_entropy", "repetition"),
    *("log_likelihoods", "greedy", "decode_rows_limit", "decode_rows_lowered"),
    *("must_keep", "rotation_changed", "cut", "no_evidence"),
    *("evidence_kept", "evidence_kept_best_head", "evidence_sha256"),
    "schema_version",
}


def test_a_label_names_what_differs() -> None:
    small, large = Arm.of(stored()), Arm.of(stored(model="big", budget=0.5))
    assert small.label([small]) == "snapkv"
    assert small.label([small, large]) == "snapkv model=tiny"
    assert large.label([small, large]) == "snapkv model=big"


def test_arms_whose_records_do_not_say_their_wording_can_be_sorted_and_are_named() -> None:
    arms = sorted(
        Arm.of(stored(protocol=protocol, chat_template=chat))
        for protocol, chat in (("ruler", True), (None, False), ("page", None))
    )
    assert [arm.label(arms) for arm in arms] == [
        "snapkv protocol=page chat_template=unsaid",
        "snapkv protocol=ruler chat_template=true",
        "snapkv protocol=unsaid chat_template=false",
    ]
