"""Intervals against hand-computed cases."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, permutation_test
from sklearn.metrics import roc_auc_score
from statsmodels.stats.proportion import proportion_confint

from page_bench.analysis.ablation import least_difference
from page_bench.analysis.draws import drawn_counts
from page_bench.analysis.estimates import (
    BOOTSTRAP,
    EXACT,
    FEW,
    FLAT,
    LEAST,
    Estimate,
    inverse,
    p_of_no_difference,
)
from page_bench.analysis.intervals import ClusterBootstrap, share
from page_bench.gating.threshold import SMALL_PILOT


def test_wilson_of_six_in_a_hundred_is_the_paper_s() -> None:
    """Table 1, vt at 4K: 0.06 [0.028, 0.125]."""
    found = share(6, 100)
    assert (found.value, found.n, found.method) == (0.06, 100, "wilson")
    assert (found.low, found.high) == pytest.approx((0.028, 0.125), abs=5e-4)
    assert share(0, 100).high == pytest.approx(0.037, abs=5e-4)


def test_nothing_counted_is_no_number() -> None:
    assert math.isnan(share(0, 0).value)
    assert str(share(0, 0)) == "– (n=0)"
    assert math.isnan(ClusterBootstrap([]).mean([]).value)


def test_the_limit_is_the_same_for_pilots() -> None:
    assert LEAST == SMALL_PILOT == 20


def test_few_inputs_have_no_interval() -> None:
    few = ClusterBootstrap(range(LEAST - 1)).mean(np.linspace(0, 0.5, LEAST - 1), "share")
    assert (few.value, few.has_interval, few.method) == (0.25, False, FEW)
    assert str(few) == "0.250 (n too small)"
    enough = ClusterBootstrap(range(LEAST)).mean(np.linspace(0, 0.5, LEAST), "share")
    assert enough.low < 0.25 < enough.high


def test_zeros_and_ones_of_inputs_have_wilson_s_interval_however_few() -> None:
    found = ClusterBootstrap(["a", "b"]).mean([0.0, 1.0], "share")
    low, high = proportion_confint(1, 2, method="wilson")
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.method == "wilson"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_score_that_is_the_same_everywhere_is_a_share(value: float) -> None:
    """0 of 25 is at most 0.133 by Wilson, whatever it is called."""
    found = ClusterBootstrap(range(25)).mean([value] * 25, "share")
    assert (found.low, found.high) == pytest.approx(
        (0, 0.133) if value == 0 else (0.867, 1), abs=5e-4
    )
    assert found == share(int(25 * value), 25)


def test_bounded_values_that_agree_are_bounded_by_wilson() -> None:
    """n of n agree, so at most 1 − L are others, by Wilson's L; at worst they lie at a bound."""
    least = proportion_confint(25, 25, method="wilson")[0]
    score = ClusterBootstrap(range(25)).mean([0.4] * 25, "share")
    assert (score.low, score.high) == pytest.approx((0.4 * least, 0.4 * least + 1 - least))
    change = ClusterBootstrap(range(25)).mean([0.0] * 25, "change")
    assert (change.low, change.high) == pytest.approx((least - 1, 1 - least))
    assert str(change) == "0.000 [-0.133, 0.133]"


def test_equal_values_without_bounds_have_no_interval_unless_settings_fix_them() -> None:
    kept = ClusterBootstrap(range(5)).mean([0.25] * 5, "fixed")
    assert (kept.value, kept.low, kept.high, kept.method) == (0.25, 0.25, 0.25, EXACT)
    assert str(kept) == "0.250 (exact)"
    for n, method in ((5, FEW), (25, FLAT)):
        found = ClusterBootstrap(range(n)).mean([0.25] * n)
        assert (found.value, found.has_interval, found.method) == (0.25, False, method)


def test_percentiles_are_those_of_the_resamples() -> None:
    """The very draws, their means taken by hand."""
    values = np.linspace(0, 1, 24) ** 3
    (counts,) = drawn_counts(24, 300, 5)
    assert (counts.sum(1) == 24).all()
    drawn = [np.mean(np.repeat(values, row)) for row in counts]
    found = ClusterBootstrap(range(24), 300, 5).mean(values)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_values_of_one_input_are_drawn_together() -> None:
    """Four budgets of forty inputs are forty clusters: as wide as forty inputs, not as 160."""
    values = np.linspace(0, 1, 40) ** 2
    one = ClusterBootstrap(range(40)).mean(values)
    four = ClusterBootstrap([("vt", i) for i in range(40) for _ in range(4)])
    found = four.mean(np.repeat(values, 4))
    assert (found.low, found.high) == pytest.approx((one.low, one.high))
    assert found.n == 40


def test_an_input_counts_once_however_many_values_it_has() -> None:
    assert ClusterBootstrap(["a", "a", "a", "b"]).mean([1.0, 1.0, 1.0, 0.0]).value == 0.5


def test_the_same_seed_gives_the_same_interval_and_another_another() -> None:
    values = np.linspace(0, 1, 30) ** 2
    one, same, other = (ClusterBootstrap(range(30), 500, seed).mean(values) for seed in (1, 1, 2))
    assert one == same != other


def test_ratios_count_rows_and_draw_inputs() -> None:
    clusters = ["a", "a", "b"]
    counted = np.array([[1, 0], [0, 0], [1, 1]])
    among = np.array([1, 1, 1])
    first, second = ClusterBootstrap(clusters).ratios(counted, among)
    assert (first.value, second.value, first.n, first.method) == (2 / 3, 1 / 3, 2, FEW)
    (empty,) = ClusterBootstrap(clusters).ratios(counted[:, :1] * 0, among * 0)
    assert math.isnan(empty.value)
    assert empty.n == 0


def test_the_interval_of_a_ratio_is_that_of_its_resamples() -> None:
    """Thirty inputs of one to three answers each."""
    sizes = np.arange(30) % 3 + 1
    clusters = np.repeat(np.arange(30), sizes)
    set_ = np.random.default_rng(3).random(len(clusters)) < 0.4
    right = np.bincount(clusters, set_)
    (counts,) = drawn_counts(30, 400, 7)
    drawn = (counts @ right) / (counts @ sizes)
    (found,) = ClusterBootstrap(clusters.tolist(), 400, 7).ratios(set_[:, None], np.ones(len(set_)))
    assert (found.value, found.n) == (set_.mean(), 30)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_inputs_of_one_mind_are_a_share_of_inputs() -> None:
    """Open at both budgets of three inputs of ten: three of ten, not six of twenty."""
    clusters = [i for i in range(10) for _ in range(2)]
    opened = np.array([i < 3 for i in clusters])[:, None]
    boot = ClusterBootstrap(clusters)
    assert boot.ratios(opened, np.ones(20))[0] == boot.mean(opened[:, 0], "share") == share(3, 10)


def test_auc_of_a_hand_computed_case() -> None:
    # Low class 1, 3; others 2, 3, 4: pairs won 3 of 3 and 1.5 of 3.
    found = ClusterBootstrap(range(5)).auc([1, 3, 2, 3, 4], [True, True, False, False, False])
    assert found.value == pytest.approx(4.5 / 6)
    assert (found.n, found.method) == (5, FEW)
    many = ClusterBootstrap(range(100)).auc(
        [1, 3, 2, 3, 4] * 20, [True, True, False, False, False] * 20
    )
    assert many.value == pytest.approx(4.5 / 6)
    assert many.low < many.value < many.high


def test_a_perfect_auc_has_no_spread_and_an_empty_class_no_auc() -> None:
    perfect = ClusterBootstrap(range(40)).auc(range(40), [i < 20 for i in range(40)])
    assert (perfect.value, perfect.has_interval, perfect.method) == (1.0, False, FLAT)
    for is_low in ([True] * 4, [False] * 4):
        assert math.isnan(ClusterBootstrap(range(4)).auc([1, 2, 3, 4], is_low).value)


@given(st.integers(0, 9), st.integers(20, 30), st.integers(2, 30))
@settings(max_examples=15, deadline=None)
def test_the_auc_of_a_draw_equals_that_of_the_resample(seed: int, lows: int, kinds: int) -> None:
    generator = np.random.default_rng(seed)
    is_low = np.arange(60) < lows
    values = generator.integers(0, kinds, 60) + is_low * 0.5
    (counts,) = drawn_counts(60, 60, seed)
    drawn = []
    for row in counts:
        chosen = np.repeat(np.arange(60), row)
        drawn.append(roc_auc_score(~is_low[chosen], values[chosen]))
    found = ClusterBootstrap(range(60), draws=60, seed=seed).auc(values, is_low)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_the_least_difference_is_to_the_nearest_group() -> None:
    """Its ends are the least of both differences' ends."""
    group = np.repeat(np.arange(3), 30)
    values = np.random.default_rng(2).normal(np.take([0.0, 0.5, 0.45], group), 0.3)
    boot = ClusterBootstrap(range(90))
    groups = [group == i for i in range(3)]
    found = least_difference(boot, values, groups)
    means = [values[own].mean() for own in groups]
    assert found.value == pytest.approx(min(means[1:]) - means[0])
    assert found.n == 90
    each = [least_difference(boot, values, [groups[0], own]) for own in groups[1:]]
    assert found.low == min(one.low for one in each)
    assert found.high == min(one.high for one in each)
    few = least_difference(ClusterBootstrap(range(9)), values[::10], [own[::10] for own in groups])
    assert few.method == FEW


def test_flipped_signs_by_hand() -> None:
    """Two inputs that agree can show p = 1/2 at best; a bootstrap of them would say 0.0002."""
    assert p_of_no_difference(np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])) == 0.5
    assert p_of_no_difference(np.zeros(9)) == p_of_no_difference(np.array([1.0])) == 1
    assert p_of_no_difference(np.array([])) == 1


@pytest.mark.parametrize(("better", "worse"), [(5, 0), (8, 1), (6, 6), (9, 3), (20, 8)])
def test_flips_of_equal_sizes_are_mcnemar_s_exact_test(better: int, worse: int) -> None:
    found = p_of_no_difference(np.array([1.0] * better + [-1.0] * worse + [0.0] * 30))
    assert found == pytest.approx(binomtest(better, better + worse).pvalue, abs=0.008)


def test_flips_are_those_of_scipy() -> None:
    values = np.random.default_rng(1).normal(0.4, 1, 11)
    theirs = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert p_of_no_difference(values) == pytest.approx(theirs.pvalue)


def test_the_spread_of_means_is_the_analytic_one() -> None:
    """Standard error √(var / N), all tasks together."""
    values = np.random.default_rng(5).normal(np.repeat([0, 4], [60, 20]), 1)
    draws = ClusterBootstrap(range(80), 20_000).parts(values[:, None], np.ones((80, 1)))
    expected = math.sqrt(values.var() / 80)
    assert draws.value[0] == pytest.approx(values.mean())
    assert draws.drawn.mean() == pytest.approx(values.mean(), abs=4 * expected / math.sqrt(20_000))
    assert draws.drawn.std() == pytest.approx(expected, rel=0.03)


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(2).exponential(size=40)
    theirs = bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    found = ClusterBootstrap(range(40), 20_000).mean(values)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_parts_are_means_of_the_clusters_that_have_them() -> None:
    """a has 1 and 3 at the first budget, b 5, c nothing; at the second only c has a value."""
    clusters = ["a", "a", "b", "c"]
    values = [[1.0, math.nan], [3.0, 7.0], [5.0, 8.0], [9.0, 4.0]]
    among = [[True, False], [True, False], [True, False], [False, True]]
    draws = ClusterBootstrap(clusters).parts(values, among)
    assert draws.value.tolist() == [3.5, 4.0]
    assert draws.n.tolist() == [2, 1]
    assert {one.method for one in draws.estimates()} == {FEW}
    # Draws without a or b have no first mean.
    assert 0 < np.isnan(draws.drawn[:, 0]).mean() == pytest.approx(1 / 27, abs=0.01)


def test_a_part_without_values_is_no_number() -> None:
    (found,) = ClusterBootstrap(["a", "b"]).parts([[1.0], [2.0]], [[False], [False]]).estimates()
    assert math.isnan(found.value)
    assert math.isnan(found.low)
    assert found.n == 0


def test_statistics_are_computed_in_each_resample() -> None:
    """The ratio of two means that move together is the same in all draws, which proves nothing."""
    draws = ClusterBootstrap(range(30)).parts(
        [[float(i), 2.0 * i] for i in range(1, 31)], np.ones((30, 2))
    )
    ratio, numerator = draws.map(
        lambda means: np.column_stack([means[:, 0] / means[:, 1], means[:, 0]])
    ).estimates()
    assert (ratio.value, ratio.has_interval, ratio.method, ratio.n) == (0.5, False, FLAT, 30)
    assert numerator.low < numerator.value < numerator.high
    (carried,) = draws.map(lambda means: means[:, :1], 12).estimates()
    assert carried.method == FEW


def test_twelve_thousand_inputs_take_seconds_and_little_memory() -> None:
    n = 12_000
    values = np.random.default_rng(0).random((n, 10))
    tracemalloc.start()
    start = time.process_time()
    found = ClusterBootstrap(range(n)).means(values)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 10
    assert peak < 500e6
    half = 1.96 * values[:, 0].std() / math.sqrt(n)
    assert found[0].high - found[0].low == pytest.approx(2 * half, rel=0.05)


def test_a_ratio_whose_other_side_is_nothing_is_infinite_and_no_large_number() -> None:
    """An end of 2⁻⁵⁴ is a zero that rounding has missed; its inverse stood in a report."""
    found = inverse(Estimate(0.25, 2.0**-54, 0.5, 20, BOOTSTRAP))
    assert (found.value, found.low, found.high) == (4.0, 2.0, math.inf)
