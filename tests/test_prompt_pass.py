"""Many answers to one prompt from one prefill equal those of one arm at a time."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from test_engine import LENGTH, NEW, observed, prompt
from test_sliding_windows import model_of
from tiny_models import FAMILIES, randomised, small_config, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from page_bench.commands.latency import bench
from page_bench.config import PageConfig
from page_bench.engine import decode_batches, prefilled_prompt
from page_bench.engine.prefilled_prompt import ArmAnswer, PromptPass
from page_bench.engine.prompt import Prompt
from page_bench.model.attention import MEAN_ALONE
from page_bench.model.decode import AnswerRequest, Decoded, decode
from page_bench.model.prefill import prefill

ARMS = [
    {"evictor": evictor, "budget": budget, "granularity": granularity}
    for evictor, granularity in (
        ("snapkv", "shared"),
        ("h2o", "head"),
        ("pyramidkv", "layer"),
        ("adakv(snapkv)", "head"),
        ("expected_attention", "shared"),
        ("compactor", "layer"),
        ("streamingllm", "shared"),
    )
    for budget in (0.2, 0.5, 1.0)
]


def arm(**arguments: Any) -> PageConfig:
    return PageConfig(**{"window": 16, "gate": "open", **arguments})


def passed(
    model: PreTrainedModel, given: Prompt, arms: list[PageConfig], rows: int | None
) -> PromptPass:
    tokenizer = tiny_tokenizer(FAMILIES["llama"].with_bos)
    return PromptPass(model, tokenizer, given, arms, 16, MEAN_ALONE, given.seed, rows)


def without_times(answer: ArmAnswer) -> dict[str, Any]:
    times = ("evict_s", "decode_s", "decode_rows", "decode_rows_limit")
    entropy = pytest.approx(answer.mean_token_entropy, abs=1e-4)
    facts = {**vars(answer), "mean_token_entropy": entropy}
    return {k: v for k, v in facts.items() if k not in times}


@pytest.mark.parametrize(
    ("family", "rows"), [("llama", None), ("llama", 4), ("qwen2", None), ("qwen3", None)]
)
@pytest.mark.parametrize("context", [None, 180])
def test_arms_together_answer_like_arms_alone(
    family: str, context: int | None, rows: int | None
) -> None:
    model, given = observed(family), prompt(3, context_tokens=context)
    arms = [arm(**arguments) for arguments in ARMS]
    together = passed(model, given, arms, rows).answers([*arms, None], last=True)
    for one, answer in zip([*arms, None], together, strict=True):
        evictions = [] if one is None else [one]
        (alone,) = passed(model, given, evictions, 1).answers([one], last=True)
        assert without_times(answer) == without_times(alone)
    assert max(answer.decode_rows for answer in together) == (rows or 15)


@pytest.mark.parametrize("context", [None, 180])
@pytest.mark.parametrize("model_type", ["gemma3_text", "qwen2"])
def test_sliding_layers_are_no_arm_s_but_its_own(model_type: str, context: int | None) -> None:
    model, given = model_of(model_type), prompt(3, context_tokens=context)
    given = dataclasses.replace(given, input_ids=tuple(i % 90 + 5 for i in given.input_ids))
    model.set_attn_implementation("page_sdpa")
    arms = [arm(budget=b, evictor=e) for b in (0.2, 0.5) for e in ("snapkv", "knorm")]
    at_hand = passed(model, given, arms, None)
    together = at_hand.answers(arms, last=False)
    together += at_hand.answers([None], last=True)
    for one, answer in zip([*arms, None], together, strict=True):
        evictions = [] if one is None else [one]
        (alone,) = passed(model, given, evictions, 1).answers([one], last=True)
        assert without_times(answer) == without_times(alone)
    assert len({tuple(answer.answer_ids) for answer in together}) > 1


def test_rows_have_room_for_the_answer_in_the_memory_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = observed("llama")
    given = prompt(3)
    assert isinstance(given.request, AnswerRequest)
    request = dataclasses.replace(given.request, max_new_tokens=4000)
    given = dataclasses.replace(given, request=request)
    arms = [arm(budget=0.2 + i / 100) for i in range(10)]
    free = 20 * 2**20
    monkeypatch.setattr(decode_batches, "_free_bytes", lambda device: free)
    monkeypatch.setattr(
        prefilled_prompt, "decode", lambda model, rows, *_: [Decoded([1], 0.0)] * len(rows)
    )
    answers = passed(model, given, arms, None).answers(arms, last=True)
    rows = answers[0].decode_rows
    assert 1 < rows < 10
    assert rows * max(answer.kv_bytes_allocated for answer in answers) <= free / 2


def test_sampled_answers_too() -> None:
    model = observed("llama")
    given = prompt(1, do_sample=True, temperature=1.3)
    arms = [arm(budget=0.3), arm(evictor="random", budget=0.5)]
    together = passed(model, given, arms, None).answers([*arms, None], last=True)
    alone = [passed(model, given, [a], 1).answers([a], last=True)[0] for a in arms]
    assert [a.answer_ids for a in together[:2]] == [a.answer_ids for a in alone]


def test_equal_keep_sets_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def counted(*args: Any) -> list[Decoded]:
        rows.append(len(args[1]))
        return decode(*args)

    monkeypatch.setattr(prefilled_prompt, "decode", counted)
    arms = [
        arm(evictor="streamingllm", budget=0.3),
        arm(evictor="streamingllm", budget=0.3, granularity="shared", score_norm="rank"),
        arm(evictor="snapkv", budget=0.3),
        arm(evictor="snapkv", budget=1.0),
        arm(evictor="h2o", budget=1.0),
    ]
    answers = passed(observed("llama"), prompt(0), arms, None).answers([*arms, None], last=True)
    assert rows == [3]
    assert [answer.kept_all_because for answer in answers] == [
        *(None, None, None),
        *("budget keeps all", "budget keeps all", "gate closed"),
    ]
    assert answers[0].answer_ids == answers[1].answer_ids


def test_rows_that_are_done_leave_and_the_others_go_on() -> None:
    """Every row ends with its own end-of-sequence token or at the limit."""
    model = observed("llama")
    arms = [arm(evictor="random", evictor_args={"seed": s}, budget=0.25) for s in range(8)]
    free = prompt(2, eos_token_id=None)
    whole = passed(model, free, arms, None).answers(arms, last=True)
    # A token that some answers reach early, and others never.
    stop = whole[0].answer_ids[2]
    stopped = passed(model, prompt(2, eos_token_id=stop), arms, None).answers(arms, last=True)
    lengths = set()
    for before, after in zip(whole, stopped, strict=True):
        ids = before.answer_ids
        expected = ids[: ids.index(stop) + 1] if stop in ids else ids
        assert after.answer_ids == expected
        lengths.add(len(expected))
    assert len(lengths) > 1
    assert max(lengths) == NEW


def test_the_full_cache_can_still_be_asked_after_an_evicted_answer() -> None:
    model, one = observed("llama"), arm(budget=0.3)
    at_hand = passed(model, prompt(0), [one], None)
    first = at_hand.answers([one], last=False)
    then = at_hand.answers([None], last=True)
    together = passed(model, prompt(0), [one], None).answers([one, None], last=True)
    assert [a.answer_ids for a in first + then] == [a.answer_ids for a in together]


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gemma3_text"])
def test_latent_caches_and_sliding_windows_go_together_too(model_type: str) -> None:
    changes: dict[str, Any] = {"vocab_size": 300, "max_position_embeddings": 1024}
    if model_type == "gemma3_text":
        changes |= {
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }
    model = randomised(small_config(model_type, **changes))
    model.set_attn_implementation("page_sdpa")
    arms = [arm(evictor="snapkv", budget=b) for b in (0.2, 0.5)]
    given = prompt(0, LENGTH)
    together = passed(model, given, arms, None).answers([*arms, None], last=True)
    alone = [passed(model, given, arms, 1).answers([one], last=True)[0] for one in (*arms, None)]
    assert [a.answer_ids for a in together] == [a.answer_ids for a in alone]
    rows = {answer.decode_rows for answer in together}
    assert rows == ({1} if model_type == "deepseek_v3" else {3})
    limits = {answer.decode_rows_limit for answer in together}
    assert limits == ({1} if model_type == "deepseek_v3" else {decode_batches.DECODE_ROWS})
    assert not any(answer.decode_rows_lowered for answer in together)


def test_scores_are_made_once_for_all_budgets() -> None:
    model = observed("llama")
    given = prompt(0)
    ids = torch.tensor([given.input_ids])
    filled = prefill(model, ids, window=16, room=1)
    evictor = arm().make_evictor()
    first = filled.scored_by(evictor, 50)
    assert filled.scored_by(evictor, 90) is first
    budgeted = arm(evictor="h2o", granularity="head").make_evictor()
    assert budgeted.reads_budget


def test_every_clock_waits_for_all_devices_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for a model over two GPUs and the CPU; nothing else reads its devices.
    devices = tuple(map(torch.device, ("cpu", "cuda:0", "cuda:1")))
    done: list[str] = []
    clock = time.perf_counter

    def read() -> float:
        done.append("clock")
        return clock()

    monkeypatch.setattr(prefilled_prompt, "devices_of", lambda model: devices)
    monkeypatch.setattr(bench, "devices_of", lambda model: devices)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: done.append(str(device)))
    monkeypatch.setattr("page_bench.engine.prefilled_prompt.time.perf_counter", read)
    one = arm(budget=0.3)
    at_hand = passed(observed("llama"), prompt(0), [one], None)
    at_hand.seen(one)
    at_hand.answers([one, None], last=True)
    measured = tiny_model("llama")
    tokenizer = tiny_tokenizer(FAMILIES["llama"].with_bos)
    benched = bench.Bench(measured, tokenizer, PageConfig(budget=0.3, window=16), 3)
    for name in benched.configurations:
        benched.run(name, benched.prompt(100))
    assert len(done) > 60
    assert done == ["cuda:0", "cuda:1", "clock"] * (len(done) // 3)


def test_a_device_of_which_there_is_one_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    monkeypatch.setattr(torch.xpu, "synchronize", lambda device: waited.append(str(device)))
    prefilled_prompt.seconds(map(torch.device, ("cpu", "mps", "xpu:1")))
    assert waited == ["mps", "xpu:1"]
