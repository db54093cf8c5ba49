"""Rotations of every kind below, across and above the original length, against transformers'."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import random_prompt, randomised, small_config, tiny_tokenizer
from torch import nn
from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.engine.engine import Engine
from page_bench.engine.prefilled_prompt import ArmAnswer
from page_bench.engine.prompt import Prompt
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest
from page_bench.model.rotation import Rotation, check_rotation

ORIGINAL = 64
NEW_TOKENS = 10
LENGTHS = {"above": 80, "below": 40, "across": 60}
"""The longest first: what it leaves behind must not reach the others."""
THETA, FACTOR, HEAD_DIM = 10_000.0, 4.0, 16
SCALED: dict[str, Any] = {"rope_theta": THETA, "factor": FACTOR}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", **SCALED}
SHORT, LONG = [1 + i / 50 for i in range(8)], [1.5 + 0.8 * i for i in range(8)]
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": THETA,
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": ORIGINAL,
}
PHI: dict[str, Any] = {"max_position_embeddings": 256, "original_max_position_embeddings": ORIGINAL}
GEMMA: dict[str, Any] = {
    "sliding_window": 32,
    "query_pre_attn_scalar": HEAD_DIM,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
ALIKE = {"rope_type": "default", "rope_theta": 1000.0}


def llama(positions: int = 256, **parameters: Any) -> tuple[str, dict[str, Any]]:
    return "llama", {
        "max_position_embeddings": positions,
        "rope_parameters": {"rope_theta": THETA, **parameters},
    }


def gemma(positions: int = 256, **parameters: Any) -> tuple[str, dict[str, Any]]:
    by_type = {"full_attention": parameters, "sliding_attention": ALIKE}
    return "gemma3_text", {
        **GEMMA,
        "max_position_embeddings": positions,
        "rope_parameters": by_type,
    }


YARN: dict[str, Any] = {"rope_type": "yarn", **SCALED, "original_max_position_embeddings": ORIGINAL}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama default": llama(rope_type="default"),
    "llama linear": llama(rope_type="linear", **SCALED),
    "llama yarn": llama(**YARN),
    "llama llama3": llama(
        **{**YARN, "rope_type": "llama3"}, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "llama dynamic": llama(ORIGINAL, **DYNAMIC),
    "llama longrope": llama(**LONGROPE, factor=FACTOR),
    "phi3 longrope": ("phi3", {**PHI, "sliding_window": None, "rope_parameters": LONGROPE}),
    "phimoe longrope": (
        "phimoe",
        {**PHI, "rope_parameters": {**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.4}},
    ),
    "phi dynamic, partial": (
        "phi",
        {
            "max_position_embeddings": ORIGINAL,
            "rope_parameters": {**DYNAMIC, "partial_rotary_factor": 0.5},
        },
    ),
    "gemma3 linear by layer type": gemma(rope_type="linear", **SCALED),
    "gemma3 dynamic by layer type": gemma(ORIGINAL, **DYNAMIC),
    "deepseek yarn, latent": (
        "deepseek_v3",
        {"max_position_embeddings": 256, "rope_parameters": YARN},
    ),
    "hunyuan dynamic, alpha": (
        "hunyuan_v1_dense",
        {"max_position_embeddings": ORIGINAL, "rope_parameters": {**DYNAMIC, "alpha": 1000.0}},
    ),
}
CHANGING = [
    name
    for name in CONFIGURATIONS
    if ("dynamic" in name and "alpha" not in name) or "longrope" in name
]


@cache
def fresh(name: str) -> PreTrainedModel:
    model_type, changes = CONFIGURATIONS[name]
    return randomised(small_config(model_type, **copy.deepcopy(changes)))


def still(name: str, length: int) -> PreTrainedModel:
    """A model of the same weights that rotates every sequence as this one does one of `length`."""
    model_type, given = CONFIGURATIONS[name]
    changes = copy.deepcopy(given)
    parameters = changes["rope_parameters"]
    if model_type == "gemma3_text":
        parameters = parameters["full_attention"]
    if parameters["rope_type"] == "longrope":
        kept, other = ("long", "short") if length > ORIGINAL else ("short", "long")
        # transformers' PhiMoE has the short frequencies at any length, and scales them.
        word = "mscale" if model_type == "phimoe" else "factor"
        parameters[f"{other}_{word}"] = parameters[f"{kept}_{word}"]
    elif length > ORIGINAL:
        # NTK-aware scaling, by its formula.
        turning = HEAD_DIM * parameters.get("partial_rotary_factor", 1.0)
        stretch = FACTOR * length / ORIGINAL - (FACTOR - 1)
        parameters["rope_theta"] = THETA * stretch ** (turning / (turning - 2))
        parameters["rope_type"] = "default"
    else:
        parameters["rope_type"] = "default"
    return randomised(small_config(model_type, **changes))


def token_ids(length: int) -> list[int]:
    ids: list[int] = (random_prompt(length, seed=length) % 90 + 5)[0].tolist()
    return ids


def prompt_of(ids: Sequence[int], **changes: Any) -> Prompt:
    greedy = {"do_sample": False, "min_new_tokens": NEW_TOKENS}
    values: dict[str, Any] = {
        "task": "t",
        "doc_id": len(ids),
        "repeat": 0,
        "protocol": None,
        "text": str(ids),
        "input_ids": tuple(ids),
        "context_tokens": None,
        "truncated_tokens": 0,
        "request": AnswerRequest(NEW_TOKENS, (), greedy),
    }
    return Prompt(**{**values, **changes})


def answers(model: PreTrainedModel, prompts: Sequence[Prompt], **arguments: Any) -> list[ArmAnswer]:
    arm = {"evictor": "streamingllm", "recent": 4, "window": 8, "budget": 0.5, **arguments}
    engine = Engine(model, tiny_tokenizer(False), PageConfig.from_arguments(arm))
    with attention.observing(model):
        # One by one: the engine itself takes the longest first.
        return [engine.run([prompt])[0][0].answer for prompt in prompts]


def generated(model: PreTrainedModel, ids: Sequence[int]) -> list[int]:
    """By transformers' `generate`, on this prompt alone in a model that has seen nothing."""
    given = torch.tensor([ids])
    out = copy.deepcopy(model).generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
    )
    said: list[int] = out[0, len(ids) :].tolist()
    return said


def equal_to_generate(name: str, **arguments: Any) -> dict[str, bool]:
    """By place, whether prompts of `LENGTHS`, answered one after the other, are as in `hf`."""
    prompts = [token_ids(length) for length in LENGTHS.values()]
    # A prompt that leaves longer frequencies behind than the next one has.
    asked = [prompt_of(ids) for ids in [token_ids(100), *prompts]]
    found = answers(copy.deepcopy(fresh(name)), asked, **arguments)[1:]
    return {
        place: answer.answer_ids == generated(fresh(name), ids)
        for place, answer, ids in zip(LENGTHS, found, prompts, strict=True)
    }


@pytest.mark.parametrize("arm", [{"gate": "closed"}, {"gate": "open", "budget": 1}])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_full_cache_is_generate_at_any_length_whatever_came_before(
    name: str, arm: dict[str, Any]
) -> None:
    assert equal_to_generate(name, **arm) == dict.fromkeys(LENGTHS, True)


@pytest.mark.parametrize("name", CHANGING)
def test_an_evicted_cache_keeps_the_rotation_of_its_prompt(name: str) -> None:
    prompts = [prompt_of(token_ids(length)) for length in LENGTHS.values()]
    found = answers(copy.deepcopy(fresh(name)), prompts, gate="open")
    for answer, prompt in zip(found, prompts, strict=True):
        (expected,) = answers(still(name, len(prompt.input_ids)), [prompt], gate="open")
        assert answer.answer_ids == expected.answer_ids
        assert answer.mean_token_entropy == pytest.approx(expected.mean_token_entropy, abs=1e-4)
        assert answer.kept_all_because is None
    changed = dict(zip(LENGTHS, [answer.rotation_changed for answer in found], strict=True))
    assert changed == {"above": "dynamic" in name, "below": False, "across": True}


@pytest.mark.parametrize("name", ["llama dynamic", "phi3 longrope"])
def test_arms_decoded_together_answer_as_alone(name: str) -> None:
    prompt = prompt_of(token_ids(60))
    model = copy.deepcopy(fresh(name))
    arms = [
        PageConfig.from_arguments(
            {"evictor": "streamingllm", "recent": 4, "window": 8, "budget": budget, "gate": "open"}
        )
        for budget in (0.3, 0.5)
    ]
    engine = Engine(model, tiny_tokenizer(False), arms[0])
    with attention.observing(model):
        at_hand = engine._prefilled(prompt, arms, arms[:1])
        together = at_hand.answers([*arms, None], last=True)
    assert [answer.decode_rows for answer in together] == [2, 2, 1]
    for arm, answer in zip(arms, together, strict=False):
        (alone,) = answers(still(name, 60), [prompt], gate="open", budget=arm.budget)
        assert answer.answer_ids == alone.answer_ids
    assert together[2].answer_ids == generated(fresh(name), prompt.input_ids)


@pytest.mark.parametrize("name", CHANGING)
def test_a_question_read_afterwards_has_the_rotation_of_the_whole_prompt(name: str) -> None:
    ids = token_ids(80)
    prompt = prompt_of(ids, context_tokens=50)
    (closed,) = answers(copy.deepcopy(fresh(name)), [prompt], gate="closed", compress="context")
    assert closed.answer_ids == generated(fresh(name), ids)
    (evicted,) = answers(copy.deepcopy(fresh(name)), [prompt], gate="open", compress="context")
    (expected,) = answers(still(name, 80), [prompt], gate="open", compress="context")
    assert evicted.answer_ids == expected.answer_ids


@pytest.mark.parametrize("name", CHANGING)
def test_continuations_have_the_likelihood_that_one_pass_over_the_whole_gives(name: str) -> None:
    ids = token_ids(62)
    continuations = ((7,), (9, 20), (9, 20, 31, 42, 53, 64))
    prompt = prompt_of(ids, request=ContinuationRequest(continuations))
    # A longer prompt first.
    before = prompt_of(token_ids(90))
    _, closed = answers(copy.deepcopy(fresh(name)), [before, prompt], gate="closed")
    expected = []
    for one in continuations:
        with torch.inference_mode():
            logits = copy.deepcopy(fresh(name))(torch.tensor([[*ids, *one[:-1]]])).logits[0]
        chances = logits[len(ids) - 1 :].log_softmax(-1)
        expected.append(float(sum(chances[i, token] for i, token in enumerate(one))))
    assert closed.log_likelihoods == pytest.approx(expected, abs=1e-3)
    assert closed.rotation_changed is True
    _, evicted = answers(copy.deepcopy(fresh(name)), [before, prompt], gate="open")
    (alone,) = answers(still(name, 62), [prompt], gate="open")
    assert evicted.log_likelihoods == pytest.approx(alone.log_likelihoods, abs=1e-3)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_model_is_left_as_one_that_has_seen_nothing(name: str) -> None:
    model = copy.deepcopy(fresh(name))
    expected = dict(fresh(name).named_buffers())
    answers(model, [prompt_of(token_ids(80))], gate="open")
    found = dict(model.named_buffers())
    assert set(found) >= set(expected)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
        # transformers writes into some of them outside inference mode.
        assert not found[key].is_inference()
    assert generated(model, token_ids(60)) == generated(fresh(name), token_ids(60))


def test_the_lengths_at_which_rotations_change() -> None:
    static, longrope, ntk = (
        Rotation(fresh(f"llama {kind}")) for kind in ("yarn", "longrope", "dynamic")
    )
    assert static.original_lengths == {}
    assert longrope.original_lengths == {"longrope": 64}
    assert ntk.original_lengths == {"dynamic": 64}
    assert Rotation(fresh("hunyuan dynamic, alpha")).original_lengths == {}
    assert [static.change(60, 1000), longrope.change(60, 64)] == [None, None]
    assert [longrope.change(60, 70), longrope.change(65, 70)] == [65, None]
    assert [ntk.change(60, 70), ntk.change(65, 70), ntk.change(65, 65)] == [65, 66, None]


def test_a_changing_rotation_in_code_of_its_own_is_refused() -> None:
    text = fresh("llama dynamic").config
    check_rotation(fresh("llama dynamic"), text)
    check_rotation(nn.Linear(2, 2), fresh("llama yarn").config)
    with pytest.raises(UsageError, match="rotates by rope_type=dynamic, which changes with length"):
        check_rotation(nn.Linear(2, 2), text)
