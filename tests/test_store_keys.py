"""Keys of the run store: another one for all that may change an answer, and only for that."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from store_examples import ARM, MODEL, differs, prompt
from tiny_models import tiny_model, tiny_tokenizer

from page_bench.config import PageConfig
from page_bench.engine import keys as store_keys
from page_bench.engine import prefilled_prompt
from page_bench.engine.checksums import tensor_checksum, tokenizer_checksum, weights_checksum
from page_bench.engine.keys import StoredModel, answer_key, seen_key
from page_bench.inputs.errors import UsageError
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest
from page_bench.records.store.key import canonical_json

SAMPLED = AnswerRequest(8, ("</s>",), {"do_sample": True, "temperature": 0.7})

OF_MODEL: dict[str, Any] = {
    "fingerprint": replace(MODEL.fingerprint, configuration="d" * 64),
    "weights": "0" * 64,
    "dtype": "bfloat16",
    "attn_implementation": "eager",
    "tokenizer": "u" * 64,
    "setting": {**MODEL.setting, "versions": {"torch": "2.14.0"}},
    "adapters": {"default": {"lora_alpha": 16}},
}
OF_PROMPT: dict[str, Any] = {
    "text": "Another text of the same tokens",
    "input_ids": (7, *prompt().input_ids[1:]),
    "context_tokens": 4,
}
OF_REQUEST: dict[str, Any] = {
    "max_new_tokens": 9,
    "stop": ("</s>", "\n"),
    "arguments": {"do_sample": False, "repetition_penalty": 1.1},
}
OF_OBSERVATION: dict[str, Any] = {
    "window": 16,
    "top_k": 16,
    "gate_args": {"bins": "half"},
    "signals": "all",
}
OF_EVICTION: dict[str, Any] = {
    "evictor": "knorm",
    "evictor_args": {"kernel_size": 7},
    "granularity": "head",
    "score_norm": "zscore",
    "budget": 0.5,
    "n_sink": 8,
    "window": 16,
    "recent": 16,
}
# What neither a prefill nor a plain answer depends on, beside what the prompt itself carries:
# `compress` as its context's length, `truncation` as its tokens.
DECIDING_LATER: dict[str, Any] = {
    "gate": "open",
    "tau": 0.3,
    "theta_z": 0.5,
    "open_rate": 0.3,
    "pilot_size": 7,
    "calibration": "calibration.json",
    "calibration_mismatch": "warn",
    "compress": "context",
    "truncation": "left",
    "trace": "traces",
    "store": "other.sqlite",
    "doc_ids": {"page_vt": [3]},
}


@pytest.mark.parametrize("name", OF_MODEL)
def test_all_of_the_model_enters_both_keys(name: str) -> None:
    other = replace(MODEL, **{name: OF_MODEL[name]})
    assert differs(seen_key(other, prompt(), ARM), seen_key(MODEL, prompt(), ARM))
    for arm in (ARM, None):
        assert differs(answer_key(other, prompt(), arm), answer_key(MODEL, prompt(), arm))


def test_no_fact_of_the_model_is_forgotten() -> None:
    assert {f.name for f in dataclasses.fields(StoredModel)} == {*OF_MODEL, "name", "generation"}


@pytest.mark.parametrize("name", OF_PROMPT)
def test_all_of_the_prompt_that_a_model_reads_enters_both_keys(name: str) -> None:
    other = prompt(**{name: OF_PROMPT[name]})
    assert differs(seen_key(MODEL, other, ARM), seen_key(MODEL, prompt(), ARM))
    for arm in (ARM, None):
        assert differs(answer_key(MODEL, other, arm), answer_key(MODEL, prompt(), arm))


@pytest.mark.parametrize("name", OF_REQUEST)
def test_how_an_answer_is_decoded_enters_its_key_alone(name: str) -> None:
    other = prompt(request=replace(prompt().request, **{name: OF_REQUEST[name]}))
    assert not differs(seen_key(MODEL, other, ARM), seen_key(MODEL, prompt(), ARM))
    for arm in (ARM, None):
        assert differs(answer_key(MODEL, other, arm), answer_key(MODEL, prompt(), arm))


def test_the_model_s_own_generation_config_takes_part() -> None:
    other = replace(MODEL, generation={"eos_token_id": [2, 3]})
    assert not differs(seen_key(other, prompt(), ARM), seen_key(MODEL, prompt(), ARM))
    assert differs(answer_key(other, prompt(), ARM), answer_key(MODEL, prompt(), ARM))


@pytest.mark.parametrize("name", OF_OBSERVATION)
def test_how_signals_are_taken_enters_the_key_of_a_prefill(name: str) -> None:
    other = replace(ARM, **{name: OF_OBSERVATION[name]})
    assert differs(seen_key(MODEL, prompt(), other), seen_key(MODEL, prompt(), ARM))


def test_a_gate_that_reads_another_signal_finds_no_prefill_without_it() -> None:
    other = replace(ARM, gate="entropy_norm", tau=0.5)
    assert differs(seen_key(MODEL, prompt(), other), seen_key(MODEL, prompt(), ARM))


@pytest.mark.parametrize("name", OF_EVICTION)
def test_all_of_an_eviction_enters_the_key_of_its_answer(name: str) -> None:
    other = replace(ARM, **{name: OF_EVICTION[name]})
    assert differs(answer_key(MODEL, prompt(), other), answer_key(MODEL, prompt(), ARM))


def test_eviction_enters_neither_the_prefill_nor_the_full_cache() -> None:
    others = {k: v for k, v in OF_EVICTION.items() if k != "window"}
    for name, value in others.items():
        other = replace(ARM, **{name: value})
        assert not differs(seen_key(MODEL, prompt(), other), seen_key(MODEL, prompt(), ARM)), name
    assert differs(answer_key(MODEL, prompt(), None), answer_key(MODEL, prompt(), ARM))


@pytest.mark.parametrize("name", DECIDING_LATER)
def test_what_decides_later_is_no_part_of_a_key(name: str) -> None:
    other = replace(ARM, **{name: DECIDING_LATER[name]})
    assert not differs(seen_key(MODEL, prompt(), other), seen_key(MODEL, prompt(), ARM))
    assert not differs(answer_key(MODEL, prompt(), other), answer_key(MODEL, prompt(), ARM))


def test_every_setting_of_a_run_has_its_place_in_these_tests() -> None:
    known = {*OF_OBSERVATION, *OF_EVICTION, *DECIDING_LATER}
    assert {f.name for f in dataclasses.fields(PageConfig)} == known


def test_one_arm_written_in_several_ways_has_one_key() -> None:
    base = answer_key(MODEL, prompt(), ARM)
    spelled_out = replace(ARM, recent=ARM.window, evictor=" snapkv ", gate="closed")
    assert not differs(answer_key(MODEL, prompt(), spelled_out), base)
    defaults = dataclasses.asdict(ARM.make_evictor())
    given = {"kernel_size": defaults["kernel_size"]}
    assert not differs(answer_key(MODEL, prompt(), replace(ARM, evictor_args=given)), base)
    whole, real = replace(ARM, budget=1), replace(ARM, budget=1.0)
    assert answer_key(MODEL, prompt(), whole) == answer_key(MODEL, prompt(), real)
    # The default depends on the granularity, and is then another method.
    assert ARM.make_evictor() != replace(ARM, granularity="layer").make_evictor()


def test_a_wrapper_and_its_base_enter_by_their_options() -> None:
    def arm(**options: object) -> PageConfig:
        return replace(ARM, evictor="adakv(snapkv)", granularity="head", evictor_args=options)

    base = answer_key(MODEL, prompt(), arm())
    assert differs(answer_key(MODEL, prompt(), arm(floor_alpha=0.3)), base)
    assert differs(answer_key(MODEL, prompt(), arm(**{"base.kernel_size": 7})), base)
    assert differs(answer_key(MODEL, prompt(), replace(arm(), evictor="adakv(knorm)")), base)


def test_seeds_count_where_tokens_are_drawn() -> None:
    greedy, drawn = prompt(), prompt(request=SAMPLED)
    again, drawn_again = replace(greedy, repeat=1), replace(drawn, repeat=1)
    assert not differs(answer_key(MODEL, again, ARM, 1), answer_key(MODEL, greedy, ARM, 0))
    assert differs(answer_key(MODEL, drawn_again, ARM), answer_key(MODEL, drawn, ARM))
    assert differs(answer_key(MODEL, drawn, ARM, 1), answer_key(MODEL, drawn, ARM, 0))
    # A published generation config may ask for it.
    model = replace(MODEL, generation={"do_sample": True})
    unsaid = prompt(request=replace(SAMPLED, arguments={}))
    assert differs(answer_key(model, unsaid, ARM, 1), answer_key(model, unsaid, ARM, 0))


def test_another_version_of_the_numerics_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = seen_key(MODEL, prompt(), ARM), answer_key(MODEL, prompt(), ARM)
    monkeypatch.setattr(store_keys, "NUMERICS_VERSION", store_keys.NUMERICS_VERSION + 1)
    after = seen_key(MODEL, prompt(), ARM), answer_key(MODEL, prompt(), ARM)
    assert all(differs(a, b) for a, b in zip(after, before, strict=True))


def test_another_form_of_the_record_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer_key(MODEL, prompt(), ARM)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Longer(prefilled_prompt.ArmAnswer):
        further: int

    monkeypatch.setattr(store_keys, "ArmAnswer", Longer)
    assert differs(answer_key(MODEL, prompt(), ARM), before)


def test_the_same_prompt_of_another_task_is_answered_once() -> None:
    other = prompt(task="page_other", doc_id=5, protocol="paper", truncated_tokens=3)
    assert answer_key(MODEL, other, ARM) == answer_key(MODEL, prompt(), ARM)
    renamed = replace(MODEL, name="/models/tiny")
    assert answer_key(renamed, prompt(), ARM) == answer_key(MODEL, prompt(), ARM)


def test_arguments_that_cannot_be_compared_are_refused() -> None:
    request = replace(SAMPLED, arguments={"streamer": object()})
    with pytest.raises(UsageError, match="leave store out"):
        _ = answer_key(MODEL, prompt(request=request), ARM).digest


def test_equal_values_have_one_text() -> None:
    assert canonical_json({"b": 1.0, "a": {2, 1}}) == canonical_json({"a": {1, 2}, "b": 1})
    assert canonical_json(True) != canonical_json(1)
    assert canonical_json(0.1) != canonical_json(0.1 + 2**-56)
    assert canonical_json(None) != canonical_json(float("nan"))


def facts(model: Any, tokenizer: Any = None) -> StoredModel:
    return StoredModel.of(
        model,
        tokenizer or tiny_tokenizer(with_bos=True),
        name="tiny",
        dtype="float32",
        attn_implementation="sdpa",
    )


def test_the_same_model_loaded_twice_has_the_same_facts() -> None:
    assert facts(tiny_model("llama")) == facts(tiny_model("llama"))
    key = answer_key(facts(tiny_model("llama")), prompt(), ARM)
    assert len(key.digest) == 64


def test_a_change_of_any_one_weight_is_seen() -> None:
    model = tiny_model("llama")
    before = weights_checksum(model, "tiny")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        flat = parameter.detach().view(-1)
        place = int(torch.randint(len(flat), (), generator=generator))
        kept = flat[place].clone()
        flat[place] = torch.nextafter(kept, torch.tensor(torch.inf))
        assert weights_checksum(model, "tiny") != before
        flat[place] = kept
    assert weights_checksum(model, "tiny") == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [0, 1, 1000, 2**16 + 1, 2**17])
def test_exchanged_numbers_are_seen_too(size: int, dtype: torch.dtype) -> None:
    numbers = torch.arange(size).remainder(251).to(dtype)
    other = numbers.flip(0)
    assert tensor_checksum(numbers.clone()) == tensor_checksum(numbers)
    assert (tensor_checksum(other) != tensor_checksum(numbers)) == (size > 1)


def test_a_generation_config_and_a_class_are_facts() -> None:
    model = tiny_model("llama")
    before = facts(model)
    model.generation_config.repetition_penalty = 1.3
    after = facts(model)
    assert after.generation != before.generation
    assert after.part == before.part
    assert "LlamaForCausalLM" in before.setting["class"]


def test_an_adapter_is_part_of_the_model_with_its_scale() -> None:
    def adapted(alpha: int) -> StoredModel:
        torch.manual_seed(0)
        config = LoraConfig(r=2, lora_alpha=alpha, target_modules=["q_proj"])
        return facts(get_peft_model(tiny_model("llama"), config))

    keys = [answer_key(adapted(alpha), prompt(), ARM).digest for alpha in (4, 4, 8)]
    assert keys[0] == keys[1] != keys[2]
    assert answer_key(facts(tiny_model("llama")), prompt(), ARM).digest not in keys


def test_the_precision_of_matrix_products_is_a_fact() -> None:
    before = facts(tiny_model("llama"))
    torch.set_float32_matmul_precision("medium")
    try:
        assert facts(tiny_model("llama")) != before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_tokenizer_is_known_by_what_it_does_to_text() -> None:
    tokenizer = tiny_tokenizer(with_bos=True)
    before = tokenizer_checksum(tokenizer)
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_checksum(tokenizer) == before
    assert tokenizer_checksum(tiny_tokenizer(with_bos=False)) != before
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_checksum(tokenizer) != before


def test_all_of_a_request_for_likelihoods_enters_its_key() -> None:
    asked = replace(prompt(), request=ContinuationRequest(((5, 6), (7,))))
    others = (
        ContinuationRequest(((5, 6), (8,))),
        ContinuationRequest(((5, 6), (7,)), torch.float16),
    )
    keys = {answer_key(MODEL, replace(asked, request=one), None).digest for one in others}
    assert len(keys | {answer_key(MODEL, asked, None).digest}) == 3
