"""Where the evidence stands, and how much of it a cache kept: RULER's tasks read by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from stored_traces import stored
from test_rulergen_samples import (
    BYTES,
    FACT,
    NIAH,
    TRAINED,
    Make,
    hotpotqa,
    make,
    meter,
    read_lists,
    read_niah,
    read_vt,
    ruler_texts,
    squad,
)
from tiny_models import save_tiny, tiny_tokenizer, trained_tokenizer

from page_bench.analysis.gate_choice import Choice
from page_bench.analysis.own_cells import cells_of
from page_bench.harness.context_boundary import token_offsets
from page_bench.harness.lm import PageLM
from page_bench.records.finished_runs import Record
from page_bench.records.trace import Answer
from page_bench.report.sections import evidence as section
from page_bench.report.settings import Settings
from page_bench.tasks.evidence import evidence_of
from page_bench.tasks.ruler import RULES, doc_of

__all__ = ["hotpotqa", "make", "meter", "squad"]

ONE_WORD = re.compile(r"\w+")


def by_hand(task: str, prompt: str, answers: list[str]) -> list[str]:
    """The evidence's texts in their order, by readers that know how each task is worded."""
    if task in NIAH:
        values, _ = read_niah(prompt)
        return [found[0] for found in FACT.finditer(prompt) if found[3] in values]
    if task == "vt":
        names = read_vt(prompt)
        text = prompt.rpartition("Memorize and track")[2]
        return [f[0] for f in re.finditer(r"VAR (\w+) = (?:VAR )?\w+", text) if f[1] in names]
    if task == "cwe":
        own = read_lists(prompt)[1]
        return [word for word in own if word in answers]
    if task == "fwe":
        (text,) = re.findall(r"frequently appeared coded words\. (.*)\n+Question:", prompt)
        return [word for word in text.split() if word in answers]
    return [answers[0]]  # stands in one document alone


@pytest.mark.parametrize("name", [BYTES, TRAINED])
@pytest.mark.parametrize("task", RULES)
def test_evidence_is_what_a_reader_of_the_task_finds(make: Make, task: str, name: str) -> None:
    tokenizer = (
        tiny_tokenizer(with_bos=True)
        if name == BYTES
        else trained_tokenizer(ruler_texts(), vocabulary=6000)
    )
    length = 8192 if name == BYTES else 2048
    doc = doc_of(make(name, task, length), task, length, "page")
    text = doc["prompt"] + doc["answer_prefix"]
    spans, reason = evidence_of(doc, text)
    assert reason is None
    found = [text[a:b] for a, b in spans]
    expected = by_hand(task, doc["prompt"], doc["answers"])
    # A needle is taken to the end of its sentence.
    assert [one.rstrip(".") for one in found] == [one.rstrip(".") for one in expected]
    ids = tokenizer(text).input_ids
    offsets = token_offsets(tokenizer, text, ids)
    assert offsets is not None
    assert len(offsets) == len(ids)
    inside = [i for i, (a, b) in enumerate(offsets) if any(a < e and b > s for s, e in spans)]
    if name == BYTES:
        assert len(inside) == sum(len(one.encode()) for one in found)


@pytest.mark.parametrize(
    ("doc", "reason"),
    [
        ({"answers": ["Rome"]}, "no reference stands in the prompt"),
        ({"answers": []}, "the document has no references"),
        ({}, "the document has no references"),
        ("a text", "the document has no references"),
    ],
)
def test_what_is_not_known_has_a_reason(doc: Any, reason: str) -> None:
    assert evidence_of(doc, "What is the capital?") == ([], reason)


def test_references_are_whole_words_of_any_case() -> None:
    text = "An art of Art. The article of ARTS ended in art, artless."
    spans, _ = evidence_of({"answers": ["art"]}, text)
    assert [text[a:b] for a, b in spans] == ["art", "Art", "art"]


TEXT = "The code of a is 17. " + "The wind turned north. " * 12 + "The code of b is 42. The code is"
DOC = {"answers": ["17"], "match": "all"}


def asked(doc: Any = DOC) -> Instance:
    how = {"until": [], "max_gen_toks": 4, "do_sample": False}
    return Instance("generate_until", doc, (TEXT, how), 0, metadata=("task", 0, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("llama"), "llama"))


def trace_of(folder: str, doc: Any = DOC, **arm: Any) -> Any:
    lm = PageLM(folder, dtype="float32", device="cpu", **arm)
    (answer,) = lm.generate_until([asked(doc)], True)
    assert isinstance(answer, Answer)
    return answer.trace


def test_the_share_is_that_of_the_entries_that_are_left(folder: str) -> None:
    # A token per byte, BOS first: "17" is tokens 18 and 19, "42" stands near the end.
    first = TEXT.index("17") + 1
    arm = {"evictor": "streamingllm", "gate": "open", "budget": 0.3, "recent": 8}
    for n_sink, share in ((first, 0.0), (first + 1, 0.5), (first + 2, 1.0)):
        trace = trace_of(folder, **arm, n_sink=n_sink)
        assert (trace.evidence_kept, trace.evidence_kept_best_head) == (share, share)
    late = trace_of(folder, {"answers": ["17", "42"], "match": "all"}, **arm)
    assert late.evidence_kept == 0.5
    assert trace_of(folder, gate="closed").evidence_kept == 1.0


def test_heads_that_keep_other_entries_are_averaged_and_the_best_is_told(folder: str) -> None:
    from page_bench import load

    arm: dict[str, Any] = {"evictor": "snapkv", "gate": "open", "budget": 0.3}
    arm |= {"granularity": "head", "window": 8}
    trace = trace_of(folder, **arm)
    kept = load(folder, dtype="float32").answer(TEXT, max_new_tokens=4, **arm).kept
    place = TEXT.index("17") + 1
    by_head = kept[..., place : place + 2].double().mean(-1)
    assert trace.evidence_kept == pytest.approx(float(by_head.mean()))
    assert trace.evidence_kept_best_head == float(by_head.max())
    assert torch.unique(by_head).numel() > 1


def test_a_store_gives_the_share_of_the_same_evidence_alone(folder: str, tmp_path: Path) -> None:
    arm = {"store": str(tmp_path / "s"), "evictor": "streamingllm", "gate": "open", "budget": 0.3}
    fresh = trace_of(folder, **arm)
    assert trace_of(folder, **arm).evidence_kept == fresh.evidence_kept
    other = trace_of(folder, {"answers": ["42"], "match": "all"}, **arm)
    assert other.evidence_kept is None
    assert other.no_evidence == (
        "the answer comes from a store that does not hold it for this evidence"
    )


def test_a_prompt_without_evidence_says_why(folder: str) -> None:
    trace = trace_of(folder, {"answers": ["99"], "match": "all"}, gate="open")
    assert trace.evidence_kept is None
    assert trace.no_evidence == "no reference stands in the prompt"


def test_harm_is_told_by_evidence(make_records: Callable[..., list[Record]]) -> None:
    # Of 30 inputs whose evidence is gone 24 break, of 30 whose evidence is there 3.
    (cell,), _ = cells_of(make_records(24, 3), Choice())
    made = section.section([cell], Settings(draws=200))
    (table,) = made.tables
    rows: dict[Any, Any] = {row[-3]: row[-1] for row in table.rows}
    assert [(label, one.n, one.value) for label, one in rows.items()] == [
        ("below 1/2", 30, 0.8),
        ("all", 30, 0.1),
    ]


@pytest.fixture
def make_records() -> Callable[..., list[Record]]:
    def records(gone: int, there: int) -> list[Record]:
        made = []
        for doc in range(60):
            share = 0.25 if doc < 30 else 1.0
            broken = doc < gone or 30 <= doc < 30 + there
            for gate, correct in (("open", float(not broken)), ("closed", 1.0)):
                trace = stored(
                    "page_ruler_4k_vt",
                    doc,
                    gate=gate,
                    gate_open=gate == "open",
                    correct=correct,
                    score=correct,
                    evidence_kept=share if gate == "open" else 1.0,
                )
                made.append(Record(trace, Path("trace.jsonl"), doc + 1))
        return made

    return records
