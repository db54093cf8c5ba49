"""lm-eval's scores of a run's samples, given to the traces of the answers they are of.

lm-eval hands a task's scorer what the task's filters leave of the answers, and tells the model
nothing of what came out. Here each task of a `page_hf` run is watched while lm-eval scores it: its
scorer gets texts that carry their traces whatever the filters did, and the traces get the scores.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any

from lm_eval.api.filter import FilterEnsemble
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.filters.selection import MajorityVoteFilter, TakeFirstFilter, TakeKFilter

from page_bench.inputs.errors import UsageError
from page_bench.records.trace import LARGEST_SCORE, Answer, Likelihood, Trace, scoring

_WATCHED = ("apply_filters", "doc_iterator", "process_results")


@contextmanager
def scored(task_dict: Mapping[Any, Any]) -> Iterator[None]:
    """Watch all tasks of one evaluation.

    Args:
        task_dict: what lm-eval's `evaluate` takes, of either kind.
    """
    with ExitStack() as stack:
        for task in {id(task): task for task in _tasks(task_dict)}.values():
            stack.enter_context(_watched(task))
        yield


def with_correct(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of a run, `correct` filled in where a task's scores are all 0 or 1.

    Args:
        traces: of all processes, scored. Those that say `correct` themselves stay as they are.
    """
    scores = defaultdict(set)
    for trace in traces:
        scores[trace.task].add(trace.score)
    binary = {task for task, values in scores.items() if values <= {0.0, 1.0, None}}
    return [
        dataclasses.replace(trace, correct=trace.score)
        if trace.correct is None and trace.task in binary
        else trace
        for trace in traces
    ]


def _tasks(found: object) -> Iterator[Task]:
    if isinstance(found, Task):
        yield found
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from _tasks(value)


@contextmanager
def _watched(task: Task) -> Iterator[None]:
    """The task's methods replaced for a while, in this object alone."""
    own = {name: vars(task)[name] for name in _WATCHED if name in vars(task)}
    scores = _Scores(task)
    for name in _WATCHED:
        setattr(task, name, getattr(scores, name))
    try:
        yield
    finally:
        for name in _WATCHED:
            delattr(task, name)
        vars(task).update(own)


@dataclasses.dataclass(frozen=True)
class _Carried:
    """A text on its way to the scorer, and the answer that it was made of.

    Attributes:
        text: what the filters left, with the answer's trace.
        source: the answer.
    """

    text: Answer
    source: Answer


class _Scores:
    """Stands between lm-eval and one task: the methods are the task's own, and more.

    lm-eval calls `apply_filters`, then for each filter one `doc_iterator`, and `process_results`
    for each document while it is the iterator's last.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._apply_filters: Callable[[], Any] = task.apply_filters
        self._doc_iterator: Callable[..., Iterable[tuple[int, Any]]] = task.doc_iterator
        self._process_results: Callable[[Any, list[Any]], dict[str, Any]] = task.process_results
        self._instances: dict[int, list[Instance]] = {}
        self._filters: list[str] = []
        self._turn = -1
        self._doc_id: int | None = None

    def apply_filters(self) -> Any:
        returned = self._apply_filters()
        self._instances = defaultdict(list)
        for instance in sorted(self._task.instances, key=lambda one: one.idx):
            assert instance.doc_id is not None
            self._instances[instance.doc_id].append(instance)
        self._filters = [*self._task.instances[0].filtered_resps] if self._task.instances else []
        self._turn = -1
        return returned

    def doc_iterator(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        self._turn += bool(self._filters)  # before that, requests are made
        for doc_id, doc in self._doc_iterator(*args, **kwargs):
            self._doc_id = doc_id
            yield doc_id, doc

    def process_results(self, doc: Any, results: list[Any]) -> dict[str, Any]:
        instances = self._instances.get(self._doc_id, [])  # type: ignore[arg-type]
        if len(instances) != len(results) or not 0 <= self._turn < len(self._filters):
            raise UsageError(
                f"{self._task.task_name}: lm-eval scored a document out of turn, so its answers "
                f"cannot be told; page-bench's constraints.txt names a release that fits."
            )
        name = self._filters[self._turn]
        pipeline = self._pipeline(name)
        found = [_carry(i, value, pipeline) for i, value in zip(instances, results, strict=True)]
        carried = [one for _, own in found for one in own]
        given = [value for value, _ in found]
        with scoring([one.text for one in carried]):
            metrics = self._process_results(doc, given)
        if self._turn == 0:
            counted = [answer for i in instances for answer in _counted(i, pipeline)]
            if any(_trace(one.text).score is not None for one in carried):
                _take_ours(carried, counted, f"score,{name}")
            else:
                self._take_first_metric(doc, given, metrics, counted, name)
        return metrics

    def _pipeline(self, name: str) -> FilterEnsemble | None:
        known = getattr(self._task, "_filters", None) or []
        return next((pipeline for pipeline in known if pipeline.name == name), None)

    def _take_first_metric(
        self,
        doc: Any,
        given: Sequence[Any],
        metrics: Mapping[str, Any],
        counted: Sequence[Answer],
        filter_name: str,
    ) -> None:
        """Give the document's value of the task's first metric to its answers that count."""
        metric = self._first_metric(metrics)
        value = _number(metrics.get(metric))
        if value is None:
            return
        values = self._of_each(doc, given, metric, value, len(counted))
        for answer, own in zip(counted, values, strict=True):
            answer.trace = dataclasses.replace(
                _trace(answer), score=own, metric=f"{metric},{filter_name}"
            )

    def _first_metric(self, metrics: Mapping[str, Any]) -> str:
        """The metric that is a sample's score, by its name in the results."""
        likely = getattr(self._task, "OUTPUT_TYPE", None) == "multiple_choice"
        if (likely or not hasattr(self._task, "_metric_fn_list")) and "acc" in metrics:
            return "acc"
        first = next(iter(getattr(self._task, "_metric_fn_list", None) or metrics), "")
        # A scorer of the user's, or a metric of several parts, has names of its own.
        return next(iter(metrics)) if first not in metrics and len(metrics) == 1 else str(first)

    def _of_each(
        self, doc: Any, given: Sequence[Any], metric: str, value: float, n: int
    ) -> list[float]:
        """The value of each answer where the document's is their mean; else the document's."""
        texts = given[0]
        if (
            metric == "exact_match"
            and isinstance(texts, list)
            and len(given) == 1
            and len(texts) == n > 1
            and getattr(self._task.config, "process_results", None) is None
        ):
            own = [_number(self._process_results(doc, [text]).get(metric)) for text in texts]
            known = [one for one in own if one is not None]
            if len(known) == n and math.isclose(sum(known) / n, value, abs_tol=1e-9):
                return known
        return [value] * n


def _carry(
    instance: Instance, value: Any, pipeline: FilterEnsemble | None
) -> tuple[Any, list[_Carried]]:
    """What the filters left of an instance's answers, with the traces of these."""
    answers = [answer for answer in instance.resps if isinstance(answer, Answer)]
    if not answers:
        return value, []
    if isinstance(value, str):
        source = _source(value, answers, instance, pipeline)
        if source is not None:
            one = _Carried(Answer(value, source.trace), source)
            return one.text, [one]
    elif isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        counted = _counted(instance, pipeline)
        sources = (
            counted
            if len(counted) == len(value)
            else [_source(text, answers, instance, pipeline) for text in value]
        )
        several = [
            _Carried(Answer(text, source.trace), source)
            for text, source in zip(value, sources, strict=True)
            if source is not None
        ]
        if len(several) == len(value):
            return type(value)([one.text for one in several]), several
    # What is no text any more may still be made one by the task's own scorer.
    return value, [_Carried(Answer(one, one.trace), one) for one in _counted(instance, pipeline)]


def _source(
    text: str, answers: Sequence[Answer], instance: Instance, pipeline: FilterEnsemble | None
) -> Answer | None:
    """The answer that a filtered text was made of; None where nothing tells."""
    if len(answers) == 1:
        return answers[0]
    same = next((answer for answer in answers if answer is text), None)
    if same is not None or pipeline is None:
        return same
    return next((a for a in answers if _alone(a, instance, pipeline) == text), None)


def _alone(answer: Answer, instance: Instance, pipeline: FilterEnsemble) -> object:
    """What the filters make of an answer that is a document's only one."""
    single = copy(instance)
    single.resps, single.filtered_resps = [answer], {}
    try:
        pipeline.apply([single])
    except Exception:  # a filter that needs several
        return None
    left = single.filtered_resps[pipeline.name]
    return left[0] if isinstance(left, list | tuple) and len(left) == 1 else left


def _counted(instance: Instance, pipeline: FilterEnsemble | None) -> list[Answer]:
    """The answers to an instance that the filters do not pass over."""
    if instance.resps and all(isinstance(one, Likelihood) for one in instance.resps):
        return [one.answer for one in instance.resps]
    answers = [answer for answer in instance.resps if isinstance(answer, Answer)]
    is_vote = False
    for make in () if pipeline is None else pipeline.filters:
        kind = make.func if isinstance(make, partial) else make
        if kind is MajorityVoteFilter:
            is_vote = True
        elif kind is TakeFirstFilter and not is_vote:
            answers = answers[:1]
        elif kind is TakeKFilter and not is_vote:
            answers = answers[: make.keywords["k"]]
    return answers


def _take_ours(carried: Sequence[_Carried], counted: Sequence[Answer], metric: str) -> None:
    """Take the scores that our own scorer wrote; those of a vote belong to all who voted."""
    for one in carried:
        one.source.trace = dataclasses.replace(_trace(one.text), metric=metric)
    first = _trace(carried[0].source)
    for answer in counted:
        trace = _trace(answer)
        if trace.score is None:
            answer.trace = dataclasses.replace(
                trace,
                score=first.score,
                correct=first.correct,
                correct_paper=first.correct_paper,
                metric=metric,
            )


def _trace(answer: Answer) -> Trace:
    assert answer.trace is not None
    return answer.trace


def _number(value: object) -> float | None:
    """A metric's value for one sample; None where that is no number."""
    if getattr(value, "ndim", None) == 0:  # of NumPy or torch
        value = value.item()  # type: ignore[attr-defined]
    if not isinstance(value, numbers.Real) or not abs(number := float(value)) <= LARGEST_SCORE:
        return None
    return number
