"""Pilot and threshold."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_bench.commands.calibrate.pilots import PILOTS
from page_bench.gating.gates import opens
from page_bench.gating.rules import (
    LABEL_NEEDS,
    OPEN_RATE,
    THETA_Z,
    known_threshold,
    midpoint_threshold,
    opens_at,
    quantile_threshold,
    with_interval,
)
from page_bench.gating.threshold import (
    SMALL_PILOT,
    Side,
    Threshold,
    select_pilot,
    zscore_threshold,
)
from page_bench.inputs.errors import UsageError

SAMPLES = [(task, i) for task in ("vt", "fwe", "niah_multikey_3") for i in range(50)]


def test_the_pilot_does_not_depend_on_the_order_of_the_requests() -> None:
    shuffled = random.Random(7).sample(SAMPLES, len(SAMPLES))
    first = [SAMPLES[i] for i in select_pilot(SAMPLES, 100)]
    second = [shuffled[i] for i in select_pilot(shuffled, 100)]
    assert first == second
    assert len(set(first)) == 100


def test_a_pilot_larger_than_the_run_is_the_run() -> None:
    assert sorted(select_pilot(SAMPLES, 1000)) == list(range(150))


def test_the_pilot_mixes_tasks() -> None:
    tasks = {SAMPLES[i][0] for i in select_pilot(SAMPLES, 20)}
    assert tasks == {"vt", "fwe", "niah_multikey_3"}


def test_pilots_of_overlapping_sets_overlap() -> None:
    fewer = [sample for sample in SAMPLES if sample[0] != "fwe"]
    whole = {SAMPLES[i] for i in select_pilot(SAMPLES, 60)}
    part = {fewer[i] for i in select_pilot(fewer, 60)}
    assert whole - {sample for sample in whole if sample[0] == "fwe"} <= part
    assert select_pilot(SAMPLES, 60) != select_pilot(SAMPLES, 60, seed=1)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=60), st.floats(-2, 2))
def test_tau_is_mu_plus_theta_sigma_of_the_population(drops: list[float], theta: float) -> None:
    threshold = zscore_threshold(drops, theta)
    assert threshold.tau == pytest.approx(
        statistics.mean(drops) + theta * statistics.pstdev(drops), abs=1e-12
    )
    assert threshold.pilot_n == len(drops)


def test_one_prompt_is_no_pilot() -> None:
    with pytest.raises(UsageError, match="at least 2 prompts, but this run has 1"):
        zscore_threshold([0.1], -0.69)


def test_the_gate_opens_from_tau_on() -> None:
    threshold = Threshold(0.07, "fixed")
    assert opens("page", 0.07, threshold)
    assert not opens("page", 0.0699, threshold)
    assert opens("open", -1.0, None)
    assert not opens("closed", 1.0, None)


def test_z_is_none_where_all_drops_are_equal() -> None:
    assert zscore_threshold([0.5, 0.5], -0.69).z(0.5) is None
    assert zscore_threshold([0.0, 1.0], -0.69).z(1.0) == pytest.approx(1.0)


@given(st.floats(-1, 1), st.integers(2, 60))
def test_equal_drops_give_their_value_and_open_every_gate(drop: float, n: int) -> None:
    threshold = zscore_threshold([drop] * n, -0.69)
    assert (threshold.tau, threshold.sigma) == (drop, 0)
    assert opens("page", drop, threshold)


def spread(mean: float, sd: float, n: int = 100) -> list[float]:
    """Values with exactly this mean and population standard deviation."""
    return [mean - sd, mean + sd] * (n // 2)


def test_zscore_gives_the_published_threshold_of_qwen3() -> None:
    # Appendix A.3.4: mu = 0.034 and sigma = 0.017 over 400 inputs, tau = 0.022.
    threshold = zscore_threshold(spread(0.034, 0.017, 400), THETA_Z)
    assert THETA_Z == -0.69
    assert round(threshold.tau, 3) == 0.022
    assert threshold.z(0.07) == pytest.approx(2.1, abs=0.05)  # "z = +2.0" there


@pytest.mark.parametrize(
    ("capacity_bound", "dilution_prone", "published"),
    # Table 7: mean D of niah_multikey_3 and of vt over 20 inputs each, and tau.
    [
        (0.045, 0.161, 0.103),  # Qwen2.5-1.5B, 4K
        (-0.002, 0.076, 0.037),  # Qwen2.5-3B, 4K
        (-0.021, 0.068, 0.024),  # Qwen2.5-3B, 16K
        (0.060, 0.096, 0.078),  # Mistral-7B-v0.3, 4K
    ],
)
def test_midpoint_gives_the_published_thresholds(
    capacity_bound: float, dilution_prone: float, published: float
) -> None:
    threshold = midpoint_threshold(spread(capacity_bound, 0.01, 20), spread(dilution_prone, 0.01))
    # All three are rounded to three digits.
    assert threshold.tau == pytest.approx(published, abs=0.0005 + 1e-9)
    assert (threshold.rule, threshold.pilot_n) == ("midpoint", 120)


def test_of_the_plausible_pilots_only_the_ablation_set_opens_on_mk3_of_llama() -> None:
    # Means and standard deviations of D on Llama-3.1-8B at 4K, equal bins; niah_multikey_3 has
    # 0.0712, and the paper says that four pilots agree.
    drops = {
        "niah_multikey_3": (0.0712, 0.0052),
        "niah_multivalue": (0.0608, 0.0073),
        "vt": (0.0785, 0.0020),
        "fwe": (0.1129, 0.0058),
        "qa_1": (0.0920, 0.0111),
        "qa_2": (0.0976, 0.0154),
    }
    taus = {
        pilot: zscore_threshold(
            [value for task in tasks for value in spread(*drops[task])], -0.6934
        ).tau
        for pilot, tasks in PILOTS.items()
    }
    expected = {
        "six": 0.0720,
        "mixed4": 0.0767,
        "no_multivalue": 0.0784,
        "dilution": 0.0745,
        "ablation5": 0.0697,
    }
    assert taus == pytest.approx(expected, abs=1e-4)
    assert [pilot for pilot, tau in taus.items() if opens("page", 0.0712, Threshold(tau, ""))] == [
        "ablation5"
    ]


def test_a_gate_that_opens_below_mirrors_the_signal() -> None:
    values = [0.1, 0.4, 0.2, 0.8, 0.5]
    mirrored = [-value for value in values]
    for theta in (-0.69, 0.3):
        above = zscore_threshold(mirrored, theta)
        below = zscore_threshold(values, theta, "slope", "below")
        assert below.tau == pytest.approx(-above.tau)
        assert (below.signal, below.side) == ("slope", "below")
    for rate in (0.0, 0.3, 0.8, 1.0):
        below = quantile_threshold(values, rate, "slope", "below")
        assert below.tau == -quantile_threshold(mirrored, rate).tau


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=50),
    st.floats(0, 1),
    st.sampled_from(["above", "below"]),
)
def test_quantile_opens_the_share_asked_for_and_ties_besides(
    values: list[float], rate: float, side: Side
) -> None:
    threshold = with_interval(quantile_threshold(values, rate, side=side), values)
    wanted = math.ceil(round(rate * len(values), 9))
    opened = sum(opens_at(value, threshold.tau, side) for value in values)
    assert threshold.pilot_open == pytest.approx(opened / len(values))
    ordered = sorted(values, reverse=side == "above")
    if wanted == 0:
        assert opened == 0
    else:
        tied = sum(value == ordered[wanted - 1] for value in ordered[wanted:])
        assert opened == wanted + tied


def test_quantile_stands_between_two_prompts() -> None:
    assert quantile_threshold([0.1, 0.2, 0.4, 0.8], 0.5).tau == pytest.approx(0.3)
    assert quantile_threshold([0.1, 0.2, 0.4, 0.8], 0.51).tau == pytest.approx(0.15)
    # Seven of a hundred, though 0.07 * 100 is a little more than 7.
    hundred = [i / 100 for i in range(100)]
    assert quantile_threshold(hundred, 0.07).tau == pytest.approx(0.925)
    assert quantile_threshold([0.3, 0.3, 0.3], 0.34).tau == 0.3
    with pytest.raises(UsageError, match=r"open_rate=1\.2"):
        quantile_threshold([0.1], 1.2)


def test_the_default_open_rate_is_that_of_theta_z_on_normal_values() -> None:
    assert statistics.NormalDist().cdf(-THETA_Z) == pytest.approx(OPEN_RATE, abs=0.01)


@pytest.mark.parametrize("rule", ["zscore", "midpoint", "quantile"])
def test_the_interval_covers_the_threshold_of_the_population(rule: str) -> None:
    generator = np.random.default_rng(0)

    def threshold_of(*strata: list[float]) -> Threshold:
        if rule == "midpoint":
            return midpoint_threshold(strata[0], strata[1])
        rules = {"zscore": zscore_threshold, "quantile": quantile_threshold}
        return rules[rule](strata[0], 0.5)

    means = (0.02, 0.08) if rule == "midpoint" else (0.05,)
    normal = statistics.NormalDist(0.05, 0.02)
    truth = {"zscore": 0.05 + 0.5 * 0.02, "midpoint": 0.05, "quantile": normal.mean}[rule]
    hits, widths = 0, {25: 0.0, 400: 0.0}
    for _ in range(60):
        strata = [generator.normal(mean, 0.02, 100).tolist() for mean in means]
        threshold = with_interval(threshold_of(*strata), *strata)
        assert threshold.interval is not None
        low, high = threshold.interval
        assert low <= threshold.tau <= high
        hits += low <= truth <= high
    # 57 of 60 are expected; below 50 by luck is a matter of one in ten thousand.
    assert hits >= 50
    for n in widths:
        strata = [generator.normal(mean, 0.02, n).tolist() for mean in means]
        interval = with_interval(threshold_of(*strata), *strata).interval
        assert interval is not None
        widths[n] = interval[1] - interval[0]
    assert widths[400] < 0.5 * widths[25]


def test_undecided_are_those_that_the_interval_divides() -> None:
    values = [i / 20 for i in range(20)]
    threshold = with_interval(zscore_threshold(values, 0.0), values)
    assert threshold.interval is not None
    low, high = threshold.interval
    between = [value for value in values if low <= value < high]
    assert 0 < len(between) < len(values)
    assert threshold.undecided == pytest.approx(len(between) / len(values))
    again = with_interval(zscore_threshold(values, 0.0), values)
    assert again == threshold
    assert with_interval(zscore_threshold(values, 0.0), values, seed=1) != threshold
    with pytest.raises(ValueError, match="number threshold has no pilot"):
        with_interval(known_threshold(0.1), values)


def test_a_pilot_without_spread_leaves_nothing_open() -> None:
    threshold = with_interval(zscore_threshold([0.3] * 10, -0.69), [0.3] * 10)
    assert (threshold.interval, threshold.undecided, threshold.pilot_open) == (None, None, 1)
    many = with_interval(zscore_threshold([0.3] * 40, -0.69), [0.3] * 40)
    assert (many.interval, many.undecided, many.pilot_open) == (None, None, 1)


def test_a_small_pilot_has_no_interval() -> None:
    values = [i / 20 for i in range(SMALL_PILOT)]
    assert with_interval(zscore_threshold(values, 0.0), values).interval is not None
    assert with_interval(zscore_threshold(values[1:], 0.0), values[1:]).interval is None
    both = midpoint_threshold(values[1:], values)
    assert with_interval(both, values[1:], values).interval is None


def test_only_the_midpoint_needs_task_labels_and_none_needs_accuracy_labels() -> None:
    # Table 8, and the two rules that it does not have.
    assert not any(needs.accuracy for needs in LABEL_NEEDS.values())
    assert [rule for rule, needs in LABEL_NEEDS.items() if needs.task] == ["midpoint"]
    assert str(LABEL_NEEDS["midpoint"]).startswith("accuracy no, task yes: ")


def test_known_thresholds_name_their_signal() -> None:
    assert known_threshold("fixed") == Threshold(0.07, "fixed")
    assert known_threshold(1, "slope", "below") == Threshold(
        1.0, "number", signal="slope", side="below"
    )
    with pytest.raises(UsageError, match="tau=fixed is a threshold on D, but the gate reads slope"):
        known_threshold("fixed", "slope")


def test_a_signal_that_is_no_number_gives_no_threshold() -> None:
    with pytest.raises(UsageError, match="slope is not a number on 1 of 3"):
        zscore_threshold([0.1, math.nan, 0.2], -0.69, "slope")
    with pytest.raises(UsageError, match="tau=midpoint needs inputs"):
        midpoint_threshold([], [0.1])


def test_the_interval_takes_the_populations_deviation() -> None:
    """Of k ones among 20 values, τ is p − √(p (1 − p)) with p = k / 20."""
    values = [0.0, 1.0] * 10
    low, high = with_interval(zscore_threshold(values, -1.0), values).interval or (0.0, 0.0)
    possible = {round(k / 20 - math.sqrt(k / 20 * (1 - k / 20)), 9) for k in range(21)}
    assert {round(low, 9), round(high, 9)} <= possible
    assert low < 0 < high
