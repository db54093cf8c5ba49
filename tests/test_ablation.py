"""Contrasts and ablations from stored traces, against hand-computed cases."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from stored_traces import pair

from page_bench.analysis.ablation import Ablation
from page_bench.analysis.estimates import FEW
from page_bench.analysis.kappa import margins
from page_bench.analysis.pairs import Pair
from page_bench.gating.profile import DropOptions, drop_of, mean_of_pairs
from page_bench.gating.signal_gates import SIDES
from page_bench.inputs.errors import UsageError

MK3, VT, FWE = "page_ruler_4k_niah_multikey_3", "page_ruler_4k_vt", "page_ruler_4k_fwe"


def inputs(*rows: tuple[str, float, float, float], **changes: Any) -> list[Pair]:
    """Pairs from (task, D, plain, full)."""
    return [
        pair(task, i, drop, plain, full, **changes)
        for i, (task, drop, plain, full) in enumerate(rows)
    ]


# D is 0.05 on average where eviction ruins all, 0.12 and 0.20 elsewhere; one of fwe is harmed too.
ROWS = [
    *[(MK3, 0.04, 0.0, 1.0), (MK3, 0.06, 0.0, 1.0)],
    *[(VT, 0.20, 1.0, 1.0), (VT, 0.20, 1.0, 1.0)],
    *[(FWE, 0.10, 0.0, 1.0), (FWE, 0.14, 1.0, 0.0)],
]


def drops(pairs: list[Pair]) -> list[float]:
    return [one.plain.drop for one in pairs]


def test_a_hand_computed_contrast() -> None:
    pairs = inputs(*ROWS)
    found = Ablation(pairs).contrast("drop", drops(pairs), "above")
    assert (found.n, found.capacity_mean.n) == (6, 2)
    assert found.capacity_mean.value == pytest.approx(0.05)
    assert found.nearest_task == FWE
    assert found.nearest_mean.value == pytest.approx(0.12)
    assert found.margin.value == pytest.approx(0.07)
    assert found.separates == "below"
    # The low class is MK3: all its D lie below all others'.
    assert found.auc_task.value == 1.0
    # Harmed are 0.04, 0.06 and 0.10: below 0.20, 0.20 and 0.14.
    assert (found.n_harmed, found.auc_harm.value) == (3, 1.0)
    assert (found.oriented_harm, found.found_side) == (1.0, "above")


def test_the_margin_has_an_interval_where_each_task_has_twenty_inputs() -> None:
    """Normal values: the standard error of a difference of two means, and the nearer task's."""
    generator = np.random.default_rng(3)
    rows = [
        (task, float(d), 1.0, 1.0)
        for task, center in ((MK3, 0.05), (VT, 0.3), (FWE, 0.12))
        for d in generator.normal(center, 0.02, 40)
    ]
    found = Ablation(inputs(*rows)).contrast("drop", [d for _, d, *_ in rows], "above").margin
    half = 1.96 * 0.02 * math.sqrt(2 / 40)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.2)
    assert found.low < 0.07 < found.high
    assert found.n == 120
    few = Ablation(inputs(*ROWS)).contrast("drop", [d for _, d, *_ in ROWS], "above").margin
    assert (few.n, few.method) == (6, FEW)


def test_a_signal_that_opens_below_is_read_with_the_opposite_sign() -> None:
    pairs = inputs(*ROWS)
    ablation = Ablation(pairs)
    above = ablation.contrast("x", drops(pairs), "above")
    below = ablation.contrast("x", [-d for d in drops(pairs)], "below")
    assert below.margin.value == pytest.approx(above.margin.value)
    assert below.auc_harm == above.auc_harm
    assert below.auc_task == above.auc_task
    assert (above.separates, below.separates) == ("below", "above")
    # On the wrong side the AUC is below chance, and the better side is named.
    wrong = ablation.contrast("x", drops(pairs), "below")
    assert (wrong.auc_harm.value, wrong.oriented_harm, wrong.found_side) == (0.0, 1.0, "above")
    assert wrong.margin.value < 0


def test_auc_is_sklearn_s_with_the_capacity_bound_tasks_low() -> None:
    rows = [(task, d, p, 1.0) for task, d, p, _ in ROWS]
    rows += [(MK3, 0.15, 1.0, 1.0), (VT, 0.05, 0.0, 1.0), (VT, 0.06, 1.0, 1.0)]
    pairs = inputs(*rows)
    found = Ablation(pairs).contrast("drop", drops(pairs), "above")
    is_other, unharmed = [t != MK3 for t, *_ in rows], [p == 1 for *_, p, _ in rows]
    assert found.auc_task.value == pytest.approx(roc_auc_score(is_other, drops(pairs)))
    assert found.auc_harm.value == pytest.approx(roc_auc_score(unharmed, drops(pairs)))
    assert 0.5 < found.auc_harm.value < 1
    assert found.auc_harm.method == FEW
    assert found.separates == "below"
    assert found.auc_task.n == found.auc_harm.n == 9


def test_an_empty_class_has_no_auc_and_its_size_is_told() -> None:
    pairs = inputs(*((task, d, 1.0, 1.0) for task, d, *_ in ROWS))
    found = Ablation(pairs).contrast("drop", drops(pairs), "above")
    assert found.n_harmed == 0
    assert math.isnan(found.auc_harm.value)
    assert found.found_side == "–"
    assert found.auc_task.value == 1.0


def test_without_tasks_of_both_kinds_there_is_no_margin() -> None:
    for rows in (ROWS[:2], ROWS[2:]):
        found = Ablation(inputs(*rows)).contrast("drop", [d for _, d, *_ in rows], "above")
        assert math.isnan(found.margin.value)
        assert (found.separates, found.nearest_task) == ("–", "")


def test_the_closed_tasks_are_those_given() -> None:
    ablation = Ablation(inputs(*ROWS), capacity_bound="fwe+niah_multikey_3")
    assert ablation.closed_tasks == {MK3: True, VT: False, FWE: True}
    found = ablation.contrast("drop", [d for _, d, *_ in ROWS], "above")
    assert found.nearest_task == VT
    assert found.margin.value == pytest.approx(0.20 - (0.04 + 0.06 + 0.10 + 0.14) / 4)


def test_records_of_one_input_weigh_as_one() -> None:
    pairs = inputs(*ROWS)
    again = [pair(ROWS[0][0], 0, 0.04, 0.0, 1.0, repeat=r) for r in (1, 2)]
    found = Ablation(pairs + again).contrast("drop", [*drops(pairs), 0.04, 0.04], "above")
    assert found.margin.value == pytest.approx(0.07)
    assert found.margin.n == 6


def profiles() -> list[Pair]:
    """Six layers, falling from task to task by another amount; L is no multiple of 4."""
    falls = {MK3: 0.02, VT: 0.10, FWE: 0.06}
    return [
        pair(task, i, 9.9, p, f, agreement=[0.9 - falls[task] * (d + i / 9) for d in range(6)])
        for i, (task, _, p, f) in enumerate(ROWS)
    ]


def by_hand(pairs: list[Pair], values: list[float]) -> float:
    """The margin between task means."""
    means: dict[str, list[float]] = {}
    for one, value in zip(pairs, values, strict=True):
        means.setdefault(one.sample.task, []).append(value)
    return min(statistics.fmean(means[t]) for t in (VT, FWE)) - statistics.fmean(means[MK3])


def test_bins_and_late_bins() -> None:
    pairs = profiles()
    rows = {row.label: row for row in Ablation(pairs).bins()}
    assert list(rows) == [
        f"{size} {end}" for size in ("quarter", "third", "half") for end in ("equal", "strict")
    ]
    for one in pairs:
        assert one.plain.drop == 9.9  # taken anew, not read
    agreements = [one.plain.agreement for one in pairs]
    thirds = [(a[0] + a[1]) / 2 - (a[4] + a[5]) / 2 for a in agreements]
    quarters = [a[0] - a[5] for a in agreements]
    strict = [a[0] - (a[4] + a[5]) / 2 for a in agreements]
    assert rows["third equal"].margin.value == pytest.approx(by_hand(pairs, thirds))
    assert rows["quarter equal"].margin.value == pytest.approx(by_hand(pairs, quarters))
    assert rows["quarter strict"].margin.value == pytest.approx(by_hand(pairs, strict))
    # 3 divides L: there the two conventions are one.
    assert rows["third strict"].margin == rows["third equal"].margin
    assert rows["quarter strict"].margin != rows["quarter equal"].margin


def test_layers() -> None:
    pairs = profiles()
    rows = {row.label: row for row in Ablation(pairs).layers()}
    assert list(rows) == ["all", "stride 2", "stride 4", "early third", "first and last"]
    agreements = [one.plain.agreement for one in pairs]
    every = {
        "stride 2": [a[0] - a[4] for a in agreements],
        "stride 4": [a[0] - a[4] for a in agreements],
        "early third": [a[0] - a[1] for a in agreements],
        "first and last": [a[0] - a[5] for a in agreements],
    }
    for label, values in every.items():
        assert rows[label].margin.value == pytest.approx(by_hand(pairs, values))


def test_too_few_layers_make_no_number_and_no_error() -> None:
    pairs = inputs(*ROWS, agreement=[0.5, 0.4, 0.3])
    rows = {row.label.partition(" (")[0]: row for row in Ablation(pairs).layers()}
    assert math.isnan(rows["early third"].margin.value)
    assert "no number on 6 of 6 inputs" in rows["early third"].label
    assert not math.isnan(rows["all"].margin.value)


def test_head_pairs_against_each_subset() -> None:
    pairs = profiles()
    for i, one in enumerate(pairs):
        table = [[a + (j - 5) * i / 500 for j in range(10)] for a in one.plain.agreement]
        object.__setattr__(one.plain, "pair_agreement", table)
    rows = Ablation(pairs).head_pairs(shares=(1.0, 0.3), draws=4)
    assert [(row.share, row.pairs, row.draws, row.n) for row in rows] == [
        (1.0, 10, 1, 6),
        (0.3, 3, 4, 6),
    ]
    margins = []
    for seed in range(4):
        options = DropOptions(head_pairs=0.3, seed=seed)
        values = [
            drop_of(mean_of_pairs(one.plain.pair_agreement or [], options), options)
            for one in pairs
        ]
        margins.append(by_hand(pairs, values))
    assert rows[1].margin == pytest.approx(statistics.fmean(margins))
    assert (rows[1].lowest, rows[1].highest) == pytest.approx((min(margins), max(margins)))
    assert rows[1].ordered == sum(margin > 0 for margin in margins)


def test_head_pairs_need_their_agreement() -> None:
    with pytest.raises(UsageError, match="run again with signals=pairs"):
        Ablation(inputs(*ROWS)).head_pairs()


def test_signals_are_those_that_all_records_hold() -> None:
    found, missing = Ablation(profiles()).signals()
    assert [row.label for row in found] == ["drop", "late_plateau", "slope", "monotonicity"]
    assert missing == [
        *("entropy_norm", "topk_mass_share", "max_share", "keynorm_disp", "entropy_drop")
    ]
    assert {row.label: row.side for row in found} == {row.label: SIDES[row.label] for row in found}
    everything = inputs(*ROWS, signals=dict.fromkeys(SIDES, 0.5))
    found, missing = Ablation(everything).signals()
    assert [row.label for row in found] == list(SIDES)
    assert missing == []


def test_kappa_against_hand_computed_values() -> None:
    """Two layers of two heads; 2·sqrt(ln(2·2²·2·100²)) = 6.92 is required of each."""
    kappas = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    pairs = [
        pair(task, i, d, p, f, margin=[[k, k], [k - 1, k + 3]])
        for i, ((task, d, p, f), k) in enumerate(zip(ROWS, kappas, strict=True))
    ]
    found = margins(Ablation(pairs))
    assert found is not None
    assert (found.n, found.layers, found.heads) == (6, 2, 2)
    assert found.median.value == pytest.approx(4.5)
    assert found.median.n == 6
    assert found.highest == 10.0
    assert found.lowest_required == found.highest_required
    assert found.lowest_required == pytest.approx(2 * math.sqrt(math.log(2 * 4 * 2 * 100**2)))
    # k + 3 from k = 4 on, and both k of the last: 1, 1, 1 and 3 of 4.
    assert found.reached.value == pytest.approx((0.25 * 3 + 0.75) / 6)
    # Harmed are the inputs with κ of 2, 3 and 6.
    assert found.contrast.auc_harm.value == pytest.approx(7 / 9)
    assert found.contrast.auc_task.value == 1.0
    assert found.contrast.n_harmed == 3


def test_kappa_is_of_all_records_or_none() -> None:
    assert margins(Ablation(inputs(*ROWS))) is None
    pairs = [*inputs(*ROWS, margin=[[3.0]]), pair(VT, 9, 0.1, 1.0, 1.0)]
    assert margins(Ablation(pairs)) is None


def test_kappa_that_is_no_number_somewhere_is_left_out_of_the_median() -> None:
    found = margins(Ablation(inputs(*ROWS, margin=[[3.0, math.nan], [5.0, 4.0]])))
    assert found is not None
    assert (found.median.value, found.highest) == (4.0, 5.0)
