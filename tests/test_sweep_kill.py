"""A sweep as a process of its own that is killed, while answers are computed and written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lm_eval.tasks
import pytest
from test_sweep import PROMPTS, contents, few_tasks, forbidden, run, sweep_file
from torch.utils import collect_env

from page_bench.engine import engine
from page_bench.harness import plugin
from page_bench.records.store.store import RunStore
from page_bench.records.store.upkeep import faults
from page_bench.sweep.arms import arms_of
from page_bench.sweep.file import read_sweep
from page_bench.sweep.output import is_finished

KILLED = """
import os, signal, sys
from page_bench.harness import plugin
plugin.install()
import lm_eval.tasks
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from torch.utils import collect_env
from page_bench.commands.cli import main
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.sweep import runner

def few_tasks(metadata, include_path=None):
    return TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)

lm_eval.tasks.TaskManager = few_tasks
collect_env.get_pretty_env_info = lambda: "environment"

def count(owner, name, last):
    original, calls = getattr(owner, name), []
    def counted(*args, **kwargs):
        done = original(*args, **kwargs)
        calls.append(name)
        print(name, flush=True)
        if len(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(owner, name, counted)

count(PromptPass, "answers", int(sys.argv[1]))
count(EvaluationTracker, "save_results_samples", int(sys.argv[2]))
sys.exit(main(sys.argv[3:]))
"""
"""`page-bench sweep` that dies at a certain prompt answered, or file of samples written."""


def killed(answers: int, samples: int, *words: str) -> str:
    """What a sweep did until it was killed: a line per prompt answered and file of samples."""
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(answers), str(samples), "sweep", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    return process.stdout


def test_a_killed_sweep_ends_as_an_unbroken_one(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")
    file = sweep_file(
        tmp_path / "sweep.yaml",
        str(tiny_folder("llama")),
        evictor={"values": ["snapkv", "knorm"]},
        gate={"values": ["page", "open"]},
    )
    out = tmp_path / "out"
    words = (str(file), "--output_path", str(out))

    # The fourth prompt is answered, and its answers do not reach the store.
    killed(4, 0, *words)
    with RunStore(out / "store.sqlite") as store:
        assert list(faults(store)) == []
        (count,) = next(iter(store.rows("SELECT count(*) FROM records")))
    # Of each prompt the signals, two evictions and the full cache.
    assert count == 3 * 4

    # Two arms are written with the samples of three tasks each; the third lacks two of them.
    said = killed(PROMPTS, 2 * 3 + 1, *words)
    assert said.splitlines().count("answers") == PROMPTS - 3
    arms = arms_of(read_sweep(file), out)
    assert [is_finished(arm) for arm in arms] == [True, True, False, False]
    assert list(arms[2].folder.rglob("samples_*.jsonl"))

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "PromptPass", forbidden)
        assert run(file, out) == 0
    told = capsys.readouterr()
    assert "2 of 4 arms are finished; 2 are left" in told.err
    assert f"{PROMPTS} of {PROMPTS} prompts came from the store" in told.err

    assert run(file, tmp_path / "whole") == 0
    for arm in arms:
        assert contents(arm.folder) == contents(tmp_path / "whole" / arm.name)
