"""With other models lm-eval does and says what it does and says where page-bench is not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_runs
import lm_eval
import pytest
import wandb_runs

import page_bench

# Needles, as some tasks of ours are called, which patterns must not find.
_TASK = """\
task: own_needle
dataset_path: json
dataset_kwargs: {data_files: {test: DOCUMENTS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["zz"], max_gen_toks: 4}
metric_list: [{metric: exact_match}]
metadata: {version: 1.0}
"""
_CHOICE = """\
include: own_needle.yaml
task: own_choice
output_type: multiple_choice
doc_to_choice: ["yes", "no"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""
_TRACKED = "project=others"
_TIMES = re.compile(r"\d{4}-\d\d-\d\d[T:]?[\d:.-]*\d|\d{8}_\d{6}|(?<=\()\d+\.\d+ ?s")
_BAR = re.compile(r"it/s|s/it|examples/s|\d/\d+ \[")
_FRAME = re.compile(r'  File "[^"]*/(page_bench/|tests/command_runs)')


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[[str], Path]) -> Path:
    """The folder of both processes' files."""
    folder = tmp_path_factory.mktemp("others")
    documents = folder / "documents.json"
    rows = [{"question": f"Is {n} even?", "answer": "yes"} for n in range(3)]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tasks").mkdir()
    (folder / "tasks" / "own_needle.yaml").write_text(_TASK.replace("DOCUMENTS", str(documents)))
    (folder / "tasks" / "own_choice.yaml").write_text(_CHOICE)
    for name in command_runs.FOLDERS:
        (folder / name).mkdir()
    model = ["run", "--include_path", str(folder / "tasks"), "--model"]
    hf = [*model, "hf", "--device", "cpu", "--model_args", f"pretrained={tiny_folder('llama')}"]
    written = ["--log_samples", "--output_path", "out", "--limit", "2"]
    commands = [
        [*hf, *written, "--tasks", "own_needle,own_choice", "--wandb_args", _TRACKED],
        [*model, "dummy", *written, "--tasks", "*needle*,own_c*"],
        [*hf, "--tasks", "own_nedle"],
        [*hf, "--tasks", "own_needle", "--wandb_args", "projct=others"],
    ]
    places = [str(Path(module.__file__ or "").parents[1]) for module in (lm_eval, page_bench)]
    tests = str(Path(__file__).parent)
    kept = {
        "PYTHONPATH": os.pathsep.join([tests, *places]),
        "WANDB_RUN_ID": "one",
        "WANDB_DIR": ".",
        "WANDB_SILENT": "false",
        "OMP_NUM_THREADS": "1",
    }
    script = str(Path(command_runs.__file__))
    words = [sys.executable, "-S", script, str(folder), json.dumps(commands)]
    done = subprocess.run(words, env={**os.environ, **kept}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def console(file: Path) -> list[str]:
    """What was printed, without times, progress, and our frames in a traceback."""
    lines = [_TIMES.sub("TIME", line) for line in re.split(r"[\n\r]", file.read_text())]
    kept: list[str] = []
    in_frame = False
    for line in lines:
        if line.startswith("  File "):
            in_frame = _FRAME.match(line) is not None
        elif not line.startswith("    "):
            in_frame = False
        if not in_frame and not _BAR.search(line) and line.strip():
            kept.append(line)
    return kept


@pytest.mark.parametrize("number", range(4))
def test_the_console_is_the_same(number: int, runs: Path) -> None:
    without, installed = (console(runs / name / f"{number}.txt") for name in command_runs.FOLDERS)
    assert installed == without
    said = {
        0: "own_needle",
        1: "own_choice",
        2: "ValueError: Tasks not found: own_nedle",
        3: "TypeError: init() got an unexpected keyword argument 'projct'",
    }
    assert any(said[number] in line for line in without)
    assert without[-1] == f"status {int(number > 1)}"


def files(folder: Path, pattern: str) -> list[Any]:
    """What the files hold, by name, without times."""
    found = sorted((folder / "out").rglob(pattern), key=lambda path: _TIMES.sub("", str(path)))
    rows = [json.loads(line) for path in found for line in _lines(path)]
    for row in rows:
        for name in ("date", "total_evaluation_time_seconds"):
            row.pop(name, None)
    return rows


def _lines(path: Path) -> list[str]:
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def test_samples_and_results_are_the_same(runs: Path) -> None:
    for pattern, count in (("samples_*.jsonl", 8), ("results_*.json", 2)):
        without, installed = (files(runs / name, pattern) for name in command_runs.FOLDERS)
        assert installed == without
        assert len(without) == count


def test_wandb_has_the_same_of_them(runs: Path) -> None:
    without, installed = (wandb_runs.logged_in(runs / name) for name in command_runs.FOLDERS)
    assert len(without) == len(installed) == 1
    for one, other in zip(without, installed, strict=True):
        assert stable(other.values) == stable(one.values)
        assert stable(other.summary) == stable(one.summary)
        assert stable(other.config) == stable(one.config)
        assert {*other.artifacts} == {*one.artifacts}
        for task in ("own_needle", "own_choice"):
            assert other.table(f"{task}_eval_results") == one.table(f"{task}_eval_results")
        assert one.is_ended


def stable(values: dict[str, Any]) -> dict[str, Any]:
    """Without times, and what W&B computes from files that hold them."""
    volatile = ("artifact_path", "sha256", "path", "size", "date", "_wandb")
    return {k: v for k, v in values.items() if k[:1] != "_" and not k.endswith(volatile)}
