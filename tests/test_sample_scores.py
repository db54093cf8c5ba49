"""What a scorer gets and a trace learns, whatever a task's filters do to an answer."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from stored_traces import stored

from page_bench.harness.sample_scores import scored, with_correct
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Answer, Likelihood, Trace
from page_bench.tasks import scorers

SAID = ((" Rome ", " rome", "Paris"), ("Oslo", "Lima", "Lima"))
"""What is answered to both documents, repeat by repeat."""
REFERENCES = ("Rome", "Lima")
FIRST = {"function": "take_first"}
STRIP, LOWER = {"function": "remove_whitespace"}, {"function": "lowercase"}
REGEX = {"function": "regex", "regex_pattern": "(\\w+)"}
VOTE = {"function": "majority_vote"}


class Said(LM):
    """Gives the answers of `SAID`, each with the trace of its document and repeat, or as `hf`."""

    def __init__(self, traced: bool = True) -> None:
        super().__init__()
        self._traced = traced
        self.answers: list[Answer] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Any]:
        seen: Counter[int] = Counter()
        for request in requests:
            doc_id = int(request.doc_id or 0)
            repeat = seen[doc_id]
            seen[doc_id] += 1
            trace = stored("cities", doc_id, repeat=repeat, kept_kv=kept(doc_id, repeat))
            bare = dataclasses.replace(trace, score=None, correct=None, correct_paper=None)
            self.answers.append(Answer(SAID[doc_id][repeat], bare if self._traced else None))
        return self.answers if self._traced else [str(answer) for answer in self.answers]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = []
        for request in requests:
            if request.idx == 0:
                bare = dataclasses.replace(stored("cities", request.doc_id or 0), score=None)
                self.answers.append(Answer("", dataclasses.replace(bare, correct=None)))
            found.append(Likelihood((-float(request.idx), False), self.answers[-1]))
        return found

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


def kept(doc_id: int, repeat: int) -> float:
    """A number that no other answer has."""
    return 0.1 + doc_id / 4 + repeat / 100


def documents(**metadata: Any) -> dict[str, Dataset]:
    rows = [
        {"prompt": f"Which city, {i}?", "answers": [city], "match": "all", "city": city}
        for i, city in enumerate(REFERENCES)
    ]
    return {"test": Dataset.from_list(rows)}


def task(filters: dict[str, list[dict[str, Any]]], **config: Any) -> ConfigurableTask:
    pipelines = [{"name": name, "filter": steps} for name, steps in filters.items()]
    return ConfigurableTask(
        config={
            "task": "cities",
            "custom_dataset": documents,
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{city}}",
            "num_fewshot": 0,
            **({"filter_list": pipelines} if filters else {}),
            **config,
        }
    )


def ours(filters: dict[str, list[dict[str, Any]]], **config: Any) -> ConfigurableTask:
    return task(filters, **{"process_results": scorers.reference_match} | config)


def run(asked: ConfigurableTask, model: Said) -> list[dict[str, Any]]:
    with scored({"tasks": {"cities": asked}}):
        outcome = evaluate(lm=model, task_dict={"cities": asked}, bootstrap_iters=0)
    assert outcome is not None
    assert not {"apply_filters", "doc_iterator", "process_results"} & vars(asked).keys()
    samples: list[dict[str, Any]] = outcome["samples"]["cities"]
    return samples


def traces(model: Said) -> list[Trace]:
    return [answer.trace for answer in model.answers if answer.trace is not None]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"strip": [STRIP, FIRST]},
        {"word": [REGEX, FIRST]},
        {"lower": [LOWER, FIRST]},
        {"upper": [{"function": "uppercase"}, FIRST], "strip": [STRIP, FIRST]},
        {"one": [LOWER, {"function": "take_first_k", "k": 1}]},
    ],
    ids=lambda filters: "+".join(filters),
)
def test_a_page_task_keeps_the_trace_of_its_document_whatever_its_filters_do(
    filters: dict[str, list[dict[str, Any]]],
) -> None:
    model = Said()
    samples = run(ours(filters), model)
    assert len(samples) == 2 * max(len(filters), 1)
    for sample in samples:
        assert sample["kept_kv"] == kept(sample["doc_id"], 0)
        assert sample["gate_open"] == 1.0
        assert sample["head_drop"] == 0.2
    # "Rome" is said, and "Lima" is not.
    assert [(t.score, t.correct) for t in traces(model)] == [(1.0, 1.0), (0.0, 0.0)]
    assert {trace.metric for trace in traces(model)} == {f"score,{next(iter(filters), 'none')}"}


@pytest.mark.parametrize("filters", [{}, {"strip": [STRIP, FIRST]}])
def test_any_other_model_keeps_its_whole_cache(
    filters: dict[str, list[dict[str, Any]]],
) -> None:
    asked = ours(filters)
    outcome = evaluate(lm=Said(traced=False), task_dict={"cities": asked}, bootstrap_iters=0)
    assert outcome is not None
    for sample in outcome["samples"]["cities"]:
        assert (sample["kept_kv"], sample["gate_open"]) == (1.0, 0.0)
        assert math.isnan(sample["head_drop"])


def test_of_two_filters_the_first_gives_the_trace_its_score() -> None:
    paris = {"function": "regex", "regex_pattern": "(Paris)"}
    model = Said()
    samples = run(ours({"none of it": [paris, FIRST], "all": [FIRST]}), model)
    assert [sample["score"] for sample in samples] == [0.0, 0.0, 1.0, 0.0]
    assert [trace.score for trace in traces(model)] == [0.0, 0.0]
    assert {trace.metric for trace in traces(model)} == {"score,none of it"}


@pytest.mark.parametrize(
    ("steps", "scores"),
    [
        # Only the first answer is looked at.
        ([FIRST], [(1.0, None, None), (0.0, None, None)]),
        ([STRIP, FIRST], [(1.0, None, None), (0.0, None, None)]),
        # Two of three are looked at, each by itself.
        ([{"function": "take_first_k", "k": 2}], [(1.0, 1.0, None), (0.0, 1.0, None)]),
        ([LOWER, {"function": "take_first_k", "k": 2}], [(1.0, 1.0, None), (0.0, 1.0, None)]),
        # All vote: of "rome", "rome" and "paris", and of "oslo", "lima" and "lima".
        ([STRIP, LOWER, VOTE, FIRST], [(1.0,) * 3, (1.0,) * 3]),
        ([STRIP, LOWER, VOTE], [(1.0,) * 3, (1.0,) * 3]),
    ],
)
def test_repeats_that_count_get_scores_and_others_none(
    steps: list[dict[str, Any]], scores: list[tuple[float | None, ...]]
) -> None:
    model = Said()
    samples = run(ours({"chosen": steps}, repeats=3), model)
    found = {(trace.doc_id, trace.repeat): trace for trace in traces(model)}
    for doc_id, wanted in enumerate(scores):
        assert tuple(found[doc_id, repeat].score for repeat in range(3)) == wanted
        known = [score for score in wanted if score is not None]
        assert samples[doc_id]["score"] == sum(known) / len(known)
    # The cache is that of the answers which the text was made of.
    second = {True: kept(1, 1), False: kept(1, 0)}[VOTE in steps]
    if steps[-1].get("k") == 2:
        second = (kept(1, 0) + kept(1, 1)) / 2
    assert samples[1]["kept_kv"] == pytest.approx(second)


def test_what_is_no_text_any_more_ends_the_run_in_a_sentence() -> None:
    nothing = {"function": "map", "mapping_dict": {"x": 1}}
    with pytest.raises(UsageError, match="hand its scorer None, not a text; leave out"):
        run(ours({"map": [nothing, FIRST]}), Said())


def test_a_scorer_that_changes_the_text_itself_keeps_the_trace() -> None:
    def stripped(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
        return scorers.reference_match(doc, [results[0].strip()])

    model = Said()
    samples = run(ours({}, process_results=stripped), model)
    assert [sample["kept_kv"] for sample in samples] == [kept(0, 0), kept(1, 0)]
    assert [trace.score for trace in traces(model)] == [1.0, 0.0]


def test_a_text_that_could_be_any_of_several_answers_ends_the_run_in_a_sentence() -> None:
    def joined(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
        return scorers.reference_match(doc, ["".join(results[0])])

    steps = [{"function": "take_first_k", "k": 3}]
    with pytest.raises(UsageError, match="cannot be told to be any one of 3 answers"):
        run(ours({"three": steps}, repeats=3, process_results=joined), Said())


@pytest.mark.parametrize(
    ("steps", "scores"),
    [
        ([STRIP, FIRST], [(1.0, None, None), (0.0, None, None)]),
        ([STRIP, VOTE, FIRST], [(1.0,) * 3, (1.0,) * 3]),
        # lm-eval's value of a document is the share of its answers that match.
        ([STRIP, {"function": "take_first_k", "k": 3}], [(1.0, 0.0, 0.0), (0.0, 1.0, 1.0)]),
    ],
)
def test_a_task_of_lm_eval_gives_each_repeat_its_own_value_where_it_has_one(
    steps: list[dict[str, Any]], scores: list[tuple[float | None, ...]]
) -> None:
    model = Said()
    asked = task({"chosen": steps}, repeats=3, metric_list=[{"metric": "exact_match"}])
    samples = run(asked, model)
    found = {(trace.doc_id, trace.repeat): trace for trace in traces(model)}
    for doc_id, wanted in enumerate(scores):
        assert tuple(found[doc_id, repeat].score for repeat in range(3)) == wanted
        known = [score for score in wanted if score is not None]
        assert samples[doc_id]["exact_match"] == pytest.approx(sum(known) / len(known))
    assert {trace.metric for trace in traces(model)} <= {"exact_match,chosen", None}


def test_multiple_choice_goes_by_acc_whatever_metric_comes_first() -> None:
    model = Said()
    asked = task(
        {},
        output_type="multiple_choice",
        doc_to_choice=["Rome", "Lima"],
        metric_list=[{"metric": "acc_norm"}, {"metric": "acc"}],
    )
    samples = run(asked, model)
    # The first choice is always the likeliest.
    assert [sample["acc"] for sample in samples] == [1.0, 0.0]
    assert [trace.score for trace in traces(model)] == [1.0, 0.0]
    assert {trace.metric for trace in traces(model)} == {"acc,none"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [((1.0, 0.0, None), (1.0, 0.0, None)), ((1.0, 0.5, 0.0), (None, None, None))],
)
def test_scores_are_verdicts_where_all_of_a_task_are_0_or_1(
    values: Sequence[float | None], wanted: Sequence[float | None]
) -> None:
    given = [
        dataclasses.replace(stored("f1", i), score=value, correct=None)
        for i, value in enumerate(values)
    ]
    others = [stored("page", 0, correct=1.0), stored("other", 0, correct=0.0)]
    made = with_correct([*given, *others])
    assert tuple(trace.correct for trace in made[:3]) == tuple(wanted)
    assert [trace.correct for trace in made[3:]] == [1.0, 0.0]
