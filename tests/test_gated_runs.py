"""Every gate inside the engine, and runs that take what they can from a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import NEW, SMALL, observed, prompt
from tiny_models import FAMILIES, tiny_tokenizer

from page_bench.config import PageConfig
from page_bench.engine import memory as case_module
from page_bench.engine.engine import Engine, Outcome
from page_bench.engine.keys import StoredModel
from page_bench.engine.make_trace import trace_of
from page_bench.engine.memory import Memory
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.engine.prompt import Prompt
from page_bench.gating.calibration import ModelFacts
from page_bench.gating.fingerprint import model_fingerprint
from page_bench.gating.gates import GATES
from page_bench.gating.signals import SIGNALS
from page_bench.inputs.errors import UsageError
from page_bench.model.answer_signs import repetition
from page_bench.records.store.store import RunStore

TOKENIZER = tiny_tokenizer(FAMILIES["llama"].with_bos)
MODEL = observed("llama")


def config(**arguments: Any) -> PageConfig:
    flat = {k.replace("__", "."): v for k, v in arguments.items()}
    return PageConfig.from_arguments({**SMALL, **flat})


def prompts(n: int = 8) -> list[Prompt]:
    """Prompts of two tasks; an answer's score is the share of even tokens."""

    def score(ids: Any) -> float:
        return sum(i % 2 == 0 for i in ids) / len(ids)

    return [
        dataclasses.replace(prompt(i), task=("one", "other_vt")[i % 2], score=score)
        for i in range(n)
    ]


def run(arm: PageConfig, given: list[Prompt], memory: Memory | None = None) -> list[Outcome]:
    return Engine(MODEL, TOKENIZER, arm, memory=memory).run(given)[0]


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    return run(config(gate="open", signals="all"), prompts())


@pytest.fixture(scope="module")
def full() -> list[Outcome]:
    return run(config(gate="closed"), prompts())


def without_times(outcome: Outcome) -> dict[str, Any]:
    fields = {**vars(outcome.seen), **vars(outcome.answer), "gate_open": outcome.gate_open}
    return {k: v for k, v in fields.items() if not k.endswith("_s") and k != "signals"}


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_gives_the_plain_or_the_full_answer(
    gate: str, plain: list[Outcome], full: list[Outcome]
) -> None:
    extra: dict[str, Any] = {"tau": "quantile", "open_rate": 0.5}
    if gate == "task_oracle":
        extra["gate__closed"] = "vt"
    if gate == "retry":
        limits = sorted(outcome.answer.mean_token_entropy for outcome in plain)
        extra["gate__limit"] = limits[3]
    outcomes = run(config(gate=gate, **extra), prompts())
    for one, evicted, unevicted in zip(outcomes, plain, full, strict=True):
        same = evicted if one.gate_open else unevicted
        assert one.answer.answer_ids == same.answer.answer_ids
        assert one.answer.kept_kv == same.answer.kept_kv
    opened = [outcome.gate_open for outcome in outcomes]
    if gate in ("open", "closed"):
        assert set(opened) == {gate == "open"}
    elif gate == "task_oracle":
        assert opened == [True, False] * 4
    elif gate == "static":
        assert opened[::2] == [opened[0]] * 4
        assert opened[1::2] == [opened[1]] * 4
    elif gate == "retry":
        assert sum(opened) == 4
        for one, evicted in zip(outcomes, plain, strict=True):
            wasted = one.seen.prefill_s + evicted.answer.decode_s / 100
            assert (one.discarded_s > wasted) == (not one.gate_open)
    elif gate == "oracle":
        scores = [p.score for p in prompts()]
        for one, evicted, unevicted, score in zip(outcomes, plain, full, scores, strict=True):
            assert score is not None
            better = score(evicted.answer.answer_ids) >= score(unevicted.answer.answer_ids)
            assert one.gate_open == better
    elif gate != "random":
        # Half of the prompts; what ties with the last of them opens as well.
        name = str(config(gate=gate).make_gate().signal)
        values = [outcome.seen.signals[name] for outcome in outcomes]
        if config(gate=gate).make_gate().side == "above":
            assert opened == [value >= sorted(values)[4] for value in values]
        else:
            assert opened == [value <= sorted(values)[3] for value in values]


def test_all_signals_are_recorded_whatever_the_gate(plain: list[Outcome]) -> None:
    for outcome in plain:
        assert list(outcome.seen.signals) == list(SIGNALS)
        assert outcome.seen.signals["drop"] == outcome.seen.drop
        assert outcome.seen.margin is not None
        assert len(outcome.seen.margin) == len(outcome.seen.agreement) == 4
        assert outcome.seen.pair_agreement is None
    (pairs,) = run(config(gate="open", signals="pairs"), prompts(1))
    assert pairs.seen.pair_agreement is not None
    for row, mean in zip(pairs.seen.pair_agreement, pairs.seen.agreement, strict=True):
        assert len(row) == 6
        assert sum(row) / 6 == pytest.approx(mean)


def test_the_entropy_of_an_answer_is_that_of_its_tokens(full: list[Outcome]) -> None:
    given, outcome = prompts()[0], full[0]
    ids = torch.tensor([[*given.input_ids, *outcome.answer.answer_ids]])
    with torch.no_grad():
        logits = MODEL(ids).logits[0, len(given.input_ids) - 1 : -1]
    p = logits.softmax(-1)
    entropy = -(p * p.log()).sum(-1).mean()
    assert outcome.answer.mean_token_entropy == pytest.approx(float(entropy), abs=1e-4)
    assert 0 <= repetition(outcome.answer.answer_ids) < 1


def test_an_oracle_without_scores_is_refused() -> None:
    given = [dataclasses.replace(one, score=None) for one in prompts(2)]
    with pytest.raises(UsageError, match=r"gate=oracle must score answers .* one, other_vt"):
        run(config(gate="oracle"), given)


# The store


@contextmanager
def memory(path: Path) -> Iterator[Memory]:
    facts = StoredModel.of(
        MODEL, TOKENIZER, name="tiny", dtype="float32", attn_implementation="sdpa"
    )
    with RunStore(path) as store:
        yield Memory(store, facts, 0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every prefill."""
    made: list[int] = []

    class Counted(PromptPass):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("page_bench.engine.engine.PromptPass", Counted)
    return made


def test_a_stored_run_needs_no_model(tmp_path: Path, passes: list[int]) -> None:
    with memory(tmp_path / "s.db") as stored:
        first = run(config(gate="open"), prompts(), stored)
        assert len(passes) == 8
        again = run(config(gate="open"), prompts(), stored)
        assert len(passes) == 8
        assert [vars(o.answer) for o in again] == [vars(o.answer) for o in first]
        assert [o.seen for o in again] == [o.seen for o in first]
        closed = run(config(gate="closed"), prompts(), stored)
        assert len(passes) == 16
        gated = run(config(tau=0.0), prompts(), stored)
        quantile = run(config(tau="quantile", open_rate=0.25), prompts(), stored)
        assert len(passes) == 16
    for outcomes in (gated, quantile):
        assert {o.gate_open for o in outcomes} == {True, False}
        for one, evicted, unevicted in zip(outcomes, first, closed, strict=True):
            same = evicted if one.gate_open else unevicted
            assert vars(one.answer) == vars(same.answer)


GRID: list[dict[str, Any]] = [
    {"evictor": "snapkv", "budget": 0.25, "gate": "open"},
    {"evictor": "snapkv", "budget": 0.5, "gate": "open"},
    {"evictor": "snapkv", "budget": 0.5, "gate": "page", "tau": "zscore"},
    {"evictor": "snapkv", "budget": 0.5, "gate": "page", "tau": 0.01},
    {"evictor": "h2o", "budget": 0.25, "gate": "open", "granularity": "head"},
    {"evictor": "streamingllm", "budget": 0.25, "gate": "random"},
    {"evictor": "expected_attention", "budget": 0.25, "gate": "open"},
    {"gate": "closed"},
]


def test_a_grid_costs_one_prefill_and_equals_its_arms(tmp_path: Path, passes: list[int]) -> None:
    arms = [config(**arguments) for arguments in GRID]
    alone = [run(arm, prompts()) for arm in arms]
    passes.clear()
    with memory(tmp_path / "s.db") as stored:
        engine = Engine(MODEL, TOKENIZER, arms[0], memory=stored)
        filled = engine.fill(prompts(), arms)
        assert (filled.stored, filled.prefilled) == (0, 8)
        assert filled.prefill_tokens == sum(len(one.input_ids) for one in prompts())
        assert len(passes) == 8
        again = engine.fill(prompts(), arms)
        assert (again.stored, again.prefilled) == (8, 0)
        together = [run(arm, prompts(), stored) for arm in arms]
        assert len(passes) == 8
    for one, other in zip(alone, together, strict=True):
        for before, after in zip(one, other, strict=True):
            assert after.answer.answer_ids == before.answer.answer_ids
            assert after.gate_open == before.gate_open
            assert after.answer.kept_kv == before.answer.kept_kv
            assert after.seen.signals == before.seen.signals
            assert len(after.answer.answer_ids) <= NEW


def test_what_is_missing_of_a_grid_is_found(tmp_path: Path) -> None:
    arms = [config(**arguments) for arguments in GRID]
    with memory(tmp_path / "s.db") as stored:
        signals, evictions = case_module.missing(stored, prompts()[0], arms)
        assert len(signals) == 1
        # The full cache, and five evictions: gates and thresholds are no part of them.
        assert len(evictions) == 6
        Engine(MODEL, TOKENIZER, arms[0], memory=stored).fill(prompts(1), arms[:2])
        signals, evictions = case_module.missing(stored, prompts()[0], arms)
        assert not signals
        # Plain arms and a closed gate ask for no more than they give.
        assert len(evictions) == 4
        assert case_module.missing(stored, prompts()[0], arms[:2]) == ([], [])
        closed = case_module.missing(stored, prompts()[0], [config(gate="closed")])
        assert closed == ([], [None])


def test_gates_of_a_grid_read_different_signals(tmp_path: Path, passes: list[int]) -> None:
    arms = [config(gate=gate, tau="quantile") for gate in ("page", "entropy_norm", "slope")]
    with memory(tmp_path / "s.db") as stored:
        Engine(MODEL, TOKENIZER, arms[0], memory=stored).fill(prompts(4), arms)
        for arm in arms:
            run(arm, prompts(4), stored)
    assert len(passes) == 4


def test_a_prompt_too_short_for_the_evictor_keeps_what_it_must_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    given = [prompt(0, 200), prompt(1, 60), prompt(2, 32), prompt(3, 33)]
    arm = config(
        gate="open", granularity="head", window=32, recent=1, n_sink=0, budget=0.2, evictor="snapkv"
    )
    with memory(tmp_path / "s.db") as stored:
        Engine(MODEL, TOKENIZER, arm, memory=stored).fill(given, [arm])
        outcomes = run(arm, given, stored)
    for found in (outcomes, run(arm, given)):
        answers = [outcome.answer for outcome in found]
        # An eighth of 200 has room for the window of 32; a fifth of the others has not.
        assert [a.kept_kv for a in answers] == [40 / 200, 32 / 60, 1, 32 / 33]
        assert [a.must_keep for a in answers] == [None, 32, 32, 32]
        assert [a.kept_all_because for a in answers] == [None, None, "prompt too short", None]
    (alone,) = run(config(gate="closed"), given[2:3])
    assert alone.answer.answer_ids == outcomes[2].answer.answer_ids


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("gate", ["oracle", "retry"])
@pytest.mark.parametrize("budget", [1.0, 0.25])
def test_an_answer_that_kept_all_is_the_full_one(
    gate: str, budget: float, stored: bool, full: list[Outcome], tmp_path: Path
) -> None:
    # With a quarter, the protected positions are all that there are.
    protected = {"n_sink": 110, "recent": 110} if budget < 1 else {}
    limit = {"gate__limit": 0.0} if gate == "retry" else {}
    arm = config(gate=gate, **{**limit, **protected, "budget": budget})
    with ExitStack() as stack:
        store = stack.enter_context(memory(tmp_path / "store")) if stored else None
        outcomes = run(arm, prompts(), store)
    for one, unevicted in zip(outcomes, full, strict=True):
        assert one.answer.answer_ids == unevicted.answer.answer_ids
        assert one.answer.kept_kv == 1.0
        assert one.gate_open == (gate == "oracle")


def test_a_discarded_answer_costs_its_share_of_what_was_decoded_together(tmp_path: Path) -> None:
    retry = config(gate="retry", gate__limit=0.0, budget=0.25)
    others = [config(gate="open", budget=b) for b in (0.3, 0.35, 0.4, 0.45, 0.5)]
    given = prompts(1)
    with memory(tmp_path / "store") as store:
        Engine(MODEL, TOKENIZER, retry, memory=store).fill(given, [retry, *others])
        (outcome,) = run(retry, given, store)
        plain = store.answer(given[0], retry)
    assert plain is not None
    assert plain.decode_rows > 5
    share = plain.evict_s + plain.decode_s / plain.decode_rows + outcome.seen.prefill_s
    assert outcome.discarded_s == pytest.approx(share)


def test_signals_are_stored_where_the_answers_already_are(
    tmp_path: Path, passes: list[int]
) -> None:
    given = prompts(3)
    with memory(tmp_path / "store") as store:
        for gate in ("open", "closed"):
            run(config(gate=gate), given, store)
        run(config(gate="entropy_norm", tau=0.5), given, store)
        before = len(passes)
        run(config(gate="entropy_norm", tau=0.1), given, store)
    assert before > 0
    assert len(passes) == before


def test_a_static_gate_is_refused_for_a_task_without_a_pilot_before_anything_is_answered(
    passes: list[int],
) -> None:
    given = [dataclasses.replace(p, task="one" if i else "rare") for i, p in enumerate(prompts(6))]
    with pytest.raises(UsageError, match="rare"):
        run(config(gate="static", pilot_size=2), given)
    assert not passes


def test_z_is_of_the_signal_that_the_gate_reads() -> None:
    arm = config(gate="max_share", tau="zscore", signals="all")
    outcomes, decided = Engine(MODEL, TOKENIZER, arm).run(prompts())
    threshold = decided.threshold
    assert threshold is not None
    assert threshold.mu is not None
    assert threshold.sigma is not None
    model = ModelFacts("tiny", model_fingerprint(MODEL), "float32", "sdpa")
    for asked, outcome in zip(prompts(), outcomes, strict=True):
        trace = trace_of(model, arm, asked, outcome, threshold, "")
        expected = (trace.signals["max_share"] - threshold.mu) / threshold.sigma
        assert trace.z == pytest.approx(expected)
