"""The count rule and the protected positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page_bench.evictors.base.budget import (
    is_too_short,
    keep_count,
    kept_members,
    largest_remainder,
)

# Prompt lengths and keep counts of the authors' released log, Qwen2.5-1.5B on RULER 4096.
PUBLISHED_BUDGETS = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0625)
PUBLISHED_COUNTS = {
    4042: (3536, 3031, 2526, 2021, 1515, 1010, 505, 252),
    3959: (3464, 2969, 2474, 1979, 1484, 989, 494, 247),
    4046: (3540, 3034, 2528, 2023, 1517, 1011, 505, 252),
    4045: (3539, 3033, 2528, 2022, 1516, 1011, 505, 252),
    4023: (3520, 3017, 2514, 2011, 1508, 1005, 502, 251),
}


@pytest.mark.parametrize("length", PUBLISHED_COUNTS)
def test_counts_equal_the_published_ones(length: int) -> None:
    counts = tuple(keep_count(b, length, n_sink=4, recent=32) for b in PUBLISHED_BUDGETS)
    assert counts == PUBLISHED_COUNTS[length]


@pytest.mark.parametrize(
    ("budget", "length", "count"), [(0.29, 100, 29), (0.57, 100, 57), (1.0, 77, 77), (0.01, 20, 20)]
)
def test_budgets_are_taken_as_decimals(budget: float, length: int, count: int) -> None:
    assert keep_count(budget, length, n_sink=4, recent=12) == count


def test_the_smallest_cache_holds_four_free_positions() -> None:
    assert keep_count(0.001, 1000, n_sink=4, recent=32) == 40
    assert is_too_short(40, n_sink=4, recent=32)
    assert not is_too_short(41, n_sink=4, recent=32)


@given(
    length=st.integers(1, 80),
    n_sink=st.integers(0, 6),
    recent=st.integers(1, 12),
    data=st.data(),
)
def test_protected_positions_stay_and_the_count_is_exact(
    length: int, n_sink: int, recent: int, data: st.DataObject
) -> None:
    protected = min(n_sink + recent, length)
    n_keep = data.draw(st.integers(protected, length))
    score = torch.tensor(
        data.draw(st.lists(st.floats(0, 1, width=32), min_size=length, max_size=length))
    )
    (members,) = kept_members(score[None], torch.tensor([n_keep]), n_sink, recent)
    kept = members.nonzero().squeeze(-1).tolist()
    assert len(kept) == n_keep
    assert kept == sorted(set(kept))
    must = set(range(min(n_sink, length))) | set(range(max(length - recent, 0), length))
    assert must <= set(kept)
    dropped = set(range(length)) - set(kept)
    free = set(kept) - must
    if dropped and free:
        assert min(score[list(free)]) >= max(score[list(dropped)])


def test_fewer_positions_than_protected_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot keep \[3\]"):
        kept_members(torch.rand(1, 50), torch.tensor([3]), n_sink=4, recent=8)


def test_remainders_that_differ_by_rounding_are_ties() -> None:
    shares = torch.tensor([1.5, 1.5 + 2**-50], dtype=torch.float64)
    assert largest_remainder(shares, 3).tolist() == [2, 1]
