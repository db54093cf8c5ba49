"""Statistics of a gate's decisions, against hand-computed cases."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from stored_traces import pair, stored

from page_bench.analysis.costs import seconds_of
from page_bench.analysis.estimates import FEW
from page_bench.analysis.intervals import share
from page_bench.analysis.outcomes import ALL_TASKS, summarise
from page_bench.analysis.pairs import Pair
from page_bench.gating.gates import make_gate
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Sample

# (task, plain, full, opens)
CASES = [
    *[("mk3", 0.0, 1.0, False)] * 3,  # saved by the full cache
    *[("mk3", 0.0, 1.0, True)] * 1,  # harmed
    *[("vt", 1.0, 1.0, True)] * 4,
    *[("vt", 1.0, 0.0, False)] * 1,  # a needless full cache
    *[("vt", 0.0, 0.0, True)] * 1,
]
PAIRS = [pair(task, i, 0.1, plain, full) for i, (task, plain, full, _) in enumerate(CASES)]
TAKEN = [opens for *_, opens in CASES]


def test_a_hand_computed_case() -> None:
    mk3, vt, everything = summarise(PAIRS, TAKEN)
    assert [row.task for row in (mk3, vt, everything)] == ["mk3", "vt", ALL_TASKS]
    assert [row.n for row in (mk3, vt, everything)] == [4, 6, 10]
    assert (mk3.gated.value, mk3.plain.value, mk3.full.value) == (0.75, 0.0, 1.0)
    assert (mk3.delta.value, mk3.open.value) == (0.75, 0.25)
    assert (mk3.harm.value, mk3.plain_harm.value) == (0.25, 1.0)
    assert mk3.kept_kv.value == pytest.approx((3 * 1 + 0.25) / 4)
    assert vt.delta.value == pytest.approx(-1 / 6)
    assert (vt.harm.value, vt.plain_harm.value) == (0.0, 0.0)
    assert everything.delta.value == pytest.approx((3 - 1) / 10)
    assert everything.delta.method == FEW
    thrice = [pair(task, i, 0.1, plain, full) for i, (task, plain, full, _) in enumerate(CASES * 3)]
    many = summarise(thrice, TAKEN * 3)[-1].delta
    assert many.low < 0.2 < many.high
    assert everything.gated.value == pytest.approx(7 / 10)


def test_shares_of_inputs_are_wilson_and_differences_bootstrapped() -> None:
    *_, row = summarise(PAIRS, TAKEN)
    assert row.gated == share(7, 10)
    assert row.open == share(6, 10)
    assert row.harm == share(1, 10)
    assert (row.delta.method, row.kept_kv.method) == (FEW, FEW)
    assert row.delta.n == row.inputs == 10


def test_a_score_between_0_and_1_is_bootstrapped_and_less_is_harm() -> None:
    pairs = [pair("fwe", i, 0.1, *scores) for i, scores in enumerate([(0.5, 1.0), (0.25, 0.25)])]
    (row,) = summarise(pairs, [True, True], "score")
    assert (row.gated.value, row.gated.method) == (0.375, FEW)
    assert row.harm.value == 0.5
    assert set(row.scores) == {"score", "correct", "correct_paper"}


def test_budgets_of_one_input_are_one_cluster() -> None:
    """A pooled table has n pairs of fewer inputs, and Wilson's interval is that of the inputs."""
    pooled = [
        dataclasses.replace(one, plain=dataclasses.replace(one.plain, budget=budget))
        for budget in (0.25, 0.5)
        for one in PAIRS
    ]
    *_, row = summarise(pooled, TAKEN * 2)
    *_, single = summarise(PAIRS, TAKEN)
    assert (row.n, row.inputs) == (20, 10)
    assert row.delta == single.delta
    assert (row.gated, row.open, row.harm) == (single.gated, single.open, single.harm)
    assert row.open == share(6, 10)
    once = [one if i % 2 else False for i, one in enumerate(TAKEN)]
    *_, mixed = summarise(pooled, TAKEN + once)
    assert (mixed.open.n, mixed.open.method) == (10, FEW)


def test_a_budget_that_kept_all_counts_as_open_and_not_as_evicted() -> None:
    kept = [
        Pair(
            one.sample,
            dataclasses.replace(one.plain, kept_all_because="prompt too short", kept_kv=1.0),
            one.full,
        )
        for one in PAIRS[:4]
    ]
    (row,) = summarise(kept, [True] * 4)
    assert (row.open.value, row.evicted.value, row.kept_kv.value) == (1.0, 0.0, 1.0)


def test_no_score_is_an_error_that_names_another() -> None:
    lacking = [
        dataclasses.replace(PAIRS[0], plain=dataclasses.replace(PAIRS[0].plain, correct=None))
    ]
    with pytest.raises(UsageError, match="mk3 document 0 has no correct; use --metric score"):
        summarise(lacking, [True])


def test_the_seed_and_the_draws_are_those_given() -> None:
    pairs = [pair("vt", i, 0.1, float(i % 3 == 0), 1.0) for i in range(40)]
    taken = [i % 2 == 0 for i in range(40)]
    one, same, other = (summarise(pairs, taken, draws=99, seed=s)[-1].delta for s in (1, 1, 2))
    assert one == same
    assert one != other


TIMES: dict[str, Any] = {
    "prefill_s": 10.0,
    "gate_s": 0.5,
    "evict_s": 1.0,
    "decode_s": 8.0,
    "decode_rows": 4,
}
FULL_TIMES: dict[str, Any] = {
    "prefill_s": 9.0,
    "gate_s": 0.25,
    "evict_s": 0.0,
    "decode_s": 6.0,
    "decode_rows": 2,
}


def timed(**full: Any) -> Pair:
    """An input whose plain answer takes 1 + 2 s after its prefill, and its full one 3 s."""
    one, other = stored(), stored(gate="closed")
    plain = dataclasses.replace(one, **TIMES)
    return Pair(Sample.of(one), plain, dataclasses.replace(other, **{**FULL_TIMES, **full}))


@pytest.mark.parametrize(
    ("gate", "plain", "full"),
    [
        ("page", 10 + 0.5 + 1 + 2, 10 + 0.5 + 3),  # decided after the arm's prefill
        ("static", 10 + 0.5 + 1 + 2, 10 + 0.5 + 3),
        ("open", 10 + 1 + 2, 9 + 3),
        ("random", 10 + 1 + 2, 9 + 3),
        ("retry", 10 + 1 + 2, 10 + 1 + 2 + 9 + 3),  # evicted, answered, prefilled again
        ("oracle", 10 + 1 + 2 + 3, 9 + 3 + 1 + 2),  # both answers of one prefill
    ],
)
def test_the_seconds_of_a_gated_answer(gate: str, plain: float, full: float) -> None:
    made = make_gate(gate)
    assert [seconds_of(timed(), takes, made) for takes in (True, False)] == [plain, full]


def test_what_a_live_retry_discarded_counts_in_retrying_alone() -> None:
    made = make_gate("retry")
    one = timed(gate="retry", gate_args=dataclasses.asdict(made), discarded_s=100.0)
    assert seconds_of(one, False, made) == 9 + 3 + 100
    assert seconds_of(one, False, make_gate("retry", {"limit": 0.2})) == 25
    assert seconds_of(one, False, make_gate("page")) == 13.5


def test_seconds_are_means_over_inputs_and_need_a_gate() -> None:
    pairs = [dataclasses.replace(timed(), sample=PAIRS[i].sample) for i in range(4)]
    pairs = [
        dataclasses.replace(one, plain=dataclasses.replace(one.plain, doc_id=i))
        for i, one in enumerate(pairs)
    ]
    (row,) = summarise(pairs, [True, False, False, False], gate=make_gate("retry"))
    assert row.seconds.value == pytest.approx((13 + 3 * 25) / 4)
    assert (row.seconds.n, row.seconds.method) == (4, FEW)
    (row,) = summarise(pairs, [True] * 4)
    assert math.isnan(row.seconds.value)
    assert row.kept_kv.value == 0.25
