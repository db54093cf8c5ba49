"""Top-k membership: exact count, the largest entries, ties to the lowest position."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from page_bench.evictors.base.selection import top_k_members

ROWS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n),
        st.integers(0, n),
    )
)


@given(ROWS)
def test_members_are_the_first_of_a_stable_descending_sort(case: tuple[list[float], int]) -> None:
    values, k = case
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    expected = torch.zeros(len(values), dtype=torch.bool)
    expected[order[:k]] = True
    assert torch.equal(top_k_members(torch.tensor(values), k), expected)


def test_rows_with_and_without_ties_are_selected_together() -> None:
    values = torch.tensor([[[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]]])
    expected = torch.tensor([[[False, True, True], [True, True, False]]])
    assert torch.equal(top_k_members(values, 2), expected)
