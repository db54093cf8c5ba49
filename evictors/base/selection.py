"""Top-k membership with a rule for ties, shared by the gate signal and by eviction."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_members(values: Tensor, k: int) -> Tensor:
    """Mark the k largest entries of each row; ties at the cut go to the lowest position.

    The rule makes a run reproducible across devices, where `torch.topk` leaves ties open.

    Args:
        values: float tensor `[..., N]` without NaN.
        k: entries to mark per row, 0 to N.

    Returns:
        Bool tensor `[..., N]`, exactly k True per row.
    """
    n = values.shape[-1]
    if not 0 <= k <= n:
        raise ValueError(f"k is {k}, but a row has {n} entries")
    if k in (0, n):
        return torch.full(values.shape, k == n, dtype=torch.bool, device=values.device)
    # One entry more than asked shows which rows have a tie at the cut; only these need the
    # exact path, which costs several passes over the row.
    top = values.topk(k + 1, dim=-1)
    members = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    members.scatter_(-1, top.indices[..., :k], True)
    tied = top.values[..., k - 1] == top.values[..., k]
    if bool(tied.any()):
        members[tied] = _exact_members(values[tied], top.values[..., k - 1 : k][tied], k)
    return members


def top_k_of_all(values: Tensor, k: int) -> Tensor:
    """Mark the k largest of `values` `[..., N]`, all rows together: bool of the same shape.

    Ties at the cut go to the lowest position, whichever row it is in, then to the lowest row.
    """
    outer = values.movedim(-1, 0)  # positions outermost
    return top_k_members(outer.reshape(-1), k).view(outer.shape).movedim(0, -1)


def _exact_members(rows: Tensor, cut: Tensor, k: int) -> Tensor:
    """Members of `rows` `[R, N]` whose k-th largest value is `cut` `[R, 1]`, ties by position."""
    above = rows > cut
    at_cut = rows == cut
    missing = k - above.sum(-1, keepdim=True)
    return above | (at_cut & (at_cut.cumsum(-1) <= missing))
