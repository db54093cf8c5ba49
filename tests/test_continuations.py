"""Likelihoods of given continuations: full caches against `hf`, evicted ones against masking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from test_granularity import Uneven, logits_with_hidden
from tiny_models import FAMILIES, random_prompt, tiny_model
from torch import Tensor

from page_bench.config import PageConfig
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.cache import rewound
from page_bench.model.continuations import ContinuationRequest, score_continuations
from page_bench.model.keep_plan import KeepPlan, evict, positions_to_keep
from page_bench.model.prefill import forward, prefill
from page_bench.records.trace import Likelihood, Trace

TinyFolder = Callable[[str], Path]

CONTEXTS = ["The quick brown fox jumps over the lazy dog. " * n + "The fox" for n in (2, 5, 7)]
CHOICES = [" jumps", " sleeps all day", " s", " sleeps all night"]
LENGTH = 90

attention.register()


def requests(contexts: list[str], choices: list[str]) -> list[Instance]:
    """As lm-eval makes them of multiple-choice documents."""
    return [
        Instance("loglikelihood", {}, (context, choice), i, metadata=("task", doc_id, 1))
        for doc_id, context in enumerate(contexts)
        for i, choice in enumerate(choices)
    ]


def page_lm(folder: Path, **arguments: Any) -> PageLM:
    return PageLM(str(folder), device="cpu", dtype="float32", **{"window": 8, **arguments})


def hf(folder: Path, **arguments: Any) -> HFLM:
    return HFLM(str(folder), device="cpu", dtype="float32", **arguments)


def assert_same(found: list[tuple[float, bool]], expected: list[tuple[float, bool]]) -> None:
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    torch.testing.assert_close(
        torch.tensor([value for value, _ in found]),
        torch.tensor([value for value, _ in expected]),
        atol=1e-4,
        rtol=0,
    )


def trace_of(answer: tuple[float, bool]) -> Trace:
    assert isinstance(answer, Likelihood)
    return answer.trace


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arm", [{"gate": "closed"}, {"gate": "open", "budget": 1}])
def test_a_full_cache_gives_the_likelihoods_of_hf(
    family: str, arm: dict[str, Any], tiny_folder: TinyFolder
) -> None:
    folder = tiny_folder(family)
    stock = hf(folder)
    # What greedy decoding would say is a choice, too, and so is a context that ends in a space.
    ids = torch.tensor([stock.tok_encode(CONTEXTS[0])])
    greedy = stock.tok_decode(stock.model(ids).logits[0, -1:].argmax(-1).tolist())
    asked = requests([*CONTEXTS, CONTEXTS[1] + " ", ""], [*CHOICES, greedy or "x"])
    expected = stock.loglikelihood(asked, disable_tqdm=True)
    assert_same(page_lm(folder, **arm).loglikelihood(asked, disable_tqdm=True), expected)


@pytest.mark.parametrize("compress", ["prompt", "context"])
def test_a_context_is_prefilled_once_for_all_its_choices(
    compress: str, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills = 0
    real = PromptPass.__init__

    def counted(self: PromptPass, *args: Any, **kwargs: Any) -> None:
        nonlocal prefills
        prefills += 1
        real(self, *args, **kwargs)

    monkeypatch.setattr(PromptPass, "__init__", counted)
    asked = requests(CONTEXTS, CHOICES)
    for request in asked:
        request.doc = {"context": request.args[0].removesuffix("The fox")}
    lm = page_lm(tiny_folder("llama"), gate="open", budget=0.5, compress=compress)
    answers = lm.loglikelihood(asked, disable_tqdm=True)
    assert prefills == len(CONTEXTS)
    assert len({id(trace_of(answer)) for answer in answers}) == len(CONTEXTS)
    assert len({value for value, _ in answers}) == len(asked)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("rows", [1, 3])
def test_evicted_caches_give_the_likelihoods_of_masking(family: str, rows: int) -> None:
    model, whole = tiny_model(family), random_prompt(LENGTH + 4)
    ids, last = whole[:, :LENGTH], whole[0, LENGTH:].tolist()
    config = PageConfig(budget=0.3, window=8, granularity="head")
    request = ContinuationRequest(
        (tuple(last), (last[0],), (5,), (*last[:3], 7), (last[0], 3)),
    )
    with attention.observing(model):
        filled = prefill(model, ids, window=8, room=4)
        caches, keeps = [], []
        for seed in range(rows):
            keep = positions_to_keep(Uneven(seed), filled, config)
            assert isinstance(keep, KeepPlan)
            cache = evict(filled, keep, 5, without_last=True)
            position = torch.tensor([[LENGTH - 1]])
            caches.append((cache, forward(model, ids[:, -1:], cache, position)[:, -1]))
            keeps.append(keep.members.expand(-1, model.config.num_key_value_heads, -1))
        found = score_continuations(model, caches, request, ids)
    for row, kept in zip(found, keeps, strict=True):
        for number, continuation in enumerate(request.continuations):
            expected, greedy = masked(tiny_model(family), ids, continuation, kept)
            assert row.log_likelihoods[number] == pytest.approx(expected, abs=1e-4)
            assert row.greedy[number] == greedy


def masked(
    model: Any, ids: Tensor, continuation: tuple[int, ...], keep: Tensor
) -> tuple[float, bool]:
    """The same from one pass over prompt and continuation, evicted positions hidden."""
    read = torch.cat([ids, torch.tensor([continuation[:-1]], dtype=torch.int64)], 1)
    logits = logits_with_hidden(model, read, keep, LENGTH)
    chances = logits.log_softmax(-1)
    value = sum(float(chances[i, token]) for i, token in enumerate(continuation))
    return value, logits.argmax(-1).tolist() == list(continuation)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_what_is_read_is_forgotten(family: str) -> None:
    model, ids = tiny_model(family), random_prompt(LENGTH + 3)
    with attention.observing(model):
        filled = prefill(model, ids[:, :LENGTH], window=8, room=3)
        before = [(layer.keys.clone(), layer.values.clone()) for layer in filled.cache.layers]
        with rewound(filled.cache):
            forward(model, ids[:, LENGTH:], filled.cache, torch.arange(LENGTH, LENGTH + 3)[None])
            assert filled.cache.layers[0].entries > before[0][0].shape[1] * LENGTH
    for layer, (keys, values) in zip(filled.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)


def test_a_gated_likelihood_is_the_plain_or_the_full_one(tiny_folder: TinyFolder) -> None:
    asked = requests(CONTEXTS, CHOICES)
    arm = {"evictor": "knorm", "budget": 0.4}
    folder = tiny_folder("llama")
    plain, full = (
        page_lm(folder, **arm, gate=gate).loglikelihood(asked, disable_tqdm=True)
        for gate in ("open", "closed")
    )
    drops = sorted(trace_of(answer).drop for answer in plain)
    tau = (drops[0] + drops[-1]) / 2
    lm = page_lm(folder, **arm, gate="page", tau=tau)
    gated = lm.loglikelihood(asked, disable_tqdm=True)
    opened = [trace_of(answer).gate_open for answer in gated]
    assert set(opened) == {True, False}
    assert gated == [p if is_open else f for p, f, is_open in zip(plain, full, opened, strict=True)]
    assert plain != full
    page = lm.get_model_info()["page"]
    assert page["samples"] == len(CONTEXTS)
    assert page["gates_open"] == sum(opened) // len(CHOICES)


def test_a_trace_holds_what_was_scored(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    lm = page_lm(tiny_folder("qwen2"), gate="open", budget=0.5, trace=str(tmp_path))
    asked = requests(CONTEXTS[:1], CHOICES)
    answers = lm.loglikelihood(asked, disable_tqdm=True)
    trace = trace_of(answers[0])
    assert trace.log_likelihoods == [value for value, _ in answers]
    assert trace.greedy == [greedy for _, greedy in answers]
    assert trace.new_tokens == 0
    assert trace.kept_kv == pytest.approx(0.5, abs=0.01)
    (line,) = Path(lm.get_model_info()["page"]["trace_file"]).read_text().splitlines()
    assert '"mean_token_entropy": null' in line


def test_two_types_of_request_are_one_run(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    lm = page_lm(tiny_folder("llama"), trace=str(tmp_path), pilot_size=3)
    generate = [
        Instance("generate_until", {}, (text, {"until": [], "max_gen_toks": 2}), 0, ("a", i, 1))
        for i, text in enumerate(CONTEXTS)
    ]
    lm.generate_until(generate, disable_tqdm=True)
    lm.loglikelihood(requests(CONTEXTS, CHOICES), disable_tqdm=True)
    page = lm.get_model_info()["page"]
    assert page["samples"] == 6
    assert {k: v["samples"] for k, v in page["by_request_type"].items()} == {
        "generate_until": 3,
        "loglikelihood": 3,
    }
    assert len(Path(page["trace_file"]).read_text().splitlines()) == 6
    lm.generate_until(generate, disable_tqdm=True)
    assert lm.get_model_info()["page"]["samples"] == 3


@pytest.mark.parametrize("truncation", ["left", None])
def test_a_context_that_is_too_long(truncation: str | None, tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("qwen2")
    asked = requests(CONTEXTS, CHOICES)
    lm = page_lm(folder, gate="closed", max_length=100, truncation=truncation)
    if truncation is None:
        with pytest.raises(UsageError, match="give truncation=left"):
            lm.loglikelihood(asked, disable_tqdm=True)
        return
    expected = hf(folder, max_length=100).loglikelihood(asked, disable_tqdm=True)
    assert_same(lm.loglikelihood(asked, disable_tqdm=True), expected)


def test_a_documents_second_context_is_no_part_of_the_pilot(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), gate="page")
    asked = requests(CONTEXTS, CHOICES[:2])
    # As for acc_mutual_info: the choices once more, without the question.
    alone = [
        Instance("loglikelihood", {}, ("", one.args[1]), one.idx, metadata=("task", one.doc_id, 1))
        for one in asked
    ]
    answers = lm.loglikelihood(asked + alone, disable_tqdm=True)
    page = lm.get_model_info()["page"]
    assert (page["samples"], page["pilot_n"]) == (6, 3)
    traces = [trace_of(answer) for answer in answers]
    places = {(trace.doc_id, trace.repeat): trace.prompt_tokens for trace in traces}
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(tokens == 1 for (_, repeat), tokens in places.items() if repeat == 1)
    pilot = [t.drop for t in traces[: len(asked) : 2]]
    mean = sum(pilot) / 3
    assert page["mu"] == pytest.approx(mean)


def test_a_context_without_tokens_is_an_error(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("qwen2"))
    with pytest.raises(UsageError, match="the context of task document 0 has no tokens"):
        lm.loglikelihood(requests([" "], [" yes"]), disable_tqdm=True)


def test_a_continuation_longer_than_the_model_is_an_error(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("qwen2"), max_length=20, truncation="left")
    with pytest.raises(UsageError, match="there are only 20 positions; leave the document out"):
        lm.loglikelihood(requests(CONTEXTS[:1], [" yes" * 40]), disable_tqdm=True)


@pytest.mark.parametrize("gate", ["retry", "oracle"])
def test_gates_that_read_answers_are_refused(gate: str, tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), gate=gate)
    with pytest.raises(UsageError, match=f"gate={gate} reads generated answers, but task asks"):
        lm.loglikelihood(requests(CONTEXTS, CHOICES), disable_tqdm=True)


def test_rolling_likelihoods_are_refused_with_the_reason(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"))
    asked = [Instance("loglikelihood_rolling", {}, ("text",), 0, metadata=("wiki", 0, 1))]
    with pytest.raises(UsageError, match="no prompt whose cache could lose entries"):
        lm.loglikelihood_rolling(asked)


def test_an_empty_continuation_is_an_error(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"))
    with pytest.raises(UsageError, match="a continuation of task document 0 is empty"):
        lm.loglikelihood(requests(CONTEXTS[:1], [""]), disable_tqdm=True)


def test_likelihoods_are_taken_in_the_dtype_asked_for() -> None:
    model = tiny_model("llama")
    ids = random_prompt(30)
    with attention.observing(model):
        filled = prefill(model, ids, window=8, room=4)
        of = {
            dtype: score_continuations(
                model,
                [(filled.cache, filled.logits)],
                ContinuationRequest(((5,),), dtype),
                ids,
            )[0].log_likelihoods[0]
            for dtype in (torch.float32, torch.float16)
        }
    for dtype, found in of.items():
        assert found == float(filled.logits.log_softmax(-1, dtype=dtype)[0, 5])
    assert of[torch.float32] != of[torch.float16]
