"""A tracked run: lm-eval's own W&B run with all that page_hf adds, read back from its file."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wandb
import yaml
from statsmodels.stats.proportion import proportion_confint
from stored_traces import stored
from test_sweep_file import SWEEPS
from wandb_runs import (
    ARM,
    PROMPTS,
    TASKS,
    Logged,
    environment,
    lm_eval_run,
    logged,
    logged_in,
    results_of,
    rows_of,
    write_tasks,
)

from page_bench.commands.wandb_import import command as import_command
from page_bench.commands.wandb_import.importer import IMPORTED, MARKS
from page_bench.engine.summary import RunSummary
from page_bench.harness.run_output import RunRecord
from page_bench.harness.wandb.logger import watched
from page_bench.harness.wandb.metrics import summary_of
from page_bench.harness.wandb.run import TrackedRun, attached
from page_bench.harness.wandb.samples import COLUMNS
from page_bench.records.trace import Answer, Trace, write_traces

pytestmark = pytest.mark.usefixtures("_own_wandb")

KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Run:
    """A tracked run.

    Attributes:
        folder: of its results, of W&B's files and of the run store.
        model_args: of the arm.
        out: folder of the results.
    """

    folder: Path
    model_args: dict[str, Any]
    out: Path

    @property
    def logged(self) -> Logged:
        return logged_in(self.folder)[-1]


@pytest.fixture
def _own_wandb(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, tmp_path)
        yield
        wandb.teardown()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[[str], Path]) -> Path:
    folder = tmp_path_factory.mktemp("tracked") / "tasks"
    write_tasks(folder, tiny_folder("llama"))
    return folder


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, tasks: Path, tiny_folder: Callable[[str], Path]
) -> Iterator[Run]:
    """A gated arm, after the full cache's, with one store for both."""
    folder = tmp_path_factory.mktemp("run")
    args = {"pretrained": tiny_folder("llama"), "store": folder / "store.sqlite", **ARM}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        environment(patch, folder)
        lm_eval_run(patch, tasks, folder / "full", {**args, "gate": "closed"})
        lm_eval_run(patch, tasks, folder / "gated", {**args, "tau": "zscore"})
        yield Run(folder, args, folder / "gated")


def test_the_config_holds_the_arm_and_what_was_found(run: Run) -> None:
    page = results_of(run.out)["config"]["page"]
    assert run.logged.config["page"] == page
    assert page["evictor"] == "snapkv"
    assert page["tau"] is not None
    assert not [warning for warning in page["warnings"] if "W&B" in warning]


def test_the_table_holds_every_sample(run: Run) -> None:
    rows = rows_of(run.out)
    assert len(rows) == PROMPTS
    assert run.logged.table("page/samples") == [{c: row[c] for c in COLUMNS} for row in rows]
    promised = {"task", "doc_id", "drop", "z", "tau", "gate_open", "kept_kv", "kv_bytes_kept"}
    promised |= {"score", "correct", "prompt_tokens", "prefill_s", "decode_s", "answer"}
    assert promised <= {*COLUMNS}
    assert all(row["z"] is not None and row["correct"] is not None for row in rows)


def test_a_histogram_of_d_stands_for_each_task(run: Run) -> None:
    drops = defaultdict(list)
    for row in rows_of(run.out):
        drops[row["task"]].append(row["drop"])
    values = run.logged.values
    assert {*drops} == {*TASKS}
    for task, own in drops.items():
        counts, bins = values[f"page/drop/{task}.values"], values[f"page/drop/{task}.bins"]
        assert (bins[0], bins[-1]) == (min(own), max(own))
        for low, high, count in zip(bins, bins[1:], counts, strict=False):
            last = high == bins[-1]
            assert count == sum(low <= d < high or (last and d == high) for d in own)


def test_running_rates_follow_the_prompts(run: Run) -> None:
    rows = [row for row in run.logged.history if "page/answered" in row]
    assert [row["page/answered"] for row in rows] == [*range(1, PROMPTS + 1), PROMPTS]
    assert all(0 <= row["page/running/open_rate"] <= 1 for row in rows)
    traces = rows_of(run.out)
    opened = statistics.fmean(row["gate_open"] for row in traces)
    assert 0 < opened < 1
    assert rows[-1]["page/running/open_rate"] == pytest.approx(opened)
    kept = statistics.fmean(row["kept_kv"] for row in traces)
    assert rows[-1]["page/running/kept_kv"] == pytest.approx(kept)


def test_the_summary_is_what_the_traces_say(run: Run) -> None:
    gated, full = rows_of(run.out), rows_of(run.folder / "full")
    summary = run.logged.summary
    correct = statistics.fmean(row["correct"] for row in gated)
    kept = statistics.fmean(row["kept_kv"] for row in gated)
    harm = statistics.fmean(f["correct"] > g["correct"] for f, g in zip(full, gated, strict=True))
    assert 0 < correct < 1
    assert 0 < harm < 1
    expected = {
        "n": PROMPTS,
        "score": statistics.fmean(row["score"] for row in gated),
        "correct": correct,
        "open_rate": statistics.fmean(row["gate_open"] for row in gated),
        "kept_kv": kept,
        "compression": 1 / kept,
        "harm": harm,
    }
    assert {name: summary[f"page/{name}"] for name in expected} == pytest.approx(expected)
    # It can be optimised: a sweep reads the summary, an early end of its arms the history.
    assert run.logged.values["page/correct"] == summary["page/correct"]
    for name, right in (("correct", correct), ("harm", harm)):
        ends = proportion_confint(round(right * PROMPTS), PROMPTS, method="wilson")
        found = summary[f"page/{name}_low"], summary[f"page/{name}_high"]
        assert found == pytest.approx(ends)


def test_the_trace_and_lm_evals_own_tables_are_kept(run: Run) -> None:
    found = run.logged
    trace = max(run.out.rglob("trace_*.jsonl"))
    name = f"trace-{found.run.run_id}"
    assert found.artifact(name) == trace.read_text(encoding="utf-8")
    assert found.artifacts[name].type == "trace"
    assert "results" in found.artifacts
    for task in TASKS:
        assert len(found.table(f"{task}_eval_results")) == PROMPTS // 2
    assert found.is_ended


def test_the_key_stands_nowhere(run: Run) -> None:
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_sweeps_arm_is_logged_under_its_sweep_with_its_metric(
    run: Run, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What W&B's agent gives to the command that it starts.
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(yaml.safe_dump({"budget": {"value": 0.5}, "gate": {"value": "open"}}))
    for name, value in {
        "SWEEP_ID": "s1w2e3e4",
        "RUN_ID": "arm1",
        "SWEEP_PARAM_PATH": str(parameters),
        "PROJECT": "of-the-sweep",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    environment(monkeypatch, tmp_path)
    args = {**run.model_args, "budget": 0.5, "gate": "open"}
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", args)
    (found,) = logged_in(tmp_path)
    assert (found.run.sweep_id, found.run.run_id) == ("s1w2e3e4", "arm1")
    assert found.config["budget"] == 0.5
    assert found.config["page"]["budget"] == 0.5
    metrics = [yaml.safe_load(path.read_text())["metric"] for path in SWEEPS.glob("*.yaml")]
    assert metrics
    assert {(metric["name"], metric["goal"]) for metric in metrics} == {
        ("page/correct", "maximize")
    }
    assert math.isfinite(found.summary["page/correct"])
    assert 0 < found.summary["page/harm"] < 1


def test_at_a_given_step_everything_stands_in_one_row(
    run: Run, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, tmp_path)
    given = "project=test,step=50"
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", run.model_args, tracked=given)
    (found,) = logged_in(tmp_path)
    (row,) = found.history
    assert row["_step"] == 50
    assert {"page/correct", "page/running/open_rate", "page/samples.path"} <= {*row}
    assert "tracked_a/correct" in row


def test_a_disabled_run_leaves_no_files_and_the_same_results(
    run: Run, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    environment(monkeypatch, tmp_path)
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", {**run.model_args, "tau": "zscore"})
    assert not logged_in(tmp_path)
    assert results_of(tmp_path / "out")["results"] == results_of(run.out)["results"]
    assert (
        results_of(tmp_path / "out")["config"]["page"]["warnings"]
        == (results_of(run.out)["config"]["page"]["warnings"])
    )


def imported(run: Run, folder: Path, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, folder)
        places = [str(run.folder / name) for name in ("full", "gated")]
        return import_command.run([*places, "--project", "afterwards", *words])


def test_an_import_has_what_the_live_run_has(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imported(run, tmp_path, "--group", "a-group") == 0
    told = capsys.readouterr().out
    assert f"2 of 2 runs written for afterwards (offline) to {tmp_path / 'wandb'}, 0 were" in told
    assert f"Nothing has been sent: `wandb sync {tmp_path / 'wandb'}/offline-run-*` uploads" in told
    assert "uploaded" not in told
    runs = {found.config["page"]["gate"]: found for found in logged_in(tmp_path)}
    found, live = runs["page"], run.logged
    assert found.run.run_group == "a-group"
    assert found.is_ended
    volatile = ("artifact_path", "sha256", "path", "size")

    def stable(values: dict[str, Any]) -> dict[str, Any]:
        return {k: None if k.endswith(volatile) else v for k, v in values.items() if k[:1] != "_"}

    # The order of the prompts while they ran is not in the trace, the rates at the end are.
    assert stable(found.values) == stable(live.values)
    assert stable(found.summary) == stable(live.summary)
    assert found.config.pop(IMPORTED)
    assert {*found.config} == {*live.config}
    assert found.config["page"] == live.config["page"]
    for key in ("page/samples", "evaluation/eval_results", *(f"{t}_eval_results" for t in TASKS)):
        assert found.table(key) == live.table(key)
    trace = f"trace-{found.run.run_id}"
    assert found.artifact(trace) == live.artifact(f"trace-{live.run.run_id}")

    # The second time there is nothing to do.
    assert imported(run, tmp_path) == 0
    assert "0 of 2 runs written for afterwards (offline), 2 were" in capsys.readouterr().out
    assert len(logged_in(tmp_path)) == 2
    # An offline run that was deleted is written again, under the same id.
    for path in tmp_path.glob("wandb/offline-run-*"):
        for file in path.glob("*.wandb"):
            file.unlink()
    assert imported(run, tmp_path) == 0
    again = {found.config["page"]["gate"]: found for found in logged_in(tmp_path)}
    assert again["page"].run.run_id == found.run.run_id
    for path in run.folder.rglob(MARKS):
        path.unlink()


def test_in_an_agents_environment_each_arm_is_a_run_of_its_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(yaml.safe_dump({"budget": {"value": 0.5}}))
    agents = {"SWEEP_ID": "s1w2e3e4", "RUN_ID": "arm1", "SWEEP_PARAM_PATH": str(parameters)}
    for name, value in agents.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert imported(run, tmp_path) == 0
    found = logged_in(tmp_path)
    assert len({one.run.run_id for one in found} - {"arm1"}) == len(found) == 2
    assert {(one.run.sweep_id, one.run.project) for one in found} == {("", "afterwards")}
    assert not ["budget" for one in found if "budget" in one.config]
    assert {one.config["page"]["gate"] for one in found} == {"closed", "page"}
    assert {name: os.environ[f"WANDB_{name}"] for name in agents} == agents
    for path in run.folder.rglob(MARKS):
        path.unlink()


def test_likelihoods_are_tracked_and_imported_alike(
    run: Run, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--tasks", "tracked_choice")
    lm_eval_run(monkeypatch, tasks, tmp_path / "out", run.model_args, *words)
    (live,) = logged_in(tmp_path)
    page = results_of(tmp_path / "out")["config"]["page"]
    assert not [warning for warning in page["warnings"] if "W&B" in warning]
    assert live.summary["page/n"] == PROMPTS // 2
    told = results_of(tmp_path / "out")["results"]["tracked_choice"]["acc,none"]
    assert live.summary["page/correct"] == live.summary["page/score"] == pytest.approx(told)
    assert import_command.run([str(tmp_path / "out"), "--project", "test"]) == 0
    (found,) = [one for one in logged_in(tmp_path) if one.run.run_id != live.run.run_id]
    key = "tracked_choice_eval_results"
    assert found.table(key) == live.table(key)
    assert len(live.table(key)) == PROMPTS // 2
    assert found.table("page/samples") == live.table("page/samples")


def traces() -> list[Trace]:
    """Four samples of two tasks: right, wrong, right, wrong; the last with a closed gate."""
    return [
        stored("a", 0, correct=1.0, kept_kv=0.25, drop=0.1),
        stored("a", 1, correct=0.0, kept_kv=0.25, drop=0.3),
        stored("b", 0, correct=1.0, kept_kv=0.5, drop=math.nan),
        stored("b", 1, correct=0.0, kept_kv=1.0, gate_open=False, kept_all_because="gate closed"),
    ]


def test_summary_by_hand() -> None:
    found = summary_of(traces(), [1.0, 1.0, 0.0, 0.0])
    assert found["page/n"] == 4
    assert found["page/correct"] == 0.5
    assert found["page/open_rate"] == 0.75
    assert found["page/kept_kv"] == 0.5
    assert found["page/compression"] == 2.0
    assert found["page/harm"] == 0.25  # the second alone
    # Wilson for 2 of 4: (0.5 + z²/8 ± z·sqrt(1/16 + z²/64)) / (1 + z²/4), z = 1.96.
    assert found["page/correct_low"] == pytest.approx(0.15004, abs=1e-5)
    assert found["page/correct_high"] == pytest.approx(0.84996, abs=1e-5)
    # Four samples leave the mean of what is no share without one.
    assert not {"page/kept_kv_low", "page/kept_kv_high"} & {*found}
    many = summary_of(
        [dataclasses.replace(t, doc_id=i) for i, t in enumerate(traces() * 6)], [None] * 24
    )
    assert many["page/kept_kv_low"] < 0.5 < many["page/kept_kv_high"]


def test_a_full_cache_keeps_everything_without_doubt() -> None:
    kept = [stored("a", i, gate="closed", kept_kv=1.0) for i in range(20)]
    found = summary_of(kept, [1.0] * 20)
    assert (found["page/kept_kv_low"], found["page/kept_kv"]) == (1.0, 1.0)


def test_harm_is_absent_unless_the_full_cache_is_known_of_every_sample() -> None:
    assert "page/harm" not in summary_of(traces(), [1.0, None, 0.0, 0.0])


def test_what_no_task_scores_has_no_score() -> None:
    unscored = [stored("a", i, correct=None, score=None) for i in range(2)]
    found = summary_of(unscored, [None, None])
    assert not {"page/score", "page/correct"} & {*found}
    assert found["page/kept_kv"] == 0.25


def test_repeats_of_a_document_are_one_cluster() -> None:
    repeated = [stored("a", 0, repeat=i, correct=float(i)) for i in range(2)]
    found = summary_of([*repeated, stored("a", 1, correct=1.0)], [None] * 3)
    assert found["page/correct"] == 0.75  # of the documents' means, 1/2 and 1
    assert "page/correct_low" not in found
    alike = [stored("a", i, repeat=k, correct=float(i == 0)) for i in range(4) for k in range(2)]
    found = summary_of(alike, [None] * 8)
    ends = proportion_confint(1, 4, method="wilson")
    assert (found["page/correct_low"], found["page/correct_high"]) == pytest.approx(ends)


def finished(record: RunRecord, run_traces: list[Trace], calibration: str | None = None) -> Any:
    """A run's record, filled with scored answers and closed, while a W&B run is open."""
    record.started({}, lambda outcome: None)
    answers = [Answer(trace.answer, trace) for trace in run_traces]
    record.add("generate_until", RunSummary(), answers)
    return record.close({"calibration": calibration})


def test_a_full_run_in_the_same_folder_tells_the_harm(tmp_path: Path) -> None:
    full = [stored("a", i, gate="closed", correct=1.0, kept_all_because="c") for i in range(2)]
    write_traces(tmp_path / "trace_2020.jsonl", full)
    (tmp_path / "trace_2021.jsonl").write_text("{")  # of a run that was killed
    plain = [stored("a", i, correct=float(i)) for i in range(2)]
    with wandb.init(project="test") as opened:
        page = finished(RunRecord(str(tmp_path)), plain)
        assert opened.summary["page/harm"] == 0.5
    assert page["warnings"] == []


def test_a_calibration_is_kept_with_its_run(tmp_path: Path) -> None:
    file = tmp_path / "τ for this.json"
    file.write_text('{"pilot": []}')
    with wandb.init(project="test") as opened:
        finished(RunRecord(None), traces(), str(file))
    found = logged(Path(opened.settings.sync_file))
    assert found.artifact("calibration-_for_this") == '{"pilot": []}'
    assert found.artifacts["calibration-_for_this"].type == "calibration"


def test_without_a_run_none_is_opened(tmp_path: Path) -> None:
    assert wandb.run is None
    assert attached(0) is None
    finished(RunRecord(str(tmp_path)), traces())
    assert wandb.run is None
    assert not logged_in(tmp_path)


def test_only_the_first_process_logs(tmp_path: Path) -> None:
    with wandb.init(project="test"):
        assert isinstance(attached(0), TrackedRun)
        assert attached(1) is None
    with wandb.init(project="test", mode="disabled"):
        # Takes part in what all processes do, and logs nowhere.
        assert isinstance(attached(1), TrackedRun)


def test_other_processes_open_no_run_of_their_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.loggers import WandbLogger

    monkeypatch.setenv("RANK", "1")
    opened = watched(WandbLogger)({"project": "test"}).run
    assert opened.disabled
    opened.finish()
    assert not logged_in(tmp_path)


def test_a_second_run_of_one_model_goes_to_the_run_that_is_open_then() -> None:
    files = []
    for n in (1, 2):
        with wandb.init(project="test") as opened:
            finished(RunRecord(None), traces()[:n])
        files.append(Path(opened.settings.sync_file))
    assert [len(logged(path).table("page/samples")) for path in files] == [1, 2]
