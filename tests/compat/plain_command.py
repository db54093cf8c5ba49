"""The plain command `lm_eval --model page_hf`, found by this environment's lm-eval.

Run by `compat.py`; in the suite `test_command` asks more of it, on the default model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def test_the_plain_command_finds_model_and_tasks(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    model_args = f"pretrained={tiny_folder('llama')},evictor=snapkv,gate=open,budget=0.5"
    command = [
        str(Path(sys.executable).parent / "lm_eval"),
        *("--model", "page_hf", "--model_args", model_args, "--limit", "1"),
        *("--output_path", str(tmp_path / "out"), "--log_samples"),
    ]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "does not fit this release of lm-eval" not in done.stderr

    (results,) = (tmp_path / "out").rglob("results_*.json")
    group = json.loads(results.read_text(encoding="utf-8"))["groups"]["page_quickstart"]
    assert 0.4 < group["kept_kv,none"] < 0.6
    assert group["gate_open,none"] == 1
    samples = list((tmp_path / "out").rglob("samples_page_*.jsonl"))
    assert len(samples) >= 2
    assert len(list((tmp_path / "out").rglob("trace_*.jsonl"))) == 1
