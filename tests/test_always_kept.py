"""Positions that a method always keeps: +inf through norms, counts, averages and short budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from evictor_cases import random_layer
from tiny_models import random_prompt, tiny_model
from torch import Tensor

from page_bench.config import PageConfig, budget_for, forced_count
from page_bench.evictors import make_evictor
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity, LayerView
from page_bench.evictors.base.budget import BudgetPlan
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer, normalised

LENGTH = 200
TITLES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "snapkv": ({"variant": "published", "window": 30}, list(range(170, 200))),
    "pyramidkv": ({"window": 30}, list(range(170, 200))),
    "dynamickv": ({"variant": "published", "window": 30}, list(range(170, 200))),
    "h2o": ({"variant": "published"}, list(range(160, 200))),
    "capkv": ({"variant": "kvpress"}, list(range(4))),
    "expected_attention": ({}, list(range(4))),
    "compactor": ({}, [*range(8), *range(196, 200)]),
    "lagkv": ({"lag": 16}, list(range(4))),
}
"""Options, and the positions that the method keeps itself when 80 of 200 may stay."""


def kept(
    title: str, granularity: Granularity, options: dict[str, Any], **arguments: Any
) -> tuple[Tensor, Tensor]:
    """Members bool `[L', H', T]`, and raw scores `[L, H_kv, T]`."""
    values = {"budget": 0.4, "window": 30, "n_sink": 0, "recent": 1, **arguments}
    config = PageConfig(evictor=title, evictor_args=options, granularity=granularity, **values)
    evictor = config.make_evictor()
    n_keep = int(values["budget"] * LENGTH)
    with attention.observing(model := tiny_model("llama")):
        scorers = [Scorer(evictor, n_keep)]
        filled = prefill(
            model, random_prompt(LENGTH), window=config.window, room=1, scorers=scorers
        )
    plan = positions_to_keep(evictor, filled, config)
    assert isinstance(plan, KeepPlan)
    return plan.members, torch.stack([s.score for s in filled.scored_by(evictor, n_keep)])


@pytest.mark.parametrize("norm", ["none", "sum", "zscore", "rank"])
@pytest.mark.parametrize("title", TITLES)
def test_they_are_marked_and_stay_whatever_the_norm(title: str, norm: str) -> None:
    options, always = TITLES[title]
    for granularity in GRANULARITIES:
        if granularity == "shared" and title in ("pyramidkv", "dynamickv"):
            continue
        members, scores = kept(title, granularity, options, score_norm=norm)
        marked = scores.isposinf()
        assert marked[0, 0].nonzero().flatten().tolist() == always
        assert bool((marked == marked[0, 0]).all())
        assert bool(members[..., always].all())
        assert int(members.sum()) == members.shape[0] * members.shape[1] * 80


@pytest.mark.parametrize("norm", ["sum", "zscore", "rank"])
def test_others_are_normalised_among_themselves(norm: str) -> None:
    scores = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0))
    scores[1] *= 1000
    marked = scores.clone()
    marked[..., 30:36] = torch.inf
    marked[0, 1, 5] = torch.inf
    found = normalised(marked, norm, 2, 3)
    assert torch.equal(found.isposinf()[..., 2:37], marked.isposinf()[..., 2:37])
    for row, before in zip(found.flatten(0, 1), marked.flatten(0, 1), strict=True):
        free = [i for i in range(2, 37) if not before[i].isposinf()]
        alone = normalised(before[free][None, None], norm, 0, 0)[0, 0]
        torch.testing.assert_close(row[free], alone)


@pytest.mark.parametrize("norm", ["sum", "zscore", "rank"])
def test_a_row_of_nothing_else_is_no_nan(norm: str) -> None:
    assert bool(normalised(torch.full((1, 1, 9), torch.inf), norm, 1, 1)[..., 1:8].isposinf().all())


@pytest.mark.parametrize("allocation", ["adakv", "kvpress", "page"])
@pytest.mark.parametrize("normalise", [False, True])
def test_adakv_shares_out_what_is_left_beside_them(allocation: str, normalise: bool) -> None:
    """Counts are those without the positions, plus their number."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(2, 3, 100, generator=generator) ** torch.tensor([1.0, 3, 9])[:, None]
    always = torch.full((2, 3, 20), torch.inf)
    # A floor in kvpress's form is a share of all that is kept.
    options = {"allocation": allocation, "floor_alpha": 0.0, "normalise": normalise}
    evictor = make_evictor("adakv(snapkv)", options, "head")
    with_them = evictor.allocate(
        torch.cat([scores, always], -1), BudgetPlan(120, 50, 0, 0, 2, 3, "head")
    )
    without = evictor.allocate(scores, BudgetPlan(100, 30, 0, 0, 2, 3, "head"))
    assert (with_them - 20).tolist() == without.tolist()
    assert len(set(without[0].tolist())) > 1


def test_dynamickv_shares_out_what_is_left_beside_them() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(3, 2, 100, generator=generator) ** torch.tensor([1.0, 3, 9])[:, None, None]
    always = torch.full((3, 2, 20), torch.inf)
    evictor = make_evictor("dynamickv", {"max_ratio": 2}, "layer")
    with_them = evictor.allocate(
        torch.cat([scores, always], -1), BudgetPlan(120, 50, 0, 0, 3, 2, "layer")
    )
    without = evictor.allocate(scores, BudgetPlan(100, 30, 0, 0, 3, 2, "layer"))
    assert (with_them - 20).tolist() == without.tolist()
    assert len(set(without[:, 0].tolist())) > 1


@pytest.mark.parametrize("recent", [1, 10, 32])
@pytest.mark.parametrize("budget", [0.2, 0.4, 0.7, 0.95])
def test_pyramidkv_stands_on_what_every_layer_keeps(recent: int, budget: float) -> None:
    """The authors' line, the window on top in every layer, where it is protected or not."""
    members, _ = kept("pyramidkv", "head", {"beta": 20}, window=32, recent=recent, budget=budget)
    n_keep, on_top = int(budget * LENGTH + 1e-9), 32
    mean = n_keep - on_top
    bottom = min(2 * mean - mean / 20, LENGTH - on_top)
    line = [on_top + bottom + (2 * mean - 2 * bottom) * i / 3 for i in range(4)]
    counts = members.sum(-1)
    assert bool(members[..., -32:].all())
    assert int(counts.sum()) == 8 * n_keep
    for count, place in zip(counts[:, 0].tolist(), line, strict=True):
        assert abs(count - place) < 1


@dataclass(frozen=True)
class Marks(Evictor):
    """Marks forty positions in the first head of the first layer, ranks the rest downwards."""

    name: ClassVar[str] = "marks"

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        ranked = torch.arange(layer.prompt_tokens, 0.0, -1.0).repeat(layer.n_kv_heads, 1)
        if layer.index == 0:
            ranked[0, 100:140] = torch.inf
        return ranked


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_one_head_speaks_for_all_that_share_a_set_and_the_latest_stay(
    granularity: Granularity,
) -> None:
    config = PageConfig(budget=0.15, window=5, n_sink=2, recent=3, granularity=granularity)
    with attention.observing(model := tiny_model("llama")):
        filled = prefill(model, random_prompt(LENGTH), window=5, room=1)
    plan = positions_to_keep(Marks(), filled, config)
    assert isinstance(plan, KeepPlan)
    sets = [row.nonzero().flatten().tolist() for row in plan.members.flatten(0, 1)]
    ends = [197, 198, 199]
    assert sets[0] == [0, 1, *range(115, 140), *ends]
    if granularity != "shared":
        assert all(other == [*range(27), *ends] for other in sets[plan.members.shape[1] :])


LEAST: list[tuple[str, dict[str, Any], int]] = [
    ("snapkv", {}, 4 + 32),
    ("snapkv", {"window": 50}, 4 + 50),
    ("adakv(snapkv)", {"base.window": 50}, 4 + 50),
    ("snapkv", {"variant": "paper", "window": 50}, 4 + 1),
    ("expected_attention", {"n_sink": 60}, 60 + 1),
    ("compactor", {}, 8 + 4),
    ("capkv", {"variant": "kvpress", "n_sink": 9}, 9 + 1),
    ("lagkv", {}, 4 + 1),
    ("h2o", {}, 4 + 1),
    ("knorm", {}, 4 + 1),
]


@pytest.mark.parametrize(("title", "options", "least"), LEAST)
def test_the_fewest_positions_are_known_before_any_prompt_is_run(
    title: str, options: dict[str, Any], least: int
) -> None:
    evictor = make_evictor(title, options, "head")
    assert evictor.least_kept(32, 4, 1) == least
    config = PageConfig(
        evictor=title, evictor_args=options, granularity="head", budget=0.05, recent=1
    )
    # Whatever the evictor, n_sink + recent + 4 = 9 positions stay.
    for length, expected in (
        (20 * least, max(least, 9)),
        (20 * least + 20, max(least + 1, 9)),
        (20 * least - 1, max(least, 9)),
        (least + 9, max(least, 9)),
        (9, "prompt too short"),
        (least, "prompt too short"),
    ):
        assert budget_for(config, length) == expected
    forced = [forced_count(config, n) for n in (20 * least, 20 * least - 1, least + 9, least)]
    assert forced == ([None, least, least, least] if least > 9 else [None] * 4)


def kept_of(length: int, title: str, options: dict[str, Any], **arguments: Any) -> KeepPlan | str:
    """The keep sets per head of a prompt of this length."""
    values = {"budget": 0.2, "window": 30, "n_sink": 2, "recent": 3, **arguments}
    config = PageConfig(evictor=title, evictor_args=options, granularity="head", **values)
    evictor, n_keep = config.make_evictor(), budget_for(config, length)
    with attention.observing(model := tiny_model("llama")):
        scorers = [Scorer(evictor, n_keep)] if isinstance(n_keep, int) else []
        ids = random_prompt(length)
        filled = prefill(model, ids, window=config.window, room=1, scorers=scorers)
    return positions_to_keep(evictor, filled, config)


WRAPPED = [f"{outer}({inner})" for outer in ("adakv", "criticalkv") for inner in ("snapkv", "h2o")]


@pytest.mark.parametrize("title", [*TITLES, *WRAPPED])
def test_a_prompt_too_short_for_the_method_keeps_what_it_must_alone(title: str) -> None:
    options, _ = TITLES.get(title, ({"base.variant": "published"}, []))
    first, last = make_evictor(title, options, "head").always_keeps(30)
    first, last = max(first, 2), max(last, 3)
    for length in (41, 50, 70):
        plan = kept_of(length, title, options)
        assert isinstance(plan, KeepPlan)
        allowed = max(length // 5, 2 + 3 + 4)
        members = plan.members.flatten(0, 1)
        assert bool(members[:, :first].all() & members[:, length - last :].all())
        assert int(members.sum()) == len(members) * max(allowed, first + last)
        assert plan.must_keep == (first + last if first + last > allowed else None)


def test_layers_that_are_skipped_keep_all_of_a_short_prompt_too() -> None:
    for length in (20, 40, 100):
        plan = kept_of(length, "knorm", {"skip_layers": 2}, budget=0.6)
        assert isinstance(plan, KeepPlan)
        counts = plan.members.sum(-1)[:, 0].tolist()
        assert counts[:2] == [length] * 2
        # Of 20 tokens 12 may stay; 2·20 + 2·(2 + 3) are 12.5 on average, 13 at least.
        assert sum(counts) == {20: 4 * 13, 40: 4 * 24, 100: 4 * 60}[length]
        assert plan.must_keep == {20: 13, 40: None, 100: None}[length]
    with pytest.raises(UsageError, match="leaves too little of the budget"):
        kept_of(100, "knorm", {"skip_layers": 2}, budget=0.5)


LAST = [
    ("snapkv", {"variant": "published"}),
    ("h2o", {"variant": "published"}),
    ("compactor", {}),
    ("streamingllm", {}),
    ("criticalkv(streamingllm)", {}),
    ("adakv(streamingllm)", {}),
]


@pytest.mark.parametrize(("title", "options"), LAST)
@pytest.mark.parametrize("budget", [0.01, 0.3])
def test_nothing_need_be_protected_where_the_method_keeps_the_last_position(
    title: str, options: dict[str, Any], budget: float
) -> None:
    free = kept_of(90, title, options, n_sink=0, recent=0, window=6, budget=budget)
    protected = kept_of(90, title, options, n_sink=0, recent=1, window=6, budget=budget)
    assert isinstance(free, KeepPlan)
    assert isinstance(protected, KeepPlan)
    assert bool(free.members[..., -1].all())
    if budget == 0.3:
        assert torch.equal(free.members, protected.members)


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("snapkv", {"variant": "paper"}),
        ("h2o", {"variant": "paper"}),
        ("streamingllm", {"fill": False}),
        ("tova", {}),
        ("lagkv", {}),
        ("criticalkv(tova)", {}),
    ],
)
def test_the_last_position_is_protected_where_the_method_may_drop_it(
    title: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"recent=0 lets evictor=.* give recent=1"):
        kept_of(90, title, options, recent=0)


@dataclass(frozen=True)
class Forgets(Evictor):
    """Says that it keeps the last position, and does not mark it."""

    name: ClassVar[str] = "forgets"

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return -torch.arange(layer.prompt_tokens).float().repeat(layer.n_kv_heads, 1)

    def always_keeps(self, window: int) -> tuple[int, int]:
        return 0, 1


def test_a_last_position_that_is_dropped_all_the_same_is_named() -> None:
    config = PageConfig(evictor="streamingllm", budget=0.3, recent=0, n_sink=2)
    with attention.observing(model := tiny_model("llama")):
        filled = prefill(model, random_prompt(90), window=32, room=1)
    with pytest.raises(UsageError, match="forgets dropped the last position"):
        positions_to_keep(Forgets(), filled, config)


def test_no_paper_form_marks_anything() -> None:
    for name in ("snapkv", "h2o", "pyramidkv", "capkv"):
        layer = random_layer()
        assert not make_evictor(name, {"variant": "paper"}, "shared").score(layer).isposinf().any()


def test_dynamickvs_ratio_is_of_what_is_left() -> None:
    scores = torch.rand(3, 2, 100, generator=torch.Generator().manual_seed(1))
    scores[0] += 10
    always = torch.full((3, 2, 20), torch.inf)
    evictor = make_evictor("dynamickv", {"max_ratio": 2}, "layer")
    plan = BudgetPlan(120, 50, 0, 0, 3, 2, "layer")
    counts = evictor.allocate(torch.cat([scores, always], -1), plan)
    # Besides the 20, twice the mean of 30 at most.
    assert int(counts[0, 0]) == 20 + 2 * 30
