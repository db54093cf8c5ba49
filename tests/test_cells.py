"""Cells of our own traces: what stands in a row, and whose decision it holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stored_traces import records, stored

from page_bench.analysis.cell_notes import cell_notes
from page_bench.analysis.cells import Cell
from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.own_cells import cells_of
from page_bench.analysis.pairs import families, pair_runs
from page_bench.analysis.regate import Tau, decide, find_decision
from page_bench.gating.gates import make_gate
from page_bench.inputs.errors import UsageError
from page_bench.records.suites import split
from page_bench.records.trace import Trace

TASKS = Path(__file__).parent.parent / "tasks"

# (task, D, plain by budget, full)
INPUTS = [
    *[("page_ruler_4k_niah_multikey_3", 0.03 + i / 1000, (0.0, 1.0), 1.0) for i in range(5)],
    *[("page_ruler_4k_vt", 0.15 + i / 1000, (1.0, 1.0), 0.0) for i in range(5)],
]
BUDGETS = (0.25, 0.5)


def plain_and_full(suite: str = "page_ruler_4k", **changes: Any) -> list[Trace]:
    traces = []
    for i, (task, drop, plain, full) in enumerate(INPUTS):
        name = task.replace("page_ruler_4k", suite)
        for budget, value in zip(BUDGETS, plain, strict=True):
            kept: dict[str, Any] = {"budget": budget, "kept_kv": budget, "correct": value}
            traces.append(stored(name, i, drop=drop, **kept, **changes))
        traces.append(stored(name, i, drop=drop, gate="closed", correct=full, **changes))
    return traces


def gated(tau: float, *, rule: str = "zscore", budgets: tuple[float, ...] = BUDGETS) -> list[Trace]:
    """A run with a gate that opens at τ, whose record is the plain or the full one."""
    return [
        stored(
            task,
            i,
            gate="page",
            drop=drop,
            gate_open=drop >= tau,
            correct=value if drop >= tau else full,
            budget=budget,
            tau=tau,
            tau_variant=rule,
            kept_kv=budget if drop >= tau else 1.0,
        )
        for i, (task, drop, plain, full) in enumerate(INPUTS)
        for budget, value in zip(BUDGETS, plain, strict=True)
        if budget in budgets
    ]


def only(traces: list[Trace], choice: Choice | None = None, seed: int | None = None) -> Cell:
    (cell,), _ = cells_of(records(*traces), choice or Choice(), seed)
    return cell


def test_every_shipped_task_belongs_to_a_group_that_exists() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: str(node.value))
    groups, tasks = set(), set()
    for path in TASKS.rglob("page_*.yaml"):
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader)
        if "group" in loaded:
            groups.add(loaded["group"])
        elif isinstance(loaded.get("task"), str):
            tasks.add(loaded["task"])
    assert len(tasks) > 200
    for task in tasks:
        suite, short = split(task)
        assert suite in groups, task
        assert task in (f"{suite}_{short}", f"{suite.removesuffix('_e')}_{short}_e")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("page_ruler_4k_niah_multikey_3", ("page_ruler_4k", "niah_multikey_3")),
        ("page_ruler_4k_mixed4_vt", ("page_ruler_4k_mixed4", "vt")),
        ("page_rulergen_128k_qa_1", ("page_rulergen_128k", "qa_1")),
        ("page_longbench_page_passage_count", ("page_longbench_page", "passage_count")),
        ("page_longbench_multi_news", ("page_longbench", "multi_news")),
        ("page_longbench_multi_news_e", ("page_longbench_e", "multi_news")),
        ("page_quickstart_needle_word", ("page_quickstart", "needle_word")),
        ("arc_easy", ("arc_easy", "arc_easy")),
    ],
)
def test_suites(name: str, expected: tuple[str, str]) -> None:
    assert split(name) == expected


def test_a_cell_holds_one_row_per_input_and_budget() -> None:
    cell = only(plain_and_full(), Choice(tau=Tau(0.07)))
    assert (cell.model, cell.suite, cell.evictor) == ("tiny", "page_ruler_4k", "snapkv")
    assert (cell.gate, cell.tau, cell.seed, cell.metric) == ("page number", 0.07, None, "correct")
    rows = cell.rows
    assert rows["input"].tolist() == sorted([*range(10)] * 2)
    assert rows["budget"].tolist() == [*BUDGETS] * 10
    assert rows["task"].tolist() == ["niah_multikey_3"] * 10 + ["vt"] * 10
    assert rows["doc_id"].tolist() == [i for i in range(10) for _ in BUDGETS]
    assert rows["plain"].tolist() == [0.0, 1.0] * 5 + [1.0, 1.0] * 5
    assert rows["full"].tolist() == [1.0] * 10 + [0.0] * 10
    assert rows["open"].tolist() == [False] * 10 + [True] * 10
    assert rows["plain_kept"].tolist() == [*BUDGETS] * 10
    assert set(rows["full_kept"]) == {1.0}
    assert cell.knows_full
    # gated: the full answer to the needles, the plain one to vt
    assert cell.evicted["gated"].tolist() == [1.0] * 20
    assert cell.agreement is not None
    np.testing.assert_array_equal(cell.agreement, [[0.6, 0.5, 0.4]] * 10)


def test_seconds_are_those_after_the_prefill() -> None:
    times: dict[str, Any] = {
        "prefill_s": 3.0,
        "gate_s": 0.5,
        "evict_s": 0.25,
        "decode_s": 4.0,
        "decode_rows": 8,
    }
    rows = only(plain_and_full(**times)).rows
    assert set(rows["plain_s"]) == set(rows["full_s"]) == {0.25 + 4 / 8}
    assert set(rows["prefill_s"]) == {3.0}
    assert set(rows["gate_s"]) == {0.5}


@pytest.mark.parametrize("tau", [Tau("zscore"), Tau(0.032), Tau("quantile", open_rate=0.3)])
def test_a_gate_decided_anew_is_that_of_regate(tau: Tau) -> None:
    traces = plain_and_full()
    cell = only(traces, Choice(make_gate("page"), tau))
    (family,) = families(pair_runs(records(*traces))[0])
    found, _ = find_decision(make_gate("page"), tau, family.pairs)
    assert found.threshold is not None
    assert cell.tau == found.threshold.tau
    for budget, pairs in family.budgets.items():
        rows = cell.rows[cell.rows["budget"] == budget]
        assert rows["open"].tolist() == decide(pairs, found)


def test_gates_that_read_answers() -> None:
    rows = only(plain_and_full(), Choice(make_gate("oracle"))).rows
    assert rows["open"].tolist() == [False, True] * 5 + [True, True] * 5
    closed = only(plain_and_full(), Choice(make_gate("task_oracle", {"closed": "vt"})))
    assert closed.gate == "task_oracle closed=vt"
    assert closed.tau is None
    assert closed.rows["open"].tolist() == [True] * 10 + [False] * 10


def test_a_gated_run_decides_for_itself_with_its_own_tau() -> None:
    # Neither z-score nor 0.07 would open at the needles from 0.032 on.
    cells, notes = cells_of(records(*plain_and_full(), *gated(0.0325)), Choice())
    (cell,) = cells
    assert (cell.gate, cell.tau) == ("page zscore", 0.0325)
    assert cell.rows["open"].tolist() == [False] * 6 + [True] * 4 + [True] * 10
    assert not [note for note in notes if "anew" in note]


def test_an_asked_for_gate_goes_before_that_of_the_runs() -> None:
    cell = only([*plain_and_full(), *gated(0.0325)], Choice(tau=Tau(0.07)))
    assert cell.tau == 0.07
    assert cell.rows["open"].sum() == 10


def test_several_taus_are_cells_of_their_own_the_one_with_most_rows_first() -> None:
    runs = [
        *plain_and_full(),
        *gated(0.07, rule="number", budgets=(0.25,)),
        *gated(0.0325, rule="number"),
    ]
    cells, _ = cells_of(records(*runs), Choice())
    assert [(cell.tau, len(cell.rows)) for cell in cells] == [(0.0325, 20), (0.07, 10)]
    assert [cell.gate for cell in cells] == ["page number τ=0.0325", "page number τ=0.07"]


def test_measured_taus_that_differ_by_rounding_are_one() -> None:
    runs = [*gated(0.07, budgets=(0.25,)), *gated(0.07 + 1e-6, budgets=(0.5,))]
    (cell,), _ = cells_of(records(*plain_and_full(), *runs), Choice())
    assert (cell.tau, len(cell.rows)) == (0.07, 20)
    far = [*gated(0.07, budgets=(0.25,)), *gated(0.08, budgets=(0.5,))]
    assert len(cells_of(records(*plain_and_full(), *far), Choice())[0]) == 2


def test_suites_have_taus_of_their_own() -> None:
    other = [
        dataclasses.replace(trace, drop=trace.drop + 1.0)
        for trace in plain_and_full("page_ruler_16k")
    ]
    cells, notes = cells_of(records(*plain_and_full(), *other), Choice())
    taus = {cell.suite: cell.tau for cell in cells}
    assert taus["page_ruler_16k"] == pytest.approx((taus["page_ruler_4k"] or 0) + 1.0)
    assert any("2 of 2 cells hold no run with a gate" in note for note in notes)


def test_replicates_have_to_be_told_apart() -> None:
    other = plain_and_full(prompt_sha256="ab" * 32)[:3]
    with pytest.raises(UsageError, match=r"document 0 has two different prompts.*seed=NUMBER"):
        cells_of(records(*plain_and_full(), *other), Choice())
    assert only(plain_and_full(), seed=3).seed == 3


def test_a_metric_that_was_not_recorded_is_refused() -> None:
    traces = plain_and_full(score=None)
    with pytest.raises(UsageError, match=r"has no score; use --metric correct"):
        cells_of(records(*traces), Choice(metric="score"))
    assert only(traces).rows["plain_score"].isna().all()


def test_what_differs_stands_in_the_names() -> None:
    runs = [
        *plain_and_full(evictor_args={"kernel_size": 1}),
        *(t for t in plain_and_full(evictor_args={"kernel_size": 7}) if t.gate == "open"),
        *plain_and_full(dtype="bfloat16", evictor_args={"kernel_size": 1}),
    ]
    cells, _ = cells_of(records(*runs), Choice())
    assert sorted((cell.model, cell.evictor) for cell in cells) == [
        ("tiny dtype=bfloat16", "snapkv kernel_size=1"),
        ("tiny dtype=float32", "snapkv kernel_size=1"),
        ("tiny dtype=float32", "snapkv kernel_size=7"),
    ]


def test_cells_that_say_little_are_told() -> None:
    same = [stored("vt", i, drop=0.2, budget=b, kept_kv=0.3) for i in range(3) for b in BUDGETS]
    full = [stored("vt", i, drop=0.2, gate="closed", correct=0.0) for i in range(3)]
    notes = cell_notes([only([*same, *full], Choice(tau=Tau(0.07)))])
    assert any("budgets 0.25, 0.5 keep the same (0.300 of the cache)" in note for note in notes)
    assert any("hardly ever right (vt 0.00 of 3)" in note for note in notes)
    assert any("always opens" in note for note in notes)
    assert any("tasks have 3 inputs" in note for note in notes)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("results", Place("results")),
        ("seed=2:results", Place("results", 2)),
        ("/a/b=c:d", Place("/a/b=c:d")),
        (
            "model=Qwen,context=4K:log.jsonl",
            Place("log.jsonl", None, {"model": "Qwen", "context": "4K"}),
        ),
    ],
)
def test_places(word: str, expected: Place) -> None:
    assert Place.of(word) == expected


@pytest.mark.parametrize("word", ["seed=x:results", "sead=1:results"])
def test_places_that_are_none(word: str) -> None:
    with pytest.raises(UsageError, match="is not allowed before the path"):
        Place.of(word)


def test_inputs_that_lack_budgets_are_left_out_and_told() -> None:
    runs = [
        trace
        for trace in plain_and_full()
        if not (trace.doc_id == 3 and trace.budget == 0.5 and trace.gate == "open")
    ]
    (cell,), notes = cells_of(records(*runs), Choice())
    assert sorted(cell.rows["doc_id"].unique()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert any("1 of 10 inputs lack some of its budgets and were left out" in n for n in notes)


def test_inputs_that_a_gate_has_chosen_are_told() -> None:
    closed = [trace for trace in plain_and_full() if trace.gate == "closed"]
    _, notes = cells_of(records(*closed, *gated(0.07)), Choice())
    assert any("5 inputs have no plain answer, since no run has gate=open" in n for n in notes)
    opened = [trace for trace in plain_and_full() if trace.gate == "open"]
    _, notes = cells_of(records(*opened, *gated(0.07)), Choice())
    assert any("5 inputs have no full answer, since no run has gate=closed" in n for n in notes)
    _, notes = cells_of(records(*plain_and_full(), *gated(0.07)), Choice())
    assert not any("biased" in note for note in notes)


def test_a_drop_that_is_no_number_is_told() -> None:
    runs = [
        dataclasses.replace(trace, drop=float("nan")) if trace.doc_id == 0 else trace
        for trace in plain_and_full()
    ]
    (cell,), _ = cells_of(records(*runs), Choice(make_gate("page", {}), Tau(0.07)))
    assert any("D is not a number on 1 of 10 inputs" in note for note in cell_notes([cell]))
