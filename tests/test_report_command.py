"""`page-bench report` as a user meets it."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import released_logs as logs
from stored_traces import stored

from page_bench.analysis.intervals import share
from page_bench.commands import cli
from page_bench.commands.report import run
from page_bench.inputs.errors import UsageError
from page_bench.pages.figures import drawn
from page_bench.pages.section import Chart
from page_bench.records.trace import Trace, write_traces
from page_bench.report.build import SECTIONS, WITHOUT_FULL
from page_bench.report.files import _check_names
from page_bench.report.sections.budgets import stem

BUDGETS = (0.25, 0.5)
N = 20


def grid(seed: int = 0) -> list[Trace]:
    """Needles that break below half, and vt, whose every fifth input recovers."""
    traces = []
    for i in range(N):
        for task, drop in (("niah_multikey_3", 0.03 + i / 1000), ("vt", 0.15 + i / 1000)):
            name, sha = f"page_ruler_4k_{task}", f"{seed:02d}{i:02d}{len(task):02d}" + "0" * 58
            full = float(task == "niah_multikey_3" or i % 5 != 0)
            traces.append(
                stored(name, i, gate="closed", drop=drop, correct=full, prompt_sha256=sha)
            )
            for budget in BUDGETS:
                plain = float(budget >= 0.5) if task == "niah_multikey_3" else 1.0
                evicted: dict[str, Any] = {
                    "budget": budget,
                    "kept_kv": budget,
                    "prompt_sha256": sha,
                }
                traces.append(stored(name, i, drop=drop, correct=plain, **evicted))
    return traces


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_traces(tmp_path / "runs" / "trace_1.jsonl", grid())
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A report's folder and its numbers, for tests that only read."""
    folder = tmp_path_factory.mktemp("whole")
    write_traces(folder / "runs" / "trace_1.jsonl", grid())
    return folder / "report", made(folder / "report", str(folder / "runs"), "--tau", "0.07")


def made(output: Path, *words: str) -> dict[str, Any]:
    assert run([*words, "-o", str(output), "--draws", "200"]) == 0
    found: dict[str, Any] = json.loads(
        (output / "report.json").read_text(encoding="utf-8"),
        parse_constant=lambda text: pytest.fail(text),
    )
    return found


def rows_of(output: Path, table: str) -> list[dict[str, str]]:
    with (output / "tables" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_that_is_promised_is_there(whole: tuple[Path, dict[str, Any]]) -> None:
    output, found = whole
    assert all((output / name).stat().st_size for name in found["files"])
    assert {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()} == {
        *found["files"]
    }
    for section in found["sections"]:
        for table in section["tables"]:
            assert {f"tables/{table['name']}.csv", f"tables/{table['name']}.md"} <= {
                *found["files"]
            }
        for chart in section["charts"]:
            assert f"figures/{chart['name']}.png" in found["files"]
            assert (output / "figures" / f"{chart['name']}.png").read_bytes()[:4] == b"\x89PNG"
            assert chart["title"].split(" (")[0].rstrip("0123456789 of,").endswith("?"), chart


def test_all_sections_stand_in_the_report_or_say_why_not(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    _, found = whole
    shown = {section["name"] for section in found["sections"]}
    silent = [note for note in found["notes"] if note.startswith("no section")]
    assert "data" in shown
    assert len(shown) - 1 + len(silent) == len(SECTIONS)
    assert {"partition", "harm", "delta", "frontier", "oracle", "layers"} <= shown


def test_numbers_are_those_worked_out_by_hand(whole: tuple[Path, dict[str, Any]]) -> None:
    output, _ = whole
    rho = {row["task"]: row for row in rows_of(output, "partition")}
    # vt: 4 of 20 are wrong with the full cache, all of them right when evicted.
    expected = share(4, N)
    assert float(rho["vt"]["ρ"]) == 0.2
    assert float(rho["vt"]["ρ low"]) == pytest.approx(expected.low)
    assert float(rho["vt"]["ρ high"]) == pytest.approx(expected.high)
    assert int(rho["vt"]["ρ n"]) == N
    assert float(rho["niah_multikey_3"]["ρ"]) == 0.0
    (cell,) = rows_of(output, "data_cells")
    assert (cell["n"], cell["rows"], cell["τ"]) == ("40", "80", "0.07")
    # Δ: 20 needles gain 1 at one of two budgets, 20 of vt nothing.
    (delta,) = rows_of(output, "delta")
    assert 0.25 in [float(value) for value in delta.values() if _is_number(value)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_every_table_says_n(whole: tuple[Path, dict[str, Any]]) -> None:
    output, _ = whole
    tables = sorted((output / "tables").glob("*.csv"))
    assert len(tables) > 10
    for path in tables:
        heads = next(csv.reader(path.open(encoding="utf-8", newline="")))
        assert any(head == "n" or head.endswith(" n") for head in heads), path


def test_the_same_runs_give_the_same_bytes(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    first, found = whole
    second = tmp_path / "report"
    made(second, str(first.parent / "runs"), "--tau", "0.07")
    for name in found["files"]:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_an_earlier_report_is_replaced_and_nothing_else(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "report"
    made(output, str(runs))
    stale = output / "tables" / "gone.csv"
    stale.write_text("a\n")
    index = json.loads((output / "report.json").read_text())
    index["files"] += ["tables/gone.csv", "../precious"]
    (output / "report.json").write_text(json.dumps(index))
    (tmp_path / "precious").write_text("x")
    (output / "mine.txt").write_text("x")
    made(output, str(runs))
    assert not stale.exists()
    assert (tmp_path / "precious").exists()
    assert (output / "mine.txt").exists()


def test_a_folder_with_other_files_is_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        run([str(runs), "-o", str(tmp_path / "other")])
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be written to"):
        run([str(runs), "-o", str(tmp_path / "file" / "below")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        (["RUNS", "--gate", "pages"], "gate=pages does not exist"),
        (["RUNS", "--gate_args", "rate=1"], "--gate_args are options of --gate"),
        (["RUNS", "--pilot_size", "5"], "--pilot_size says how a τ is found"),
        (["RUNS", "--capacity_bound", ","], "names no task"),
        (["RUNS", "--tau", "fixed", "--gate", "slope"], "tau=fixed is a threshold on D"),
        (["model=x:RUNS"], "say themselves what they are of"),
        (["seed=one:RUNS"], "seed=one is not allowed"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    words: list[str], message: str, runs: Path, tmp_path: Path
) -> None:
    words = [word.replace("RUNS", str(runs)) for word in words]
    with pytest.raises(UsageError, match=message):
        run([*words, "-o", str(tmp_path / "report")])
    assert not list((tmp_path / "report").glob("*"))


def test_the_command_is_known(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(runs), "-o", str(tmp_path / "r"), "--draws", "100"]) == 0
    shown = capsys.readouterr().out
    assert "1 cells from 1 files, 0 files left out; report written to" in shown
    assert "note: 1 of 1 cells hold no run with a gate" in shown


def test_replicates_are_told_apart_by_seed(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_traces(tmp_path / f"s{seed}" / "trace_1.jsonl", grid(seed))
    words = [f"seed={seed}:{tmp_path / f's{seed}'}" for seed in (1, 2, 3)]
    found = made(tmp_path / "report", *words, "--tau", "0.07")
    assert [row["seed"] for row in rows_of(tmp_path / "report", "data_cells")] == ["1", "2", "3"]
    assert "seeds" in {section["name"] for section in found["sections"]}
    with pytest.raises(UsageError, match="is given as seed 1 and as seed 2"):
        run([f"seed=1:{tmp_path / 's1'}", f"seed=2:{tmp_path / 's1'}", "-o", str(tmp_path / "x")])
    write_traces(tmp_path / "copy" / "trace_1.jsonl", grid(1))
    with pytest.raises(UsageError, match="have the very same prompts"):
        run([words[0], f"seed=2:{tmp_path / 'copy'}", "-o", str(tmp_path / "x")])
    with pytest.raises(UsageError, match="two different prompts"):
        run([str(tmp_path / "s1"), str(tmp_path / "s2"), "-o", str(tmp_path / "other")])


def test_authors_logs_and_what_was_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    logs.write(folder / "gated_4k_qwen15b.jsonl", logs.gated_rows(tau=0.04))
    logs.write(folder / "gated_16k_qwen15b.jsonl", logs.gated_rows()[:9])
    logs.write(folder / "latency_qwen15b_4k.jsonl", [{"configs": []}])
    logs.write(folder / "INVALID_x" / "adakv_4k_qwen15b.jsonl", logs.arm_rows())
    logs.write(folder / "drops_qwen15b_4k.jsonl", logs.agreement_rows())
    output = tmp_path / "report"
    found = made(output, str(folder))
    (cell,) = rows_of(output, "data_cells")
    assert (cell["model"], cell["suite"], cell["τ"]) == ("qwen15b", "4K", "0.07")
    files = {Path(row["file"]).name: row for row in rows_of(output, "data_files")}
    assert "stub" in files["gated_16k_qwen15b.jsonl"]["left out because"]
    assert "times of single decodes" in files["latency_qwen15b_4k.jsonl"]["left out because"]
    assert "withdrawn" in files["adakv_4k_qwen15b.jsonl"]["left out because"]
    assert files["gated_4k_qwen15b.jsonl"]["n"] == "240"
    assert any("decided otherwise on 20 of 160 rows" in note for note in found["notes"])
    assert "layers" in {section["name"] for section in found["sections"]}
    # By hand: 10 needles are lost at one of two budgets and kept by the gate, of 80 inputs.
    (delta,) = rows_of(output, "delta")
    assert 10 / 160 in [float(value) for value in delta.values() if _is_number(value)]


def test_nothing_but_refused_logs_is_an_error(tmp_path: Path) -> None:
    path = logs.write(tmp_path / "gated_16k_qwen15b.jsonl", logs.gated_rows()[:9])
    with pytest.raises(UsageError, match="nothing is left to report: gated_16k_qwen15b"):
        run([str(path), "-o", str(tmp_path / "report")])


def test_cells_without_full_answers_stand_only_where_none_are_asked(tmp_path: Path) -> None:
    path = logs.write(tmp_path / "gated_dbtrimkv_qwen3_4k.jsonl", logs.memory_rows())
    found = made(tmp_path / "report", str(path))
    shown = {section["name"] for section in found["sections"]} - {"data"}
    assert {"delta", "batching"} <= shown <= WITHOUT_FULL
    assert any("1 of 1 cells do not hold the full cache's answers" in n for n in found["notes"])
    numbers = json.dumps([section["tables"] for section in found["sections"]])
    assert "NaN" not in numbers


def test_results_beside_a_trace_say_versions_and_warnings(runs: Path, tmp_path: Path) -> None:
    page = {"trace_file": "/elsewhere/trace_1.jsonl", "device": "cpu", "warnings": ["mind this."]}
    results = {
        "config": {"page": page},
        "lm_eval_version": "0.4.13",
        "transformers_version": "5.24.0",
        "pretty_env_info": "PyTorch version: 2.13.0+cpu\nIs debug build: False",
    }
    (runs / "results_1.json").write_text(json.dumps(results))
    (runs / "results_2.json").write_text("{")
    found = made(tmp_path / "report", str(runs))
    assert "a run warned: mind this." in found["notes"]
    said = {(row["what"], row["which"]) for row in rows_of(tmp_path / "report", "data_versions")}
    assert {("torch", "2.13.0+cpu"), ("lm_eval", "0.4.13"), ("device", "cpu")} <= said


@pytest.mark.parametrize(
    ("field", "value"), [("budget", -1.0), ("kept_kv", 5.0), ("kept_kv", float("nan"))]
)
def test_what_no_run_can_have_recorded_is_refused(tmp_path: Path, field: str, value: float) -> None:
    first, *others = grid(1)
    changes: dict[str, Any] = {field: value}
    damaged = [dataclasses.replace(first, **changes), *others]
    write_traces(tmp_path / "trace_1.jsonl", damaged)
    with pytest.raises(UsageError, match=rf"trace_1.jsonl line 1: {field} cannot be"):
        run([str(tmp_path), "-o", str(tmp_path / "report")])


def test_an_own_trace_with_a_damaged_first_line_is_no_foreign_log(tmp_path: Path) -> None:
    path = tmp_path / "trace_1.jsonl"
    write_traces(path, grid(1))
    path.write_text(path.read_text(encoding="utf-8")[40:], encoding="utf-8")
    with pytest.raises(UsageError, match="line 1 is not complete JSON"):
        run([str(tmp_path), "-o", str(tmp_path / "report")])


def test_names_become_neither_paths_nor_formulas(tmp_path: Path) -> None:
    assert stem("vt", 0) == "vt"
    assert stem("../../x/$a", 3) == "_x_a_3"
    drawn(Chart("c", "How is $x^{2$?", lambda figure: None, "nothing"))
    with pytest.raises(ValueError, match="no stems of file names"):
        _check_names(["../x"])
