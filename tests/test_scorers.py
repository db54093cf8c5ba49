"""Scores follow the references; costs follow the trace; the trace learns its scores."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest

from page_bench.records.trace import Answer, Trace
from page_bench.tasks import scorers


def _trace(**changes: object) -> Trace:
    """A trace whose required fields are all filled with something of no meaning here."""
    values = {
        field.name: None
        for field in dataclasses.fields(Trace)
        if field.default is dataclasses.MISSING
    }
    return Trace(**{**values, "drop": 0.03, "gate_open": True, "kept_kv": 0.25, **changes})  # type: ignore[arg-type]


def _doc(*answers: str, match: str = "all") -> dict[str, object]:
    return {"answers": list(answers), "match": match}


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("It is 4821937.", ["4821937"], 1.0),
        ("It is 482193.", ["4821937"], 0.0),
        ("FRENCH, of course", ["french"], 1.0),
        ("french", ["French"], 1.0),
        ("one two", ["one", "two", "three", "four"], 0.5),
        ("", ["one"], 0.0),
        ("one", ["one", "one"], 1.0),
        ("天气很好", ["天气", "下雨"], 0.5),
    ],
)
def test_recall_is_the_share_of_references_in_the_answer(
    answer: str, references: list[str], expected: float
) -> None:
    assert scorers.recall(answer, references) == expected


@pytest.mark.parametrize("references", [[], [""], ["one", ""]])
def test_references_that_any_answer_would_match_are_refused(references: list[str]) -> None:
    with pytest.raises(ValueError, match="references"):
        scorers.recall("one", references)


@pytest.mark.parametrize(
    ("answer", "match", "score", "correct"),
    [
        ("one two", "all", 1.0, 1.0),
        ("one", "all", 0.5, 0.0),
        ("one", "any", 1.0, 1.0),
        ("two and one", "any", 1.0, 1.0),
        ("three", "any", 0.0, 0.0),
    ],
)
def test_correct_asks_for_all_or_any_reference(
    answer: str, match: str, score: float, correct: float
) -> None:
    scores = scorers.reference_match(_doc("one", "two", match=match), [answer])
    assert (scores["score"], scores["correct"]) == (score, correct)


# RULER's two metrics. The expected value is the arithmetic on the case's right.
STRING_MATCH_ALL = [
    ("It is 4821937.", ["4821937"], 1 / 1),
    ("It is 482193.", ["4821937"], 0 / 1),
    ("", ["4821937"], 0 / 1),
    ("11, 22, 33 and 44", ["11", "22", "33", "44"], 4 / 4),
    ("11, 22 and 44", ["11", "22", "33", "44"], 3 / 4),
    ("abcde FGHIJ", ["ABCDE", "fghij", "KLMNO"], 2 / 3),
    ("VAR, A.", ["VAR A"], 0 / 1),
    ("e5f2-AB01, yes!", ["E5F2-ab01"], 1 / 1),
    ("  \n seven \n", ["seven"], 1 / 1),
    ("two\x07parts", ["two\nparts", "twoparts"], 1 / 2),
    ("seven", ["seven ", "seven"], 1 / 2),
    ("one one", ["one", "one", "two"], 2 / 3),
    ("答案是天气很好。", ["天气", "很好", "下雨"], 2 / 3),
    ("STRASSE", ["straße"], 0 / 1),
]
STRING_MATCH_PART = [
    ("Denver Broncos", ["Denver Broncos"], max([1])),
    ("the broncos", ["Denver Broncos", "Broncos", "The Denver Broncos"], max(0, 1, 0)),
    ("Carolina", ["Denver Broncos", "Broncos"], max(0, 0)),
    ("", ["yes"], max([0])),
    ("YES.", ["yes"], max([1])),
    ("no, yes", ["yes", "no"], max(1, 1)),
    ("10th - 11th", ["10th and 11th", "10th"], max(0, 1)),
    ("U.S.A.", ["USA"], max([0])),
    (" in 1999\n", ["1999", "in 1999"], max(1, 1)),
    ("a\tb", ["a\nb"], max([1])),
    ("法国", ["法国", "France"], max(1, 0)),
    ("Fran", ["法国", "France"], max(0, 0)),
]


@pytest.mark.parametrize(("answer", "references", "expected"), STRING_MATCH_ALL)
def test_string_match_all(answer: str, references: list[str], expected: float) -> None:
    from lm_eval.tasks.ruler.common_utils import postprocess_pred, string_match_all

    scores = scorers.reference_match(_doc(*references, match="all"), [answer])
    assert scores["score"] == expected
    assert scores["correct"] == float(expected == 1)
    assert scores["score"] == string_match_all(postprocess_pred([answer]), [references])


@pytest.mark.parametrize(("answer", "references", "expected"), STRING_MATCH_PART)
def test_string_match_part(answer: str, references: list[str], expected: int) -> None:
    scores = scorers.reference_match(_doc(*references, match="any"), [answer])
    assert scores["score"] == scores["correct"] == expected


def test_lm_eval_averages_where_ruler_takes_the_best_reference() -> None:
    """Why its string_match_part is not used; if this fails, it has been mended."""
    from lm_eval.tasks.ruler.common_utils import string_match_part

    references = ["Denver Broncos", "Broncos", "The Denver Broncos"]
    assert string_match_part(["the broncos"], [references]) == pytest.approx(1 / 3)
    scores = scorers.reference_match(_doc(*references, match="any"), ["the broncos"])
    assert scores["score"] == 1.0


@pytest.mark.parametrize(
    ("answer", "correct", "paper"), [("one two", 1.0, 1.0), ("one", 0.0, 1.0), ("x", 0.0, 0.0)]
)
def test_the_papers_verdict_follows_from_the_score(
    answer: str, correct: float, paper: float
) -> None:
    """In niah_multiquery, where RULER asks for all references and the paper for any."""
    scores = scorers.reference_match(_doc("one", "two", match="all"), [answer])
    assert scores["correct"] == correct
    assert scorers.is_correct(scores["score"], "any") == paper


def test_an_unknown_match_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'all' or 'any'"):
        scorers.reference_match(_doc("one", match="some"), ["one"])


def test_a_plain_answer_kept_its_whole_cache() -> None:
    scores = scorers.reference_match(_doc("one"), ["one"])
    assert math.isnan(scores.pop("head_drop"))
    assert scores == {"score": 1.0, "correct": 1.0, "kept_kv": 1.0, "gate_open": 0.0}


@pytest.mark.parametrize("gate_open", [True, False])
def test_costs_come_from_the_trace(gate_open: bool) -> None:
    answer = Answer("one", _trace(gate_open=gate_open, kept_kv=0.5, drop=-0.01))
    scores = scorers.reference_match(_doc("one"), [answer])
    assert scores == {
        "score": 1.0,
        "correct": 1.0,
        "kept_kv": 0.5,
        "gate_open": float(gate_open),
        "head_drop": -0.01,
    }
    assert all(type(value) is float for value in scores.values())


def test_the_trace_learns_the_scores_and_keeps_the_rest() -> None:
    before = _trace()
    answer = Answer("one", before)
    scorers.reference_match(_doc("one", "two"), [answer])
    assert answer.trace == dataclasses.replace(before, score=0.5, correct=0.0, correct_paper=0.0)
    assert (before.score, before.correct) == (None, None)


def test_an_answer_that_was_pickled_is_scored_alike() -> None:
    answer = Answer("one", _trace())
    copy = pickle.loads(pickle.dumps(answer))
    assert scorers.reference_match(_doc("one"), [copy]) == scorers.reference_match(
        _doc("one"), [answer]
    )


@pytest.mark.parametrize(("match_paper", "paper"), [("any", 1.0), ("all", 0.0)])
def test_the_trace_learns_how_the_paper_counted(match_paper: str, paper: float) -> None:
    answer = Answer("one", _trace())
    doc = {**_doc("one", "two"), "match_paper": match_paper}
    assert scorers.reference_match(doc, [answer])["correct"] == 0.0
    assert answer.trace is not None
    assert answer.trace.correct_paper == paper
