"""What is not a number, or not of the planned size, is an error and never a quiet result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, random_prompt, tiny_model, tiny_tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.engine import prefilled_prompt
from page_bench.engine.engine import Engine, Outcome
from page_bench.engine.prompt import Prompt
from page_bench.evictors.base.budget import kept_members
from page_bench.inputs.errors import UsageError
from page_bench.model import attention, keep_plan, support
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest
from page_bench.model.keep_plan import evict

attention.register()

LENGTH = 90


def answered(
    model: PreTrainedModel, *, length: int = LENGTH, request: Any = None, **arguments: Any
) -> Outcome:
    """One prompt of a tiny Llama under one arm."""
    if request is None:
        request = AnswerRequest(4, ("<|im_end|>",), {"do_sample": False})
    ids = tuple(random_prompt(length, 1)[0].tolist())
    asked = Prompt("niah", 7, 0, None, "prompt", ids, None, 0, request)
    config = PageConfig(**{"window": 8, "budget": 0.5, "gate": "open", **arguments})
    model.set_attn_implementation("page_sdpa")
    (outcome,), _ = Engine(model, tiny_tokenizer(FAMILIES["llama"].with_bos), config).run([asked])
    return outcome


def spoilt(part: Callable[[PreTrainedModel], Tensor], value: float = math.nan) -> PreTrainedModel:
    """A tiny Llama with one number of a weight that is none."""
    model = tiny_model("llama", tie_word_embeddings=False)
    part(model).data[0, 0] = value
    return model


def head(model: PreTrainedModel) -> Tensor:
    weight: Tensor = model.lm_head.weight
    return weight


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("gate", ["open", "closed"])
def test_logits_that_are_not_a_number_are_refused(value: float, gate: str) -> None:
    with pytest.raises(UsageError, match=r"^niah document 7: the model's logits are not a number"):
        answered(spoilt(head, value), gate=gate)


def test_no_token_is_drawn_from_what_is_not_a_number() -> None:
    drawn = AnswerRequest(4, ("<|im_end|>",), {"do_sample": True, "temperature": 0.7})
    with pytest.raises(UsageError, match=r"niah document 7: the model's logits are not a number"):
        answered(spoilt(head), request=drawn)


def test_likelihoods_that_are_not_a_number_are_refused() -> None:
    with pytest.raises(UsageError, match=r"niah document 7: the model's logits are not a number"):
        answered(spoilt(head), request=ContinuationRequest(((5, 6), (7,))))


def test_a_token_that_cannot_come_is_no_fault() -> None:
    banned = AnswerRequest(4, ("<|im_end|>",), {"do_sample": False, "suppress_tokens": [5, 6]})
    assert math.isfinite(answered(tiny_model("llama"), request=banned).answer.mean_token_entropy)


def test_scores_that_are_not_a_number_are_refused() -> None:
    model = spoilt(lambda model: model.model.layers[2].self_attn.v_proj.weight)
    with pytest.raises(UsageError, match=r"niah document 7: .*not a number"):
        answered(model, evictor="criticalkv(snapkv)")


ONE_LAYER: dict[str, Any] = {"gate": "page", "tau": 0.1, "gate_args": {"layer_stride": 4}}
"""D of one of four layers: there is nothing to compare."""


def test_a_gate_does_not_decide_by_what_is_not_a_number() -> None:
    with pytest.raises(UsageError, match=r"^niah document 7: gate=page reads drop, which is not"):
        answered(tiny_model("llama"), **ONE_LAYER)


def test_what_is_too_short_to_lose_anything_needs_no_signal() -> None:
    outcome = answered(tiny_model("llama"), length=14, n_sink=4, recent=8, **ONE_LAYER)
    assert (outcome.gate_open, outcome.answer.kept_kv) == (False, 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros_like,
        torch.ones_like,
        lambda members: members.flip(-1),
        lambda members: members & (torch.arange(members.shape[-1]) > 0),
    ],
    ids=["empty", "full", "reversed", "without the first"],
)
def test_keep_sets_other_than_counted_out_are_a_fault(
    wrong: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_plan, "kept_members", lambda *given: wrong(kept_members(*given)))
    with pytest.raises(RuntimeError, match="a fault of page-bench"):
        answered(tiny_model("llama"))


@pytest.mark.parametrize(
    "arm", [{"evictor": "snapkv"}, {"evictor": "adakv(snapkv)", "granularity": "head"}]
)
def test_a_cache_of_another_size_than_planned_is_a_fault(
    arm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(tiny_model("llama"), **arm)
    # The last token's entry is left in, and then read again.
    monkeypatch.setattr(
        prefilled_prompt, "evict", lambda filled, keep, room, _: evict(filled, keep, room, False)
    )
    with pytest.raises(RuntimeError, match=r"the cache holds \d+ entries after 90 tokens"):
        answered(tiny_model("llama"), **arm)


def test_a_layer_that_attends_elsewhere_while_decoding_is_refused() -> None:
    model = tiny_model("llama")
    own = model.model.layers[2].self_attn
    forward = own.forward

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        """A kernel of its own for single tokens, as some families have."""
        if kwargs["hidden_states"].shape[1] == 1:
            del kwargs["page_cache"]
        return forward(*args, **kwargs)

    own.forward = elsewhere
    with pytest.raises(UsageError, match=r"LlamaForCausalLM read its cache .* in 3 of its 4"):
        answered(model)


def whole(model: PreTrainedModel) -> Any:
    return torch.compile(model, backend="eager")


def forward_alone(model: PreTrainedModel) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def one_layer(model: PreTrainedModel) -> Any:
    model.model.layers[1].compile(backend="eager")
    return model


@pytest.mark.parametrize("compiled", [whole, forward_alone, one_layer])
def test_compiled_models_are_refused(compiled: Callable[[PreTrainedModel], Any]) -> None:
    model = tiny_model("llama")
    support.check_model(model)
    with pytest.raises(UsageError, match=r"is compiled .*give the model as it was loaded"):
        support.check_model(compiled(model))


def test_entropy_is_of_what_a_token_is_chosen_from() -> None:
    alone = AnswerRequest(
        4, ("<|im_end|>",), {"do_sample": False, "suppress_tokens": [*range(6), *range(7, 300)]}
    )
    answer = answered(tiny_model("llama"), request=alone).answer
    assert answer.answer_ids == [6] * 4
    assert answer.mean_token_entropy == 0
