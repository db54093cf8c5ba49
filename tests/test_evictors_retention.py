"""TrimKV and DBTrimKV against the formulas, on gates written in the published layout."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import top_keys
from reference_inputs import layer_inputs
from retention_checkpoint import Gate, checkpoint_for, random_gates, write_checkpoint
from tiny_models import random_prompt, tiny_config, tiny_model
from torch import Tensor

from page_bench.config import PageConfig
from page_bench.evictors import make_evictor
from page_bench.evictors._retention import log_retention
from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.evictors.base import Evictor
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.dbtrimkv import DBTrimKV
from page_bench.evictors.trimkv import TrimKV
from page_bench.inputs.errors import UsageError
from page_bench.model.attention import observing
from page_bench.model.keep_plan import positions_to_keep, scores_of
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer

FAMILIES = ("llama", "qwen2", "qwen3")
LENGTH = 70
BUDGET = 30


def naive_log_beta(gate: Gate, x: Tensor) -> list[float]:
    """Per KV head log σ(MLP(x)) of one token, in plain floats."""
    names = [f"linear{n}" for n in (1, 2, 3) if f"linear{n}.weight" in gate]
    signal = [float(v) for v in x]
    for name in names[:-1]:
        signal = naive_linear(gate[f"{name}.weight"], gate[f"{name}.bias"], signal)
        signal = [v / (1 + math.exp(-v)) for v in signal]
    out = naive_linear(gate[f"{names[-1]}.weight"], gate["bias"], signal)
    return [-math.log1p(math.exp(-v)) for v in out]


def naive_linear(matrix: Tensor, bias: Tensor, signal: list[float]) -> list[float]:
    rows = zip(matrix.tolist(), bias.tolist(), strict=True)
    return [b + sum(w * v for w, v in zip(row, signal, strict=True)) for row, b in rows]


def naive_scores(gates: list[Gate], model: Any, ids: Tensor) -> list[list[list[float]]]:
    """[layer][KV head][position]: (T + 1 - i)·log β."""
    length = ids.shape[1]
    scores = []
    for gate, layer in zip(gates, layer_inputs(model, ids), strict=True):
        betas = [naive_log_beta(gate, x) for x in layer.x]
        heads = range(len(betas[0]))
        scores.append([[(length + 1 - i) * betas[i][h] for i in range(length)] for h in heads])
    return scores


def our_scores(model: Any, ids: Tensor, evictor: Evictor) -> Tensor:
    with observing(model):
        filled = prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, 40)], prompt_seed=0)
        return scores_of(evictor, filled, 40)


def kept_members(name: str, folder: Path, granularity: Any, model: Any, ids: Tensor) -> Tensor:
    """bool `[L', H', T]`: what the engine keeps at a budget of `BUDGET` positions."""
    config = PageConfig(
        evictor=name,
        evictor_args={"checkpoint": str(folder)},
        granularity=granularity,
        budget=BUDGET / LENGTH + 1e-6,
        window=8,
    )
    evictor = config.make_evictor()
    with observing(model):
        filled = prefill(model, ids, window=8, room=1, scorers=[Scorer(evictor, BUDGET)])
    keep = positions_to_keep(evictor, filled, config)
    assert not isinstance(keep, str)
    return keep.members


def positions(members: Tensor) -> set[int]:
    return set(members.nonzero().flatten().tolist())


def top_in_middle(row: Any, n: int, n_sink: int, recent: int) -> set[int]:
    middle = torch.as_tensor(row)[n_sink : len(row) - recent]
    return {n_sink + i for i in top_keys(middle, n - n_sink - recent)}


@pytest.mark.parametrize("kind", ["rg", "rg10"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_the_formula_and_keep_the_same_positions(
    family: str, kind: str, tmp_path: Path
) -> None:
    model, ids = tiny_model(family), random_prompt(LENGTH)
    config = model.config
    gates = random_gates(
        kind, config.num_hidden_layers, config.hidden_size, config.num_key_value_heads
    )
    folder = write_checkpoint(tmp_path, gates)
    evictor = make_evictor("trimkv", {"checkpoint": str(folder)}, "head")
    expected = torch.tensor(naive_scores(gates, model, ids), dtype=torch.float64)
    scores = our_scores(model, ids, evictor)
    assert scores.dtype == torch.float32
    assert scores.std() > 1
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=1e-5)
    # One set per layer, and one for all, take the mean of β^Δ.
    beta = expected.exp()
    means = {"head": expected, "layer": beta.mean(1, True), "shared": beta.mean((0, 1), True)}
    for granularity, rows in means.items():
        members = kept_members("trimkv", folder, granularity, model, ids)
        assert members.shape == rows.shape
        for row, kept in zip(rows.flatten(0, 1), members.flatten(0, 1), strict=True):
            protected = {*range(4), *range(LENGTH - 8, LENGTH)}
            assert positions(kept) == protected | top_in_middle(row, BUDGET, 4, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_dbtrimkv_keeps_the_best_of_all_layers_and_heads(family: str, tmp_path: Path) -> None:
    model, ids = tiny_model(family), random_prompt(LENGTH)
    layers, heads = model.config.num_hidden_layers, model.config.num_key_value_heads
    gates = random_gates("rg10", layers, model.config.hidden_size, heads)
    folder = write_checkpoint(tmp_path, gates)
    expected = torch.tensor(naive_scores(gates, model, ids))
    plan = BudgetPlan(LENGTH, BUDGET, 4, 8, layers, heads, "head")
    wins = naive_wins(expected, plan, plan.n_protected)
    assert len({count for layer in wins for count in layer}) > 1
    members = kept_members("dbtrimkv", folder, "head", model, ids)
    assert int(members.sum()) == layers * heads * BUDGET
    protected = {*range(4), *range(LENGTH - 8, LENGTH)}
    for layer in range(layers):
        for head in range(heads):
            free = top_in_middle(expected[layer, head], 12 + wins[layer][head], 4, 8)
            assert positions(members[layer, head]) == protected | free
    by_layer = kept_members("dbtrimkv", folder, "layer", model, ids)
    assert int(by_layer.sum()) == layers * BUDGET
    for layer, kept in enumerate(by_layer[:, 0]):
        row = expected[layer].exp().mean(0)
        assert positions(kept) == protected | top_in_middle(row, int(kept.sum()), 4, 8)
        assert abs(int(kept.sum()) - 12 - sum(wins[layer]) / heads) < 1


def test_the_gate_reads_half_precision_weights_and_states_in_fp32(tmp_path: Path) -> None:
    model, ids = tiny_model("llama"), random_prompt(LENGTH)
    gates = random_gates("rg10", 4, 64, 2)
    folder = write_checkpoint(tmp_path, gates, dtype=torch.bfloat16)
    rounded = [{part: value.bfloat16().float() for part, value in gate.items()} for gate in gates]
    scores = our_scores(model, ids, TrimKV(checkpoint=str(folder)))
    expected = torch.tensor(naive_scores(rounded, model, ids))
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    gate, states = load_gates(str(folder)).gates[0], torch.randn(10, 64).bfloat16()
    assert torch.equal(gate(states), gate(states.float()))


@pytest.mark.parametrize("steps", [1, 2, 7, 512])
def test_looking_ahead_is_the_mean_over_the_next_steps(steps: int) -> None:
    log_beta = torch.tensor([[-3.0, -0.5, -1e-2, -1e-6, 0.0, -40.0], [-1e-9] * 6])
    ours = log_retention(log_beta, steps)
    length = log_beta.shape[-1]
    for row in range(2):
        for i in range(length):
            x = float(log_beta[row, i])
            first = length + 1 - i + (steps > 1)
            terms = [(first + k) * x for k in range(steps)]
            top = max(terms)
            mean = top + math.log(math.fsum(math.exp(t - top) for t in terms) / steps)
            assert float(ours[row, i]) == pytest.approx(mean, rel=1e-5, abs=1e-12)


def test_scores_stay_finite_and_ordered_where_retention_vanishes(tmp_path: Path) -> None:
    evictor = TrimKV(checkpoint="unread")
    scores = torch.tensor([[-1e7, -200.0, -150.0, -1e-3, 0.0]])
    voted = evictor.vote(scores)
    assert torch.isfinite(voted).all()
    assert voted[0].tolist() == sorted(voted[0].tolist())
    assert len(set(voted[0].tolist())) == 5
    steep = log_retention(torch.tensor([[-1e4, -1e-45, 0.0]]), 512)
    assert torch.isfinite(steep).all()


def test_gates_stand_for_layers_of_the_model_where_some_slide(tmp_path: Path) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 16, "num_hidden_layers": 4}
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    model = tiny_model("qwen2", layer_types=kinds, **sliding)
    ids = random_prompt(LENGTH)
    config = model.config
    shape = (config.hidden_size, config.num_key_value_heads)
    gates = random_gates("rg", 4, *shape)
    folder = write_checkpoint(tmp_path / "all", gates)
    evictor = TrimKV(checkpoint=str(folder))
    evictor.check(config)
    scores = our_scores(model, ids, evictor)
    assert len(scores) == 2
    inputs = states_of(model, ids)
    for row, layer in zip(scores, (1, 3), strict=True):
        betas = [naive_log_beta(gates[layer], x) for x in inputs[layer]]
        expected = [[(LENGTH + 1 - i) * b[h] for i, b in enumerate(betas)] for h in range(len(row))]
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-4, rtol=1e-5)
    fewer = TrimKV(checkpoint=str(write_checkpoint(tmp_path / "two", gates[:2])))
    with pytest.raises(UsageError, match="holds gates for a model with 2 layers"):
        fewer.check(config)
    with pytest.raises(UsageError, match="holds gates for a model with 2 layers"):
        our_scores(model, ids, fewer)


def states_of(model: Any, ids: Tensor) -> list[Tensor]:
    """Input of each layer's attention, `[T, D]`."""
    seen: list[Tensor] = []
    hooks = [
        layer.input_layernorm.register_forward_hook(lambda m, args, out: seen.append(out[0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return seen


def test_the_sliding_window_outranks_every_gate(tmp_path: Path) -> None:
    model, ids = tiny_model("qwen3"), random_prompt(LENGTH)
    folder = str(checkpoint_for(tmp_path, model.config, "rg"))
    plain = our_scores(model, ids, TrimKV(checkpoint=folder))
    windowed = our_scores(model, ids, TrimKV(checkpoint=folder, sliding_window_size=20))
    torch.testing.assert_close(windowed[..., :-20], plain[..., :-20])
    assert (plain <= 0).all()
    assert bool((windowed[..., -20:] == math.inf).all())
    evictor = TrimKV(checkpoint=folder, sliding_window_size=LENGTH + 5)
    assert bool((our_scores(model, ids, evictor) == math.inf).all())
    assert evictor.least_kept(8, 4, 8) == 4 + LENGTH + 5


# What goes wrong, and what is said.


@pytest.mark.parametrize("name", ["trimkv", "dbtrimkv"])
def test_a_checkpoint_must_be_given(name: str) -> None:
    with pytest.raises(UsageError, match=f"evictor={name} needs evictor.checkpoint.*Hub id"):
        make_evictor(name, {}, "head")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("trimkv", "lookahead_steps", 0),
        ("trimkv", "sliding_window_size", -1),
        ("dbtrimkv", "lookahead_steps", -3),
        ("dbtrimkv", "min_tokens_per_head", -1),
    ],
)
def test_options_out_of_range_are_refused(name: str, option: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"evictor.{option}={value} is not allowed"):
        make_evictor(name, {"checkpoint": "x", option: value}, "head")


def test_shared_granularity_of_dbtrimkv_points_to_trimkv() -> None:
    with pytest.raises(UsageError, match=r"evictor=dbtrimkv has no meaning.*evictor=trimkv"):
        make_evictor("dbtrimkv", {"checkpoint": "x"}, "shared")


@pytest.mark.parametrize(
    ("layers", "hidden", "heads"), [(5, 64, 2), (4, 48, 2), (4, 64, 4)], ids=["L", "D", "H"]
)
def test_gates_of_another_model_are_refused_before_weights_and_at_the_first_layer(
    layers: int, hidden: int, heads: int, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, random_gates("rg", layers, hidden, heads))
    evictor = TrimKV(checkpoint=str(folder))
    both = re.escape(
        f"holds gates for a model with {layers} layers, hidden size {hidden} and {heads} KV heads, "
        f"but this one has 4 layers, hidden size 64 and 2 KV heads"
    )
    with pytest.raises(UsageError, match=both):
        evictor.check(tiny_config("llama"))
    with pytest.raises(UsageError, match=both):
        our_scores(tiny_model("llama"), random_prompt(20), evictor)
    fitting = TrimKV(checkpoint=str(checkpoint_for(tmp_path, tiny_config("llama"), "rg")))
    fitting.check(tiny_config("llama"))


def test_dbtrimkv_refuses_gates_that_were_trained_per_head(tmp_path: Path) -> None:
    config = tiny_config("llama")
    local = DBTrimKV(checkpoint=str(checkpoint_for(tmp_path / "rg", config, "rg")))
    with pytest.raises(UsageError, match=r"gates of kind rg, .* use evictor=trimkv"):
        local.check(config)
    DBTrimKV(checkpoint=str(checkpoint_for(tmp_path / "rg10", config, "rg10"))).check(config)


# How DBTrimKV shares out the budget.


def naive_wins(scores: Tensor, plan: BudgetPlan, floor: int) -> list[list[int]]:
    """Entries each head wins: down the ranking of all of them, while it has any left.

    Where scores are equal, the lower position goes first, then the lower layer and head.
    """
    layers, heads, length = scores.shape
    ranking = sorted(
        (-float(scores[k, h, i]), i, k, h)
        for k in range(layers)
        for h in range(heads)
        for i in range(plan.n_sink, length - plan.recent)
    )
    wins = [[0] * heads for _ in range(layers)]
    left = layers * heads * (plan.n_keep - floor)
    for _, _, k, h in ranking:
        if left and floor + wins[k][h] < length:
            wins[k][h] += 1
            left -= 1
    return wins


@st.composite
def contests(draw: st.DrawFn, granularity: str) -> tuple[Tensor, BudgetPlan, int]:
    """Scores with or without ties, a budget, and a floor per head that it can pay."""
    layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n_sink, recent = draw(st.integers(0, 4)), draw(st.integers(1, 6))
    length = n_sink + recent + draw(st.integers(1, 25))
    n_keep = draw(st.integers(n_sink + recent, length))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    scores = -torch.rand(layers, heads, length, generator=generator) * draw(st.integers(1, 1000))
    # Forgetful layers, so that some win nothing and others all they have.
    scores *= torch.rand(layers, heads, 1, generator=generator) ** 4
    if draw(st.booleans()):
        scores = (scores / 5).round()
    floor = draw(st.integers(0, n_keep))
    return (
        scores,
        BudgetPlan(length, n_keep, n_sink, recent, layers, heads, granularity),
        floor,
    )


@settings(deadline=None, max_examples=300)
@given(contests("head"))
def test_heads_win_what_the_global_ranking_gives_them(
    contest: tuple[Tensor, BudgetPlan, int],
) -> None:
    scores, plan, least = contest
    evictor = DBTrimKV(checkpoint="unread", min_tokens_per_head=least)
    counts = evictor.allocate(scores, plan)
    floor = max(least, plan.n_protected)
    assert counts.dtype == torch.int64
    assert int(counts.sum()) == plan.n_layers * plan.n_kv_heads * plan.n_keep
    assert int(counts.min()) >= floor
    assert int(counts.max()) <= plan.prompt_tokens
    assert (counts - floor).tolist() == naive_wins(scores, plan, floor)


@settings(deadline=None, max_examples=300)
@given(contests("layer"))
def test_layers_share_out_in_proportion_to_what_they_win(
    contest: tuple[Tensor, BudgetPlan, int],
) -> None:
    scores, plan, least = contest
    counts = DBTrimKV(checkpoint="unread", min_tokens_per_head=least).allocate(scores, plan)
    floor = max(least, plan.n_protected)
    assert int(counts.sum()) == plan.n_layers * plan.n_kv_heads * plan.n_keep
    assert int(counts.min()) >= floor
    assert int(counts.max()) <= plan.prompt_tokens
    assert (counts == counts[:, :1]).all()
    # A layer's heads can have the mean of what they won, up to the rounding.
    wins = torch.tensor(naive_wins(scores, plan, floor)).sum(-1)
    share = wins / plan.n_kv_heads
    assert ((counts[:, 0] - floor - share).abs() < 1).all()


def test_equal_scores_in_all_heads_and_layers_are_shared_out_evenly() -> None:
    row = torch.randn(50, generator=torch.Generator().manual_seed(0)).round()
    scores = row.expand(3, 2, 50)
    for granularity in ("layer", "head"):
        for least in (0, 15):
            plan = BudgetPlan(50, 20, 4, 8, 3, 2, granularity)
            evictor = DBTrimKV(checkpoint="unread", min_tokens_per_head=least)
            assert (evictor.allocate(scores, plan) == 20).all()


def test_a_floor_above_the_budget_is_refused() -> None:
    plan = BudgetPlan(50, 20, 4, 8, 2, 2, "head")
    evictor = DBTrimKV(checkpoint="unread", min_tokens_per_head=21)
    with pytest.raises(UsageError, match=r"min_tokens_per_head=21 is more than the 20 positions"):
        evictor.allocate(torch.zeros(2, 2, 50), plan)
