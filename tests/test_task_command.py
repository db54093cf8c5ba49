"""Plain `lm_eval` runs every page task from local copies, with a model that knows nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_longbench
import test_ruler
from test_rulergen_samples import write_hotpotqa, write_squad

GROUPS = (
    *("page_ruler_4k", "page_ruler_8k", "page_ruler_16k", "page_ruler_32k"),
    *("page_rulergen_1k", "page_longbench", "page_longbench_e", "page_longbench_page"),
)
TASKS = 4 * 13 + 13 + 21 + 13 + 9


@pytest.mark.real_model  # the generated tasks are sized to the default model's tokenizer
def test_every_task_runs_from_local_copies(tmp_path: Path, default_model_folder: Path) -> None:
    for length in test_ruler.NAMES.values():
        test_ruler.write(tmp_path / "ruler" / f"{length}.jsonl", test_ruler.split(length))
    environment = {
        **os.environ,
        "PAGE_BENCH_RULER": str(tmp_path / "ruler"),
        "PAGE_BENCH_LONGBENCH": str(test_longbench.write(tmp_path / "longbench")),
        "PAGE_BENCH_SQUAD": str(write_squad(tmp_path / "squad.json")),
        "PAGE_BENCH_HOTPOTQA": str(write_hotpotqa(tmp_path / "hotpotqa.json")),
        "PAGE_BENCH_ESSAYS": "synthetic",
        "HF_DATASETS_CACHE": str(tmp_path / "datasets"),
    }
    command = ["--model", "dummy", "--limit", "2", "--output_path", "out", "--metadata"]
    metadata = json.dumps({"tokenizer": str(default_model_folder), "max_length": 8192})
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *command, metadata, "--tasks", ",".join(GROUPS)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text())
    tasks = {name for name in results["results"] if name in results["configs"]}
    assert len(tasks) == TASKS
    for name in tasks:
        assert results["n-samples"][name]["effective"] == 2
        assert results["results"][name]["kept_kv,none"] == 1.0
    assert set(results["groups"]) >= set(GROUPS)
