"""How many answers are decoded together: a constant, and fewer only where memory says so aloud."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from store_examples import ARM, MODEL
from test_engine import observed, prompt
from test_lm import QUESTIONS, page_lm, requests, trace_of
from test_prompt_pass import arm, passed
from tiny_models import FAMILIES, tiny_tokenizer

from page_bench.engine import decode_batches
from page_bench.engine.decode_batches import (
    DECODE_ROWS,
    CacheSize,
    KeepJob,
    LayerSize,
    rows_that_fit,
)
from page_bench.engine.engine import Engine
from page_bench.engine.keys import StoredModel, answer_key
from page_bench.engine.memory import Memory
from page_bench.engine.summary import RunSummary
from page_bench.model.decode import AnswerRequest
from page_bench.model.keep_plan import KeepPlan
from page_bench.model.prefill import devices_of
from page_bench.records.store.store import RunStore

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
HALF = dataclasses.replace(MODEL, dtype="bfloat16")


def spread(first: int, second: int) -> CacheSize:
    """A prompt of 1000 tokens over two devices: 2 KV heads, 100 bytes an entry."""
    layers = [LayerSize(device, 2, 2000, 100, True) for device in (FIRST, SECOND)]
    return CacheSize(1000, tuple([layers[0]] * first + [layers[1]] * second))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[torch.device, tuple[int, int, int]]:
    """Stands in for two GPUs: by device, bytes that the driver has, torch reserved, and uses."""
    found: dict[torch.device, tuple[int, int, int]] = {}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (found[d][0], 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda d: found[d][1])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda d: found[d][2])
    return found


def jobs(size: CacheSize, count: int, kept: int) -> list[KeepJob]:
    """Keep sets of so many positions in every layer and KV head."""
    entries = tuple(kept * layer.heads for layer in size.layers)
    plan = KeepPlan(torch.ones(1, 1, 1, dtype=torch.bool))
    return [KeepJob(plan, entries, (i,)) for i in range(count)]


@pytest.mark.parametrize(
    ("driver", "reserved", "used", "rows"),
    [
        # A row takes 2 layers × 2 heads × (199 kept + 50 for the answer + 1 read again) × 100
        # bytes = 100,000, and half of what is free may be taken.
        (900_000, 0, 0, 4),
        (1_000_000, 0, 0, 5),
        (0, 1_500_000, 500_000, 5),
        (200_000, 1_500_000, 500_000, 6),
        (0, 500_000, 500_000, 1),
    ],
)
def test_what_the_allocator_holds_and_does_not_use_is_free(
    free: dict[torch.device, tuple[int, int, int]], driver: int, reserved: int, used: int, rows: int
) -> None:
    size = spread(2, 0)
    free[FIRST] = driver, reserved, used
    assert rows_that_fit(jobs(size, 20, 199), size, 50) == rows


@pytest.mark.parametrize(
    ("layers", "first", "second", "rows"),
    [
        # 50,000 bytes of a row per layer: the tightest device decides.
        ((1, 3), 10**9, 900_000, 3),
        ((1, 3), 300_000, 10**9, 3),
        ((3, 1), 900_000, 10**9, 3),
        ((2, 2), 800_000, 600_000, 3),
        ((2, 2), 10**9, 10**9, 20),
    ],
)
def test_each_device_holds_its_own_layers(
    free: dict[torch.device, tuple[int, int, int]],
    layers: tuple[int, int],
    first: int,
    second: int,
    rows: int,
) -> None:
    size = spread(*layers)
    free[FIRST], free[SECOND] = (first, 0, 0), (second, 0, 0)
    assert rows_that_fit(jobs(size, 20, 199), size, 50) == rows


def test_layers_count_with_what_they_keep_each(
    free: dict[torch.device, tuple[int, int, int]],
) -> None:
    size = spread(1, 1)
    members = torch.zeros(2, 2, 1000, dtype=torch.bool)
    members[0, 0, :30], members[0, 1, :10] = True, True  # 40 entries in the first layer
    members[1, :, :500] = True  # and 1000 in the second
    assert size.planned(KeepPlan(members)) == (40, 1000)
    assert size.planned(KeepPlan(members[:1, :1])) == (60, 60)
    assert size.planned(None) == (2000, 2000)
    one = KeepJob(KeepPlan(members), size.planned(KeepPlan(members)), (0,))
    # With the answer's room, 14,200 bytes on one device and 110,200 on the other.
    free[FIRST], free[SECOND] = (2 * 5 * 14_200, 0, 0), (2 * 7 * 110_200, 0, 0)
    assert rows_that_fit([one] * 20, size, 50) == 5
    # The full cache is there already.
    whole = KeepJob(None, size.planned(None), (20,))
    assert rows_that_fit([*[one] * 5, whole], size, 50) == 6


def test_a_model_s_devices_are_those_of_all_its_weights() -> None:
    class Weight:
        def __init__(self, device: str) -> None:
            self.device = torch.device(device)

    class Model:
        device = torch.device("cuda:1")

        def parameters(self) -> Iterator[Weight]:
            return map(Weight, ("cuda:1", "cuda:0", "meta", "cuda:1", "cpu"))

    assert devices_of(Model()) == (torch.device("cpu"), FIRST, SECOND)
    assert devices_of(observed("llama")) == (torch.device("cpu"),)


# A fixed number of rows


def short_answers(limit: int | None, free_bytes: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ten answers to a prompt, with so much free memory."""
    monkeypatch.setattr(decode_batches, "_free_bytes", lambda device: free_bytes)
    arms = [arm(budget=0.2 + i / 100) for i in range(10)]
    return passed(observed("llama"), prompt(3), arms, limit).answers(arms, last=True)


def test_the_number_is_a_constant_and_memory_lowers_it_only_when_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert DECODE_ROWS > 33  # four evictors at eight budgets, and the full cache
    plenty = short_answers(None, 10**12, monkeypatch)
    still = short_answers(None, 10**9, monkeypatch)
    for answers in (plenty, still):
        assert {(a.decode_rows, a.decode_rows_limit) for a in answers} == {(10, DECODE_ROWS)}
        assert not any(answer.decode_rows_lowered for answer in answers)
    tight = short_answers(None, 2**20, monkeypatch)
    assert all(1 <= answer.decode_rows < 10 for answer in tight)
    assert all(answer.decode_rows_lowered for answer in tight)
    assert {answer.decode_rows_limit for answer in tight} == {DECODE_ROWS}
    asked = short_answers(4, 1, monkeypatch)
    assert sorted(answer.decode_rows for answer in asked) == [2, 2, *[4] * 8]
    assert not any(answer.decode_rows_lowered for answer in asked)
    assert {answer.decode_rows_limit for answer in asked} == {4}
    # In fp32, none of this is seen in an answer.
    assert len({str([a.answer_ids for a in one]) for one in (plenty, tight, asked)}) == 1


def test_more_keep_sets_than_the_limit_are_no_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("page_bench.engine.prefilled_prompt.DECODE_ROWS", 4)
    answers = short_answers(None, 10**12, monkeypatch)
    assert sorted(answer.decode_rows for answer in answers) == [2, 2, *[4] * 8]
    assert not any(answer.decode_rows_lowered for answer in answers)


def test_a_batch_size_is_taken_and_recorded(tiny_folder: Callable[[str], Path]) -> None:
    for given, limit in ((1, DECODE_ROWS), (7, 7), ("auto", DECODE_ROWS)):
        lm = page_lm(tiny_folder("llama"), gate="open", budget=0.5, batch_size=given)
        (answer,) = lm.generate_until(requests(QUESTIONS[:1]), disable_tqdm=True)
        assert trace_of(answer).decode_rows_limit == limit
        assert trace_of(answer).decode_rows_lowered is False


@contextmanager
def remembering(path: Path, model: StoredModel, rows: int) -> Iterator[Memory]:
    with RunStore(path) as store:
        yield Memory(store, model, 0, rows)


def test_too_little_memory_is_said_in_log_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decode_batches, "_free_bytes", lambda device: 2**20)
    arms = [arm(budget=0.2 + i / 100) for i in range(10)]
    tokenizer = tiny_tokenizer(FAMILIES["llama"].with_bos)
    with remembering(tmp_path / "s.sqlite", MODEL, DECODE_ROWS) as memory:
        engine = Engine(observed("llama"), tokenizer, arms[0], memory=memory)
        with caplog.at_level(logging.WARNING):
            engine.fill([prompt(0), prompt(1)], arms)
        assert caplog.text.count(f"did not hold the caches of {DECODE_ROWS} answers") == 1
        outcomes, decided = engine.run([prompt(0)])
    facts = {**vars(outcomes[0].seen), **vars(outcomes[0].answer)}
    facts.pop("answer_ids")
    record = _trace(**facts)
    (warning,) = RunSummary.of(arms[0], [record], decided).warnings
    assert f"did not hold the caches of {DECODE_ROWS} answers" in warning
    assert "--batch_size" in warning
    unsaid = dataclasses.replace(record, decode_rows_lowered=None, decode_rows_limit=None)
    assert RunSummary.of(arms[0], [unsaid], decided).warnings == ()


def _trace(**facts: Any) -> Any:
    from page_bench.records.trace import Trace

    words = dict.fromkeys(("model", "dtype", "attn_implementation", "task"), "x")
    rest = {f.name: None for f in dataclasses.fields(Trace) if f.default is dataclasses.MISSING}
    given = {"gate_open": True, "truncated_tokens": 0, "budget": 0.2, "answer": "1"}
    return Trace(**{**rest, **words, **given, "prompt_sha256": "0" * 64, **facts})


# The store


def test_a_key_says_how_many_are_decoded_together_where_an_answer_may_depend_on_it() -> None:
    def same(model: StoredModel) -> bool:
        keys = [answer_key(model, prompt(0), ARM, 0, rows).digest for rows in (8, DECODE_ROWS)]
        assert keys[1] == answer_key(model, prompt(0), ARM).digest
        return keys[0] == keys[1]

    assert same(MODEL)
    for dtype in ("bfloat16", "float16", "float32, autocast bfloat16", "float32, gguf weights"):
        assert not same(dataclasses.replace(MODEL, dtype=dtype)), dtype
    # Products of fp32 that are not taken in fp32.
    setting = {**MODEL.setting, "matmul_precision": "high"}
    assert not same(dataclasses.replace(MODEL, setting=setting))
    assert same(dataclasses.replace(MODEL, setting={**setting, "matmul_precision": "highest"}))


@pytest.mark.parametrize(("model", "shared"), [(MODEL, True), (HALF, False)])
def test_arms_find_each_other_s_answers_unless_they_may_differ(
    model: StoredModel, shared: bool, tmp_path: Path
) -> None:
    arms = [arm(budget=b) for b in (0.2, 0.3)]
    tokenizer = tiny_tokenizer(FAMILIES["llama"].with_bos)
    request = AnswerRequest(2, (), {"do_sample": False})
    asked = dataclasses.replace(prompt(0), request=request)
    prefilled = []
    for rows in (DECODE_ROWS, DECODE_ROWS, 4):
        with remembering(tmp_path / "s.sqlite", model, rows) as memory:
            engine = Engine(observed("llama"), tokenizer, arms[0], memory=memory)
            prefilled.append(engine.fill([asked], arms).prefilled)
    assert prefilled == [1, 0, 0 if shared else 1]
