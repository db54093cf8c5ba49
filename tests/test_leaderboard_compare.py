"""Our numbers beside the paper's: what is comparable, and what the difference can tell."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom, chi2_contingency, norm
from stored_traces import records, stored

from page_bench.analysis.intervals import Estimate, share
from page_bench.analysis.pairs import pair_runs
from page_bench.commands.cli import main
from page_bench.config import PageConfig
from page_bench.leaderboard.compare import Comparison, compare, differing, false_discoveries
from page_bench.leaderboard.counterpart import counterparts
from page_bench.leaderboard.difference import AGREES, DIFFERS, TOO_FEW, of_means, of_shares
from page_bench.leaderboard.published import PUBLISHED as FILE
from page_bench.leaderboard.published import Published, paper_name, read_published
from page_bench.records.trace import Trace, write_traces

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
MIXED = ("niah_multikey_3", "vt", "fwe", "qa_1")
BUDGETS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
PUBLISHED = read_published()
CURVES = "gated_4k_qwen15b_report.md"
SAME: dict[str, Any] = {
    "model": MODEL,
    "dtype": "bfloat16",
    "attn_implementation": "eager",
    "protocol": "page",
    "chat_template": True,
    "n_sink": 4,
    "recent": 32,
    "truncated_tokens": 0,
    "evictor_args": dataclasses.asdict(PageConfig("snapkv").make_evictor()),
    "asked": {"max_new_tokens": 128},
}


def of(rows: Iterable[Published], **wanted: Any) -> list[Published]:
    return [row for row in rows if all(getattr(row, k) == v for k, v in wanted.items())]


def reported_curves() -> dict[tuple[str, float], float]:
    """Accuracy of SnapKV on the paper's smallest model, by task and budget; 1 is the full cache."""
    rows = [row for row in PUBLISHED if row.source.endswith(CURVES) and row.metric == "accuracy"]
    plain = of(rows, gate="open") + of(rows, gate="closed")
    return {(row.tasks[0], row.budgets[0]): row.value for row in plain if row.budgets}


DROPS = {
    "niah_multikey_3": [(1, 0.02), (35, 0.034), (55, 0.0475), (9, 0.061)],
    "vt": [(33, 0.148), (67, 0.168)],
    "fwe": [(50, 0.1013), (50, 0.1213)],
    "qa_1": [(2, 0.19), (49, 0.2172), (49, 0.2572)],
}
"""By task, D of how many inputs of 100: the open rates of Figure 6 at all its τ, and the reported
means."""


def drop_of(task: str, doc: int, n: int) -> float:
    # A stride, so that D says nothing of which answers are right.
    rank = ((doc * 37) % n + 0.5) * 100 / n
    for count, drop in DROPS[task]:
        rank -= count
        if rank < 0:
            return drop
    raise AssertionError(task)


def synthetic(shift: float = 0.0, n: int = 100, **changes: Any) -> list[Trace]:
    """Plain and full records whose shares of right answers are the reported ones.

    Args:
        shift: what is added to the accuracy of plain answers, within [0, 1].
        n: inputs per task.
        changes: to every record.
    """
    accuracy = reported_curves()
    made = []
    for task in MIXED:
        name = f"page_ruler_4k_mixed4_{task}"
        for doc in range(n):
            known = {**SAME, "drop": drop_of(task, doc, n), **changes}

            def right(budget: float, more: float = 0.0, task: str = task, doc: int = doc) -> float:
                wanted = min(1.0, max(0.0, accuracy[task, budget] + more))
                return float(doc < round(n * wanted))

            full = right(1.0)
            made.append(stored(name, doc, gate="closed", correct=full, budget=0.25, **known))
            made += [
                stored(name, doc, correct=right(b, shift), budget=b, kept_kv=b, **known)
                for b in BUDGETS
            ]
    return made


def compared(traces: Iterable[Trace], **options: Any) -> list[Comparison]:
    cells, refused = counterparts(pair_runs(records(*traces))[0])
    assert not refused
    return compare(cells, PUBLISHED, draws=2000, **options)[0]


@pytest.fixture(scope="module")
def faithful() -> list[Comparison]:
    return compared(synthetic())


@pytest.fixture(scope="module")
def shifted() -> list[Comparison]:
    return compared(synthetic(shift=-0.1))


def test_the_difference_of_two_shares_has_newcombes_interval_and_the_score_tests_p() -> None:
    found = of_shares(56, 70, 48, 80)
    # The example of Newcombe (1998), table II (a), method 10.
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    # Wilson limits, squared and added, by hand.
    one, other = share(56, 70), share(48, 80)
    below = math.hypot(0.8 - one.low, other.high - 0.6)
    assert found.low == pytest.approx(0.2 - below)
    # The score test is Pearson's chi-squared without correction.
    assert found.p == pytest.approx(chi2_contingency([[56, 14], [48, 32]], correction=False).pvalue)
    assert of_shares(0, 50, 0, 70).p == 1
    pooled = 105 / 152
    error = math.sqrt(pooled * (1 - pooled) * (1 / 70 + 1 / 80))
    assert found.smallest == pytest.approx((1.959964 + 0.841621) * error)


def test_the_difference_of_two_means_adds_both_spreads() -> None:
    ours = Estimate(0.5, 0.5 - 1.959964 * 0.03, 0.5 + 1.959964 * 0.03, 100, "bootstrap")
    found = of_means(ours, 0.4, 0.4 - 1.959964 * 0.04, 0.4 + 1.959964 * 0.04, 400)
    assert found.high - found.value == pytest.approx(1.959964 * 0.05)
    assert found.p == pytest.approx(2 * norm.sf(2.0))
    # Without an interval of theirs: ours, as it would be over their 400 inputs.
    scaled = of_means(ours, 0.4, None, None, 400)
    assert scaled.high - scaled.value == pytest.approx(1.959964 * math.hypot(0.03, 0.015))


def test_inputs_that_are_all_alike_do_not_claim_certainty() -> None:
    found = of_means(Estimate(0.0, 0.0, 0.0, 100, "bootstrap"), 0.004, None, None, 100)
    # Half of what Wilson leaves open of 0 in 100, 0.037, is added for each side.
    assert found.high == pytest.approx(-0.004 + 0.0370 * math.sqrt(2), abs=1e-4)
    assert found.verdict(0.1) == AGREES


@pytest.mark.parametrize(
    ("ours", "n", "theirs", "m", "verdict"),
    [
        (99, 100, 99, 100, AGREES),
        (50, 100, 50, 100, TOO_FEW),
        (200, 400, 196, 400, AGREES),
        (0, 100, 10, 100, DIFFERS),
        (5, 10, 6, 10, TOO_FEW),
        (40, 100, 60, 100, DIFFERS),
    ],
)
def test_a_verdict_knows_both_n(ours: int, n: int, theirs: int, m: int, verdict: str) -> None:
    assert of_shares(ours, n, theirs, m).verdict(0.1) == verdict


def test_the_smallest_difference_is_seen_four_times_in_five() -> None:
    # Exact power of the test that a verdict is: sum over all outcomes of both samples.
    n, base = 100, 0.5
    smallest = of_shares(50, n, 50, n).smallest
    ours, theirs = binom(n, base - smallest / 2), binom(n, base + smallest / 2)
    seen = sum(
        ours.pmf(i) * theirs.pmf(j)
        for i in range(20, 70)
        for j in range(30, 80)
        if of_shares(i, n, j, n).verdict(0.1) == DIFFERS
    )
    assert seen == pytest.approx(0.8, abs=0.04)


def test_a_run_made_of_the_reported_numbers_agrees(faithful: list[Comparison]) -> None:
    assert len(faithful) > 80
    assert not differing(faithful)
    table_2 = {
        (one.published.gate, one.published.tasks): one
        for one in faithful
        if one.published.table == "Table 2"
    }
    # The table's own numbers follow from the curves, task by task.
    assert len(table_2) == 4
    for one in table_2.values():
        assert one.ours.value == pytest.approx(one.published.value, abs=0.0006)
        assert (one.ours.n, one.verdict) == (one.published.n, AGREES)
    metrics = {one.published.metric for one in faithful}
    assert metrics == {"accuracy", "delta", "open", "kept_kv", "drop"}


def test_a_run_that_is_ten_points_lower_is_found(shifted: list[Comparison]) -> None:
    found = {
        (one.published.table, one.published.gate, one.published.metric)
        for one in differing(shifted)
    }
    # Eight budgets of 400 inputs carry ten points; what the shift leaves alone does not differ.
    assert {("Table 2", "open", "accuracy"), ("Table 2", "page", "accuracy")} <= found
    assert not {gate for _, gate, _ in found} & {"closed", "", "oracle"}
    for one in shifted:
        row = one.published
        if row.gate == "open" and row.metric == "accuracy" and row.value > 0.1:
            assert one.difference.value == pytest.approx(-0.1, abs=0.03)
            assert one.verdict in (DIFFERS, TOO_FEW)
    expected, beyond = false_discoveries(shifted)
    assert expected == pytest.approx(0.05 * len(shifted))
    assert len(differing(shifted)) > expected
    assert beyond <= len(differing(shifted))
    # What Benjamini and Hochberg leave of the rows that were shifted most visibly.
    moved = [c for c in shifted if c.published.metric == "accuracy" and c.verdict == DIFFERS]
    assert false_discoveries(moved)[1] > 0


def test_fewer_inputs_tell_less(faithful: list[Comparison]) -> None:
    few = compared(synthetic(n=20))

    def told(found: list[Comparison]) -> int:
        return sum(one.verdict == AGREES for one in found)

    assert len(few) == len(faithful)
    assert told(few) < told(faithful)
    for one, other in zip(few, faithful, strict=True):
        assert one.ours.n < other.ours.n
        assert one.difference.smallest > other.difference.smallest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": "ruler"}, "protocol=ruler, the paper's is page"),
        ({"chat_template": False}, "chat_template=false"),
        ({"dtype": "float32"}, "dtype=float32"),
        ({"attn_implementation": "sdpa"}, "attn_implementation=sdpa"),
        ({"granularity": "head"}, None),
        ({"window": 16}, "window=16"),
        ({"top_k": 8}, "top_k=8"),
        ({"compress": "context"}, "compress=context"),
        ({"evictor_args": {"variant": "published", "kernel_size": 5}}, "other options"),
        ({"truncated_tokens": 3}, "truncated"),
        ({"asked": {"max_new_tokens": 30}}, "at most 30 tokens"),
        ({"correct_paper": None}, "no correct_paper"),
        ({"model": "tiny"}, "no such model"),
        ({"model": f"{MODEL} revision=abc"}, "no such model"),
    ],
)
def test_what_is_asked_otherwise_is_named_and_not_compared(
    changes: dict[str, Any], reason: str | None
) -> None:
    traces = synthetic(n=2, **changes)
    cells, refused = counterparts(pair_runs(records(*traces))[0])
    if reason is None:
        left = compare(cells, of(PUBLISHED, table="Table 2", model="Qwen2.5-1.5B"))[1]
        assert {one.reason for one in left if one.published.evictor == "snapkv"} == {
            "no run of evictor=snapkv granularity=shared"
        }
        return
    assert not cells
    (one,) = refused
    assert reason in one.reason
    assert one.n == 4 * 2 * len(BUDGETS)


def test_other_numerics_are_compared_on_request() -> None:
    arms = pair_runs(records(*synthetic(n=2, dtype="float32", attn_implementation="sdpa")))[0]
    assert counterparts(arms, any_numerics=True)[0]
    assert not counterparts(arms)[0]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"table": "Table 1", "tasks": ("vt",)}, "no run at budget 0.1875"),
        ({"table": "Table 1", "tasks": ("qa_2",)}, "no run of qa_2"),
        ({"table": "Table 30", "setting": "seed 1"}, r"setting of its own \(seed 1\)"),
        ({"table": "Table 22", "metric": "compression"}, "follows from other numbers"),
        ({"budgets": None, "setting": "", "metric": "rho"}, "does not list"),
        ({"evictor": "h2o", "gate": "open"}, "no run of evictor=h2o granularity=shared"),
    ],
)
def test_reported_numbers_without_a_counterpart_say_why(
    wanted: dict[str, Any], reason: str
) -> None:
    cells, _ = counterparts(pair_runs(records(*synthetic(n=2)))[0])
    rows = of(PUBLISHED, model="Qwen2.5-1.5B", context="4K", **wanted)
    found, left = compare(cells, rows, draws=100)
    assert rows
    assert not found
    assert all(re.search(reason, one.reason) for one in left)


def test_inputs_are_counted_once_and_equally() -> None:
    # The suites mixed4 and partition6 ask the same.
    twice = synthetic(n=3) + [
        stored(trace.task.replace("mixed4", "partition6"), trace.doc_id, **_fields(trace))
        for trace in synthetic(n=3)
    ]
    cells, _ = counterparts(pair_runs(records(*twice))[0])
    (rows,) = cells.values()
    assert len(rows) == 4 * 3 * len(BUDGETS)
    # One document less of one task would give that task less weight than in the paper.
    lopsided = [t for t in synthetic(n=3) if not (t.task.endswith("vt") and t.doc_id == 2)]
    cells, _ = counterparts(pair_runs(records(*lopsided))[0])
    left = compare(cells, of(PUBLISHED, table="Table 2", model="Qwen2.5-1.5B"), draws=100)[1]
    reasons = {one.reason for one in left if one.published.evictor == "snapkv"}
    assert reasons == {"unequal numbers of inputs per task"}


def test_rho_harm_and_oracles_are_what_they_are_by_hand() -> None:
    # By input: full, plain at two budgets, D. τ = 0.07.
    inputs = [
        ("vt", 0.0, (1.0, 0.0), 0.1),
        ("vt", 0.0, (0.0, 0.0), 0.1),
        ("vt", 1.0, (0.0, 1.0), 0.1),
        ("niah_multikey_3", 1.0, (0.0, 0.0), 0.05),
        ("niah_multikey_3", 1.0, (0.0, 1.0), 0.09),
        ("niah_multikey_3", 0.0, (0.0, 0.0), 0.05),
    ]
    traces = []
    # Four times each: fewer than twenty have no interval, and are not compared.
    for doc, (task, full, plain, drop) in enumerate(inputs * 4):
        name = f"page_ruler_4k_{task}"
        known = {**SAME, "drop": drop}
        traces.append(stored(name, doc, gate="closed", correct=full, **known))
        traces += [
            stored(name, doc, correct=p, budget=b, kept_kv=b, **known)
            for b, p in zip((0.25, 0.5), plain, strict=True)
        ]
    cells, _ = counterparts(pair_runs(records(*traces))[0])

    def ours(metric: str, gate: str, budgets: tuple[float, ...], *tasks: str) -> float:
        row = Published(
            table="Table 99",
            model="Qwen2.5-1.5B",
            context="4K",
            evictor="snapkv",
            granularity="shared",
            gate=gate,
            tau="0.07",
            tasks=tasks or ("niah_multikey_3", "vt"),
            budgets=budgets,
            metric=metric,
            setting="",
            value=0.5,
            low=None,
            high=None,
            n=6,
            source="here",
        )
        (found,), _ = compare(cells, [row], draws=100)
        return found.ours.value

    both = (0.25, 0.5)
    assert ours("rho", "open", both) == pytest.approx(1 / 6)
    assert ours("rho", "open", (0.5,)) == 0
    assert ours("harm", "open", (0.25,)) == pytest.approx(3 / 6)
    assert ours("harm", "page", (0.25,)) == pytest.approx(2 / 6)
    assert ours("open", "page", ()) == pytest.approx(4 / 6)
    assert ours("open", "page", (), "niah_multikey_3") == pytest.approx(1 / 3)
    assert ours("accuracy", "closed", (1.0,)) == pytest.approx(3 / 6)
    assert ours("accuracy", "open", both) == pytest.approx(3 / 12)
    # Closed on two inputs: 1, 0 from the full cache at both budgets.
    assert ours("accuracy", "page", both) == pytest.approx(5 / 12)
    assert ours("delta", "page-open", both) == pytest.approx(2 / 12)
    # The better answer: 1, 1 / 0, 0 … input by input: 1+0, 0, 2, 2, 2, 0.
    assert ours("accuracy", "oracle", both) == pytest.approx(7 / 12)
    assert ours("delta", "oracle-open", both) == pytest.approx(4 / 12)
    # Closed on niah_multikey_3: 1+0, 0, 0+1, 2, 2, 0.
    assert ours("delta", "task_oracle-open", both) == pytest.approx(3 / 12)
    assert ours("delta", "page-task_oracle", both) == pytest.approx(-1 / 12)
    assert ours("kept_kv", "page", (0.25,)) == pytest.approx((4 * 0.25 + 2) / 6)
    assert ours("drop", "", ()) == pytest.approx(0.49 / 6)


def test_the_paper_form_of_every_evictor_is_taken() -> None:
    for name in ("snapkv", "h2o", "pyramidkv", "streamingllm", "manifoldkv", "keydiff"):
        options = dataclasses.asdict(PageConfig(name).make_evictor())
        traces = synthetic(n=1, evictor=name, evictor_args=json.loads(json.dumps(options)))
        cells, refused = counterparts(pair_runs(records(*traces))[0])
        assert [evictor for _, _, evictor in cells] == [f"{name} shared"], refused


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MODEL, "Qwen2.5-1.5B"),
        ("/data/models/Qwen2.5-1.5B-Instruct/", "Qwen2.5-1.5B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mistral-7B-v0.3", None),
        ("Qwen/Qwen2.5-1.5B", None),
    ],
)
def test_base_models_are_not_taken_for_the_instructed_ones(model: str, name: str | None) -> None:
    assert paper_name(model) == name


def test_the_file_of_reported_numbers_holds_together() -> None:
    tables = {row.table for row in PUBLISHED}
    assert {"Table 1", "Table 2", "Table 12", "Table 22", "Table 27", "Figure 6"} <= tables
    assert len(of(PUBLISHED, table="Table 2", model="Mistral-7B-v0.3")) == 16
    # Table 22's kept share is p·k + 1 − p, with p from the same table.
    for model in ("Qwen2.5-1.5B", "Qwen2.5-3B", "Mistral-7B-v0.3"):
        mine = of(PUBLISHED, table="Table 22", model=model)
        (p,) = (row.value for row in mine if row.metric == "open")
        for row in of(mine, metric="kept_kv"):
            assert row.budgets
            k = sum(row.budgets) / len(row.budgets)
            assert row.value == pytest.approx(p * k + 1 - p, abs=0.0012)
    # Δ is the difference of the accuracies of the same table, up to rounding.
    for row in of(PUBLISHED, table="Table 2", metric="delta", tasks=MIXED):
        same = {
            other.gate: other.value
            for other in of(
                PUBLISHED,
                table="Table 2",
                metric="accuracy",
                model=row.model,
                evictor=row.evictor,
                tasks=MIXED,
            )
        }
        if same:
            assert row.value == pytest.approx(same["page"] - same["open"], abs=0.0016)


NUMBER = r"-?\d+(\.\d+)?(e-?\d+)?"
FORMS = {
    "table": r"(Table|Figure) \d+|text|repository",
    "gate": "|open|page|closed|oracle|(page|oracle|task_oracle)-open|page-task_oracle",
    "tau": r"|0\.\d+|z=-?\d+\.\d+",
    "budgets": r"|b<1|b<=0\.25|(0\.\d+|1)( (0\.\d+|1))*",
    "value": NUMBER,
    "low": f"|{NUMBER}",
    "high": f"|{NUMBER}",
    "n": r"|\d+",
}


def test_every_line_of_the_file_of_reported_numbers_is_well_formed() -> None:
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, restkey="more"))
    assert list(lines[0]) == [field.name for field in dataclasses.fields(Published)]
    for number, line in enumerate(lines, start=2):
        assert "more" not in line, number
        for name, form in FORMS.items():
            assert re.fullmatch(form, line[name]), (number, name, line[name])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """Folders with traces, by shift."""
    made: dict[float, Path] = {}

    def folder(shift: float) -> Path:
        if shift not in made:
            made[shift] = tmp_path_factory.mktemp("runs")
            write_traces(made[shift] / "trace_1.jsonl", synthetic(shift, n=100))
        return made[shift]

    return folder


def test_the_command_reports_agreement(
    runs: Callable[[float], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(runs(0.0)), "--table", "Table 2", "--draws", "500"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "4 cells compared, margin ±0.1 (D: ±0.01): 4 agrees, 0 differs" in told
    assert "no run of Mistral-7B-v0.3 at 4K" in told


def test_the_command_names_what_differs(
    runs: Callable[[float], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(runs(-0.1)), "--table", "table 2", "--draws", "500"]
    assert main([*arguments, "--all"]) == 0
    told = capsys.readouterr().out
    assert "differs: Table 2, Qwen2.5-1.5B 4K snapkv open mixed4, accuracy: 0.3" in told
    assert "Table 2, Qwen2.5-3B 4K h2o page niah_multikey_3 vt fwe qa_1 accuracy: no run" in told
    assert main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["verdicts"]["differs"] >= 2
    (one,) = (
        c
        for c in whole["compared"]
        if (c["published"]["gate"], c["published"]["metric"]) == ("open", "accuracy")
    )
    assert one["difference"]["value"] == pytest.approx(one["ours"]["value"] - 0.438)


def test_the_command_refuses_what_cannot_be(
    runs: Callable[[float], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", str(runs(0.0)), "--table", "Table 99"]) == 1
    assert "there are Table 1, Table 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", str(runs(0.0)), "--margin", "0"])
    write_traces(tmp_path / "trace_1.jsonl", synthetic(n=1, protocol="ruler"))
    assert main(["compare", str(tmp_path), "--table", "Table 2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("No reported number has a counterpart in these runs.")
    assert "protocol=ruler, the paper's is page" in told


def _fields(trace: Trace) -> dict[str, Any]:
    names = ("gate", "drop", "correct", "budget", "kept_kv")
    return {**SAME, **{name: getattr(trace, name) for name in names}}
