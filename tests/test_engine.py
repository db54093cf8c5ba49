"""Answers: full equals `generate`, removal equals masking, gated is plain or full."""

from __future__ import annotations

import dataclasses
import gc
import math
from typing import Any, ClassVar

import pytest
import reference
import torch
from evictor_arms import CHECKPOINT_EVICTORS, arms
from tiny_models import FAMILIES, random_prompt, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.engine.engine import Engine, Outcome
from page_bench.engine.prompt import Prompt
from page_bench.evictors.base import Evictor, Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.h2o import H2O
from page_bench.gating.threshold import Threshold, zscore_threshold
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.decode import AnswerRequest, Decoded, Row, decode, decoding_rules
from page_bench.model.keep_plan import KeepPlan, evict, positions_to_keep
from page_bench.model.prefill import forward, prefill
from page_bench.model.scoring import Scorer

attention.register()

NEW = 12
LENGTH = 220
SMALL = {"window": 16, "budget": 0.25}


def observed(family: str) -> PreTrainedModel:
    model = tiny_model(family)
    model.set_attn_implementation("page_sdpa")
    return model


def prompt(
    seed: int, length: int = LENGTH, context_tokens: int | None = None, **arguments: Any
) -> Prompt:
    ids = random_prompt(length, seed)[0].tolist()
    request = AnswerRequest(NEW, ("<|im_end|>",), {"do_sample": False, **arguments})
    return Prompt("task", seed, 0, None, f"prompt {seed}", tuple(ids), context_tokens, 0, request)


def engine(family: str, **arguments: Any) -> Engine:
    tokenizer = tiny_tokenizer(FAMILIES[family].with_bos)
    return Engine(observed(family), tokenizer, PageConfig(**{**SMALL, **arguments}))


def run(arm: Engine, prompts: list[Prompt]) -> tuple[list[Outcome], Threshold | None]:
    """Outcomes, and τ with its origin."""
    outcomes, decided = arm.run(prompts)
    return outcomes, decided.threshold


def shared(keep: KeepPlan | str) -> list[int]:
    """The positions of the one keep set of all layers and heads."""
    assert isinstance(keep, KeepPlan)
    assert keep.members.shape[:2] == (1, 1)
    positions: list[int] = keep.members[0, 0].nonzero().squeeze(-1).tolist()
    return positions


def answers(outcomes: list[Outcome]) -> list[list[int]]:
    return [outcome.answer.answer_ids for outcome in outcomes]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arm", [{"gate": "closed"}, {"gate": "open", "budget": 1.0}])
@pytest.mark.parametrize("generation", [{}, {"repetition_penalty": 1.3}])
def test_full_cache_answers_equal_generate(
    family: str, arm: dict[str, Any], generation: dict[str, Any]
) -> None:
    stock = tiny_model(family)
    prompts = [prompt(seed, length, **generation) for seed, length in enumerate((1, 30, 41, 220))]
    outcomes, _ = run(engine(family, **arm), prompts)
    for given, outcome in zip(prompts, outcomes, strict=True):
        ids = torch.tensor([given.input_ids])
        expected = stock.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=stock.config.pad_token_id,
            **generation,
        )
        assert outcome.answer.answer_ids == expected[0, ids.shape[1] :].tolist()
        assert outcome.answer.kept_kv == 1.0
        assert outcome.answer.kept_all_because is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_removing_entries_equals_masking_them(family: str) -> None:
    model = observed(family)
    ids = random_prompt(LENGTH)
    config = PageConfig(**SMALL)  # type: ignore[arg-type]
    filled = prefill(model, ids, window=config.window, room=NEW)
    keep = positions_to_keep(config.make_evictor(), filled, config)
    assert isinstance(keep, KeepPlan)
    cache = evict(filled, keep, NEW + 1, without_last=True)
    logits = forward(model, ids[:, -1:], cache, torch.tensor([[LENGTH - 1]]))[:, -1]
    tokens, expected = reference.greedy_with_mask(tiny_model(family), ids, shared(keep), NEW)
    torch.testing.assert_close(logits[0], expected[0], atol=1e-4, rtol=1e-4)
    request = AnswerRequest(NEW, (), {"do_sample": False, "eos_token_id": None})
    tokenizer = tiny_tokenizer(FAMILIES[family].with_bos)
    rules = decoding_rules(model, tokenizer, ids, request)
    (answer,) = decode(model, [Row(cache, logits, rules, 0)], ids, NEW)
    assert answer.ids == tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_question_is_read_through_the_compressed_context(family: str) -> None:
    context = 190
    eos: dict[str, Any] = {"eos_token_id": None}
    model, ids = tiny_model(family), torch.tensor([prompt(0).input_ids])
    full = prompt(0, context_tokens=context, **eos)
    arm = engine(family, gate="open")
    (plain,), _ = run(arm, [full])
    expected_keep = reference.keep_positions(
        "snapkv",
        reference.eager_attentions(model, ids[:, :context]),
        0.25,
        recent=16,
        window=16,
    )
    expected = reference.greedy_after_context(model, ids, context, expected_keep, NEW)
    assert plain.answer.answer_ids == expected
    # Of the context a quarter is kept, and all of the question.
    assert plain.answer.kept_tokens == len(expected_keep) + LENGTH - context == 47 + 30
    assert plain.answer.kept_kv == plain.answer.kept_tokens / LENGTH
    assert plain.answer.kv_bytes_kept / plain.seen.kv_bytes_full == pytest.approx(
        plain.answer.kept_kv
    )
    # D is the context's own.
    (alone,), _ = run(arm, [prompt(0, **eos)])
    window = reference.eager_attention_window(model, ids[:, :context], 16)
    assert plain.seen.drop == pytest.approx(reference.head_agreement_drop(window, 32), abs=1e-5)
    assert plain.seen.drop != alone.seen.drop


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arm", [{"gate": "closed"}, {"gate": "open", "budget": 1.0}])
def test_a_question_read_after_a_full_context_changes_nothing(
    family: str, arm: dict[str, Any]
) -> None:
    whole = run(engine(family, gate="closed"), [prompt(seed) for seed in range(3)])[0]
    split = [prompt(seed, context_tokens=100 + 59 * seed) for seed in range(3)]
    outcomes = run(engine(family, **arm), split)[0]
    assert answers(outcomes) == answers(whole)
    assert [outcome.answer.kept_kv for outcome in outcomes] == [1, 1, 1]
    assert [outcome.seen.kv_bytes_full for outcome in outcomes] == [
        outcome.seen.kv_bytes_full for outcome in whole
    ]


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("budget", [0.0625, 0.25, 0.7])
@pytest.mark.parametrize(
    ("evictor", "options"),
    [
        ("snapkv", {}),
        ("h2o", {}),
        ("pyramidkv", {}),
        ("streamingllm", {}),
        ("streamingllm", {"fill": False}),
    ],
)
def test_kept_positions_equal_the_reference(
    family: str, budget: float, evictor: str, options: dict[str, Any]
) -> None:
    model = observed(family)
    ids = random_prompt(LENGTH, seed=5)
    config = PageConfig(evictor=evictor, evictor_args=options, budget=budget, window=16, recent=20)
    filled = prefill(model, ids, window=16, room=1, scorers=[Scorer(config.make_evictor(), 0)])
    keep = positions_to_keep(config.make_evictor(), filled, config)
    expected = reference.keep_positions(
        evictor,
        reference.eager_attentions(model, ids),
        budget,
        n_sink=4,
        recent=20,
        window=16,
        fill=options.get("fill", True),
    )
    assert shared(keep) == expected


def test_random_keeps_other_positions_for_other_prompts_and_seeds_only() -> None:
    model = observed("llama")

    def kept(prompt_seed: int, seed: int) -> list[int]:
        ids = random_prompt(LENGTH)
        filled = prefill(model, ids, window=16, room=1, prompt_seed=prompt_seed)
        config = PageConfig(evictor="random", evictor_args={"seed": seed}, **SMALL)  # type: ignore[arg-type]
        keep = positions_to_keep(config.make_evictor(), filled, config)
        return shared(keep)

    assert kept(1, 0) == kept(1, 0)
    assert kept(1, 0) != kept(2, 0)
    assert kept(1, 0) != kept(1, 1)


@pytest.mark.parametrize(("evictor", "granularity"), arms())
def test_a_gated_answer_is_the_plain_or_the_full_one(
    evictor: str, granularity: Granularity, checkpoints: dict[str, str]
) -> None:
    prompts = [prompt(seed) for seed in range(8)]
    arm: dict[str, Any] = {"evictor": evictor, "granularity": granularity}
    if evictor in CHECKPOINT_EVICTORS:
        arm["evictor_args"] = {"checkpoint": checkpoints[evictor]}
    full, _ = run(engine("llama", gate="closed", **arm), prompts)
    plain, _ = run(engine("llama", gate="open", **arm), prompts)
    gated, threshold = run(engine("llama", **arm), prompts)
    assert threshold is not None
    assert {outcome.gate_open for outcome in gated} == {True, False}
    for one, unevicted, evicted in zip(gated, full, plain, strict=True):
        assert one.seen.drop == unevicted.seen.drop == evicted.seen.drop
        assert one.gate_open == (one.seen.drop >= threshold.tau)
        same = evicted if one.gate_open else unevicted
        assert one.answer.answer_ids == same.answer.answer_ids
        assert one.answer.kept_kv == same.answer.kept_kv
    kept = sum(outcome.answer.kept_kv for outcome in gated) / len(gated)
    expected = [p.answer.kept_kv if g.gate_open else 1.0 for g, p in zip(gated, plain, strict=True)]
    assert kept == pytest.approx(sum(expected) / len(expected))
    if evictor != "none":
        assert kept < 1


def test_prompts_decided_before_tau_was_known_are_decided_anew() -> None:
    prompts = [prompt(seed) for seed in range(60, 74)]
    arm = engine("llama")
    guesses: list[tuple[float, bool]] = []
    answer = arm._answer

    def watched(*args: Any) -> Outcome:
        outcome = answer(*args)
        guesses.append((outcome.seen.drop, outcome.gate_open))
        return outcome

    arm._answer = watched  # type: ignore[method-assign, assignment]
    outcomes, threshold = run(arm, prompts)
    assert threshold is not None
    wrong = [drop for drop, gate_open in guesses[:14] if gate_open != (drop >= threshold.tau)]
    assert wrong, "no guess was wrong: the test shows nothing"
    assert guesses[14:] == [(drop, drop >= threshold.tau) for drop in wrong]
    assert all(o.gate_open == (o.seen.drop >= threshold.tau) for o in outcomes)


def test_the_threshold_comes_from_the_pilot_alone_and_not_from_repeats() -> None:
    prompts = [prompt(seed) for seed in range(6)]
    repeats = [dataclasses.replace(prompts[0], repeat=r) for r in (1, 2)]
    _, alone = run(engine("llama"), prompts)
    outcomes, repeated = run(engine("llama"), prompts + repeats)
    assert alone == repeated
    assert alone is not None
    assert alone.pilot_n == 6
    drops = [outcome.seen.drop for outcome in outcomes[:6]]
    assert alone.tau == pytest.approx(zscore_threshold(drops, -0.69).tau)
    small, threshold = run(engine("llama", pilot_size=3), prompts)
    assert threshold is not None
    assert threshold.pilot_n == 3
    assert [o.gate_open for o in small] == [o.seen.drop >= threshold.tau for o in small]


def test_one_prompt_cannot_be_its_own_pilot() -> None:
    with pytest.raises(UsageError, match="at least 2 prompts"):
        run(engine("llama"), [prompt(0)])


def test_the_cache_really_shrinks() -> None:
    (plain,), _ = run(engine("qwen3", gate="open"), [prompt(0)])
    (full,), _ = run(engine("qwen3", gate="closed"), [prompt(0)])
    n_keep = reference.keep_count(0.25, LENGTH, recent=16)
    assert plain.answer.kept_tokens == n_keep
    assert plain.answer.kept_kv == n_keep / LENGTH
    # 4 layers, 2 KV heads, keys and values of 16 fp32 numbers.
    assert full.answer.kv_bytes_kept == full.seen.kv_bytes_full == 4 * 2 * LENGTH * 2 * 16 * 4
    assert plain.answer.kv_bytes_kept == 4 * 2 * n_keep * 2 * 16 * 4


def test_a_prompt_too_short_to_evict_keeps_everything_and_says_so() -> None:
    outcomes, _ = run(engine("llama", gate="open"), [prompt(0, 24), prompt(1, 25)])
    assert [o.answer.kept_all_because for o in outcomes] == ["prompt too short", None]
    assert outcomes[0].gate_open
    assert [o.answer.kept_tokens for o in outcomes] == [24, 24]


def test_the_last_prompt_token_stands_in_the_cache_once() -> None:
    model = observed("llama")
    filled = prefill(model, random_prompt(LENGTH), window=16, room=NEW)
    members = torch.zeros(1, 1, LENGTH, dtype=torch.bool)
    members[..., LENGTH - 30 :] = True
    cache = evict(filled, KeepPlan(members), NEW, without_last=True)
    assert cache.get_seq_length() == 29
    torch.testing.assert_close(
        cache.layers[2].keys, filled.cache.layers[2].keys[:, :, LENGTH - 30 : LENGTH - 1]
    )


def test_while_decoding_neither_the_full_cache_nor_the_observation_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    length = 227  # no other test's
    alive: list[int] = []
    stock = decode

    def counted(*args: Any, **kwargs: Any) -> list[Decoded]:
        long = [
            t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and length in t.shape
        ]
        alive.append(sum(t.numel() for t in long if t.is_floating_point()))
        return stock(*args, **kwargs)

    monkeypatch.setattr("page_bench.engine.prefilled_prompt.decode", counted)
    run(engine("llama", gate="open", evictor="h2o"), [prompt(0, length)])
    run(engine("llama", gate="closed"), [prompt(0, length)])
    assert alive[0] == 0
    assert alive[1] > 0  # the closed gate goes on with all entries


class Odd(Evictor):
    """An evictor from elsewhere that does not keep its promises."""

    name: ClassVar[str] = "odd"

    def __init__(self, scores: torch.Tensor, counts: torch.Tensor | None = None) -> None:
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "counts", counts)

    def score(self, layer: LayerView, n_keep: int | None = None) -> torch.Tensor:
        return self.scores  # type: ignore[attr-defined]

    def allocate(self, scores: torch.Tensor, plan: BudgetPlan) -> torch.Tensor:
        counts: torch.Tensor | None = self.counts  # type: ignore[attr-defined]
        return super().allocate(scores, plan) if counts is None else counts


@pytest.mark.parametrize(
    ("evictor", "sentence"),
    [
        (Odd(torch.rand(2, LENGTH - 1)), r"must give floating point of shape .* = \(2, 220\)"),
        (Odd(torch.rand(LENGTH)), "must give floating point"),
        (Odd(torch.zeros(2, LENGTH, dtype=torch.int64)), "scored with torch.int64"),
        (Odd(torch.full((2, LENGTH), -math.inf)), "minus infinity or not a number"),
        (Odd(torch.full((2, LENGTH), math.nan)), "minus infinity or not a number"),
        (Odd(torch.rand(2, LENGTH), torch.full((4,), 60)), r"it must give \(layers, KV heads\)"),
        (Odd(torch.rand(2, LENGTH), torch.full((4, 2), 19)), "keeps 19 positions"),
        (Odd(torch.rand(2, LENGTH), torch.full((4, 2), 221)), "keeps 221 positions"),
        (Odd(torch.rand(2, LENGTH), torch.arange(60, 68).view(4, 2)), "keeps different numbers"),
    ],
)
def test_an_evictor_that_breaks_its_contract_is_named(evictor: Evictor, sentence: str) -> None:
    filled = prefill(observed("llama"), random_prompt(LENGTH), window=16, room=1)
    with pytest.raises(UsageError, match=sentence) as raised:
        positions_to_keep(evictor, filled, PageConfig(**SMALL))  # type: ignore[arg-type]
    assert "evictor odd" in str(raised.value)


def test_an_evictor_that_does_not_say_what_it_needs_is_told_so() -> None:
    filled = prefill(observed("llama"), random_prompt(LENGTH), window=16, room=1)
    with pytest.raises(UsageError, match=r'add needs: .*{"attention_mass"}'):
        positions_to_keep(H2O(), filled, PageConfig(**SMALL))  # type: ignore[arg-type]


def test_sampling_depends_on_prompt_repeat_and_seed_alone() -> None:
    sampled = [prompt(seed, do_sample=True, temperature=1.5) for seed in range(4)]
    again = [dataclasses.replace(sampled[0], repeat=1)]
    full = answers(run(engine("llama", gate="closed"), sampled + again)[0])
    assert full[:4] == answers(run(engine("llama", gate="closed"), sampled)[0])
    assert full[0] != full[4]
    gated, _ = run(engine("llama"), sampled)
    plain = answers(run(engine("llama", gate="open"), sampled)[0])
    for i, outcome in enumerate(gated):
        assert outcome.answer.answer_ids == (plain if outcome.gate_open else full)[i]


@pytest.mark.parametrize(
    "arguments", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}]
)
def test_other_ways_of_decoding_are_refused(arguments: dict[str, Any]) -> None:
    arm = engine("llama", gate="closed")
    arm._answer = None  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="decodes one sequence token by token"):
        run(arm, [prompt(1), prompt(0, **arguments)])


@pytest.mark.parametrize("arguments", [{"foo": 1}, {"do_sample": True, "temperature": -1.0}])
def test_arguments_that_transformers_refuses_end_the_run_before_the_first_prompt(
    arguments: dict[str, Any],
) -> None:
    arm = engine("llama", gate="closed")
    arm._answer = None  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="transformers does not take"):
        run(arm, [prompt(1), prompt(0, **arguments)])
