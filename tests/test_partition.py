"""ρ, classes and the gate's calls, against hand-made inputs and published intervals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint
from toy_cells import Toy, counted, toy_cell

from page_bench.analysis.estimates import FEW
from page_bench.analysis.intervals import Estimate, share
from page_bench.analysis.partition import (
    CAPACITY,
    CLOSED,
    DILUTION,
    OPEN,
    UNDECIDED,
    Call,
    Gating,
    call_of,
    gatings,
    parts,
)
from page_bench.analysis.pools import arms, inputs, mean, prefills, rate

# Of ten inputs two recover, one at either budget; two stay wrong; three are lost at 0.25 alone and
# one at both budgets; two are right throughout.
TEN = [
    (1, 0.0, {0.25: 1.0, 0.5: 0.0}),
    (1, 0.0, {0.25: 0.0, 0.5: 1.0}),
    (2, 0.0, {0.25: 0.0, 0.5: 0.0}),
    (3, 1.0, {0.25: 0.0, 0.5: 1.0}),
    (1, 1.0, {0.25: 0.0, 0.5: 0.0}),
    (2, 1.0, {0.25: 1.0, 0.5: 1.0}),
]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The closed formula at 95 %."""
    z = 1.959963984540054
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def test_rho_and_its_companions_by_hand() -> None:
    (part,) = parts([inputs(toy_cell(counted("vt", TEN)))], threshold=0.05)
    assert (part.task, part.n, part.budgets) == ("vt", 10, 2)
    assert (part.rho.value, part.rho.n) == (0.2, 10)
    assert (part.full.value, part.headroom) == (0.6, 0.4)
    assert part.always.value == 0.1
    assert (part.ratio.value, part.ratio.n) == (0.5, 4)
    assert part.by_point == DILUTION
    for estimate, successes, n in ((part.rho, 2, 10), (part.always, 1, 10), (part.ratio, 2, 4)):
        assert (estimate.low, estimate.high) == pytest.approx(wilson(successes, n), abs=1e-12)
        ends = proportion_confint(successes, n, method="wilson")
        assert (estimate.low, estimate.high) == pytest.approx(ends, abs=1e-12)


def test_budget_one_recovers_nothing_and_is_no_budget_below_one() -> None:
    for with_full in (True, False):
        (part,) = parts([inputs(toy_cell(counted("vt", TEN), with_full=with_full))], 0.05)
        assert (part.rho.value, part.budgets) == (0.2, 2)


@pytest.mark.parametrize(
    ("rho", "n", "low", "high"),
    [
        (0.06, 100, 0.028, 0.125),
        (0.19, 100, 0.125, 0.278),
        (0.00, 100, 0.000, 0.037),
        (0.05, 100, 0.022, 0.112),
        (0.00, 50, 0.000, 0.071),
        (1 / 30, 30, 0.006, 0.167),
        (0.32, 50, 0.208, 0.458),
        (0.20, 30, 0.095, 0.373),
        (0.00, 46, 0.000, 0.077),
        (0.02, 50, 0.004, 0.105),
    ],
)
def test_intervals_of_the_paper_s_table_1(rho: float, n: int, low: float, high: float) -> None:
    """They follow from ρ and n, so that inputs with that many recoveries must give them."""
    recovered = round(rho * n)
    toys = counted("vt", [(recovered, 0.0, {0.5: 1.0}), (n - recovered, 1.0, {0.5: 1.0})])
    (part,) = parts([inputs(toy_cell(toys))], 0.05)
    assert (part.rho.low, part.rho.high) == pytest.approx((low, high), abs=5.1e-4)


def test_the_paper_s_pooled_capacity_bound_task() -> None:
    """Eight cells of Table 1: ρ·n recoveries each come to 2 of 526, 0.004 [0.001, 0.014]."""
    cells = [(0.01, 100), (0.0, 46), (0.0, 100), (0.02, 50), (0.0, 50), (0.0, 30), (0.0, 100)]
    frames = []
    for i, (rho, n) in enumerate([*cells, (0.0, 50)]):
        recovered = round(rho * n)
        toys = counted("mk3", [(recovered, 0.0, {0.5: 1.0}), (n - recovered, 1.0, {0.5: 0.0})])
        frames.append(inputs(toy_cell(toys, model=f"model {i}")))
    (part,) = parts(frames, 0.05)
    assert (part.n, round(part.rho.value * part.n)) == (526, 2)
    assert [round(x, 3) for x in (part.rho.value, part.rho.low, part.rho.high)] == [
        0.004,
        0.001,
        0.014,
    ]
    assert part.call is not None
    assert part.call.name == CAPACITY  # harmed at every budget


@pytest.mark.parametrize(
    ("recovered", "wrong", "always", "n", "name", "reason"),
    [
        (30, 50, 0, 100, DILUTION, "at or above 0.05"),
        (6, 50, 0, 100, UNDECIDED, "ρ's interval holds 0.05"),
        (0, 2, 0, 50, UNDECIDED, "saturated, headroom 0.040"),
        (0, 2, 0, 500, UNDECIDED, "saturated, headroom 0.004"),
        (0, 100, 0, 500, UNDECIDED, "budget-insensitive"),
        (0, 100, 100, 500, CAPACITY, "every budget harms"),
        (0, 0, 300, 500, CAPACITY, "every budget harms"),
    ],
)
def test_calls(recovered: int, wrong: int, always: int, n: int, name: str, reason: str) -> None:
    toys = counted(
        "vt",
        [
            (recovered, 0.0, {0.5: 1.0}),
            (wrong - recovered, 0.0, {0.5: 0.0}),
            (always, 1.0, {0.5: 0.0}),
            (n - wrong - always, 1.0, {0.5: 1.0}),
        ],
    )
    (part,) = parts([inputs(toy_cell(toys))], 0.05)
    assert part.call is not None
    assert part.call.name == name
    assert reason in part.call.reason


def test_a_call_of_no_input_is_undecided() -> None:
    nothing = share(0, 0)
    assert call_of(nothing, math.nan, nothing, 0.05) == Call(UNDECIDED, "no input")


def test_a_score_that_is_no_0_1_gets_rho_and_no_class() -> None:
    toys = [Toy("qa", 0, 0.4, {0.5: 0.5}), Toy("qa", 1, 0.4, {0.5: 0.4})]
    (part,) = parts([inputs(toy_cell(toys, metric="score"))], 0.05)
    assert part.rho.value == 0.5
    assert part.full.value == pytest.approx(0.4)
    assert (part.by_point, part.call) == (None, None)
    assert math.isnan(part.ratio.value)


def test_documents_that_stand_there_twice_are_resampled_whole() -> None:
    toys = counted("vt", [(20, 0.0, {0.5: 1.0}), (20, 1.0, {0.5: 1.0})])
    twice = [dataclasses.replace(toy, doc_id=toy.doc_id // 2) for toy in toys]
    (once,) = parts([inputs(toy_cell(toys))], 0.05)
    (part,) = parts([inputs(toy_cell(twice))], 0.05)
    assert (once.rho, part.rho) == (share(20, 40), share(10, 20))
    assert once.rho.value == part.rho.value == 0.5
    # 20 documents, not 40: the standard error of a half is 0.112.
    assert part.rho.high - part.rho.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(20), abs=0.04)
    # Where the answers to a document differ, documents are drawn.
    mixed = [dataclasses.replace(toy, doc_id=i % 20) for i, toy in enumerate(toys)]
    (drawn,) = parts([inputs(toy_cell([*mixed[:30], *mixed[:10]]))], 0.05)
    assert (drawn.rho.method, drawn.rho.n) == ("bootstrap", 20)
    # Of fewer than twenty, no class is called.
    half = [dataclasses.replace(toy, doc_id=i % 10) for i, toy in enumerate(toys[10:30])]
    (few,) = parts([inputs(toy_cell([*half, *half[:5]]))], 0.05)
    assert few.call == Call(UNDECIDED, "n too small for an interval of ρ")


def test_what_the_gate_does_with_a_task() -> None:
    toys = [
        Toy("vt", i, 1.0, {0.25: 1.0, 0.5: 1.0}, drop=d, open=d >= 0.07)
        for i, d in enumerate([0.05, 0.08, 0.09, 0.10])
    ]
    (found,) = gatings(toy_cell(toys))
    assert (found.open.value, found.open.n, found.open.method) == (0.75, 4, "wilson")
    assert found.drop.value == pytest.approx(0.08)
    assert found.call == OPEN
    closed = [dataclasses.replace(toy, open=False) for toy in toys]
    assert gatings(toy_cell(closed))[0].call == CLOSED


@pytest.mark.parametrize(
    ("name", "gate", "agrees"),
    [
        (DILUTION, OPEN, True),
        (DILUTION, CLOSED, False),
        (CAPACITY, CLOSED, True),
        (CAPACITY, OPEN, False),
        (UNDECIDED, OPEN, None),
    ],
)
def test_agreement_of_gate_and_class(name: str, gate: str, agrees: bool | None) -> None:
    assert Gating("vt", share(1, 1), share(1, 1), gate).agrees(Call(name, "")) is agrees


def test_a_mean_is_of_what_is_a_number_and_of_documents() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0, math.nan], list("abcde"))
    assert (found.value, found.n, found.method) == (2.5, 4, FEW)
    assert mean([math.nan], ["a"]).n == 0
    both = mean([1.0, 3.0, 5.0], ["a", "a", "b"])
    assert (both.value, both.n, both.method) == (3.5, 2, FEW)
    values = np.random.default_rng(1).normal(size=200)
    many = mean(values, range(200))
    # The normal interval of 200 values.
    half = 1.96 * values.std() / math.sqrt(200)
    assert (many.low, many.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=0.015
    )


def test_a_rate_of_nothing_is_no_number() -> None:
    assert rate([], []).n == 0
    assert math.isnan(rate(np.array([], dtype=bool), []).value)


def test_arms_stand_once_whatever_the_gate() -> None:
    toys = counted("vt", TEN)
    cells = [toy_cell(toys), toy_cell(toys, gate="page zscore"), toy_cell(toys, evictor="h2o")]
    assert [cell.evictor for cell in arms(cells)] == ["snapkv", "h2o"]


def test_prefills_stand_apart_where_d_differs() -> None:
    toys = counted("vt", TEN)
    other = [dataclasses.replace(toy, drop=0.2) for toy in toys]
    near = [dataclasses.replace(toy, drop=toy.drop + 5e-5) for toy in toys]
    cells = [
        toy_cell(toys),
        toy_cell(near, evictor="h2o"),
        toy_cell(other, evictor="snapkv top_k=64"),
        toy_cell(toys, suite="ruler_16k"),
        toy_cell(toys[:5], evictor="keydiff"),
    ]
    assert [[c.evictor for c in group] for group in prefills(cells)] == [
        ["snapkv", "h2o"],
        ["snapkv top_k=64"],
        ["snapkv"],
        ["keydiff"],
    ]


def test_an_estimate_without_a_value_says_so() -> None:
    assert str(Estimate(math.nan, math.nan, math.nan, 0, "wilson")) == "– (n=0)"


def test_a_gate_that_opens_on_half_is_mostly_open() -> None:
    toys = [Toy("vt", i, 1.0, {0.25: 1.0, 0.5: 1.0}, open=i < 2) for i in range(4)]
    assert gatings(toy_cell(toys))[0].call == OPEN
