"""Answers that only their length limit ended: in trace, results, report and W&B."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_runs import SUITE, answers, write_run
from lm_eval.api.instance import Instance
from stored_traces import stored

from page_bench.analysis.gate_choice import Choice
from page_bench.engine.summary import cut_warnings
from page_bench.harness.generation_checks import end_tokens, is_cut
from page_bench.harness.lm import PageLM
from page_bench.harness.wandb.metrics import summary_of
from page_bench.model.decode import AnswerRequest
from page_bench.records.suites import is_ours
from page_bench.report.build import data_section
from page_bench.report.sources import read

QUICKSTART = "page_quickstart_repeated_fact"
TEXT = "What was the number that stood in the second line of the letter? "


@pytest.fixture(scope="module")
def lm(tiny_folder: Callable[[str], Path]) -> PageLM:
    model = str(tiny_folder("llama"))
    return PageLM(pretrained=model, dtype="float32", device="cpu", gate="closed", evictor="none")


def answered(lm: PageLM, n: int, until: list[str]) -> list[Any]:
    """Answers to eight prompts."""
    arguments = {"until": until, "max_gen_toks": n, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (f"{TEXT}{i}", arguments), 0, ("own_task", i, 1))
        for i in range(8)
    ]
    return lm.with_page(lm.page).generate_until(requests, disable_tqdm=True)


def test_an_answer_is_cut_where_a_longer_limit_goes_on(lm: PageLM) -> None:
    """The longer answer's own length says it, whatever ends an answer."""
    longer, shorter = answered(lm, 24, []), answered(lm, 8, [])
    for long, short in zip(longer, shorter, strict=True):
        assert short.trace.cut is (long.trace.new_tokens > 8)
    assert any(answer.trace.cut for answer in shorter)


def test_a_stop_string_in_the_last_token_is_an_end(lm: PageLM) -> None:
    (first, *_) = answered(lm, 8, [])
    # One token is one byte, so that the last character is the last token's.
    last = str(first)[-1]
    place = str(first).index(last) + 1
    stopped = answered(lm, place, [last])[0]
    assert (stopped.trace.new_tokens, stopped.trace.cut) == (place, False)
    assert answered(lm, place, ["no such text"])[0].trace.cut is True


def test_an_end_of_sequence_token_at_the_limit_is_an_end() -> None:
    request = AnswerRequest(3, ("<|im_end|>", "\n"), {})
    assert is_cut([1, 2, 3], "abc", request, {9})
    assert not is_cut([1, 2, 9], "abc", request, {9})
    assert not is_cut([1, 2, 3], "ab\n", request, {9})
    assert not is_cut([1, 2], "ab", request, {9})
    assert end_tokens(type("Config", (), {"eos_token_id": [1, 2]}), request) == {1, 2}
    assert end_tokens(None, request) == frozenset()
    own = AnswerRequest(3, (), {"eos_token_id": 5})
    assert end_tokens(type("Config", (), {"eos_token_id": 1}), own) == {5}


def test_continuations_are_never_cut(lm: PageLM) -> None:
    requests = [
        Instance("loglikelihood", {}, (TEXT, word), i, ("own_task", 0, 1))
        for i, word in enumerate((" three", " four"))
    ]
    own = lm.with_page(lm.page)
    for likelihood in own.loglikelihood(requests, disable_tqdm=True):
        assert likelihood.trace.cut is None  # type: ignore[attr-defined]
    page = own.get_model_info()["page"]
    assert (page["generated"], page["cut"], page["cut_share"]) == (0, 0, None)


def test_results_hold_the_share_and_a_warning_that_names_the_remedy(lm: PageLM) -> None:
    own = lm.with_page(lm.page)
    arguments = {"until": [], "max_gen_toks": 8, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (f"{TEXT}{i}", arguments), 0, ("own_task", i, 1))
        for i in range(8)
    ]
    answers: list[Any] = own.generate_until(requests, disable_tqdm=True)
    cut = sum(answer.trace.cut for answer in answers)
    page = own.get_model_info()["page"]
    assert (page["generated"], page["cut"], page["cut_share"]) == (8, cut, cut / 8)
    (warning,) = (text for text in page["warnings"] if "were cut" in text)
    assert f"{cut} of 8 answers to own_task were cut at 8 tokens" in warning
    assert "--gen_kwargs max_gen_toks=" in warning


def cut_of(task: str, n: int, cut: int) -> list[Any]:
    asked = {"max_new_tokens": 20, "stop": ["\n"] if task == QUICKSTART else []}
    return [stored(task, i, cut=i < cut, asked=asked) for i in range(n)]


@pytest.mark.parametrize(
    ("task", "n", "cut", "warned"),
    [
        ("gsm8k", 20, 2, True),
        ("gsm8k", 20, 1, False),  # moves a mean by no more than is taken for no difference
        ("gsm8k", 4, 4, False),
        # RULER sets the length and no stop: by design, and nothing that a user should change.
        ("page_ruler_4k_vt", 20, 20, False),
        ("page_longbench_qasper", 20, 20, False),
        (QUICKSTART, 20, 20, True),
    ],
)
def test_who_can_act_is_warned(task: str, n: int, cut: int, warned: bool) -> None:
    assert bool(cut_warnings(cut_of(task, n, cut))) is warned
    assert is_ours(task) is task.startswith("page_")


def test_wandb_has_the_share_with_wilson_s_interval_and_n() -> None:
    unknown = [stored("other", i) for i in range(5)]
    found = summary_of([*cut_of("own", 20, 5), *unknown], [None] * 25)
    assert (found["page/cut"], found["page/cut_n"], found["page/n"]) == (0.25, 20, 25)
    # Wilson's, 5 of 20, from a table.
    assert found["page/cut_low"] == pytest.approx(0.1119, abs=1e-4)
    assert found["page/cut_high"] == pytest.approx(0.4687, abs=1e-4)
    assert "page/cut" not in summary_of(unknown, [None] * 5)


def test_the_report_counts_them_by_task_and_cache(tmp_path: Path) -> None:
    """An input that two budgets answer is one of n."""
    for gate, budget in (("open", 0.25), ("open", 0.5), ("closed", 0.25)):
        traces = answers(gate, budget=budget)
        for number, trace in enumerate(traces):
            cut = gate == "open" and trace.doc_id < 3
            traces[number] = type(trace)(**{**vars(trace), "cut": cut})
        write_run(tmp_path / f"{gate}{budget}", traces)
    tables = data_section(read([str(tmp_path)], Choice())).tables
    (table,) = (one for one in tables if one.name == "data_cut")
    rows: list[dict[str, Any]] = [dict(zip(table.columns, r, strict=True)) for r in table.rows]
    vt = {row["cache"]: row for row in rows if row["task"] == f"{SUITE}_vt"}
    evicted = vt["evicted"]["cut"]
    assert (vt["evicted"]["answers"], vt["evicted"]["n"], evicted.value) == (8, 4, 0.75)
    assert vt["full"]["cut"].value == 0
    # Wilson's of 0 of 4, from a table.
    assert (vt["full"]["answers"], vt["full"]["n"]) == (4, 4)
    assert vt["full"]["cut"].high == pytest.approx(0.4899, abs=1e-4)
    assert vt["full"]["tokens allowed"] == 30
