"""Pilot and threshold."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_bench.calibration import Threshold, select_pilot, zscore_threshold
from page_bench.errors import UsageError
from page_bench.gates import opens

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
