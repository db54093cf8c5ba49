"""What fuzzing has found in files, each with the sentence that stands there now."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import store_examples
import torch
import yaml
from released_logs import agreement_rows, arm_rows
from retention_checkpoint import random_gates, write_checkpoint
from stored_traces import stored
from test_fuzz_inputs import SWEEP
from test_fuzz_runs import calibration

from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.paper_logs.logs import read_authors
from page_bench.commands import store as store_command
from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.gating import calibration as calibration_file
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import read_traces
from page_bench.records.store.store import RunStore
from page_bench.sweep.file import read_sweep

DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"drop": 0.2', b'"drop": NaN', "is not as page-bench writes it .NaN is not JSON"),
        (b'"drop": 0.2', b'"drop": 1e999', "is not as page-bench writes it .*too large"),
        (b'"doc_id": 0', b'"doc_id": 0, "doc_id": 1', "writes it .*stands in it twice"),
        (b'"doc_id": 0', b'"doc_id": 99999999999999999999', "writes it .*too large"),
        (b'"answer": "vt', b'"answer": "\xff', "holds the byte 0xff, which is not UTF-8; restore"),
        (b'"answer": "vt', b'"answer": "\x00', "holds a NUL"),
        (b'"task": "', b'"task": "\\ud800', r"writes it .*\\ud800 is half of a surrogate pair"),
        (b'"signals": {}', b'"signals": ' + DEEP.encode(), "writes it .*nested too deeply"),
    ],
)
def test_traces(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    line = stored().to_json().encode()
    assert old in line
    path = tmp_path / "trace_1.jsonl"
    path.write_bytes(line + b"\n" + line.replace(old, new) + b"\n")
    with pytest.raises(UsageError, match=f"line 2 .*{message}"):
        read_traces(path)


@pytest.mark.parametrize(
    "change",
    [
        {"decode_rows": 0},
        {"decode_rows_limit": 0},
        {"kept_kv": 0.0},
        {"budget": 1.5},
        {"prompt_tokens": 0},
        {"doc_id": -1},
        {"correct": 1e308},
        {"score": -1e308},
        {"decode_s": 1e308},
        {"prefill_s": -1.0},
        {"drop": 1.5},
        {"prompt_sha256": "x"},
    ],
)
def test_what_no_run_can_have_recorded(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "trace_1.jsonl"
    path.write_text(stored(**change).to_json() + "\n")
    with pytest.raises(UsageError, match=f"line 1: {next(iter(change))} cannot be"):
        read_traces(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"seed": 1234', '"seed": 1234, "seed": 1234', "stands in it twice"),
        ('"seed": 1234', f'"seed": {DEEP}', "nested too deeply"),
        ('"seed": 1234', '"seed": 1' + "0" * 400, "too large"),
    ],
)
def test_calibrations(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tau.json"
    calibration().save(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=message):
        calibration_file.load(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM parts WHERE name = 'model'",
        "UPDATE records SET about = 'x' WHERE id = 1",
        "UPDATE records SET value = x'ff' WHERE id = 1",
        "UPDATE records SET about = CAST(x'ff22' AS TEXT) WHERE id = 1",
        f"UPDATE records SET about = '{DEEP}' WHERE id = 1",
        "UPDATE records SET kind = x'ff' WHERE id = 1",
        "UPDATE records SET kind = 'answer' WHERE kind = 'seen'",
        "UPDATE parts SET json = x'00' WHERE id = 1",
    ],
)
def test_damaged_stores(statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.sqlite"
    with RunStore(path) as store:
        for number in range(2):
            store.put(store_examples.seen(number), [store_examples.answer(number)])
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    found = []
    for words in (["ls"], ["export"], ["prune", "--model", "tiny"], ["verify"]):
        try:
            found.append(store_command.run([words[0], str(path), *words[1:]]))
        except UsageError as error:
            found.append("damaged" in str(error))
    assert found[-1] in (1, True)  # verify sees it
    with suppress(UsageError):
        store_command.run(["merge", str(tmp_path / "new.sqlite"), str(path)])
        assert store_command.run(["verify", str(tmp_path / "new.sqlite")]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: 2026-99-99", "is not YAML: month must be in 1..12"),
        ("method: !!int x", "is not YAML"),
        ("method: !!bool x", "is not YAML"),
        ("method: !!timestamp x", "is not YAML"),
        ("[" * 400, "is not YAML"),
        ("method: !!python/object/apply:os.system ['touch outside']", "is not YAML"),
        ("method: grid\nparameters: {a: {value: &a [*a]}}", "values, those that aliases repeat"),
        (
            "method: grid\ncommand: [x]\nparameters: {x: {value: [&a [1,1,1,1,1,1,1,1,1,1], "
            + ", ".join(f"&{b} [{','.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdefg"))
            + "]}}",
            "values, those that aliases repeat",
        ),
        ("method: grid\ncommand: !!binary aGk=\nparameters: {a: {value: 1}}", "command is b'hi'"),
    ],
)
def test_sweeps(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_sweep(path)


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("grid", {"a": {"min": 0, "max": 10**15}}, "a has more than 100,000 values"),
        (
            "grid",
            {"a": {"distribution": "q_uniform", "min": 0.0, "max": 2.0**900, "q": 0.5}},
            "a has more than 100,000 values",
        ),
        ("grid", {n: {"min": 0, "max": 999} for n in "ab"}, "has more than 100,000 arms"),
        (
            "random",
            {"a": {"min": -1.5 * 10.0**308, "max": 1.5 * 10.0**308}},
            "a .uniform. draws numbers that are out",
        ),
        (
            "random",
            {"a": {"distribution": "log_uniform", "min": 1, "max": 10**6}},
            "draws numbers that are out of range",
        ),
    ],
)
def test_draws(method: str, parameters: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    content = {**SWEEP, "method": method, "parameters": parameters}
    del content["run_cap"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UsageError, match=message):
        read_sweep(path).draws(None if method == "grid" else 1000, 0)


def test_the_first_arms_of_a_large_grid_are_there(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({**SWEEP, "parameters": {n: {"min": 0, "max": 999} for n in "ab"}}))
    assert read_sweep(path).draws(2, 0) == [{"a": 0, "b": 0}, {"a": 0, "b": 1}]


@pytest.mark.parametrize(
    ("rows", "change"),
    [
        (arm_rows()[:4], {"correct_full": "v=9"}),
        (arm_rows()[:4], {"correct_gated_adakv": [1]}),
        (arm_rows()[:4], {"n_kept_adakv": float("inf")}),
        (arm_rows()[:4], {"drop": float("-inf")}),
        (agreement_rows(n=2)[:4], {"head_agreement_per_layer": ["x"]}),
        (agreement_rows(n=2)[:4], {"head_agreement_per_layer": [None] * 9}),
        (agreement_rows(n=2)[:4], {"T": 10**400}),
    ],
)
def test_rows_of_the_authors(
    rows: list[dict[str, Any]], change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "adakv_qwen3b_4k.jsonl"
    rows = [*rows[:-1], {**rows[-1], **change}]
    path.write_text("\n".join(map(json.dumps, rows)))
    read = read_authors([(path, Place(str(path)))], Choice(least_inputs=1))
    assert any("1 lines are not whole" in said for said in [*read.notes, *read.refused.values()])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (5, torch.zeros(2), "holds 5, which is no part"),
        (
            "layers.999999.self_attn.retention_gate.bias",
            torch.zeros(2),
            "lacks the gate of layer 2",
        ),
        (f"layers.{'9' * 5000}.self_attn.retention_gate.bias", torch.zeros(2), "no part of a"),
    ],
)
def test_keys_of_retention_gates(key: Any, value: Any, message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2, inner=4))
    weights = torch.load(tmp_path / "trimkv_weights.pth", weights_only=True)
    torch.save({**weights, key: value}, tmp_path / "trimkv_weights.pth")
    with pytest.raises(UsageError, match=message):
        load_gates(str(tmp_path))


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 4, device="meta"),
        torch.zeros(2, 4).to_sparse(),
        torch.zeros(2, 4, dtype=torch.int8),
    ],
)
def test_tensors_of_retention_gates(value: torch.Tensor, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_gates("rg10", 2, 16, 2, inner=4))
    weights = torch.load(tmp_path / "trimkv_weights.pth", weights_only=True)
    weights["model.layers.1.self_attn.retention_gate.linear3.weight"] = value
    torch.save(weights, tmp_path / "trimkv_weights.pth")
    with pytest.raises(UsageError, match=r"holds (no table of weights|a different linear3)"):
        load_gates(str(tmp_path))


def test_a_log_whose_first_line_is_of_other_arms(tmp_path: Path) -> None:
    path = tmp_path / "adakv_qwen3b_4k.jsonl"
    first, *rest = arm_rows()[:4]
    path.write_text("\n".join(map(json.dumps, [{**first, "correct_plain_x": True}, *rest])))
    read = read_authors([(path, Place(str(path)))], Choice(least_inputs=1))
    assert read.refused == {path: "no line of it is whole."}


@pytest.mark.parametrize("field", ["retention_gate", "hidden_act"])
def test_configurations_of_retention_gates(field: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2, inner=4), **{field: [1]})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"\[1\]"):
        load_gates(str(tmp_path))
