"""Intervals against hand-computed cases."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap
from sklearn.metrics import roc_auc_score

from page_bench.analysis.intervals import ClusterBootstrap, gap, share


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


def test_the_bootstrap_of_two_inputs_has_three_means() -> None:
    found = ClusterBootstrap(["a", "b"]).mean([0.0, 1.0])
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)


def test_equal_values_have_no_spread() -> None:
    found = ClusterBootstrap(range(5)).mean([0.25] * 5)
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)


def test_percentiles_are_those_of_all_resamples() -> None:
    """Of 4 values there are 256 resamples; the interval is that of their means."""
    values = np.array([0.0, 0.0, 1.0, 4.0])
    means = [np.mean(values[list(drawn)]) for drawn in itertools.product(range(4), repeat=4)]
    found = ClusterBootstrap(range(4)).mean(values)
    assert (found.low, found.high) == tuple(np.quantile(means, [0.025, 0.975]))


def test_values_of_one_input_are_drawn_together() -> None:
    """Four budgets of two inputs are two clusters: as wide as two inputs, not as eight."""
    clusters = [("vt", i) for i in (0, 1) for _ in range(4)]
    found = ClusterBootstrap(clusters).mean([0.0] * 4 + [1.0] * 4)
    assert (found.low, found.high, found.n) == (0.0, 1.0, 2)


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
    # Drawn: aa gives 2/4 and 0/4, ab 2/3 and 1/3, bb 2/2 and 2/2.
    assert (first.value, first.low, first.high, first.n) == (2 / 3, 0.5, 1.0, 3)
    assert (second.low, second.high) == (0.0, 1.0)
    (empty,) = ClusterBootstrap(clusters).ratios(counted[:, :1] * 0, among * 0)
    assert math.isnan(empty.value)
    assert empty.n == 0


def test_auc_of_a_hand_computed_case() -> None:
    # Low class 1, 3; others 2, 3, 4: pairs won 3 of 3 and 1.5 of 3.
    found = ClusterBootstrap(range(5)).auc([1, 3, 2, 3, 4], [True, True, False, False, False])
    assert found.value == pytest.approx(4.5 / 6)
    assert found.n == 5
    assert found.low < found.value < found.high


def test_a_perfect_auc_has_no_spread_and_an_empty_class_no_auc() -> None:
    perfect = ClusterBootstrap(range(4)).auc([1, 2, 3, 4], [True, True, False, False])
    assert (perfect.value, perfect.low, perfect.high) == (1.0, 1.0, 1.0)
    for is_low in ([True] * 4, [False] * 4):
        assert math.isnan(ClusterBootstrap(range(4)).auc([1, 2, 3, 4], is_low).value)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=4, max_size=25),
    st.integers(0, 9),
)
def test_a_weighted_draw_equals_the_auc_of_the_resample(
    rows: list[tuple[int, bool]], seed: int
) -> None:
    """With one draw, both ends of the interval are the AUC of that resample."""
    values, is_low = np.array([v for v, _ in rows]), np.array([low for _, low in rows])
    counts = np.random.default_rng(seed).multinomial(len(rows), [1 / len(rows)] * len(rows), 1)[0]
    drawn = np.repeat(np.arange(len(rows)), counts)
    if len(set(is_low[drawn].tolist())) < 2:
        return
    found = ClusterBootstrap(range(len(rows)), draws=1, seed=seed).auc(values, is_low)
    expected = roc_auc_score(~is_low[drawn], values[drawn])
    assert found.low == found.high == pytest.approx(expected)


def test_a_gap_is_to_the_nearest_group() -> None:
    found = gap(np.array([0.0, 0.2]), [np.array([0.5, 0.5]), np.array([0.3, 0.5])])
    assert found.value == pytest.approx(0.3)
    assert found.n == 6
    # The low group ranges over 0, 0.1, 0.2; the nearest over 0.3, 0.4, 0.5.
    assert (found.low, found.high) == pytest.approx((0.1, 0.5))
    assert math.isnan(gap(np.array([]), [np.array([1.0])]).value)
    assert math.isnan(gap(np.array([1.0]), []).value)


def test_a_stratum_keeps_its_number_of_clusters() -> None:
    """One cluster per stratum leaves nothing to draw; without strata the mean ranges over all."""
    clusters, strata = ["a", "a", "b"], ["vt", "vt", "mk3"]
    boot = ClusterBootstrap(clusters, strata=strata)
    found = boot.mean([1.0, 1.0, 0.0])
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.5, 0.5, 2)
    (ratio,) = boot.ratios([[1], [0], [1]], [1, 1, 1])
    assert (ratio.value, ratio.low, ratio.high) == (2 / 3, 2 / 3, 2 / 3)
    assert ClusterBootstrap(clusters).mean([1.0, 1.0, 0.0]).low == 0.0


def test_a_cluster_lies_in_one_stratum() -> None:
    with pytest.raises(ValueError, match="in the strata vt and mk3"):
        ClusterBootstrap(["a", "a"], strata=["vt", "mk3"])


@pytest.mark.parametrize("stratified", [True, False])
def test_the_spread_of_means_is_the_analytic_one(stratified: bool) -> None:
    """Standard error √(Σ (n_s/N)² · var_s / n_s) with strata, √(var / N) without."""
    generator = np.random.default_rng(5)
    strata = np.array(["a"] * 60 + ["b"] * 20)
    values = np.where(strata == "a", generator.normal(0, 1, 80), generator.normal(4, 2, 80))
    # Clusters stand in no order of their strata.
    order = generator.permutation(80)
    values, strata = values[order], strata[order]
    own = strata.tolist() if stratified else ["one"] * 80
    draws = ClusterBootstrap(range(80), 20_000, strata=own).parts(values[:, None], np.ones((80, 1)))
    parts = [values[strata == name] for name in ("a", "b")] if stratified else [values]
    expected = math.sqrt(sum((len(part) / 80) ** 2 * part.var() / len(part) for part in parts))
    assert draws.value[0] == pytest.approx(values.mean())
    assert draws.drawn.mean() == pytest.approx(values.mean(), abs=4 * expected / math.sqrt(20_000))
    assert draws.drawn.std() == pytest.approx(expected, rel=0.03)


def test_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(2).exponential(size=40)
    theirs = bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    for strata in (None, ["one"] * 40):
        found = ClusterBootstrap(range(40), 20_000, strata=strata).mean(values)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_parts_are_means_of_the_clusters_that_have_them() -> None:
    """a has 1 and 3 at the first budget, b 5, c nothing; at the second only c has a value."""
    clusters = ["a", "a", "b", "c"]
    values = [[1.0, math.nan], [3.0, 7.0], [5.0, 8.0], [9.0, 4.0]]
    among = [[True, False], [True, False], [True, False], [False, True]]
    draws = ClusterBootstrap(clusters).parts(values, among)
    assert draws.value.tolist() == [3.5, 4.0]
    assert draws.n.tolist() == [2, 1]
    first, second = draws.estimates()
    # Draws without a or b have no first mean, those without c no second one.
    assert (first.low, first.high, first.n) == (2.0, 5.0, 2)
    assert (second.low, second.high) == (4.0, 4.0)
    assert 0 < np.isnan(draws.drawn[:, 0]).mean() == pytest.approx(1 / 27, abs=0.01)


def test_a_part_without_values_is_no_number() -> None:
    (found,) = ClusterBootstrap(["a", "b"]).parts([[1.0], [2.0]], [[False], [False]]).estimates()
    assert math.isnan(found.value)
    assert math.isnan(found.low)
    assert found.n == 0


def test_statistics_are_computed_in_each_resample() -> None:
    """The ratio of two means that move together is the same in all draws."""
    draws = ClusterBootstrap(range(10)).parts(
        [[float(i), 2.0 * i] for i in range(1, 11)], np.ones((10, 2))
    )
    ratio, numerator = draws.map(
        lambda means: np.column_stack([means[:, 0] / means[:, 1], means[:, 0]])
    ).estimates()
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == (0.5, 0.5, 0.5, 10)
    assert numerator.low < numerator.value < numerator.high


def test_an_auc_within_strata_keeps_both_classes() -> None:
    """Two low and one other: the other is in every draw, and no draw is left out."""
    values, is_low = [1.0, 3.0, 2.0], [True, True, False]
    found = ClusterBootstrap(range(3), strata=is_low).auc(values, is_low)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    tied = ClusterBootstrap(range(3), strata=[0, 1, 2]).auc([1.0, 2.0, 2.0], is_low)
    assert (tied.value, tied.low, tied.high) == (0.75, 0.75, 0.75)


def test_twelve_thousand_inputs_take_seconds_and_little_memory() -> None:
    n = 12_000
    values = np.random.default_rng(0).random((n, 10))
    tracemalloc.start()
    start = time.process_time()
    found = ClusterBootstrap(range(n), strata=[i % 13 for i in range(n)]).means(values)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 10
    assert peak < 500e6
    half = 1.96 * values[:, 0].std() / math.sqrt(n)
    assert found[0].high - found[0].low == pytest.approx(2 * half, rel=0.05)
