"""Plain and full records find each other, and what does not fit is said."""

from __future__ import annotations

import pytest
from stored_traces import paired, records, stored

from page_bench.analysis.pairs import families, pair_runs
from page_bench.analysis.runs import Arm
from page_bench.errors import UsageError


def test_each_input_has_its_plain_and_its_full_record() -> None:
    plain = [stored(task, i, correct=0.0) for task in ("vt", "fwe") for i in (1, 0)]
    full = [stored(task, i, gate="closed") for task in ("fwe", "vt") for i in (0, 1)]
    pairs, notes = pair_runs(records(*plain, *full))
    assert notes == []
    (own,) = pairs.values()
    assert [(p.sample.task, p.sample.doc_id) for p in own] == [
        *(("fwe", 0), ("fwe", 1), ("vt", 0), ("vt", 1))
    ]
    for pair in own:
        assert (pair.plain.gate, pair.full.gate) == ("open", "closed")
        assert pair.plain.prompt_sha256 == pair.full.prompt_sha256
        assert pair.gated(True) is pair.plain
        assert pair.gated(False) is pair.full


def test_one_full_run_serves_every_arm_of_its_model() -> None:
    arms = [{"evictor": "snapkv"}, {"evictor": "h2o"}, {"budget": 0.5}, {"top_k": 8, "window": 16}]
    plain = [stored(**arm) for arm in arms]  # type: ignore[arg-type]
    full = stored(gate="closed", evictor="none")
    pairs, notes = pair_runs(records(*plain, full))
    assert notes == []
    assert set(pairs) == {Arm.of(trace) for trace in plain}
    assert all(own[0].full is full for own in pairs.values())


@pytest.mark.parametrize(
    "change",
    [{"model": "other"}, {"dtype": "bfloat16"}, {"attn_implementation": "eager"}],
)
def test_another_model_s_full_cache_is_none(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="different models, dtypes, attention"):
        pair_runs(records(stored(), stored(gate="closed", **change)))  # type: ignore[arg-type]


def test_other_prompts_of_the_same_document_are_other_inputs() -> None:
    for change in ({"prompt_sha256": "ff"}, {"prompt_tokens": 99}, {"repeat": 1}):
        with pytest.raises(UsageError, match="no input has both"):
            pair_runs(records(stored(), stored(gate="closed", **change)))


@pytest.mark.parametrize(("gate", "other"), [("open", "closed"), ("closed", "open")])
def test_half_of_the_runs_is_not_enough(gate: str, other: str) -> None:
    with pytest.raises(UsageError, match=f"add a run with gate={other}"):
        pair_runs(records(stored(gate=gate)))


def test_a_gated_run_is_what_its_gate_made_of_each_input() -> None:
    gated = [
        stored(doc_id=i, gate="page", tau=0.1, gate_open=i == 0, answer=f"gated {i}")
        for i in (0, 1)
    ]
    first, second = paired(*gated, stored(doc_id=1), stored(gate="closed"))
    assert (first.plain.gate, first.full.gate) == ("page", "closed")
    assert (second.plain.gate, second.full.gate) == ("open", "page")


def test_runs_that_answer_every_input_go_before_gated_ones() -> None:
    gated = stored(gate="page", tau=0.1)
    (pair,) = paired(gated, stored(), stored(gate="closed", evictor="h2o"), stored(gate="closed"))
    assert pair.plain.gate == "open"
    assert pair.full.evictor == "snapkv"


def test_the_same_run_twice_is_refused_with_both_places() -> None:
    with pytest.raises(UsageError, match=r"twice .*_1\.jsonl line 1 .*_1\.jsonl line 3"):
        pair_runs(records(stored(), stored(gate="closed"), stored()))


def test_what_has_no_counterpart_is_counted() -> None:
    traces = [
        *(stored(doc_id=i) for i in (0, 1, 2)),
        *(stored(doc_id=i, gate="closed") for i in (2, 3)),
    ]
    pairs, notes = pair_runs(records(*traces))
    assert [len(own) for own in pairs.values()] == [1]
    assert notes == [
        "2 plain records without a full one and 1 full records without a plain one were left out."
    ]


def test_answers_and_d_that_should_be_the_same_and_are_not_are_told() -> None:
    traces = [stored(), stored(gate="page", tau=0.1, answer="other"), stored(gate="closed")]
    _, notes = pair_runs(records(*traces))
    assert notes == ["1 plain answers differ between runs that should have the same; see the logs."]
    _, notes = pair_runs(records(stored(drop=0.20), stored(gate="closed", drop=0.25)))
    assert "differs by up to 0.0500" in notes[0]
    # Another top_k is another D, and no sign of anything.
    _, notes = pair_runs(records(stored(drop=0.20), stored(gate="closed", drop=0.25, top_k=8)))
    assert notes == []


def test_families_differ_in_more_than_their_budget() -> None:
    traces = [
        *(stored(evictor=e, budget=b) for e in ("snapkv", "h2o") for b in (0.5, 0.25)),
        stored(gate="closed"),
    ]
    found = families(pair_runs(records(*traces))[0])
    assert [family.label for family in found] == ["h2o", "snapkv"]
    for family in found:
        assert list(family.budgets) == [0.25, 0.5]
        assert [pair.plain.budget for pair in family.pairs] == [0.25, 0.5]
