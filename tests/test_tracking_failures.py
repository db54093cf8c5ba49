"""What goes wrong with W&B: at the start it ends the run, later it costs nothing but a warning."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import wandb
from lm_eval.loggers.wandb_logger import WandbLogger
from stored_traces import stored
from test_tracking import finished
from wandb_runs import (
    ARM,
    PROMPTS,
    TASKS,
    environment,
    fresh,
    lm_eval_run,
    logged,
    logged_in,
    results_of,
    rows_of,
    write_tasks,
)

from page_bench.commands.wandb_import import command as import_command
from page_bench.commands.wandb_import.importer import MARKS
from page_bench.harness.lm import PageLM
from page_bench.harness.run_output import RunRecord
from page_bench.harness.wandb import logger, run_file
from page_bench.harness.wandb.failures import reason
from page_bench.inputs.errors import UsageError

KEY = "k0123456789abcdef0123456789abcdef0123456"


@pytest.fixture(autouse=True)
def _own_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment(monkeypatch, tmp_path)
    yield
    monkeypatch.undo()
    fresh()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("tracked") / "tasks"
    write_tasks(folder, tiny_folder("llama"))
    return folder


@pytest.fixture
def arm(tiny_folder: Callable[[str], Path]) -> dict[str, Any]:
    return {"pretrained": tiny_folder("llama"), "gate": "open", **ARM}


def fail(error: Exception) -> Callable[..., Any]:
    def failing(*args: object, **kwargs: object) -> Any:
        raise error

    return failing


def is_complete(out: Path) -> bool:
    """Whether all local files of a run are there, and as long as they should be."""
    samples = [path.read_text().splitlines() for path in out.rglob("samples_*.jsonl")]
    counts = [len(rows) for rows in samples]
    return len(rows_of(out)) == PROMPTS and counts == [PROMPTS // len(TASKS)] * len(TASKS)


def warnings_of(out: Path) -> list[str]:
    page = results_of(out)["config"]["page"]
    return [warning for warning in page["warnings"] if "W&B" in warning]


@pytest.mark.parametrize(
    ("tracked", "variables", "cause"),
    [
        ("projct=test", {}, "unexpected keyword argument 'projct'"),
        ("project=a/b", {}, "Invalid project name 'a/b'"),
        ("project=test,mode=offlin", {}, "mode: Input should be 'online', 'offline'"),
        (
            "project=test",
            {"WANDB_MODE": "online", "WANDB_API_KEY": "", "NETRC": "none", "HOME": "nowhere"},
            "No API key configured",
        ),
        ("project=test", {"WANDB_MODE": "online", "WANDB_API_KEY": "short"}, "40+ characters"),
        (
            "project=test",
            {
                "WANDB_MODE": "online",
                "WANDB_API_KEY": KEY,
                "WANDB_BASE_URL": "http://127.0.0.1:9",
                "WANDB_INIT_TIMEOUT": "1",
            },
            "connection refused",
        ),
    ],
)
def test_a_run_that_cannot_be_opened_ends_all_before_the_model_is_loaded(
    tracked: str,
    variables: dict[str, str],
    cause: str,
    tasks: Path,
    arm: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(PageLM, "__init__", fail(AssertionError("a model was built")))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment(monkeypatch, tmp_path)
    with pytest.raises(SystemExit) as ended:
        lm_eval_run(monkeypatch, tasks, tmp_path / "out", arm, tracked=tracked)
    assert ended.value.code == 1
    (line,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("page-bench: ")]
    assert re.match(r"page-bench: W&B could not open a run \(.+\), so nothing was computed", line)
    assert cause in line
    assert KEY not in line
    assert not (tmp_path / "out").exists()


def test_an_error_does_not_show_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert reason(ValueError(f"{KEY} is refused.\nTry again.")) == "$WANDB_API_KEY is refused"
    assert reason(ValueError()) == "ValueError"


def cores_of(process: psutil.Process) -> list[psutil.Process]:
    """The running processes of wandb-core below a process."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others come and go
            if child.name() == "wandb-core":
                found.append(child)
    return found


def test_a_killed_core_costs_warnings_alone(
    tasks: Path,
    arm: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = tmp_path / "whole"
    lm_eval_run(monkeypatch, tasks, whole, arm)
    assert warnings_of(whole) == []
    seen = 0
    answered = PageLM._run

    def run(self: PageLM, *args: Any) -> Any:
        nonlocal seen
        for child in cores_of(psutil.Process()):
            child.kill()
            child.wait()
            seen += 1
        return answered(self, *args)

    monkeypatch.setattr(PageLM, "_run", run)
    out = tmp_path / "out"
    lm_eval_run(monkeypatch, tasks, out, arm)
    assert seen == 1
    assert is_complete(out)
    assert results_of(out)["results"] == results_of(whole)["results"]
    told = warnings_of(out)
    # Lost, or reset by the peer.
    assert any("the table of samples" in t and "Connection" in t for t in told)
    assert any("lm-eval's results" in t for t in told)
    shown = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("W&B did not take" in text for text in shown)
    assert any("W&B did not take the end of the run" in text for text in shown)


def test_the_command_ends_as_without_wandb_where_its_core_is_killed(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    words = [
        *(sys.executable, "-m", "lm_eval", "run", "--model", "page_hf"),
        *("--limit", "1", "--log_samples"),
        *("--device", "cpu", "--tasks", "page_quickstart_needle_number"),
        *("--output_path", str(tmp_path / "out"), "--wandb_args", "project=test"),
        *("--model_args", f"pretrained={tiny_folder('llama')},gate=open,evictor=knorm"),
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        killed = False
        while not killed and run.poll() is None:
            # As soon as lm-eval has opened its run.
            if any(tmp_path.glob("wandb/offline-run-*/run-*.wandb")):
                for child in cores_of(psutil.Process(run.pid)):
                    time.sleep(0.5)  # until the run is opened, not only its file
                    child.kill()
                    killed = True
            time.sleep(0.02)
        output, _ = run.communicate(timeout=300)
    assert killed, output
    assert run.returncode == 0, output
    (results,) = (tmp_path / "out").rglob("results_*.json")
    page = json.loads(results.read_text())["config"]["page"]
    assert any("Connection lost" in warning for warning in page["warnings"])
    assert len(list((tmp_path / "out").rglob("samples_*.jsonl"))) == 1
    assert "W&B did not take" in output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(made, capture_output=True).returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    yield folder
    fresh()
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_warnings_alone(
    small_disk: Path,
    tasks: Path,
    arm: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment(monkeypatch, small_disk)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    answered = PageLM._run

    def run(self: PageLM, *args: Any) -> Any:
        with (small_disk / "fill").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        return answered(self, *args)

    monkeypatch.setattr(PageLM, "_run", run)
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", arm)
    assert is_complete(tmp_path / "out")
    assert any("No space left on device" in warning for warning in warnings_of(tmp_path / "out"))
    shown = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("W&B did not take the end of the run" in text for text in shown)


def test_a_disk_that_is_full_for_the_tables_alone(
    tasks: Path, arm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(wandb.Table, "bind_to_run", fail(full))
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", arm)
    assert is_complete(tmp_path / "out")
    first, second, *_ = warnings_of(tmp_path / "out")
    assert "the table of samples ([Errno 28] No space left on device)" in first
    assert "lm-eval's results" in second
    (found,) = logged_in(tmp_path)
    assert found.summary["page/n"] == PROMPTS
    assert found.is_ended


def test_a_run_whose_file_lacks_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = run_file.becomes_whole
    monkeypatch.setattr(logger, "becomes_whole", lambda path: wait(path, patience_s=0))
    opened = logger.watched(WandbLogger)({"project": "test"}).run
    # As where W&B's core could not write: it says nothing then.
    monkeypatch.setattr(opened._run, "finish", lambda: None)
    opened.finish()
    assert f"W&B's record of the run, {opened.settings.sync_file}, is not whole" in caplog.text
    monkeypatch.undo()
    opened._run.finish()


def test_a_table_that_does_not_fit_is_cut_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wandb.Table, "MAX_ARTIFACT_ROWS", 2)
    with wandb.init(project="test") as opened:
        page = finished(RunRecord(None), [stored("a", i) for i in range(3)])
    (told,) = page["warnings"]
    assert "holds 2 rows at most" in told
    assert told in [record.getMessage() for record in caplog.records]
    found = logged(Path(opened.settings.sync_file))
    assert [row["doc_id"] for row in found.table("page/samples")] == [0, 1]
    assert len(found.artifact(f"trace-{opened.id}").splitlines()) == 3


def test_a_table_that_cannot_be_written_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb.Table, "__init__", fail(TypeError("not serializable")))
    with wandb.init(project="test") as opened:
        page = finished(RunRecord(None), [stored("a", 0)])
    (told,) = page["warnings"]
    assert "the table of samples (not serializable)" in told
    found = logged(Path(opened.settings.sync_file))
    assert "page/samples.path" not in found.values
    assert found.summary["page/correct"] == 1.0
    assert found.artifact(f"trace-{opened.id}")


def test_what_lm_evals_own_logger_cannot_log_is_told(
    tasks: Path,
    arm: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Each sample lacks a metric that the task's list names, as in lm-eval's own RULER.
    words = ("--tasks", "tracked_missing")
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", arm, *words)
    (told,) = warnings_of(tmp_path / "out")
    assert "lm-eval's tables of samples ('8192')" in told
    assert told in [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    (found,) = logged_in(tmp_path)
    assert len(found.table("page/samples")) == PROMPTS // 2


def test_a_run_file_is_whole_once_it_tells_the_end(tmp_path: Path) -> None:
    with wandb.init(project="test") as opened:
        for i in range(60):
            opened.log({"text": "x" * 2_000, "i": i})
    path = Path(opened.settings.sync_file)
    assert run_file.becomes_whole(path)
    data = path.read_bytes()
    assert len(data) > 2 * 32_768
    assert len(logged(path).history) == 60
    for length in (len(data) - 5, len(data) - 40_000, 100, 0):
        path.write_bytes(data[:length])
        assert not run_file.becomes_whole(path, patience_s=0)
    assert not run_file.becomes_whole(tmp_path / "none", patience_s=0)


@pytest.fixture
def results(
    tasks: Path, arm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A finished run without W&B's part."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    environment(monkeypatch, tmp_path)
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", arm)
    monkeypatch.setenv("WANDB_MODE", "offline")
    environment(monkeypatch, tmp_path)
    return tmp_path / "out"


def test_an_import_that_failed_is_made_again(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(results), "--project", "test"]
    with monkeypatch.context() as patch:
        patch.setattr(wandb.Table, "bind_to_run", fail(OSError("disk")))
        assert import_command.run(words) == 1
    told = capsys.readouterr()
    assert "1 are not whole: start the command again" in told.out
    assert "the table of samples (disk)" in told.err
    assert not list(results.rglob(MARKS))
    assert import_command.run(words) == 0
    assert "1 of 1 runs written" in capsys.readouterr().out
    assert len(logged_in(tmp_path)[-1].table("page/samples")) == PROMPTS


def test_an_import_that_opens_no_run_ends_at_once(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"could not open a run \(Invalid project name 'a/b'"):
        import_command.run([str(results), "--project", "a/b"])
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(UsageError, match="uploads nothing"):
        import_command.run([str(results), "--project", "test"])


def test_an_import_names_what_it_leaves_out(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        import_command.run([str(tmp_path / "none"), "--project", "test"])
    (file,) = results.rglob("results_*.json")
    whole = json.loads(file.read_text())
    other = results / "other"
    for name, page in {"a": None, "b": {"trace_file": None}, "c": {"trace_file": "gone"}}.items():
        (other / name).mkdir(parents=True)
        text = json.dumps({**whole, "config": {"page": page}})
        (other / name / "results_1.json").write_text(text)
    (other / "results_2.json").write_text("{")
    (other / "arm" / "model").mkdir(parents=True)
    (other / "arm" / ".lock").touch()
    (other / "arm" / "model" / file.name).write_text(file.read_text())
    with pytest.raises(UsageError, match="no finished run of page_hf"):
        import_command.run([str(other), "--project", "test"])
    assert import_command.run([str(results), "--project", "test"]) == 0
    told = capsys.readouterr()
    for why in ("not page_hf", "no trace", "gone is gone", "no whole results", "has not finished"):
        assert why in told.err
    assert "1 of 1 runs written" in told.out
    # What stands beside the results is checked before anything is sent.
    trace = min(results.rglob("trace_*.jsonl"))
    lines = trace.read_text().splitlines(keepends=True)
    next(results.rglob(MARKS)).unlink()
    trace.write_text("".join(lines[:-1]))
    assert import_command.run([str(results), "--project", "test"]) == 1
    assert f"has {len(lines) - 1} of the run's {len(lines)} samples" in capsys.readouterr().err
    trace.write_text("".join(lines))
    assert import_command.run([str(results), "--project", "test"]) == 0
    capsys.readouterr()
    next(results.rglob(MARKS)).unlink()
    samples = min(results.rglob("samples_*.jsonl"))
    samples.write_text(samples.read_text()[:-20])
    before = len(logged_in(tmp_path))
    assert import_command.run([str(results), "--project", "test"]) == 1
    assert f"{samples} is not whole" in capsys.readouterr().err
    assert len(logged_in(tmp_path)) == before


def test_a_sweeps_arm_is_imported_with_its_parameters(results: Path, tmp_path: Path) -> None:
    arm = tmp_path / "sweep" / "budget=0.25-abcd"
    arm.parent.mkdir()
    results.rename(arm)
    (arm / "finished.json").write_text(json.dumps({"parameters": {"budget": 0.25}}))
    assert import_command.run([str(arm.parent), "--project", "test"]) == 0
    (found,) = logged_in(tmp_path)
    assert found.config["budget"] == 0.25
    assert found.run.display_name == "budget=0.25-abcd"
    assert found.config["page"]["budget"] == 0.25
