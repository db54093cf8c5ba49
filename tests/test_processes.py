"""Prompts shared out among processes: one pilot, one τ, one file of traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wandb_runs
from lm_eval.api.instance import Instance
from stored_traces import stored
from test_engine import observed
from test_gated_runs import TOKENIZER, config, prompts, without_times
from test_sweep import contents

from page_bench.engine.engine import Engine
from page_bench.engine.processes import Processes
from page_bench.engine.summary import RunSummary
from page_bench.gating.threshold import Threshold
from page_bench.harness.requests import without_padding
from page_bench.harness.run_output import RunRecord
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Answer
from page_bench.sweep import runner

TinyFolder = Callable[[str], Path]
RANKS = 2


class Exchange:
    """What threads that stand for processes give each other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=60)
        self.given: list[Any] = [None] * RANKS

    def swap(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait()
        everything = list(self.given)
        self.barrier.wait()
        return everything


@dataclass(frozen=True)
class Thread(Processes):
    """One of several threads, each with a model of its own."""

    exchange: Exchange | None = None

    def gather(self, value: Any) -> list[Any]:
        assert self.exchange is not None
        return self.exchange.swap(self.rank, value)


@pytest.mark.parametrize("arm", [{"tau": "zscore"}, {"tau": "quantile", "gate": "keynorm_disp"}])
@pytest.mark.parametrize("pilot_size", [3, 100])
def test_all_processes_have_the_pilot_and_the_answers_of_one(
    arm: dict[str, Any], pilot_size: int
) -> None:
    page = config(**arm, pilot_size=pilot_size)
    given = prompts(7)
    alone, decided = Engine(observed("llama"), TOKENIZER, page).run(given)
    exchange = Exchange()
    models = [observed("llama") for _ in range(RANKS)]

    def share(rank: int) -> tuple[list[dict[str, Any]], Threshold | None]:
        engine = Engine(
            models[rank], TOKENIZER, page, processes=Thread(rank, RANKS, exchange=exchange)
        )
        outcomes, decided = engine.run(given[rank::RANKS])
        return [without_times(outcome) for outcome in outcomes], decided.threshold

    with ThreadPoolExecutor(RANKS) as pool:
        shares = list(pool.map(share, range(RANKS)))
    for rank, (outcomes, threshold) in enumerate(shares):
        assert threshold == decided.threshold
        assert outcomes == [without_times(outcome) for outcome in alone[rank::RANKS]]
    assert {outcome.gate_open for outcome in alone} == {True, False}


def test_copies_that_even_out_processes_are_found() -> None:
    once, twice = (
        Instance("generate_until", {}, ("text", {}), i, metadata=("task", i, i + 1))
        for i in range(2)
    )
    counted, places = without_padding([once, twice, twice, once, twice, once])
    assert counted == [once, twice, twice]
    assert places == [0, 1, 2, 0, 2, 0]


def test_traces_of_all_processes_are_in_the_order_of_one(tmp_path: Path) -> None:
    def rows(*ids: tuple[str, int]) -> list[Any]:
        return [stored(task, i) for task, i in ids]

    def answers(traces: list[Any]) -> list[Answer]:
        return [Answer(trace.answer, trace) for trace in traces]

    record = RunRecord(str(tmp_path))
    mine, theirs = rows(("b", 0), ("b", 2), ("a", 0)), rows(("b", 1), ("a", 1))
    record.add("generate_until", RunSummary(), answers(mine))
    record.gather(lambda own: [own, (theirs, {})])
    record.gather(lambda own: [own, own])  # lm-eval gathers twice
    (file,) = tmp_path.iterdir()
    # Other processes close nothing, and must agree on where the next run begins.
    assert record.is_over_for("generate_until")
    assert record.close({})["trace_file"] == str(file)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["task"], row["doc_id"]) for row in found] == [
        *(("b", 0), ("b", 1), ("b", 2)),
        *(("a", 0), ("a", 1)),
    ]


def test_a_sweep_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="start it without accelerate or torchrun"):
        runner.run_sweep([], None)


def test_two_processes_write_what_one_writes(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    words = [
        *("lm_eval", "run", "--model", "page_hf", "--tasks", "page_quickstart", "--log_samples"),
        *("--limit", "5", "--device", "cpu", "--wandb_args", "project=test"),
        *("--model_args", f"pretrained={folder}", "dtype=float32", "evictor=knorm"),
        "pilot_size=10",
    ]
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    written = []
    tracked = []
    for name, start in (("one", []), ("two", [*launcher, "-m"])):
        wandb_folder = tmp_path / f"wandb_{name}"
        wandb_folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", *start, *words, "--output_path", str(tmp_path / name)],
            capture_output=True,
            text=True,
            env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
            | {"WANDB_DIR": str(wandb_folder)},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (run,) = wandb_runs.logged_in(wandb_folder)
        tracked.append([row["answer"] for row in run.table("page/samples")])
        written.append(in_order(contents(tmp_path / name)))
    assert tracked[0] == tracked[1]
    assert len(tracked[0]) == 15
    one, two = written
    assert sum(len(rows) for name, rows in two.items() if "samples" in name) == 15
    (first,), (second,) = (files.pop(f"{name_of(files)}/results") for files in (one, two))
    assert one == two
    for part in ("results", "groups"):
        for task, metrics in first[part].items():
            # lm-eval adds up in another order.
            numbers = {k: v for k, v in metrics.items() if isinstance(v, float)}
            assert {k: second[part][task][k] for k in numbers} == pytest.approx(numbers, rel=1e-12)
    mine, theirs = first["config"]["page"], second["config"]["page"]
    assert mine["tau"] == theirs["tau"]
    assert mine["pilot_n"] == 10
    assert {**theirs, "device": "cpu"} == mine


def name_of(files: dict[str, Any]) -> str:
    """The folder that lm-eval names after the model."""
    (name,) = {name.partition("/")[0] for name in files}
    return name


def in_order(files: dict[str, Any]) -> dict[str, Any]:
    """lm-eval puts the samples of one process behind those of the other."""
    return {
        name: sorted(rows, key=lambda row: row["doc_id"]) if "samples" in name else rows
        for name, rows in files.items()
    }


def free_port() -> str:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])
