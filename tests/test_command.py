"""The command itself, on the default model: results, samples, trace and W&B run, read back."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

METRICS = {"score", "correct", "kept_kv", "gate_open", "head_drop"}
LIMIT = 2
COMMAND = (
    "--model page_hf --model_args evictor=snapkv,tau=zscore --output_path out --log_samples "
    f"--limit {LIMIT} --wandb_args mode=offline,project=page-bench"
)

pytestmark = pytest.mark.real_model


@dataclass(frozen=True)
class Run:
    """What one run of the command left behind."""

    output: str
    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]
    trace: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, default_model_folder: Path) -> Run:
    folder = tmp_path_factory.mktemp("command")
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *COMMAND.split()],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (home,) = (folder / "out").iterdir()
    assert home.name == "SmolLM2-135M-Instruct-Q4_1"
    (results,) = home.glob("results_*.json")
    (trace,) = home.glob("trace_*.jsonl")
    samples = {}
    for path in home.glob("samples_*.jsonl"):
        task = path.name.removeprefix("samples_").rsplit("_", 1)[0]
        samples[task] = lines(path)
    return Run(
        done.stdout + done.stderr, json.loads(results.read_text()), samples, lines(trace), folder
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_quickstart_runs_and_says_so(run: Run) -> None:
    assert "No tasks given: running page_quickstart" in run.output
    assert set(run.results["group_subtasks"]) == {"page_quickstart"}
    assert len(run.samples) >= 2
    assert all(len(rows) == LIMIT for rows in run.samples.values())


def test_results_aggregate_every_metric_over_tasks_and_group(run: Run) -> None:
    rows = [row for task in run.samples.values() for row in task]
    group = run.results["groups"]["page_quickstart"]
    for metric in METRICS:
        values = [row[metric] for row in rows]
        assert all(isinstance(value, float) and math.isfinite(value) for value in values)
        assert group[f"{metric},none"] == pytest.approx(sum(values) / len(values))
        for task, own in run.samples.items():
            mean = sum(row[metric] for row in own) / len(own)
            assert run.results["results"][task][f"{metric},none"] == pytest.approx(mean)


def test_results_name_what_was_used(run: Run) -> None:
    page = run.results["config"]["page"]
    assert page["model"] == "SmolLM2-135M-Instruct-Q4_1"
    assert (page["evictor"], page["budget"], page["gate"]) == ("snapkv", 0.125, "page")
    assert page["pilot_n"] == page["samples"] == len(run.trace)
    assert page["tau"] == pytest.approx(page["mu"] - 0.69 * page["sigma"])
    assert page["gates_open"] == sum(row["gate_open"] for row in run.trace)
    assert run.results["config"]["model_args"]["pretrained"] == page["model"]


def test_the_trace_holds_every_sample_with_its_scores(run: Run) -> None:
    traced = {(row["task"], row["doc_id"]): row for row in run.trace}
    sampled = {(task, row["doc_id"]): row for task, rows in run.samples.items() for row in rows}
    assert traced.keys() == sampled.keys()
    for key, row in traced.items():
        sample = sampled[key]
        assert row["answer"] == sample["resps"][0][0]
        assert (row["score"], row["correct"]) == (sample["score"], sample["correct"])
        assert row["kept_kv"] == sample["kept_kv"]
        assert row["drop"] == sample["head_drop"]
        assert row["gate_open"] == (row["drop"] >= row["tau"]) == bool(sample["gate_open"])
        expected = row["kept_tokens"] / row["prompt_tokens"] if row["gate_open"] else 1.0
        assert row["kept_kv"] == pytest.approx(expected)


def test_the_wandb_run_file_holds_the_metrics_of_every_sample(run: Run) -> None:
    tables = dict(wandb_tables(run.folder))
    for task, rows in run.samples.items():
        table = tables[f"{task}_eval_results"]
        logged = [dict(zip(table["columns"], data, strict=True)) for data in table["data"]]
        assert len(logged) == len(rows)
        for row in rows:
            (match,) = (entry for entry in logged if entry["id"] == row["doc_id"])
            assert {m: match[m] for m in METRICS} == {m: row[m] for m in METRICS}
    assert "Logging to W&B failed" not in run.output


def wandb_tables(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables of the one offline run, found by reading its run file."""
    from wandb.proto.wandb_internal_pb2 import Record

    (run_file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for data in run_records(run_file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            if len(item.nested_key) == 2 and item.nested_key[1] == "path":
                path = run_file.parent / "files" / json.loads(item.value_json)
                yield item.nested_key[0], json.loads(path.read_text())


def run_records(data: bytes) -> Iterator[bytes]:
    """Records of a W&B run file: a 7-byte header, then LevelDB's log format.

    Blocks of 32 KiB hold fragments, each with a checksum (4 bytes), length (2) and kind (1): a
    whole record, or its first, middle or last part.
    """
    block, header = 32768, 7
    offset, parts = header, b""
    while offset + header <= len(data):
        if block - offset % block < header:  # too little is left for a fragment
            offset += block - offset % block
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        parts += data[offset + header : offset + header + length]
        offset += header + length
        if kind in (1, 4):
            yield parts
            parts = b""
