"""Rows of finished runs: figures worked out by hand, and runs that are not added."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from finished_runs import ASKED, SUITE, TAU, answers, edited, write_run, write_trio

from page_bench.commands import leaderboard
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.add import Added, rows_of
from page_bench.leaderboard.check import examined, read_board
from page_bench.leaderboard.results import read_results
from page_bench.leaderboard.row import Row, row_id
from page_bench.leaderboard.run import read_finished

Z = 1.959963984540054


def wilson(successes: int, n: int) -> tuple[float, float]:
    p = successes / n
    middle = p + Z * Z / (2 * n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return (middle - half) / (1 + Z * Z / n), (middle + half) / (1 + Z * Z / n)


def added(folder: Path) -> Added:
    return rows_of(read_finished([folder])[0])


def by_gate(rows: list[Row]) -> dict[str, Row]:
    return {str(row["gate"]): row for row in rows}


def tasks_of(made: Added, row: Row) -> dict[str, Row]:
    return {str(task["task"]): task for task in made.tasks if task["row"] == row["row"]}


def add(folder: Path, file: Path, *words: str) -> int:
    return leaderboard.run(["add", str(folder), "--file", str(file), *words])


def figures(row: Row, *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_the_figures_of_three_arms_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    made = added(write_trio(tmp_path))
    rows = by_gate(made.rows)
    assert made.notes == []
    assert [row["n"] for row in made.rows] == [8, 8, 8]
    gated, plain, full = rows["page"], rows["open"], rows["closed"]
    names = ("correct", "full_correct", "delta", "harm", "rho", "open", "kept_kv", "compression")
    assert figures(gated, *names) == [0.75, 0.75, 0.25, 0.125, 0.125, 0.5, 0.625, 1.6]
    assert figures(plain, *names) == [0.5, 0.75, None, 0.375, 0.125, 1.0, 0.25, 4.0]
    assert figures(full, *names) == [0.75, 0.75, None, None, None, 0.0, 1.0, 1.0]
    for row, right in ((gated, 6), (plain, 4), (full, 6)):
        low, high = wilson(right, 8)
        assert figures(row, "correct_low", "correct_high") == [round(low, 6), round(high, 6)]
    # 3 harmed inputs against 5: (0.2 | 0.02, 0.02) and (0.2, 0.2, 0.2, 0.02, 0.02), ties half.
    assert gated["auc_drop"] == plain["auc_drop"] == round(9.5 / 15, 6)
    assert figures(gated, "kv_bytes", "kv_bytes_full") == [2500.0, 4000.0]
    assert figures(gated, "tau", "tau_variant") == [TAU, "number"]
    assert json.loads(str(gated["gate_args"]))["tau"] == TAU
    # Eight inputs: a value without interval, but for what settings fix.
    ends = ("delta_low", "delta_high", "kept_kv_low", "kept_kv_high", "auc_drop_low")
    assert figures(gated, *ends) == [None] * 5
    assert figures(plain, "kept_kv_low", "kept_kv_high") == [0.25, 0.25]
    assert figures(full, "kept_kv_low", "kept_kv_high") == [1.0, 1.0]


def test_the_tasks_of_a_row_show_what_its_mean_hides(tmp_path: Path) -> None:
    made = added(write_trio(tmp_path))
    rows = by_gate(made.rows)
    plain, gated = tasks_of(made, rows["open"]), tasks_of(made, rows["page"])
    names = ("n", "correct", "full_correct", "harm", "rho", "kept_kv", "drop")
    assert figures(plain["niah_multikey_3"], *names) == [4, 0.25, 0.75, 0.5, 0.0, 0.25, 0.02]
    assert figures(plain["vt"], *names) == [4, 0.75, 0.75, 0.25, 0.25, 0.25, 0.2]
    assert figures(gated["niah_multikey_3"], "delta", "open", "harm") == [0.5, 0.0, 0.0]
    assert figures(gated["vt"], "delta", "open", "harm") == [0.0, 1.0, 0.25]
    assert {task["class"] for task in plain.values()} == {"undecided"}  # n = 4 decides nothing
    assert {task["class"] for task in tasks_of(made, rows["closed"]).values()} == {None}


def test_the_class_of_a_task_needs_an_interval_on_one_side(tmp_path: Path) -> None:
    for gate, correct in (("open", 1.0), ("closed", 0.0)):
        traces = [
            dataclasses.replace(one, doc_id=i, prompt_sha256=f"{i:064x}", correct=correct, score=1)
            for i in range(40)
            for one in answers(gate)[:1]
        ]
        write_run(tmp_path / gate, traces)
    made = added(tmp_path)
    (task,) = tasks_of(made, by_gate(made.rows)["open"]).values()
    assert figures(task, "rho", "class") == [1.0, "dilution-prone"]


def test_what_is_not_known_stays_empty_and_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "gated", answers("page"))
    made = added(tmp_path)
    (row,) = made.rows
    unknown = ("full_correct", "delta", "delta_low", "harm", "rho", "auc_drop", "decode_speedup")
    assert figures(row, *unknown) == [None] * len(unknown)
    assert row["correct"] == 0.75
    assert made.notes[0].startswith("1 of these rows has no full run")
    assert made.notes[1].startswith("1 of these rows has no plain run")
    write_run(tmp_path / "full", answers("closed"))
    row = by_gate(added(tmp_path).rows)["page"]
    assert figures(row, "full_correct", "harm", "delta", "rho") == [0.75, 0.125, None, None]


def test_a_full_run_serves_every_evictor_and_budget(tmp_path: Path) -> None:
    write_run(tmp_path / "full", answers("closed", evictor="h2o", budget=0.5))
    for budget in (0.25, 0.5):
        write_run(tmp_path / f"{budget}", answers("open", budget=budget))
    rows = added(tmp_path).rows
    assert [row["harm"] for row in rows if row["gate"] == "open"] == [0.375, 0.375]
    (full,) = (row for row in rows if row["gate"] == "closed")
    wanted = ["none", "{}", 1.0]
    assert figures(full, "evictor", "evictor_args", "budget") == wanted
    # Whatever it would have evicted: it is the same row.
    other = tmp_path / "other"
    write_run(other, answers("closed"))
    assert added(other).rows[0]["row"] == full["row"]


def test_arms_of_a_grid_that_are_the_same_full_cache_are_one_row(tmp_path: Path) -> None:
    for evictor in ("snapkv", "h2o"):
        for gate in ("closed", "open"):
            write_run(tmp_path / f"{evictor}-{gate}", answers(gate, evictor=evictor))
    made = added(tmp_path)
    assert sorted(str(row["evictor"]) for row in made.rows) == ["h2o", "none", "snapkv"]
    assert len(made.tasks) == 6
    (full,) = (row for row in made.rows if row["gate"] == "closed")
    assert "evictor=h2o" in str(full["command"])


def test_what_else_is_of_another_data_or_asked_otherwise_is_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", answers("open"))
    other = {**ASKED, "max_new_tokens": 128}
    write_run(tmp_path / "full", answers("closed", asked=other))
    rows = by_gate(added(tmp_path).rows)
    assert rows["open"]["harm"] is None
    data = [json.loads(str(row["data"]))["max_new_tokens"] for row in rows.values()]
    assert sorted(data) == [30, 128]


@pytest.mark.parametrize("fewer", ["closed", "open"])
def test_arms_of_different_limits_are_not_compared(tmp_path: Path, fewer: str) -> None:
    write_trio(tmp_path)
    some = [trace for trace in answers(fewer) if trace.doc_id < 3]
    write_run(tmp_path / fewer, some)
    kind, other = ("full", "open") if fewer == "closed" else ("plain", "closed")
    shutil.rmtree(tmp_path / other)
    with pytest.raises(UsageError, match=f"the {kind} run .* hold 8 and 6 inputs.*--limit"):
        added(tmp_path)


def test_decoding_is_compared_only_where_answers_were_decoded_alone(tmp_path: Path) -> None:
    rows = by_gate(added(write_trio(tmp_path / "alone", decode_rows=1)).rows)
    # 0.3 s a token with the full cache, 0.1 where evicted; the gate evicts half.
    assert figures(rows["open"], "decode_speedup") == [3.0]
    assert figures(rows["page"], "decode_speedup") == [1.5]
    assert rows["closed"]["decode_speedup"] is None
    rows = by_gate(added(write_trio(tmp_path / "together", decode_rows=3)).rows)
    assert rows["open"]["decode_speedup"] is None
    write_trio(tmp_path / "elsewhere")
    write_run(tmp_path / "elsewhere/closed", answers("closed"), page={"device": "cuda:0"})
    assert by_gate(added(tmp_path / "elsewhere").rows)["open"]["decode_speedup"] is None


def test_rows_say_where_they_come_from(tmp_path: Path) -> None:
    row = by_gate(added(write_trio(tmp_path)).rows)["page"]
    names = ("source", "demonstration", "why", "length", "protocol", "chat_template", "date")
    wanted = ["measured", False, None, "4k", "page", True, "2026-11-29"]
    assert figures(row, *names) == wanted
    versions = figures(row, "page_bench", "lm_eval", "torch", "transformers")
    assert versions == ["0.1.0", "0.4.13", "2.13.0+cpu", "5.24.0"]
    assert figures(row, "commit", "device") == ["abc1234", "cpu (Some CPU)"]


def test_small_models_and_generated_data_are_demonstrations(tmp_path: Path) -> None:
    write_run(tmp_path / "small", answers("open"), model_num_parameters=135_000_000)
    row = added(tmp_path / "small").rows[0]
    assert figures(row, "demonstration", "why") == [True, "model of 135 M parameters"]
    traces = [
        dataclasses.replace(t, task=t.task.replace("ruler", "rulergen")) for t in answers("open")
    ]
    write_run(tmp_path / "made", traces)
    row = added(tmp_path / "made").rows[0]
    assert figures(row, "suite", "why") == ["page_rulergen_4k", "generated data"]


def test_each_suite_of_a_run_is_a_row(tmp_path: Path) -> None:
    longer = [
        dataclasses.replace(t, task=t.task.replace("4k", "8k"), prompt_sha256="b" * 64)
        for t in answers("open")
    ]
    write_run(tmp_path, [*answers("open"), *longer])
    rows = added(tmp_path).rows
    assert [(row["suite"], row["length"], row["n"]) for row in rows] == [
        (SUITE, "4k", 8),
        ("page_ruler_8k", "8k", 8),
    ]
    assert rows[0]["command"] == rows[1]["command"]


def test_tau_and_options_make_another_row_but_n_does_not(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"tau": 0.08},
        {"tau_variant": "fixed"},
        {"evictor_args": {"variant": "published"}},
        {"window": 16},
        {"chat_template": False},
        {"dtype": "bfloat16"},
        {"model": "other"},
        {"budget": 0.5},
    ]
    names = set()
    for i, change in enumerate(changes):
        write_run(tmp_path / f"{i}", answers("page", **change))
        (row,) = added(tmp_path / f"{i}").rows
        names.add(row["row"])
    assert len(names) == len(changes)
    write_run(tmp_path / "fewer", [t for t in answers("page") if t.doc_id < 2])
    (row,) = added(tmp_path / "fewer").rows
    assert row["row"] in names
    assert row["row"] == row_id(row)


def test_no_path_of_the_machine_gets_into_a_row(tmp_path: Path) -> None:
    folder = str(tmp_path / "models" / "tiny")
    traces = answers(
        "page",
        model=f"{folder} peft={tmp_path}/adapter",
        evictor=f"{tmp_path}/norms.py:Norms",
        evictor_args={"checkpoint": f"{tmp_path}/gates.pt"},
        tau_variant="zscore",
    )
    path = write_run(tmp_path, traces, page={"calibration": f"{tmp_path}/tau.json"})
    args = json.loads(path.read_text())["config"]["model_args"]
    args |= {"pretrained": folder, "peft": f"{tmp_path}/adapter", "store": f"{tmp_path}/s.sqlite"}
    args |= {"calibration": f"{tmp_path}/tau.json", "tau": "zscore", "evictor": traces[0].evictor}
    edited(path, config_model_args=args)
    (row,) = added(tmp_path).rows
    assert str(tmp_path) not in json.dumps(dict(row))
    assert figures(row, "model", "evictor") == ["tiny peft=adapter", "norms.py:Norms"]
    assert json.loads(str(row["gate_args"]))["calibration"] == "tau.json"
    assert "pilot_size" not in json.loads(str(row["gate_args"]))
    assert "pretrained=tiny," in str(row["command"])
    assert "calibration=tau.json" in str(row["command"])
    assert "store" not in str(row["command"])


def test_add_then_check_then_add_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, file = write_trio(tmp_path / "runs"), tmp_path / "board" / "leaderboard.csv"
    assert add(runs, file) == 0
    assert capsys.readouterr().out == f"3 rows added to {file}, which holds 3\n"
    assert leaderboard.run(["check", "--file", str(file)]) == 0
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert sorted(before) == ["leaderboard.csv", "schema.json", "tasks.csv"]
    with pytest.raises(UsageError, match=r"and 2 more stand in .* already, .*--replace"):
        add(runs, file)
    assert add(runs, file, "--replace") == 0
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before
    # In whatever order the runs come, the file is the same.
    other = tmp_path / "other" / "leaderboard.csv"
    for gate in ("page", "closed", "open"):
        leaderboard.run(["add", str(runs / gate), "--file", str(other)])
    add(runs, other, "--replace")
    assert other.read_bytes() == before["leaderboard.csv"]
    assert read_board(file).rows == read_board(other).rows


def test_a_replaced_row_takes_its_tasks_along(tmp_path: Path) -> None:
    file = tmp_path / "leaderboard.csv"
    add(write_trio(tmp_path / "runs"), file)
    for gate in ("closed", "open", "page"):
        write_run(tmp_path / "fewer" / gate, [t for t in answers(gate) if t.doc_id < 2])
    assert add(tmp_path / "fewer", file, "--replace") == 0
    board, found = examined(file)
    assert found == []
    assert [row["n"] for row in board.rows] == [4, 4, 4]
    assert [task["n"] for task in board.tasks] == [2] * 6


def test_a_damaged_leaderboard_is_not_added_to(tmp_path: Path) -> None:
    file = tmp_path / "leaderboard.csv"
    add(write_trio(tmp_path / "runs"), file)
    file.write_text(file.read_text().replace("2026-11-29", "2026-11-28", 1))
    with pytest.raises(UsageError, match="edited by hand"):
        add(tmp_path / "runs", file, "--replace")


def unscored(folder: Path) -> None:
    traces = answers("open")
    write_run(folder, [dataclasses.replace(traces[0], correct=None, score=None), *traces[1:]])


def half_right(folder: Path) -> None:
    traces = answers("open")
    write_run(folder, [dataclasses.replace(traces[0], correct=0.5), *traces[1:]])


def shorter(folder: Path) -> None:
    path = write_run(folder, answers("open"))
    (trace,) = folder.glob("trace_*")
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:-1]))
    assert path.exists()


def changed(folder: Path) -> None:
    path = write_run(folder, answers("open"))
    results = json.loads(path.read_text())
    results["results"][f"{SUITE}_vt"]["correct,none"] = 1.0
    edited(path, results=results["results"])


def doubled(folder: Path) -> None:
    traces = answers("open")
    write_run(folder, [traces[0], traces[0], *traces[2:]])


def unlisted(folder: Path) -> None:
    traces = answers("open")
    path = write_run(folder, traces)
    configs = json.loads(path.read_text())["configs"]
    del configs[f"{SUITE}_vt"]
    edited(path, configs=configs)


def two_arms(folder: Path) -> None:
    traces = answers("open")
    write_run(folder, [dataclasses.replace(traces[0], budget=0.5), *traces[1:]])


def two_protocols(folder: Path) -> None:
    write_run(
        folder,
        [
            dataclasses.replace(t, protocol="ruler" if t.task.endswith("vt") else "page")
            for t in answers("open")
        ],
    )


def without_trace(folder: Path) -> None:
    write_run(folder, answers("open"), page={"trace_file": None})


def lost_trace(folder: Path) -> None:
    write_run(folder, answers("open"))
    next(folder.glob("trace_*")).unlink()


def of_another_model(folder: Path) -> None:
    edited(write_run(folder, answers("open")), config_model="hf")


def cut_off(folder: Path) -> None:
    path = write_run(folder, answers("open"))
    path.write_text(path.read_text()[:-50])


def empty(folder: Path) -> None:
    folder.mkdir()


def unfinished(folder: Path) -> None:
    folder = folder / "gate=open-0a1b2c3d"
    write_run(folder / "model", answers("open"))
    (folder / ".lock").touch()


def longer_since(folder: Path) -> None:
    folder = folder / "gate=open-0a1b2c3d"
    path = write_run(folder / "model", answers("open"))
    (folder / ".lock").touch()
    files = {str(path.relative_to(folder)): path.stat().st_size - 1}
    (folder / "finished.json").write_text(json.dumps({"files": files}))


def of_an_empty_cache(folder: Path) -> None:
    traces = answers("open")
    write_run(folder, [dataclasses.replace(traces[0], kept_kv=0.0), *traces[1:]])


def of_a_spaced_task(folder: Path) -> None:
    write_run(folder, [dataclasses.replace(t, task="my task") for t in answers("open")[:4]])


def nested(folder: Path) -> None:
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    write_run(folder, answers("open", gate_args={"deep": deep}))


def twice(folder: Path) -> None:
    write_run(folder / "one", answers("open"))
    better = [dataclasses.replace(trace, correct=1.0) for trace in answers("open")]
    write_run(folder / "two", better)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unscored, "document 0 has no score: its run ended early, or its task gives no number"),
        (half_right, "document 0 has no `correct` of 0 or 1, by which answers are counted"),
    ],
)
def test_a_task_that_cannot_be_counted_is_set_aside_by_name(
    tmp_path: Path, make: Any, reason: str
) -> None:
    make(tmp_path / "run")
    (run,), (said,) = read_finished([tmp_path / "run"])
    assert f"{SUITE}_vt is left out, since {reason}" in said
    assert {trace.task for trace in run.traces} == {f"{SUITE}_niah_multikey_3"}
    (row,) = rows_of([run]).rows
    assert (row["n"], row["tasks"]) == (4, "niah_multikey_3")


def test_results_of_another_model_are_set_aside_by_name(tmp_path: Path) -> None:
    of_another_model(tmp_path / "hf")
    write_run(tmp_path / "ours", answers("open"))
    (run,), (said,) = read_finished([tmp_path])
    assert run.path.parent == tmp_path / "ours"
    assert str(tmp_path / "hf") in said
    assert said.endswith("is of --model hf, whose cache nothing is known of, and is left out.")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (shorter, "counts 4 answers of .*_niah_multikey_3, but its trace holds 3"),
        (changed, "says that 1.0000 of .*_vt is correct, its trace 0.7500"),
        (doubled, "holds an answer twice"),
        (unlisted, "holds page_ruler_4k_vt, which the results do not"),
        (two_arms, "are of 2 arms"),
        (two_protocols, "mixes the protocols page and ruler"),
        (without_trace, "is of a run without a trace"),
        (lost_trace, "the trace of results_.* is missing"),
        (of_another_model, "is of --model hf"),
        (cut_off, "is no whole results file of lm-eval"),
        (empty, r"holds no results_\*\.json"),
        (unfinished, "is an arm that its sweep has not finished"),
        (longer_since, "is not as long as when the arm was finished"),
        (of_an_empty_cache, r"kept_kv cannot be 0\.0"),
        (nested, "trace_.* is nested deeper than 50 levels"),
        (of_a_spaced_task, "is of the task 'my task', a name that --tasks would take for several"),
        (twice, "are two runs of tiny page_ruler_4k snapkv open at budget 0.25"),
    ],
)
def test_what_is_not_whole_is_refused_with_the_reason(
    tmp_path: Path, make: Any, reason: str
) -> None:
    make(tmp_path / "run")
    with pytest.raises(UsageError, match=reason):
        added(tmp_path / "run")


def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere does not exist"):
        read_finished([tmp_path / "nowhere"])


def test_an_arm_that_its_sweep_has_not_finished_is_refused(tmp_path: Path) -> None:
    runs = write_trio(tmp_path / "runs")
    (runs / "gate=page-0123abcd").mkdir()
    (runs / "gate=page-0123abcd" / ".lock").touch()
    with pytest.raises(UsageError, match="an arm that its sweep has not finished"):
        add(runs, tmp_path / "board" / "leaderboard.csv")


def test_tables_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs, file = write_trio(tmp_path / "runs"), tmp_path / "leaderboard.csv"
    add(runs, file)
    with pytest.raises(UsageError, match="belongs to another leaderboard"):
        add(runs, tmp_path / "other.csv")
    with pytest.raises(UsageError, match="another table has the name"):
        add(runs, tmp_path / "new" / "tasks.csv")
    with pytest.raises(UsageError, match="no name of a page"):
        leaderboard.run(["build", "--file", str(file), "--output", str(file)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"date": None}, "date is null, not a whole number or a number"),
        ({"date": 1e20}, "date is 1e[+]20, which is no time"),
        ({"configs": {}}, "configs names no task"),
        ({"configs": []}, r"configs is \[\], not an object"),
        ({"n-samples": {}}, r"n-samples\.page_ruler_4k_vt is null, not an object"),
        ({"n-shot": {f"{SUITE}_vt": "2"}}, r'n-shot\.page_ruler_4k_vt is "2", not a whole number'),
        ({"group_subtasks": {"page_x": 1}}, r"group_subtasks\.page_x is no list of names"),
        ({"system_instruction": ["a"]}, "system_instruction is .*, not a text or null"),
        ({"git_hash": "\ud83d"}, "is no whole results file.*half of a surrogate pair"),
        (
            {"config_model_args": "evictor=snapkv"},
            r"config\.model_args is .*, not an object or null",
        ),
        ({"config_limit": "4"}, r'config\.limit is "4", not a whole number or a number or null'),
        ({"config_page": {"model": "tiny"}}, r"config\.page\.evictor is null, not a text"),
        ({"config_page": "x"}, r"config\.page is \"x\", not an object"),
        ({"config": None}, "is no whole results file of lm-eval"),
    ],
)
def test_results_of_another_shape_are_one_sentence(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = write_run(tmp_path / "run", answers("page"))
    edited(path, **changes)
    with pytest.raises(UsageError, match=reason) as raised:
        added(tmp_path)
    assert str(path) in str(raised.value)


def test_results_nested_beyond_reading_are_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", answers("page"))
    edited(path, extra=json.loads("[" * 60 + "]" * 60))
    with pytest.raises(UsageError, match="it is nested deeper than 50 levels"):
        added(tmp_path)
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is no whole results file"):
        added(tmp_path)


def test_a_fault_of_page_bench_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("page_bench.leaderboard.add.row_figures", faulty)
    with pytest.raises(KeyError, match="ours"):
        add(write_trio(tmp_path / "runs"), tmp_path / "leaderboard.csv")


def test_links_stay_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page_bench.leaderboard.page.page", lambda board: "<!doctype html>")
    runs, place = write_trio(tmp_path / "runs"), tmp_path / "shared"
    add(runs / "open", place / "leaderboard.csv")
    here = tmp_path / "here"
    here.mkdir()
    (here / "board.csv").symlink_to(place / "leaderboard.csv")
    (here / "index.html").symlink_to(place / "page.html")
    # The other tables are those beside the linked one.
    assert add(runs / "closed", here / "board.csv") == 0
    leaderboard.run(["build", "--file", str(here / "board.csv")])
    assert sorted(path.name for path in here.iterdir()) == ["board.csv", "index.html"]
    assert all(path.is_symlink() for path in here.iterdir())
    assert [row["gate"] for row in read_board(place / "leaderboard.csv").rows] == ["closed", "open"]
    assert (place / "page.html").read_text() == "<!doctype html>"
    # Links to all of them, each to its own file.
    single = tmp_path / "single"
    single.mkdir()
    names = ("leaderboard.csv", "tasks.csv", "schema.json")
    for name in names:
        (single / name).symlink_to(place / name)
    add(runs / "page", single / "leaderboard.csv")
    assert all((single / name).is_symlink() for name in names)
    assert len(read_board(place / "leaderboard.csv").rows) == 3


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    runs, file = write_trio(tmp_path / "runs"), tmp_path / "leaderboard.csv"
    add(runs / "open", file)
    file.chmod(0o640)
    add(runs / "closed", file)
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    runs = write_trio(tmp_path / "runs")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"leaderboard\.csv cannot be written"):
        add(runs, tmp_path / "file" / "leaderboard.csv")


def test_a_budget_of_many_digits_can_be_added(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", answers("open", budget=1 / 3))
    file = tmp_path / "board" / "leaderboard.csv"
    assert add(path, file) == 0
    (row,) = read_board(file).rows
    assert row["budget"] == 0.333333
    assert "budget=0.3333333333333333" in str(row["command"])


def test_tables_are_printed_in_utf8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "é" / "leaderboard.csv"
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    add(write_run(tmp_path / "run", answers("open", model="模型")), file)
    leaderboard.run(["export", "--file", str(file)])
    out.flush()
    printed = out.buffer.getvalue().decode("utf-8")
    assert printed.startswith(f"1 row added to {file}, which holds 1\n")
    assert "| Δ |" in printed
    assert "## 模型 (" in printed


def test_a_lock_that_cannot_be_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = write_run(tmp_path / "run", answers("open"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "run" / "results_2026.json"))
    (tmp_path / "run" / "results_2026.json").touch()
    with pytest.raises(UsageError, match=r"the lock of .*, cannot be written.*TMPDIR"):
        add(runs, tmp_path / "leaderboard.csv")


def test_a_command_longer_than_csv_is_read_with_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", answers("open"))
    edited(path, system_instruction="x" * 140_000)
    with pytest.raises(UsageError, match="data: is longer than the 131072 characters"):
        add(path, tmp_path / "leaderboard.csv")
    assert not (tmp_path / "leaderboard.csv").exists()


def test_rows_that_would_not_be_sound_are_named_by_their_arm(tmp_path: Path) -> None:
    file = tmp_path / "leaderboard.csv"
    write_run(tmp_path / "bad", answers("open", model="tiny<b>"))
    with pytest.raises(UsageError, match=r"leaderboard: tiny<b> .* at budget 0\.25, model: is 'ti"):
        add(tmp_path / "bad", file)
    runs = write_trio(tmp_path / "runs")
    add(runs / "open", file)
    add(runs / "page", file)
    # The same inputs, and another verdict on one: Δ of the gated row, known here, does not fit.
    better = [dataclasses.replace(t, correct=1.0, score=1.0) for t in answers("open")]
    add(runs, file, "--replace")
    write_run(tmp_path / "again" / "open", better)
    # The row knows harm and more, which this run alone does not tell.
    with pytest.raises(UsageError, match=r"at budget 0\.25 would lose the full cache.*gate=closed"):
        add(tmp_path / "again", file, "--replace")
    write_run(tmp_path / "again" / "closed", answers("closed"))
    with pytest.raises(UsageError) as raised:
        add(tmp_path / "again", file, "--replace")
    told = str(raised.value)
    assert "line" not in told.replace("leaderboard", "")
    assert "its plain eviction, tiny page_ruler_4k snapkv open at budget 0.25, is -0.25." in told
    assert told.startswith(
        "these runs make no sound leaderboard: tiny page_ruler_4k snapkv page number at budget 0.25"
    )


def test_results_without_model_arguments_are_read_as_with_none(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", answers("open"))
    results = json.loads(path.read_text(encoding="utf-8"))
    del results["config"]["model_args"]
    path.write_text(json.dumps(results), encoding="utf-8")
    assert read_results(path)["config"]["model_args"] is None
    add(tmp_path / "run", tmp_path / "leaderboard.csv")


@pytest.mark.parametrize("doc_ids", [{1}, {0, 1, 2, 3}])
def test_documents_whose_prompts_differ_are_named(tmp_path: Path, doc_ids: set[int]) -> None:
    write_run(tmp_path / "open", answers("open"))
    full = [
        dataclasses.replace(t, prompt_sha256="f" * 64) if t.doc_id in doc_ids else t
        for t in answers("closed")
    ]
    write_run(tmp_path / "closed", full)
    named = rf"the prompt of {SUITE}_vt document {min(doc_ids)}.* differs between runs"
    if len(doc_ids) == 1:  # the others are the same, so these runs were made to be compared
        with pytest.raises(UsageError, match=named):
            added(tmp_path)
    else:
        assert re.search(named, " ".join(added(tmp_path).notes))
