"""Plain and full records find each other, and what does not fit is said."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from stored_traces import paired, records, stored

from page_bench.analysis.pairs import families, pair_runs
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Arm
from page_bench.records.trace import Trace


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


def worded(**wording: Any) -> list[Trace]:
    """A plain and a full record of one document, whose prompt has this wording."""
    own: dict[str, Any] = {
        "prompt_sha256": hashlib.sha256(str(wording).encode()).hexdigest(),
        **wording,
    }
    return [stored(gate=gate, **own) for gate in ("open", "closed")]


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        (
            {"protocol": "ruler"},
            {"protocol": "page"},
            ["snapkv protocol=page", "snapkv protocol=ruler"],
        ),
        (
            {"chat_template": True},
            {"chat_template": False},
            ["snapkv chat_template=false", "snapkv chat_template=true"],
        ),
        ({"protocol": "page"}, {}, ["snapkv protocol=page", "snapkv protocol=unsaid"]),
    ],
)
def test_prompts_of_different_wording_are_different_arms(
    one: dict[str, object], other: dict[str, object], labels: list[str]
) -> None:
    arms, notes = pair_runs(records(*worded(**one), *worded(**other)))
    assert [family.label for family in families(arms)] == labels
    assert [len(own) for own in arms.values()] == [1, 1]
    (note,) = notes
    assert "different protocol or chat template stand apart" in note


def test_one_wording_at_several_budgets_is_no_news() -> None:
    traces = [stored(budget=b, protocol="page") for b in (0.25, 0.5)]
    _, notes = pair_runs(records(*traces, stored(gate="closed", protocol="page")))
    assert notes == []


SHORT = {"max_new_tokens": 32, "stop": [], "do_sample": False}
LONG = {**SHORT, "max_new_tokens": 128}


def test_answers_asked_for_otherwise_are_no_pair() -> None:
    """A full answer of 128 tokens would stand against a plain one of 32."""
    plain = [stored(doc_id=i, asked=SHORT) for i in (0, 1)]
    full = [stored(doc_id=i, gate="closed", asked=(LONG, SHORT)[i]) for i in (0, 1)]
    arms, notes = pair_runs(records(*plain, *full))
    ((pair,),) = arms.values()
    assert pair.sample.doc_id == 1
    assert "1 plain records without a full one and 1 full records" in notes[0]
    assert "asked for otherwise (max_new_tokens 32 plain, 128 full)" in notes[1]
    with pytest.raises(UsageError, match=r"otherwise \(max_new_tokens 32 plain, 128 full\); add"):
        pair_runs(records(plain[0], full[0]))


def test_of_several_full_answers_the_one_asked_for_alike_is_taken() -> None:
    """And what was asked for otherwise need not be the same answer."""
    closed = stored(gate="closed", asked=LONG)
    gated = stored(gate="page", tau=1.0, gate_open=False, asked=SHORT, answer="short")
    arms, notes = pair_runs(records(stored(asked=SHORT), closed, gated))
    ((pair,),) = arms.values()
    assert pair.full.answer == "short"
    assert notes == []


@pytest.mark.parametrize("asked", [(SHORT, None), (None, LONG), (SHORT, dict(SHORT))])
def test_records_that_do_not_say_how_they_were_asked_for_are_paired(
    asked: tuple[dict[str, object] | None, dict[str, object] | None],
) -> None:
    assert paired(stored(asked=asked[0]), stored(gate="closed", asked=asked[1]))


@pytest.mark.parametrize(
    ("budgets", "pooled"), [((0.25, 0.5, 1.0), [0.25, 0.5]), ((1.0,), [1.0]), ((0.5,), [0.5])]
)
def test_a_budget_of_1_is_pooled_with_no_other(
    budgets: tuple[float, ...], pooled: list[float]
) -> None:
    traces = [*(stored(budget=b) for b in budgets), stored(gate="closed")]
    (family,) = families(pair_runs(records(*traces))[0])
    assert list(family.pooled) == pooled
    assert list(family.budgets) == list(budgets)


def test_documents_whose_prompts_differ_are_named() -> None:
    other: dict[str, Any] = {"gate": "closed", "prompt_sha256": "ff" * 32}
    all_but_one = [stored(doc_id=0, gate="closed"), stored(doc_id=1, **other)]
    _, notes = pair_runs(records(stored(doc_id=0), stored(doc_id=1), *all_but_one))
    (note,) = [note for note in notes if "differs" in note]
    task = stored().task
    assert f"the prompt of {task} document 1 differs between runs" in note
    with pytest.raises(UsageError, match=rf"{task} document 0, {task} document 1 differs between"):
        pair_runs(records(*(stored(doc_id=i, **c) for i in (0, 1) for c in ({}, other))))
