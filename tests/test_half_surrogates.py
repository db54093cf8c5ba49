"""Answers with half of a surrogate pair, which a tokenizer may give and UTF-8 cannot hold."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import released_logs
import store_examples
from finished_runs import write_trio
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from stored_traces import stored

from page_bench.analysis.paper_logs.lines import read_log
from page_bench.commands import leaderboard, regate, report
from page_bench.commands.wandb_import import finished
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.harness.lm import PageLM
from page_bench.harness.written_samples import make_writable
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import parse_trace, read_traces
from page_bench.records.store.store import RunStore
from page_bench.records.trace import write_traces

HIGH, LOW = "\ud83d", "\ude00"


def test_an_answer_is_read_back_as_it_was(tmp_path: Path) -> None:
    pieces = (HIGH, "\ud800", LOW, "\udfff", "x", "\\ud800", "\\", '"', "\n", "\u2028", "é", "😀")
    rng = random.Random(0)
    answers = ["".join(rng.choices(pieces, k=rng.randrange(8))) for _ in range(300)]
    # A high half right before a low one is, in JSON, the character that both make.
    answers = [
        a for a in answers if not any(h + low in a for h in pieces[:2] for low in pieces[2:4])
    ]
    assert sum(json_text.HALF.search(a) is not None for a in answers) > 100
    path = tmp_path / "trace_1.jsonl"
    asked = {"max_new_tokens": 3, "stop": [HIGH]}
    write_traces(path, [stored(doc_id=i, answer=a, asked=asked) for i, a in enumerate(answers)])
    records = read_traces(path)
    assert [record.trace.answer for record in records] == answers
    assert records[0].trace.asked == asked
    # Any other reader of JSON sees the same.
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    assert [row["answer"] for row in rows] == answers
    (joined,) = [parse_trace(stored(answer=HIGH + LOW).to_json())]
    assert joined.answer == "😀"


def test_elsewhere_in_a_trace_it_is_an_error_that_gives_no_bad_advice() -> None:
    line = stored().to_json().replace('"task": "vt"', '"task": "\\ud800"')
    with pytest.raises(UsageError, match=r"\\ud800 is half of a surrogate pair.*restore") as caught:
        parse_trace(line)
    assert "delete" not in str(caught.value)


def test_such_answers_are_reported_regated_and_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for name, answer in (("half", f"x{HIGH}"), ("whole", "x")):
        runs = str(write_trio(tmp_path / name / "runs", answer=answer))
        table = tmp_path / name / "leaderboard.csv"
        assert regate.run([runs, "--tau", "0.07"]) == 0
        assert leaderboard.run(["add", runs, "--file", str(table)]) == 0
        said[name] = capsys.readouterr().out.replace(str(tmp_path / name), "")
    assert said["half"] == said["whole"]
    runs, output = str(tmp_path / "half" / "runs"), str(tmp_path / "report")
    assert report.run([runs, "-o", output, "--draws", "200"]) == 0


def test_a_row_of_the_authors_counts(tmp_path: Path) -> None:
    rows = [{**row, "text": HIGH} for row in released_logs.gated_rows()]
    path = tmp_path / "gated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_log(path).rows) == len(rows)


def test_a_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    key, value = store_examples.answer(0)
    with RunStore(tmp_path / "runs.sqlite") as store:
        store.put(None, [(key, {**value, "text": HIGH})])
        assert store.answer(key) == {**value, "text": HIGH}


def test_samples_without_any_are_left_alone() -> None:
    resps = [[(-0.5, True)], ["x"]]
    results: dict[str, Any] = {"samples": {"t": [{"resps": resps, "filtered_resps": ["x"]}]}}
    make_writable(results)
    make_writable(None)
    assert results["samples"]["t"][0]["resps"] is resps


def test_lm_evals_samples_are_written_whole(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin.install()
    text = PageLM._text
    # As a tokenizer in Python could give it.
    monkeypatch.setattr(PageLM, "_text", lambda *args: text(*args)[:3] + HIGH)
    pretrained = str(tiny_folder("llama"))
    metadata = {"pretrained": pretrained, "prompt_tokens": 400}
    manager = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)
    tracker = EvaluationTracker(output_path=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        results = lm_eval.simple_evaluate(
            model="page_hf",
            model_args={"pretrained": pretrained, "dtype": "float32", "budget": 0.5},
            tasks=["page_quickstart_needle_word"],
            task_manager=manager,
            device="cpu",
            limit=2,
            bootstrap_iters=0,
            evaluation_tracker=tracker,
        )
        page = results["config"]["page"]
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, rows in samples.items():
            tracker.save_results_samples(task_name=task, samples=rows)
    assert "Could not save" not in caplog.text
    warning = "2 samples have an answer with half of a surrogate pair"
    assert caplog.text.count(warning) == 1
    assert any(warning in said for said in page["warnings"])
    answers = [record.trace.answer for record in read_traces(Path(page["trace_file"]))]
    assert [answer[-1] for answer in answers] == [HIGH] * 2
    ((run,), _) = finished.finished_runs([str(tmp_path)])
    rows = [row for rows in (run.read().samples or {}).values() for row in rows]
    assert [row["resps"] for row in rows] == [[[answer[:-1] + "\ufffd"]] for answer in answers]


def test_a_prompt_with_half_a_pair_is_named(tiny_folder: Callable[[str], Path]) -> None:
    from lm_eval.api.instance import Instance

    lm = PageLM(str(tiny_folder("llama")), device="cpu", dtype="float32")
    request = Instance("generate_until", {}, (f"why{HIGH}", {"until": []}), 0, ("t", 4, 1))
    with pytest.raises(UsageError, match="the prompt of t document 4 holds half of a surrogate"):
        lm.generate_until([request])
