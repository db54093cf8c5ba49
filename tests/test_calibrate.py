"""`page-bench calibrate` on a tiny model: what it measures, writes, prints and refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import test_ruler
from lm_eval.tasks import TaskManager
from test_rulergen_samples import write_hotpotqa, write_squad

from page_bench.commands import cli
from page_bench.commands.calibrate import command as calibrate
from page_bench.commands.calibrate import measure as calibration_run
from page_bench.commands.calibrate.pilots import PILOTS, draw, ruler_task
from page_bench.commands.calibrate.report import describe
from page_bench.gating.calibration import PilotInput, load
from page_bench.gating.rules import quantile_threshold
from page_bench.gating.signal_gates import SIDES
from page_bench.gating.signals import SIGNALS
from page_bench.gating.threshold import Side, select_pilot, zscore_threshold
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.inputs.errors import UsageError
from page_bench.tasks import scorers

QUICKSTART = [
    f"page_quickstart_{name}" for name in ("needle_number", "needle_word", "repeated_fact")
]

Command = Callable[..., int]


@pytest.fixture(scope="module")
def pretrained(tiny_folder: Callable[[str], Path]) -> str:
    plugin.install()
    return str(tiny_folder("llama"))


@pytest.fixture
def manager(pretrained: str) -> Callable[..., TaskManager]:
    """Knows our tasks only: lm-eval's own thousands take seconds to index."""

    def make(**metadata: Any) -> TaskManager:
        return TaskManager(
            include_path=str(TASKS_FOLDER),
            include_defaults=False,
            metadata={"pretrained": pretrained, **metadata},
        )

    return make


@pytest.fixture
def command(pretrained: str, manager: Callable[..., TaskManager], tmp_path: Path) -> Command:
    def run(*words: str, **metadata: Any) -> int:
        start = [f"--model={pretrained}", "-a=dtype=float32", "--device=cpu"]
        output = f"--output={tmp_path / 'c.json'}"
        return calibrate.run([*start, output, *words], manager(**metadata))

    return run


def test_the_pilot_is_held_out_and_its_d_is_that_of_a_run(
    command: Command,
    manager: Callable[..., TaskManager],
    pretrained: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--tasks page_quickstart --test_limit 5 --pilot_size 8 --midpoint_size 2 --length 2k"
    assert command(*words.split()) == 0
    calibration = load(tmp_path / "c.json")
    pilot = [(one.task, one.doc_id) for one in calibration.inputs]
    assert len({*pilot}) == 8
    pool = [(task, i) for task in QUICKSTART for i in (5, 6, 7)]
    assert pilot == [pool[i] for i in select_pilot(pool, 8)]
    assert (calibration.pilot_kind, calibration.test_limit) == ("held-out", 5)
    assert calibration.tasks == tuple(QUICKSTART)
    assert calibration.model.name == pretrained
    assert (calibration.model.dtype, calibration.model.attn_implementation) == ("float32", "sdpa")
    assert calibration.settings["chat"] is False

    results = lm_eval.simple_evaluate(
        model="page_hf",
        model_args={"pretrained": pretrained, "dtype": "float32", "gate": "open"},
        tasks=["page_quickstart"],
        task_manager=manager(),
        device="cpu",
        bootstrap_iters=0,
    )
    rows = [row["resps"][0][0].trace for task in QUICKSTART for row in results["samples"][task]]
    drops = {(row.task, row.doc_id): row.drop for row in rows}
    hashes = {(row.task, row.doc_id): row.prompt_sha256 for row in rows}
    for one in calibration.inputs:
        assert one.signals["drop"] == pytest.approx(drops[one.task, one.doc_id], abs=1e-6)
        assert one.prompt_sha256 == hashes[one.task, one.doc_id]
    by_rule = {one.rule: one for one in calibration.thresholds if one.signal == "drop"}
    expected = zscore_threshold([drops[sample] for sample in pilot], -0.69)
    assert by_rule["zscore"].tau == pytest.approx(expected.tau, abs=1e-6)
    probes = [(one.task, one.doc_id) for one in calibration.probes]
    assert probes == [
        (f"page_rulergen_2k_{task}", i) for task in ("niah_multikey_3", "vt") for i in (0, 1)
    ]
    assert [*by_rule] == ["zscore", "midpoint", "quantile"]

    shown = capsys.readouterr().out
    assert describe(calibration) in shown
    for rule in ("zscore", "midpoint", "quantile", "fixed 0.07"):
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{rule} "))
        assert f"task {'yes' if rule == 'midpoint' else 'no'}: " in line
    assert f"{by_rule['zscore'].tau:.4f}" in shown
    assert by_rule["zscore"].interval is None
    assert "n too small" in shown
    assert "documents from 5 on, disjoint from the test" in shown
    assert "note: the midpoint's inputs have" in shown


def test_d_is_taken_as_the_gate_to_be_calibrated_takes_it(command: Command, tmp_path: Path) -> None:
    words = ["--tasks", "page_quickstart_needle_word", "--test_limit", "6"]
    found = []
    for more in ([], ["--model_args=dtype=float32,gate.bins=half,gate.late_bin=strict,budget=0.1"]):
        assert command(*words, *more) == 0
        found.append(load(tmp_path / "c.json"))
    third, half = found
    changed = {k for k, value in half.settings.items() if third.settings[k] != value}
    assert changed == {"gate.bins", "gate.late_bin"}
    for calibration in found:
        assert {one.signal for one in calibration.thresholds} == {*SIGNALS}
        for one in calibration.inputs:
            assert [*one.signals] == [*SIGNALS]
    assert third.values("slope") == half.values("slope")
    assert third.values("drop") != half.values("drop")
    sides = {one.signal: one.side for one in half.thresholds}
    assert sides == {**SIDES}


def test_tau_is_that_of_the_side_on_which_the_gate_is_to_open(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tasks page_quickstart_needle_word --test_limit 2 --model_args"
    for option in ("gate.open_when=below", "gate=static,gate.signal=slope,gate.open_when=above"):
        assert command(*words.split(), f"dtype=float32,{option}") == 0
        calibration = load(tmp_path / "c.json")
        asked: dict[str, Side] = {"slope": "above"} if "slope" in option else {"drop": "below"}
        sides = {one.signal: one.side for one in calibration.thresholds}
        assert sides == {**SIDES, **asked}
        for signal, side in asked.items():
            values = calibration.values(signal)
            found = {one.rule: one.tau for one in calibration.thresholds if one.signal == signal}
            assert found["zscore"] == zscore_threshold(values, -0.69, signal, side).tau
            assert found["quantile"] == quantile_threshold(values, 0.75, signal, side).tau
        assert f"; the gate opens {sides['drop']} τ" in capsys.readouterr().out


def test_signals_that_are_no_numbers_are_left_out_and_named(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = calibration_run._measured

    def with_gaps(trace: Any) -> PilotInput:
        one = measured(trace)
        odd = {"slope": math.nan} if one.doc_id == 7 else {}
        if one.doc_id == 6:
            odd = {"max_share": math.inf}
        return dataclasses.replace(one, signals={**one.signals, **odd})

    monkeypatch.setattr(calibration_run, "_measured", with_gaps)
    words = "--tasks page_quickstart_needle_word --test_limit 2"
    assert command(*words.split()) == 0
    calibration = load(tmp_path / "c.json")
    assert {one.signal for one in calibration.thresholds} == {*SIGNALS} - {"slope", "max_share"}
    shown = capsys.readouterr().out
    for signal in ("slope", "max_share"):
        for rule in ("zscore", "quantile"):
            assert (
                f"note: tau={rule} of {signal} was not measured: {signal} is not a number on 1 of 6"
            ) in shown


def test_an_in_run_pilot_says_that_it_is_the_test(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tasks page_quickstart_needle_word,page_quickstart_repeated_fact --in_run"
    assert command(*words.split(), "--test_limit=3", "--seed=7") == 0
    calibration = load(tmp_path / "c.json")
    assert calibration.pilot_kind == "in-run"
    assert {(one.task, one.doc_id) for one in calibration.inputs} == {
        (task, i) for task in QUICKSTART[1:] for i in range(3)
    }
    assert calibration.probes == ()
    shown = capsys.readouterr().out
    assert "pilot = test inputs" in shown
    assert "note: tau=midpoint was not measured" in shown
    assert "note: the pilot has 6 prompts: there are no more." in shown


def test_pilots_are_drawn_from_the_tasks_they_name_and_compared(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PAGE_BENCH_SQUAD", str(write_squad(tmp_path / "squad.json")))
    monkeypatch.setenv("PAGE_BENCH_HOTPOTQA", str(write_hotpotqa(tmp_path / "hotpotqa.json")))
    words = "--length 2k --pilot mixed4 --compare_pilots --pilot_size 8 --midpoint_size 0"
    assert command(*words.split(), "--test_limit=34", essays="synthetic", num_samples=40) == 0
    calibration = load(tmp_path / "c.json")
    assert calibration.pilot == "mixed4"
    assert calibration.tasks == tuple(sorted(f"page_rulergen_2k_{t}" for t in PILOTS["mixed4"]))
    assert all(one.doc_id >= 34 for one in calibration.inputs)
    pool = [(f"page_rulergen_2k_{task}", i) for task in PILOTS["six"] for i in range(34, 40)]
    assert [(one.task, one.doc_id) for one in calibration.inputs] == draw(pool, "mixed4", 8, 1234)
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("pilot "))
    table = next(i for i, line in enumerate(lines[start + 1 :], start + 1) if "qa_2" in line)
    header, *rows = lines[table : table + 1 + len(PILOTS)]
    assert [row.split()[0] for row in rows] == [*PILOTS]
    everything = {sample for name in PILOTS for sample in draw(pool, name, 8, 1234)}
    counts = Counter(ruler_task(task) for task, _ in everything)
    assert {*re.findall(r"(\w+) \((\d+)\)", header)} == {(k, str(n)) for k, n in counts.items()}
    assert any(f"the same {len(everything)} inputs" in line for line in lines)
    for row in rows:  # of all inputs, and of each task's
        assert len(re.findall(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", row)) == 7
    mixed = next(row for row in rows if row.startswith("mixed4"))
    values = calibration.values("drop")
    assert f"{zscore_threshold(values, -0.69).tau:.4f}" in mixed
    assert any(line.startswith("τ moves by ") for line in lines)


def test_a_pilot_can_be_taken_from_the_tasks_of_the_test(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    data = test_ruler.write(tmp_path / "4096.jsonl", test_ruler.split(4096, rows=4))
    words = "--tasks page_ruler_4k --pilot dilution --test_limit 2 --midpoint_size 0"
    assert command(*words.split(), ruler_data=str(data)) == 0
    calibration = load(tmp_path / "c.json")
    assert {(ruler_task(one.task), one.doc_id) for one in calibration.inputs} == {
        (task, i) for task in PILOTS["dilution"] for i in (2, 3)
    }
    assert calibration.protocols == ("ruler",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "say what the pilot is drawn from: --tasks, or --length with --pilot"),
        ("--tasks page_quickstart", "has 8 documents, so none after the first 100"),
        ("--tasks page_quickstartt", "there is no task page_quickstartt"),
        ("--tasks page_quickstart --length 3k --test_limit 2", "no task page_rulergen_3k_niah"),
        (
            "--tasks page_rulergen_2k_vt page_rulergen_4k_vt --test_limit 498",
            "the tasks have lengths 2k, 4k",
        ),
        (
            "--tasks page_rulergen_2k_vt --pilot mixed4 --midpoint_size 0",
            "pilot mixed4 needs fwe, niah_multikey_3, qa_1, which the tasks lack",
        ),
        (
            "--tasks page_rulergen_2k_vt --test_limit 490",
            "page_rulergen_2k_vt has 10 documents for the midpoint instead of 20",
        ),
        ("--tasks page_quickstart --theta_z nan", "theta_z=nan is not allowed; give a finite"),
        ("--tasks page_quickstart --theta_z inf", "theta_z=inf is not allowed; give a finite"),
        ("--metadata [1]", r"--metadata \[1\] is not a JSON object"),
        ("--metadata {", "is not JSON"),
        ("--tasks page_quickstart --model_args pretrained=x", "both give pretrained"),
        ("--tasks page_quickstart -a gate.bin=half", "gate.bin is not an option of page"),
    ],
)
def test_what_cannot_be_calibrated_is_said_before_the_model_is_loaded(
    words: str, said: str, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load_model(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("page_bench.harness.lm.PageLM", load_model)
    with pytest.raises(UsageError, match=said):
        command(*words.split())
    assert not (tmp_path / "c.json").exists()


def test_the_command_stands_beside_the_others(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "c.json"
    words = f"--model page_hf -a pretrained={pretrained},dtype=float32,budget=0.5,evictor=h2o"
    status = cli.main(
        [
            *("calibrate", *words.split(), "--tasks=page_quickstart_repeated_fact"),
            *("--test_limit=5", "--device=cpu", f"--output={output}"),
        ]
    )
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert len(load(output).inputs) == 3
    assert json.loads(output.read_text())["prompt_tokens"]["max"] <= 1000
    assert f"written to {output}" in shown.out


def test_ruler_tasks_are_told_from_lm_evals_names() -> None:
    assert ruler_task("page_ruler_4k_mixed4_niah_multikey_3") == "niah_multikey_3"
    assert ruler_task("page_rulergen_128k_qa_1") == "qa_1"
    assert ruler_task("vt") == "vt"
    assert ruler_task("page_longbench_hotpotqa") is None


def test_the_pilot_is_answered_both_ways_on_request(
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers of a tiny model are hardly right, so its scores are set here."""
    asked: list[str] = []
    score = scorers.report

    def scored(answer: Any, *values: Any) -> Any:
        trace = answer.trace
        if trace.asked["max_new_tokens"] > 1:  # not while D is measured
            asked.append(trace.gate)
            # Eviction breaks every other document.
            broken = trace.gate == "open" and trace.doc_id % 2
            values = (1.0, 0.0 if broken else 1.0)
        return score(answer, *values)

    monkeypatch.setattr(scorers, "report", scored)
    words = "--tasks page_quickstart --test_limit 8 --in_run --pilot_size 24 --midpoint_size 0"
    arm = "-a=dtype=float32,evictor=streamingllm,budget=0.3"
    assert command(*words.split(), arm, "--answers", prompt_tokens=300) == 0
    assert sorted(asked) == ["closed"] * 24 + ["open"] * 24
    calibration = load(tmp_path / "c.json")
    found = calibration.direction
    assert found is not None
    assert (found.arm, found.n_broken, found.n_unbroken) == ("streamingllm at budget 0.3", 12, 12)
    drops = [one.signals["drop"] for one in calibration.inputs if one.doc_id % 2]
    assert found.broken == pytest.approx(sum(drops) / 12)
    printed = capsys.readouterr().out
    assert f"note: {found}" in printed
    assert "note: D compares 1 layer per third, of 4 with full attention." in printed
