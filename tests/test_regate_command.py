"""`page-bench regate` as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from stored_traces import stored

from page_bench.commands.regate import run
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Trace, write_traces

# (task, D, plain, full)
INPUTS = [
    *[("page_ruler_4k_niah_multikey_3", 0.03 + i / 1000, 0.0, 1.0) for i in range(10)],
    *[("page_ruler_4k_vt", 0.15 + i / 1000, 1.0, 1.0) for i in range(10)],
]


def traces(gate: str, **changes: Any) -> list[Trace]:
    return [
        stored(task, i, gate=gate, drop=drop, correct=plain if gate == "open" else full, **changes)
        for i, (task, drop, plain, full) in enumerate(INPUTS)
    ]


@pytest.fixture
def runs(tmp_path: Path) -> str:
    write_traces(tmp_path / "plain" / "trace_1.jsonl", traces("open"))
    write_traces(tmp_path / "full" / "trace_1.jsonl", traces("closed"))
    return str(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(words) == 0
    return capsys.readouterr().out


def loaded(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        printed(capsys, *words, "--json"), parse_constant=lambda text: pytest.fail(text)
    )
    return found


def test_the_table_has_one_line_per_task_with_n_and_intervals(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, runs, "--tau", "0.07")
    assert "gate page, τ=0.0700 on drop (number); labels none" in shown
    assert "seed 20260702" in shown
    lines = [line.split() for line in shown.splitlines() if line.startswith("0.25 ")]
    assert [words[1] for words in lines] == [*sorted({task for task, *_ in INPUTS}), "all"]
    overall = next(
        line for line in shown.splitlines() if line.startswith("0.25") and " all " in line
    )
    # n, inputs, open 10/20, gated 20/20, plain 10/20
    assert overall.split()[2:5] == ["20", "20", "0.500"]
    assert "1.000 [0.839, 1.000]  0.500 [0.299, 0.701]" in overall


def test_json_holds_the_same_numbers(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = loaded(capsys, runs, "--tau", "0.07")
    (arm,) = found["arms"]
    assert arm["threshold"]["tau"] == 0.07
    assert found["gate"] == "page"
    *_, row = arm["results"][0]["rows"]
    assert (row["task"], row["n"], row["delta"]["value"]) == ("all", 20, 0.5)
    assert row["open"] == {
        **{"value": 0.5, "low": pytest.approx(0.299, abs=1e-3)},
        **{"high": pytest.approx(0.701, abs=1e-3), "n": 20, "method": "wilson"},
    }


def test_several_budgets_are_shown_each_and_together(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_traces(Path(runs) / "half" / "trace_1.jsonl", traces("open", budget=0.5))
    found = loaded(capsys, runs, "--tau", "0.07")
    (arm,) = found["arms"]
    assert [result["budget"] for result in arm["results"]] == [0.25, 0.5, "all"]
    *_, pooled = arm["results"][-1]["rows"]
    assert (pooled["n"], pooled["inputs"]) == (40, 20)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--gate", "open"), 1.0),
        (("--gate", "closed"), 0.0),
        (("--gate", "task_oracle", "--gate_args", "closed=vt"), 0.5),
        (("--gate", "page", "--gate_args", "open_when=below", "--tau", "0.035"), 0.3),
        (("--tau", "quantile", "--open_rate", "0.25"), 0.25),
        (("--tau", "midpoint"), 0.5),
        (("--gate", "oracle"), 0.5),
    ],
)
def test_gates_and_rules(
    words: tuple[str, ...], expected: float, runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (arm,) = loaded(capsys, runs, *words)["arms"]
    assert arm["results"][0]["rows"][-1]["open"]["value"] == expected


def test_labels_that_gate_and_tau_need_are_printed(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "labels accuracy: the score of both answers" in printed(capsys, runs, "--gate", "oracle")
    assert "for τ accuracy no, task yes" in printed(capsys, runs, "--tau", "midpoint")


def test_a_gate_that_never_opens_is_told(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, runs, "--tau", "9")
    assert "note: snapkv budget=0.25: the gate never opens, so Δ is the full cache's." in shown


def test_a_sweep_prints_its_plateau_and_draws_it(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "sweep.png"
    shown = printed(capsys, runs, "--sweep", "--tau", "0.07", "--figure", str(figure))
    assert "10 right with the full cache and wrong plain, 10 for which plain is as good" in shown
    assert "note: plateau [" in shown
    assert "the plateau reaches a gate that never opens" in shown
    assert "note: around τ [" in shown
    assert figure.read_bytes().startswith(b"\x89PNG")
    (sweep,) = loaded(capsys, runs, "--sweep", "--taus", "0.01", "0.07")["sweeps"]
    taus = [point["tau"] for point in sweep["sweep"]["points"]]
    assert {0.01, 0.07} < set(taus)
    assert len(taus) == 3  # and the measured one


def test_a_k_sweep_at_one_tau_shows_the_open_rate_and_warns(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """D of another scale: the gate shuts, and the gain is the full cache's."""
    small = [
        stored(task, i, drop=-drop, correct=plain, top_k=8)
        for i, (task, drop, plain, _) in enumerate(INPUTS)
    ]
    write_traces(Path(runs) / "k8" / "trace_1.jsonl", small)
    shown = printed(capsys, runs, "--k_sweep", "--tau", "0.07")
    rows = [line.split() for line in shown.splitlines() if line.startswith(("8 ", "32 "))]
    assert [(row[0], row[1], row[5]) for row in rows] == [
        ("8", "0.0700", "0.000"),
        ("32", "0.0700", "0.500"),
    ]
    assert "top_k=8: the gate never opens, so its Δ is the full cache's" in shown
    assert "one τ for all top_k, but the scale of D moves" in shown
    measured = printed(capsys, runs, "--k_sweep", "--tau", "zscore")
    assert "one τ for all top_k" not in measured


def test_a_k_sweep_needs_several_top_k(runs: str) -> None:
    with pytest.raises(UsageError, match=r"one only \(32\); add plain runs"):
        run([runs, "--k_sweep"])


@pytest.mark.parametrize("what", ["bins", "layers", "signals"])
def test_ablations_print_their_contrasts(
    what: str, runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, runs, "--ablate", what)
    assert f"{what}, n = 20" in shown
    assert "10 inputs are harmed; an AUC from so few says little." in shown
    if what == "signals":
        assert "entropy_norm, topk_mass_share" in shown
        (drop,) = (line for line in shown.splitlines() if line.startswith("drop "))
        assert drop.split()[-2:] == ["1.000", "above"]
    rows = loaded(capsys, runs, "--ablate", what)["ablations"][0][what]
    assert all(row["n"] == 20 and row["n_harmed"] == 10 for row in rows)


def test_empty_classes_are_told(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, runs, "--ablate", "signals", "--capacity_bound", "cwe")
    assert "no task is cwe; give --capacity_bound one of these runs." in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--gate", "pag"), r"gate=pag does not exist \(did you mean page\?\)"),
        (("--gate_args", "bin=half"), "gate.bin is not an option of page"),
        (("--gate_args", "half"), "is not NAME=VALUE"),
        (("--tau", "zscor"), "tau=zscor does not exist"),
        (("--sweep", "--gate", "random"), "gate=random compares no input with τ"),
        (("--figure", "x.png"), "--figure is read by --sweep alone"),
        (("--taus", "0.5"), "--taus is read by --sweep alone"),
        (("--capacity_bound", "vt"), "--capacity_bound is read by --sweep or --ablate alone"),
        (("--k_sweep", "--taus", "0.5"), "--taus is read by --sweep alone"),
        (("--ablate", "bins", "--gate", "static"), "decides on none, so --gate has no use"),
        (("--ablate", "bins", "--gate_args", "bins=half"), "so --gate_args has no use"),
        (("--ablate", "bins", "--tau", "9"), "so --tau has no use"),
        (("--ablate", "bins", "--calibration", "x.json"), "so --calibration has no use"),
        (("--gate", "entropy_norm"), "does not hold entropy_norm; run again with signals=all"),
        (("--ablate", "head_pairs"), "run again with signals=pairs"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], reason: str, runs: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run([runs, *words])


def test_one_figure_holds_one_arm(runs: str) -> None:
    write_traces(Path(runs) / "h2o" / "trace_1.jsonl", traces("open", evictor="h2o"))
    with pytest.raises(UsageError, match="the runs hold 2 arms"):
        run([runs, "--sweep", "--figure", "x.svg"])


@pytest.mark.parametrize(
    "words",
    [
        ("--draws", "0"),
        ("--draws", "-1"),
        ("--draws", "1", "--sweep"),
        ("--seed", "-1"),
        ("--pilot_size", "-5"),
        ("--pilot_size", "1"),
        ("--sweep", "--taus", "nan"),
        ("--sweep", "--taus", "inf"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    words: tuple[str, ...], runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        run([runs, *words])
    assert error.value.code == 2
    assert re.search(r": give a (whole|finite) number", capsys.readouterr().err)


def test_what_is_pooled_over_budgets_is_without_the_budget_of_1(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There plain and gated are one, which would halve Δ."""
    whole = [
        dataclasses.replace(trace, gate="open", gate_open=True, kept_all_because="budget keeps all")
        for trace in traces("closed", budget=1.0)
    ]
    write_traces(Path(runs) / "whole" / "trace_1.jsonl", whole)
    said = "snapkv: budget=1 evicts nothing, so what is pooled over budgets is without it"
    (arm,) = loaded(capsys, runs, "--tau", "0.07")["arms"]
    assert [result["budget"] for result in arm["results"]] == [0.25, 1.0, "all"]
    *_, pooled = arm["results"][-1]["rows"]
    assert (pooled["n"], pooled["delta"]["value"]) == (20, 0.5)
    found = loaded(capsys, runs, "--tau", "0.07", "--sweep", "--taus", "0.07")
    (point,) = found["sweeps"][0]["sweep"]["points"]
    assert (point["open"]["n"], point["delta"]["value"]) == (20, 0.5)
    assert any(note.startswith(said) for note in found["notes"])


def test_budgets_of_different_inputs_under_one_tau_are_told(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_traces(Path(runs) / "half" / "trace_1.jsonl", traces("open", budget=0.5)[:12])
    said = "its budgets hold different inputs (20 at 0.25, 12 at 0.5) and share one τ"
    assert said in printed(capsys, runs)
    assert said not in printed(capsys, runs, "--tau", "0.07")


def test_the_pilot_is_named(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = "these inputs: pilot = test inputs"
    assert f"pilot from {own}" in printed(capsys, runs)
    assert loaded(capsys, runs)["arms"][0]["pilot"] == own
    assert loaded(capsys, runs, "--sweep")["sweeps"][0]["pilot"] == own
    assert "test inputs" not in printed(capsys, runs, "--tau", "0.07")
    assert loaded(capsys, runs, "--tau", "0.07")["arms"][0]["pilot"] is None


def test_the_open_rate_of_the_pilot_stands_beside_the_one_asked_for(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, runs, "--tau", "quantile", "--open_rate", "0.33")
    assert "opens 0.35 of it, asked 0.33" in shown


def test_retry_and_page_are_compared_in_seconds(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the inputs are answered again, at the price of a prefill, 0.5 s, and an answer, 1 s.

    The times are those of `stored`: 0.5 s each, and the gate's only where it reads something.
    """
    paths = [Path(runs) / name / "trace_1.jsonl" for name in ("plain", "full")]
    for path, gate in zip(paths, ("open", "closed"), strict=True):
        write_traces(
            path,
            [
                dataclasses.replace(trace, mean_token_entropy=float(trace.doc_id))
                for trace in traces(gate)
            ],
        )
    costs = {}
    for gate, words in (("page", ("--tau", "0.07")), ("retry", ("--gate_args", "limit=9.5"))):
        (arm,) = loaded(capsys, runs, "--gate", gate, *words)["arms"]
        *_, row = arm["results"][0]["rows"]
        costs[gate] = row["seconds"]["value"], row["seconds"]["n"], row["open"]["value"]
    assert costs == {"page": (2.0, 20, 0.5), "retry": (1.5 + 0.5 * 1.5, 20, 0.5)}
    assert "  seconds  " in printed(capsys, runs, "--gate", "retry")


def test_an_oracle_of_another_metric_than_a_run_s_is_told(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "gate=oracle compares correct here and score in an actual run"
    assert said in printed(capsys, runs, "--gate", "oracle")
    assert said not in printed(capsys, runs, "--gate", "oracle", "--metric", "score")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (
            ("--gate", "task_oracle", "--gate_args", "closed=niah_multikey_3+vttt"),
            "gate.closed",
        ),
        (("--ablate", "signals", "--capacity_bound", "niah_multikey_3+vttt"), "--capacity_bound"),
        (("--sweep", "--capacity_bound", "niah_multikey_3+vttt"), "--capacity_bound"),
    ],
)
def test_tasks_that_are_not_there_are_named(
    words: tuple[str, ...], option: str, runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(capsys, runs, *words)
    assert f"note: {option}=vttt is no task of these runs." in shown
    assert f"{option}=niah_multikey_3 is no task" not in shown


def test_a_sweep_with_named_tasks_has_the_paper_s_false_rates(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sweep", "--tau", "0.07", "--taus", "0.155", "--capacity_bound", "niah_multikey_3")
    shown = printed(capsys, runs, *words)
    assert "10 of tasks to stay closed, 10 of others" in shown
    assert "closed tasks open" in shown
    assert "classes here are by task." in shown
    (sweep,) = loaded(capsys, runs, *words)["sweeps"]
    points = {point["tau"]: point for point in sweep["sweep"]["points"]}
    assert points[0.07]["capacity_open"]["value"] == points[0.07]["others_closed"]["value"] == 0
    assert points[0.155]["others_closed"]["value"] == 0.5
    assert sweep["capacity_bound"] == "niah_multikey_3"
    (bare,) = loaded(capsys, runs, "--sweep", "--tau", "0.07")["sweeps"]
    assert bare["sweep"]["points"][0]["capacity_open"] is None


def test_the_ablation_of_signals_shows_kappa_and_what_the_bound_requires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for gate in ("open", "closed"):
        held = [
            dataclasses.replace(trace, margin=[[3.0 + trace.doc_id / 10, 2.0]])
            for trace in traces(gate)
        ]
        write_traces(tmp_path / gate / "trace_1.jsonl", held)
    shown = printed(capsys, str(tmp_path), "--ablate", "signals")
    assert "κ, margin-to-noise, n = 20, 1 layers of 2 heads: median 2.975 [" in shown
    assert "says something from κ = 6.72 on," in shown
    assert "a share 0.000 [0.000, 0.161] of layers and heads reaches" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("κ (median)"))
    assert row.split()[-2:] == ["1.000", "above"]
    (found,) = loaded(capsys, str(tmp_path), "--ablate", "signals")["ablations"]
    assert found["kappa"]["contrast"]["auc_harm"]["value"] == 1.0
