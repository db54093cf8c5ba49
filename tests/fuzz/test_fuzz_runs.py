"""What runs leave behind, with every kind of damage: one clear sentence, or what it holds."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import finished_runs
import pytest
from fuzzing import damaged, damaged_bytes, fresh, fuzzed, json_text, outcome, quiet
from hypothesis import given
from hypothesis import strategies as st
from stored_traces import stored

from page_bench.analysis.gate_choice import Choice
from page_bench.commands import regate
from page_bench.commands.wandb_import.finished import finished_runs as wandb_runs_of
from page_bench.config import PageConfig
from page_bench.engine import decision
from page_bench.gating import calibration as calibration_file
from page_bench.gating.calibration import Calibration, ModelFacts, PilotInput, threshold_from
from page_bench.gating.fingerprint import Fingerprint
from page_bench.harness.wandb.run_file import records as wandb_records
from page_bench.leaderboard.add import rows_of
from page_bench.leaderboard.check import examined
from page_bench.leaderboard.file import Board, write_board
from page_bench.leaderboard.run import read_finished
from page_bench.records.finished_runs import read_traces
from page_bench.report import sources


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# Traces

TRACES = [*finished_runs.answers("open"), *finished_runs.answers("closed")]
LINES = [json.loads(trace.to_json()) for trace in TRACES]
WHOLE = "".join(trace.to_json() + "\n" for trace in TRACES).encode()


def read_everywhere(path: Path) -> None:
    """A file of traces through all that reads some."""
    before = path.read_bytes()
    if outcome(lambda: read_traces(path)) is None:
        return
    quiet(lambda: regate.run([str(path), "--gate", "page", "--tau", "0.07", "--draws", "100"]))
    quiet(lambda: sources.read([str(path)], Choice()))
    assert path.read_bytes() == before


@fuzzed(8)
@given(data=st.data())
def test_traces(place: Path, data: st.DataObject) -> None:
    lines = data.draw(damaged(LINES))
    text = "\n".join(map(json_text, lines)) if isinstance(lines, list) else json_text(lines)
    with fresh(place) as folder:
        path = folder / "trace_1.jsonl"
        path.write_text(text + "\n")
        read_everywhere(path)


@fuzzed(30)
@given(damaged_bytes(WHOLE))
def test_bytes_of_traces(place: Path, content: bytes) -> None:
    with fresh(place) as folder:
        path = folder / "trace_1.jsonl"
        path.write_bytes(content)
        read_everywhere(path)


# Calibrations


def calibration() -> Calibration:
    inputs = tuple(
        PilotInput(f"page_vt_{i % 2}", i, 900 + i, "ab" * 32, {"drop": 0.01 * i, "slope": -0.1 * i})
        for i in range(6)
    )
    made = Calibration(
        ModelFacts("tiny", Fingerprint("c" * 64, "f" * 64), "float32", "sdpa"),
        {"top_k": 32, "window": 32},
        ("ruler",),
        ("page_vt_0", "page_vt_1"),
        None,
        "held-out",
        100,
        1234,
        inputs,
        page_bench="0.1.0",
    )
    thresholds = tuple(threshold_from(made, rule) for rule in ("zscore", "quantile"))
    return Calibration(**{**vars(made), "thresholds": thresholds})


@pytest.fixture(scope="module")
def pilot(place: Path) -> bytes:
    path = place / "whole.json"
    calibration().save(path)
    assert calibration_file.load(path) == calibration()
    return path.read_bytes()


def decide_by(path: Path) -> None:
    """A calibration through all that reads one."""
    before = path.read_bytes()
    read = outcome(lambda: calibration_file.load(path))
    if read is not None:
        for rule in ("zscore", "quantile", "midpoint"):
            config = PageConfig(tau=rule, calibration=str(path))
            found = outcome(partial(decision.from_calibration, config))
            assert found is None or found.threshold is not None
        static = PageConfig(gate="static", tau=0.07, calibration=str(path))
        outcome(lambda: decision.from_calibration(static))
    assert path.read_bytes() == before


@fuzzed(60)
@given(data=st.data())
def test_calibrations(place: Path, pilot: bytes, data: st.DataObject) -> None:
    value = data.draw(damaged(json.loads(pilot)))
    with fresh(place) as folder:
        (folder / "tau.json").write_text(json_text(value))
        decide_by(folder / "tau.json")


@fuzzed(40)
@given(data=st.data())
def test_bytes_of_calibrations(place: Path, pilot: bytes, data: st.DataObject) -> None:
    with fresh(place) as folder:
        (folder / "tau.json").write_bytes(data.draw(damaged_bytes(pilot)))
        decide_by(folder / "tau.json")


# Finished runs, for the leaderboard and for W&B


@pytest.fixture(scope="module")
def finished(place: Path) -> tuple[dict[str, Any], bytes]:
    path = finished_runs.write_run(place / "finished", finished_runs.answers("page"))
    (trace,) = path.parent.glob("trace_*.jsonl")
    return json.loads(path.read_bytes()), trace.read_bytes()


@fuzzed(50)
@given(data=st.data())
def test_results_of_runs(
    place: Path, finished: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    results, trace = finished
    value = data.draw(damaged(results))
    with fresh(place) as folder:
        path = folder / "results_2026-11-29T10-00-00.000001.json"
        path.write_text(json_text(value))
        (folder / "trace_2026-11-29T10-00-00.000000.jsonl").write_bytes(trace)
        read_runs_of(folder)


@fuzzed(60)
@given(data=st.data())
def test_bytes_of_runs(
    place: Path, finished: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    results, trace = finished
    with fresh(place) as folder:
        path = folder / "results_2026-11-29T10-00-00.000001.json"
        path.write_bytes(data.draw(damaged_bytes(json.dumps(results).encode())))
        beside = folder / "trace_2026-11-29T10-00-00.000000.jsonl"
        beside.write_bytes(data.draw(damaged_bytes(trace)))
        read_runs_of(folder)


def read_runs_of(folder: Path) -> None:
    """A folder of a run through `wandb-import` short of the upload, and the leaderboard's `add`."""
    found = outcome(lambda: wandb_runs_of([str(folder)]))
    for run in (found or ([], []))[0]:
        outcome(run.read)
    outcome(lambda: rows_of(read_finished([folder])[0]))


@fuzzed(100)
@given(st.binary(max_size=200), st.integers(0, 40))
def test_run_files_of_wandb(content: bytes, offset: int) -> None:
    list(wandb_records(content, offset))


# Leaderboards


@pytest.fixture(scope="module")
def board(place: Path) -> dict[str, bytes]:
    made = rows_of(read_finished([finished_runs.write_trio(place / "runs")])[0])
    path = place / "board" / "leaderboard.csv"
    write_board(path, Board().with_rows(made.rows, made.tasks))
    assert examined(path)[1] == []
    return {name: (path.parent / name).read_bytes() for name in _BOARD}


_BOARD = ("leaderboard.csv", "tasks.csv", "schema.json")


@fuzzed(60)
@given(data=st.data())
def test_bytes_of_leaderboards(place: Path, board: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_BOARD))
    content = data.draw(damaged_bytes(board[name]))
    with fresh(place) as folder:
        for file, whole in board.items():
            (folder / file).write_bytes(content if file == name else whole)
        found = outcome(lambda: examined(folder / "leaderboard.csv"))
        assert found is not None
        # Other ends of lines do not change what a schema says.
        same = content == board[name] or (name == "schema.json" and b"\r" in content)
        assert found[1] or same, "damage went unseen"


def test_stored_example_is_whole() -> None:
    """What is damaged above is sound itself."""
    assert stored().task == "vt"
    assert len(LINES) == 16
