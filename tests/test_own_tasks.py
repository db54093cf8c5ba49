"""Any task of lm-eval under eviction: scores in traces, reports, re-gated runs and leaderboard."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import own_tasks
import pytest
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from own_tasks import N_DOCS, Wanted

from page_bench.analysis.gate_choice import Choice
from page_bench.commands import cli
from page_bench.harness import plugin
from page_bench.harness.lm_eval_speedups import once_for_all_runs
from page_bench.records.finished_runs import read_traces
from page_bench.records.trace import Trace
from page_bench.report.build import build
from page_bench.report.settings import Settings
from page_bench.report.sources import read

GATES = ("open", "closed", "gated")
FIRST_METRIC = {
    "own_page": "score",
    "own_filtered": "score",
    "own_exact": "exact_match",
    "own_choice": "acc",
    "own_vote": "exact_match",
    "own_graded": "share",
}
BINARY = [name for name in FIRST_METRIC if name != "own_graded"]
FILTERS = {"own_filtered": "strip", "own_exact": "letter", "own_vote": "vote"}


@dataclass(frozen=True)
class Written:
    """What lm-eval wrote of a run.

    Attributes:
        samples: by task, of its first filter.
        results: the results file.
        traces: the file of traces.
    """

    samples: dict[str, list[dict[str, Any]]]
    results: dict[str, Any]
    traces: list[Trace]

    def of(self, task: str) -> list[Trace]:
        return [trace for trace in self.traces if trace.task == task]


def evaluate(
    model: str,
    pretrained: Path,
    tasks: Path,
    names: Sequence[str],
    output: Path | None = None,
    log_samples: bool = True,
    limit: int | None = None,
    **model_args: Any,
) -> dict[str, Any]:
    """A run with files as the command line leaves them."""
    plugin.install()
    tracker = None if output is None else EvaluationTracker(output_path=str(output))
    ours = {"window": 4, "n_sink": 2, "budget": 0.3} if model == "page_hf" else {}
    results: dict[str, Any] = lm_eval.simple_evaluate(
        model=model,
        model_args={"pretrained": str(pretrained), "dtype": "float32", **ours, **model_args},
        tasks=list(names),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        device="cpu",
        limit=limit,
        bootstrap_iters=0,
        log_samples=log_samples,
        evaluation_tracker=tracker,
    )
    if tracker is not None:
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in results["configs"]:
            tracker.save_results_samples(task_name=name, samples=samples[name])
        results["samples"] = samples
    return results


def written(folder: Path) -> Written:
    (path,) = folder.rglob("results_*.json")
    (traces,) = folder.rglob("trace_*.jsonl")
    samples: dict[str, list[dict[str, Any]]] = {}
    for task in own_tasks.NAMES:
        (file,) = folder.rglob(f"samples_{task}_*.jsonl")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        samples[task] = [row for row in rows if row["filter"] == FILTERS.get(task, "none")]
    read = [record.trace for record in read_traces(traces)]
    return Written(samples, json.loads(path.read_text(encoding="utf-8")), read)


@pytest.fixture(scope="module")
def tasks(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of which the full cache is right on some documents, and plain eviction on others."""
    folder = tmp_path_factory.mktemp("tasks")
    blank = [Wanted(["x"], "x", "x", 0)] * N_DOCS
    own_tasks.write_tasks(folder, blank)
    names = ("own_page", "own_exact", "own_choice")
    with once_for_all_runs():
        said = {
            gate: evaluate("page_hf", tiny_folder("llama"), folder, names, gate=gate)["samples"]
            for gate in ("open", "closed")
        }

    def references(i: int) -> Wanted:
        right, wrong = ("closed", "open") if i % 2 else ("open", "closed")
        page, exact, choice = (said[right][name][i]["resps"] for name in names)
        only = set(page[0][0].strip()) - set(said[wrong]["own_page"][i]["resps"][0][0]) - {" "}
        return Wanted(
            sorted(only)[:1] if i < N_DOCS - 1 else ["nowhere to be found"],
            exact[0][0][0],
            exact[0][0],
            int(np.argmax([likelihood for ((likelihood, _),) in choice])),
        )

    return own_tasks.write_tasks(folder, [references(i) for i in range(N_DOCS)])


@pytest.fixture(scope="module")
def runs(
    tasks: Path, tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a plain, a full and a gated run of all tasks, and one of `hf`."""
    folder = tmp_path_factory.mktemp("runs")
    with once_for_all_runs():
        for name in GATES:
            # Half of the prompts of a task open the gate.
            arm = {"gate": "page", "tau": tau_of(folder)} if name == "gated" else {"gate": name}
            place = folder / "page" / name
            evaluate("page_hf", tiny_folder("llama"), tasks, own_tasks.NAMES, place, **arm)
        evaluate("hf", tiny_folder("llama"), tasks, ("own_exact",), folder / "hf")
    return folder


def tau_of(runs: Path) -> float:
    drops = [trace.drop for trace in written(runs / "page" / "open").of("own_filtered")]
    return round(float(np.median(drops)), 5)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("task", FIRST_METRIC)
def test_the_score_of_a_trace_is_the_value_that_lm_eval_gives_its_sample(
    task: str, gate: str, runs: Path
) -> None:
    run, metric = written(runs / "page" / gate), FIRST_METRIC[task]
    values = {row["doc_id"]: row[metric] for row in run.samples[task]}
    traces = run.of(task)
    assert len(values) == N_DOCS
    assert len(traces) == N_DOCS * (3 if task == "own_vote" else 1)
    for trace in traces:
        assert trace.score == values[trace.doc_id]
        assert trace.correct == (trace.score if task != "own_graded" else None)
        assert trace.metric == f"{metric},{FILTERS.get(task, 'none')}"
    told = run.results["results"][task][f"{metric},{FILTERS.get(task, 'none')}"]
    assert np.mean([trace.score for trace in traces]) == pytest.approx(told)


def test_each_task_has_documents_that_only_one_of_both_caches_gets_right(runs: Path) -> None:
    """Else the tests of this file could not tell a score from another."""
    plain, full = (written(runs / "page" / gate) for gate in ("open", "closed"))
    for task in FIRST_METRIC:
        pairs = zip(plain.of(task), full.of(task), strict=True)
        found = {
            np.sign(one.score - other.score)
            for one, other in pairs
            if one.score is not None and other.score is not None
        }
        assert found >= {1, -1}, task


@pytest.mark.parametrize("gate", ["open", "gated"])
def test_a_filtered_page_task_says_of_each_document_what_its_cache_kept(
    gate: str, runs: Path
) -> None:
    run = written(runs / "page" / gate)
    traces = {trace.doc_id: trace for trace in run.of("own_filtered")}
    (file,) = (runs / "page" / gate).rglob("samples_own_filtered_*.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row["filter"] for row in rows] == ["strip"] * N_DOCS + ["shout"] * N_DOCS
    for row in rows:
        trace = traces[row["doc_id"]]
        assert row["kept_kv"] == trace.kept_kv
        assert row["gate_open"] == trace.gate_open
        assert row["head_drop"] == trace.drop
    opened = [trace.gate_open for trace in traces.values()]
    assert all(opened) if gate == "open" else {*opened} == {True, False}
    assert {trace.kept_kv < 1 for trace in traces.values() if trace.gate_open} == {True}


def test_a_task_without_a_value_per_document_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(runs / "page" / "open")
    assert {trace.score for trace in run.of("own_unscored")} == {None}
    (warning,) = (w for w in run.results["config"]["page"]["warnings"] if "no score" in w)
    assert warning.startswith("6 of 6 answers to own_unscored have no score")


def folders(runs: Path, *gates: str) -> list[str]:
    return [str(runs / "page" / gate) for gate in gates]


def test_any_task_is_gated_anew_as_it_is_live(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live run's own scores are what the plain and the full run give at its τ."""
    words = ["--gate", "page", "--tau", str(tau_of(runs)), "--json"]
    assert cli.main(["regate", *folders(runs, "open", "closed"), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    (arm,) = told["arms"]
    rows = {row["task"]: row for row in arm["results"][0]["rows"]}
    assert {*rows} == {*BINARY, "all"}
    live, plain, full = (written(runs / "page" / gate) for gate in ("gated", "open", "closed"))
    for task in BINARY:
        for column, run in (("gated", live), ("plain", plain), ("full", full)):
            wanted = np.mean([row[FIRST_METRIC[task]] for row in run.samples[task]])
            assert rows[task][column]["value"] == pytest.approx(wanted), (task, column)
        assert rows[task]["open"]["value"] == np.mean([t.gate_open for t in live.of(task)])
    said = "\n".join(told["notes"])
    assert "6 of 6 inputs of own_unscored are left out: their answers have no score" in said
    assert "6 of 6 inputs of own_graded are left out: their answers have no correct" in said


def test_a_task_that_is_not_0_or_1_is_gated_anew_by_its_score(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gate", "page", "--tau", str(tau_of(runs)), "--metric", "score", "--json"]
    assert cli.main(["regate", *folders(runs, "open", "closed"), *words]) == 0
    (arm,) = json.loads(capsys.readouterr().out)["arms"]
    rows = {row["task"]: row for row in arm["results"][0]["rows"]}
    assert {*rows} == {*FIRST_METRIC, "all"}
    live = written(runs / "page" / "gated").samples["own_graded"]
    assert rows["own_graded"]["gated"]["value"] == pytest.approx(
        np.mean([row["share"] for row in live])
    )


def test_any_task_is_reported_and_what_has_no_score_is_named(runs: Path) -> None:
    sources = read([str(runs)], Choice())
    report = build(sources, Settings(draws=100))
    tables = {table.name: table for table in report.data.tables}
    assert {cell.suite for cell in sources.cells} == set(BINARY)
    assert "harm" in {section.name for section in report.sections}
    live = written(runs / "page" / "gated")
    for cell in sources.cells:
        # The decisions are the gated run's own.
        assert cell.gate.startswith("page")
        (name,) = {cell.suite}
        assert cell.rows["open"].tolist() == [trace.gate_open for trace in live.of(name)]
    assert len(sources.files) == 3
    for source in sources.files:
        # Page, filtered, exact and choice, and three answers for each vote.
        assert source.n == N_DOCS * 7
        assert "6 of own_unscored: their answers have no score" in source.left_out
        assert "6 of own_graded: their answers have no correct" in source.left_out
    assert [row[2] for row in tables["data_files"].rows] == [s.left_out for s in sources.files]
    said = "\n".join(report.notes)
    assert "6 of 6 inputs of own_unscored are left out: their answers have no score" in said


def test_any_task_is_ranked_and_results_of_hf_are_set_aside(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "board" / "leaderboard.csv"
    assert cli.main(["leaderboard", "add", str(runs), "--file", str(file)]) == 0
    told = capsys.readouterr()
    assert "15 rows added" in told.out
    (foreign,) = (line for line in told.err.splitlines() if "--model hf" in line)
    assert "results_" in foreign
    assert foreign.endswith("is left out.")
    assert "own_unscored is left out, since document 0 has no score" in told.err
    assert "own_graded is left out, since document" in told.err
    with file.open(encoding="utf-8") as lines:
        rows = {(row["suite"], row["gate"]): row for row in csv.DictReader(lines)}
    for task in BINARY:
        for name, gate in (("open", "open"), ("closed", "closed"), ("gated", "page")):
            samples = written(runs / "page" / name).samples[task]
            wanted = np.mean([row[FIRST_METRIC[task]] for row in samples])
            assert float(rows[task, gate]["correct"]) == pytest.approx(wanted, abs=1e-6)
    assert cli.main(["leaderboard", "check", "--file", str(file)]) == 0


def test_results_of_hf_alone_are_nothing_to_add(runs: Path, tmp_path: Path) -> None:
    status = cli.main(
        ["leaderboard", "add", str(runs / "hf"), "--file", str(tmp_path / "leaderboard.csv")]
    )
    assert status == 1
