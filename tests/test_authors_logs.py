"""The paper's released logs: a planted truth comes back, and what is wrong in them is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import released_logs as logs
from released_logs import TASKS, N, write

from page_bench.analysis.cell_notes import cell_notes
from page_bench.analysis.cells import Cell
from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.paper_logs.lines import ranges
from page_bench.analysis.paper_logs.logs import Read, read_authors
from page_bench.analysis.regate import Tau
from page_bench.gating.gates import make_gate
from page_bench.inputs.errors import UsageError


def read(*paths: Path, choice: Choice | None = None, words: dict[Path, str] | None = None) -> Read:
    given = words or {}
    places = [(path, Place.of(given.get(path, str(path)))) for path in paths]
    return read_authors(places, choice or Choice())


def only(found: Read) -> Cell:
    assert not found.refused
    (cell,) = found.cells
    return cell


def refusal(found: Read) -> str:
    assert not found.cells
    (why,) = found.refused.values()
    return why


def said(found: Read, part: str) -> bool:
    return any(part in note for note in found.notes)


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return write(tmp_path / "gated_4k_qwen15b.jsonl", logs.gated_rows())


def test_the_planted_truth_is_recovered(gated: Path) -> None:
    cell = only(read(gated))
    assert (cell.model, cell.suite, cell.evictor) == ("qwen15b", "4K", "snapkv")
    assert (cell.gate, cell.tau, cell.metric) == ("page fixed", 0.07, "correct_paper")
    assert len(cell.rows) == len(TASKS) * N * 3
    for row in cell.rows.itertuples():
        t, i = TASKS.index(row.task), row.doc_id
        assert row.plain == logs.plain(t, i, row.budget)
        assert row.full == logs.full(t, i)
        assert row.prompt_tokens == logs.length(t, i)
        assert row.drop == logs.drop(t, i)
        assert row.open == (t > 0)
        kept = row.prompt_tokens if row.budget == 1 else int(row.prompt_tokens * row.budget)
        assert row.plain_kept == kept / row.prompt_tokens
    # By hand: at 0.25 all 10 needles that the full cache finds are lost, and given back by the
    # gate; at 0.5 nothing is. Over 4 tasks of 20 and two budgets that is 10/160.
    below = cell.evicted
    assert (below["gated"] - below["plain"]).mean() == pytest.approx(10 / 160)
    # Number 0 of the three other tasks recovers: ρ = 1/20 in each, 0 on the needles.
    best = below.groupby(["task", "doc_id"]).agg({"plain": "max", "full": "first"})
    rho = (best["plain"] > best["full"]).groupby("task").mean()
    assert rho.to_dict() == {"niah_multikey_3": 0.0, "vt": 0.05, "fwe": 0.05, "qa_1": 0.05}


def test_numbers_through_all_tasks_become_numbers_in_a_task(gated: Path) -> None:
    rows = only(read(gated)).rows
    assert {task: own["doc_id"].max() for task, own in rows.groupby("task")} == dict.fromkeys(
        TASKS, N - 1
    )
    assert rows["input"].nunique() == len(TASKS) * N


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gated_16k_qwen15b_sdpa", ("qwen15b", "16K", "snapkv")),
        ("gated_h2o_mistral7b_4k", ("mistral7b", "4K", "h2o")),
        ("gated_streamingllm_qwen3b_4k", ("qwen3b", "4K", "streamingllm")),
        ("anything", ("anything", "unnamed context", "snapkv")),
    ],
)
def test_names_come_from_the_file(
    name: str, expected: tuple[str, str, str], tmp_path: Path
) -> None:
    cell = only(read(write(tmp_path / f"{name}.jsonl", logs.gated_rows())))
    assert (cell.model, cell.suite, cell.evictor) == expected


def test_names_are_overridden_and_the_policy_goes_before_the_file(tmp_path: Path) -> None:
    rows = [{**row, "score_policy": "pyramidkv"} for row in logs.gated_rows()]
    path = write(tmp_path / "gated_4k_qwen15b.jsonl", rows)
    assert only(read(path)).evictor == "pyramidkv"
    word = f"model=Qwen2.5-1.5B,context=8K,evictor=other,seed=3:{path}"
    cell = only(read(path, words={path: word}))
    assert (cell.model, cell.suite, cell.evictor, cell.seed) == ("Qwen2.5-1.5B", "8K", "other", 3)


def test_two_arms_and_the_full_cache_as_a_field(tmp_path: Path) -> None:
    found = read(write(tmp_path / "adakv_4k_qwen3b.jsonl", logs.arm_rows()))
    assert [cell.evictor for cell in found.cells] == ["shared", "adakv"]
    shared, adakv = found.cells
    assert sorted(shared.rows["budget"].unique()) == [0.25, 0.5]
    assert (shared.rows["plain"] != shared.rows["full"]).sum() == 10 + 3 * 2
    assert (adakv.rows["plain"] == adakv.rows["full"]).all()
    assert said(found, "b·T rounded")
    assert not found.refused


def test_capacity_bound_logs_are_a_suite_of_their_own(tmp_path: Path) -> None:
    main = write(tmp_path / "adakv_4k_qwen3b.jsonl", logs.arm_rows())
    extra = write(tmp_path / "capbound_4k_qwen3b.jsonl", logs.arm_rows())
    found = read(main, extra)
    assert {cell.suite for cell in found.cells} == {"4K", "4K capbound"}


def test_budgets_in_tokens_and_counts_over_all_heads(tmp_path: Path) -> None:
    found = read(write(tmp_path / "gated_dbtrimkv_qwen3_4k.jsonl", logs.memory_rows()))
    cell = only(found)
    mean = np.mean([logs.length(t, i) for t in range(4) for i in range(N)])
    assert (cell.model, cell.evictor) == ("qwen3", "dbtrimkv")
    assert sorted(cell.rows["budget"].unique()) == [round(128 / mean, 4), round(512 / mean, 4)]
    first = cell.rows.iloc[0]
    assert first["plain_kept"] == 128 / first["prompt_tokens"]
    # The full cache's answers are known where the gate was closed, and nowhere else.
    assert not cell.knows_full
    assert cell.rows["full"].isna().sum() == 3 * N * 2
    assert not cell.evicted["gated"].isna().any()
    assert said(found, "60 inputs with an open gate")


def test_a_log_without_full_answers_is_read_at_its_own_tau_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "gated_dbtrimkv_qwen3_4k.jsonl", logs.memory_rows())
    why = refusal(read(path, choice=Choice(tau=Tau(0.135))))
    assert "was open on 10 rows that are closed here" in why


def test_longbench_has_answers_for_gold(tmp_path: Path) -> None:
    rows = [
        {**{k: v for k, v in row.items() if k != "gold"}, "answers": ["x"]}
        for row in logs.gated_rows()
        if row["budget"] == 0.5
    ]
    cell = only(read(write(tmp_path / "capkv_longbench_qwen15b.jsonl", rows)))
    assert (cell.model, cell.suite, cell.evictor) == ("qwen15b", "LongBench", "capkv")
    assert not cell.knows_full


# The gate is decided from D; what a row says is never used.


def test_a_run_at_another_tau_is_decided_anew_and_told(tmp_path: Path) -> None:
    rows = logs.gated_rows(tau=0.04)
    found = read(write(tmp_path / "gated_4k_qwen3b.jsonl", rows))
    cell = only(found)
    assert cell.rows["open"].tolist() == [task != TASKS[0] for task in cell.rows["task"]]
    # Needles 10 to 19 were opened; of these five are right with the full cache, lost at 0.25.
    assert said(found, "a τ in (0.0390, 0.0400]) decided otherwise on 20 of 160 rows")
    assert said(found, "5 of its gated outcomes differ")


def test_stored_outcomes_are_never_read(tmp_path: Path) -> None:
    rows = [{**row, "correct_gated": not row["correct_gated"]} for row in logs.gated_rows()]
    flipped = only(read(write(tmp_path / "gated_4k_qwen15b.jsonl", rows)))
    honest = only(read(write(tmp_path / "gated_4k_other.jsonl", logs.gated_rows())))
    assert flipped.rows.equals(honest.rows)


def test_zscore_takes_all_inputs_as_pilot(gated: Path) -> None:
    drops = [logs.drop(t, i) for t in range(4) for i in range(N)]
    cell = only(read(gated, choice=Choice(tau=Tau("zscore"))))
    assert cell.tau == pytest.approx(np.mean(drops) - 0.69 * np.std(drops))
    middle = only(read(gated, choice=Choice(tau=Tau("midpoint"))))
    assert middle.tau == pytest.approx((0.03 + 0.13) / 2 + 0.001 * 9.5)


def test_oracle_and_task_oracle(gated: Path) -> None:
    oracle = only(read(gated, choice=Choice(make_gate("oracle"))))
    assert (oracle.rows["open"] == (oracle.rows["plain"] >= oracle.rows["full"])).all()
    by_task = only(read(gated, choice=Choice(make_gate("task_oracle"))))
    assert (by_task.rows["open"] == (by_task.rows["task"] != "niah_multikey_3")).all()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(make_gate("entropy_norm")), "reads what the authors' logs do not hold"),
        (Choice(make_gate("random")), "reads what the authors' logs do not hold"),
        (Choice(make_gate("page", {"bins": "half"})), "reads what the authors' logs do not hold"),
        (Choice(tau=Tau("zscore", calibration=Path("x"))), "--calibration"),
        (Choice(metric="score"), "hold correct_paper alone"),
    ],
)
def test_what_the_logs_do_not_allow(choice: Choice, message: str, gated: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read(gated, choice=choice)


# Traps.


def test_a_stub_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "gated_16k_qwen15b.jsonl", logs.gated_rows()[:9])
    why = refusal(read(path))
    assert "it is a stub: a task needs at least 20 inputs, but there are niah_multikey_3 3" in why
    other = write(tmp_path / "gated_16k_qwen15b_sdpa.jsonl", logs.gated_rows())
    found = read(path, other)
    assert [cell.label for cell in found.cells] == ["qwen15b 16K snapkv, page fixed"]
    assert list(found.refused) == [path]
    assert len(read(path, choice=Choice(least_inputs=3)).cells) == 1


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    rows = logs.gated_rows(n=60)
    short = [row for row in rows if row["task"] != "qa_1" or row["id"] < 180 + 25]
    why = refusal(read(write(tmp_path / "gated_4k_qwen3b.jsonl", short)))
    assert "it is short" in why
    assert "qa_1 25" in why
    fewer = [row for row in rows if row["task"] != "qa_1" or row["id"] < 180 + 50]
    found = read(write(tmp_path / "gated_4k_qwen3b.jsonl", fewer))
    assert said(found, "different numbers of inputs (fwe 60, niah_multikey_3 60, qa_1 50, vt 60)")


def test_a_single_task_is_told(tmp_path: Path) -> None:
    rows = logs.gated_rows(tasks=TASKS[:1])
    assert said(read(write(tmp_path / "gated_4k_x.jsonl", rows)), "one task alone")


def test_a_part_of_a_replicate_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "gated_4k_qwen15b_seed1.jsonl", logs.gated_rows(n=40))
    part = write(tmp_path / "gated_4k_qwen15b_seed2.jsonl", logs.gated_rows(n=30))
    found = read(whole, part)
    assert [cell.seed for cell in found.cells] == [1]
    assert "120 inputs, where another seed of the same has 160" in found.refused[part]
    assert found.used == [whole]


def test_a_block_that_stands_twice_is_named_and_counts_once(tmp_path: Path) -> None:
    rows = logs.gated_rows()
    found = read(write(tmp_path / "gated_4k_qwen15b.jsonl", [*rows, *rows[: 3 * N]]))
    cell = only(found)
    assert len(cell.rows) == len(rows)
    assert said(found, "counts once (niah_multikey_3 ids 0–19, line 241–300)")


def test_stale_rows_are_refused(tmp_path: Path) -> None:
    rows = logs.gated_rows()
    stale = [{**row, "correct_plain": not row["correct_plain"]} for row in rows[:6]]
    why = refusal(read(write(tmp_path / "gated_4k_qwen14b.jsonl", [*stale, *rows])))
    assert "rows of two runs are mixed" in why
    assert "niah_multikey_3 ids 0–1, line 7–12" in why


def test_an_input_with_two_lengths_is_refused(tmp_path: Path) -> None:
    rows = logs.gated_rows()
    rows[1] = {**rows[1], "T": rows[1]["T"] + 1}
    why = refusal(read(write(tmp_path / "gated_4k_qwen14b.jsonl", rows)))
    assert "1 inputs have several prompt lengths or D (niah_multikey_3 id 0" in why


def test_lines_that_are_not_whole_are_named(tmp_path: Path) -> None:
    rows: list[dict[str, Any] | str] = [*logs.gated_rows(n=25)]
    rows[2] = "\0" * 500
    rows[40] = '{"id": 13, "task": "nia'
    found = read(write(tmp_path / "gated_4k_mistral7b.jsonl", rows))
    assert said(found, "2 lines are not whole and were left out (line 3, 41)")
    # Line 3 was needle 0 at 0.25, line 41 needle 13 at 0.5: both inputs are incomplete.
    assert said(found, "2 inputs lack some of the 3 budgets and were left out (niah_multikey_3 ids")
    assert said(found, "0, 13)")
    assert only(found).rows["input"].nunique() == 4 * 25 - 2


def test_inputs_without_budget_1_are_left_out(tmp_path: Path) -> None:
    rows = [r for r in logs.gated_rows(n=25) if r["budget"] < 1 or r["id"] not in (3, 4)]
    found = read(write(tmp_path / "gated_4k_qwen15b.jsonl", rows))
    assert said(found, "2 inputs lack the row at budget 1")
    assert said(found, "niah_multikey_3 ids 3–4")
    assert only(found).knows_full


def test_failed_rows_are_left_out(tmp_path: Path) -> None:
    rows = logs.memory_rows()
    extra = [{**row, "id": row["id"] + 1000, "n_kept_plain": -1} for row in rows[:2]]
    found = read(write(tmp_path / "gated_dbtrimkv_qwen3_4k.jsonl", [*rows, *extra]))
    assert said(found, "2 rows are marked as failed")
    assert only(found).rows["input"].nunique() == 4 * N


def test_other_counts_of_kept_tokens_are_told_and_taken(tmp_path: Path) -> None:
    rows = [
        {**row, "n_kept_plain": max(row["n_kept_plain"], 2100)} if row["budget"] < 1 else row
        for row in logs.gated_rows()
    ]
    found = read(write(tmp_path / "gated_4k_clamped.jsonl", rows))
    assert said(found, "as with other protected positions")
    cell = only(found)
    notes = cell_notes([cell])
    assert any("budgets 0.25, 0.5 keep the same" in note for note in notes)


def test_the_same_cell_twice_is_refused(gated: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "gated_4k_qwen15b_sdpa.jsonl", logs.gated_rows())
    found = read(gated, again)
    assert "as gated_4k_qwen15b.jsonl is" in found.refused[again]
    assert len(read(gated, again, words={again: f"seed=2:{again}"}).cells) == 2


def test_withdrawn_folders_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "INVALID_prefill_bug" / "adakv_4k_x.jsonl", logs.arm_rows())
    assert "it lies in INVALID_prefill_bug" in refusal(read(path))


def test_a_second_bos_a_broken_decode_and_a_mask_by_layer_are_told(tmp_path: Path) -> None:
    main = write(tmp_path / "gated_4k_qwen3b.jsonl", logs.gated_rows())
    clean = write(tmp_path / "adakv_4k_qwen3b.jsonl", logs.arm_rows())
    assert not [n for n in read(main, clean).notes if "adakv_4k" in n and "rounded" not in n]
    broken = [
        {
            **row,
            "T": row["T"] + 1,
            "drop": row["drop"] + 0.01,
            "correct_full": row["correct_full"] and row["task"] != "vt",
            "correct_plain_shared": row["correct_plain_shared"] or row["task"] == TASKS[0],
        }
        for row in logs.arm_rows()
    ]
    found = read(main, write(clean, broken))
    assert said(found, "80 of 80 prompts have another length")
    assert said(found, "always 1 more, as with a second BOS token")
    assert said(found, "D differs from gated_4k_qwen3b.jsonl by up to 0.0100")
    # vt with the full cache: numbers that are no multiple of 3, 13 of 20.
    assert said(found, "the full cache gives 0.00 on vt (n = 20), and 0.65 in")
    # Needles: none at 0.25, every second one at 0.5.
    assert said(found, "gives 1.00 on niah_multikey_3 at budget 0.25 (n = 20), and SnapKV 0.00")
    assert said(found, "gives 1.00 on niah_multikey_3 at budget 0.5 (n = 20), and SnapKV 0.50")


def test_multiquery_is_told_to_count_any_reference(tmp_path: Path) -> None:
    rows = logs.gated_rows(tasks=("niah_multikey_3", "niah_multiquery"))
    assert said(read(write(tmp_path / "gated_4k_x.jsonl", rows)), "RULER asks for all")


def test_a_full_cache_that_cannot_do_the_task_is_told(tmp_path: Path) -> None:
    rows = [
        {**row, "correct_plain": row["correct_plain"] and row["task"] != "vt"}
        for row in logs.gated_rows()
    ]
    cell = only(read(write(tmp_path / "gated_4k_x.jsonl", rows)))
    assert any("hardly ever right (vt 0.00 of 20)" in note for note in cell_notes([cell]))


@pytest.mark.parametrize(
    ("name", "row", "held"),
    [
        ("latency_qwen_4k", {"configs": [], "gpu": {}}, "times of single decodes"),
        ("flashattn_gate_x", {"meta": True}, "times of the gate on synthetic input"),
        ("head_pairs_x", {"pair_jaccard_per_layer": []}, "agreement of single head pairs"),
        ("signal_ablation_x", {"drop_D": 0.1}, "prefill statistics without answers"),
        ("kappa_x", {"kappa_median": 1.0}, "margins κ"),
        ("dynamickv_x", {"correct_uniform": True}, "neither the full cache's answers"),
        ("ruler_x", {"id": 0, "pred": "", "gold": []}, "answers without D"),
        ("x", {"a": 1, "b": 2}, "rows with the fields a, b, which are no known log"),
    ],
)
def test_other_logs_are_recognised(
    name: str, row: dict[str, Any], held: str, tmp_path: Path
) -> None:
    assert f"it holds {held}" in refusal(read(write(tmp_path / f"{name}.jsonl", [row])))


# Agreement by layer.


def test_agreement_is_put_beside_its_inputs(gated: Path, tmp_path: Path) -> None:
    drops = write(tmp_path / "drops_qwen15b_4k_n20.jsonl", logs.agreement_rows())
    cell = only(read(gated, drops))
    assert cell.agreement is not None
    inputs = cell.rows.drop_duplicates("input")
    for values, row in zip(cell.agreement, inputs.itertuples(), strict=True):
        np.testing.assert_array_equal(values, logs.profile(TASKS.index(row.task), row.doc_id))


def test_agreement_with_a_block_twice(gated: Path, tmp_path: Path) -> None:
    rows = logs.agreement_rows()
    needles = [row for row in rows if row["task"] == TASKS[0]]
    apart = write(tmp_path / "drops_qwen15b_4k.jsonl", [*needles, *rows])
    found = read(gated, apart)
    assert said(found, "the block of niah_multikey_3 stands there twice and counts once (line 81")
    assert only(found).agreement is not None
    found = read(gated, write(apart, [*rows, *needles]))
    assert said(found, "counts once (line 81–100)")
    assert only(found).agreement is not None


def test_agreement_that_lacks_inputs_is_shown_nowhere(gated: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any] | str] = [*logs.agreement_rows()]
    rows[2] = "\0" * 100
    found = read(gated, write(tmp_path / "drops_qwen15b_4k.jsonl", rows))
    assert only(found).agreement is None
    assert said(found, "1 lines are not whole and were left out (line 3)")
    assert said(found, "qa_1 19")
    assert said(found, "agreement by layer is shown for no cell")
    alone = read(write(tmp_path / "drops_yi_4k.jsonl", logs.agreement_rows()))
    assert said(alone, "no log holds answers of yi at 4K")


def test_ranges() -> None:
    assert ranges([5, 1, 2, 3, 9]) == "1–3, 5, 9"
    assert ranges(range(0, 40, 2), most=2) == "0, 2 and 18 more"
