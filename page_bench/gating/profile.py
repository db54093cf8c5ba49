"""Readings of the agreement profile: one number per layer in, one number per prompt out.

Nothing here needs a model: stored profiles are read again by the same functions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from page_bench.inputs.errors import UsageError

Bins = Literal["third", "half", "quarter"]
LateBin = Literal["equal", "strict"]
_PARTS: dict[Bins, int] = {"third": 3, "half": 2, "quarter": 4}

Profile = Tensor | Sequence[float]
"""`[L]`, one value per layer, the layer next to the embedding first."""


@dataclass(frozen=True)
class DropOptions:
    """How D is taken; the defaults are the paper's deployed gate.

    Attributes:
        top_k: size of the key sets that are compared.
        bins: share of the layers in each of the two bins, rounded down.
        late_bin: `equal` gives both bins the same size; `strict` begins the late one at
            ⌊2L/3⌋, ⌊L/2⌋ or ⌊3L/4⌋, one layer earlier where L is no multiple (paper, Table 24).
        layer_stride: every how many layers one is read, from the first on; the bins are those of
            the layers read.
        head_pairs: share of the head pairs that are compared, the same ones in all layers.
        seed: of the choice of head pairs.

    Raises:
        UsageError: a value that is not allowed.
    """

    top_k: int = 32
    bins: Bins = "third"
    late_bin: LateBin = "equal"
    layer_stride: int = 1
    head_pairs: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("bins", Bins), ("late_bin", LateBin)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(
                    f"gate.{name}={getattr(self, name)} is unknown; choose one of "
                    f"{', '.join(get_args(kind))}."
                )
        for name, least in (("top_k", 1), ("gate.layer_stride", 1), ("gate.seed", None)):
            value = getattr(self, name.removeprefix("gate."))
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or (least is not None and value < least):
                raise UsageError(
                    f"{name}={value} is not possible; give a whole number"
                    f"{'' if least is None else f' of at least {least}'}."
                )
        share = self.head_pairs
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise UsageError(
                f"gate.head_pairs={share} is not a share of the head pairs; give a number above 0 "
                f"and at most 1."
            )


DEPLOYED = DropOptions()
"""D as the paper's gate takes it."""


def drop_of(
    agreement: Profile, options: DropOptions = DEPLOYED, layers: Sequence[int] | None = None
) -> float:
    """D, the mean of the early bin minus the mean of the late bin (paper, Eq. 3).

    Args:
        agreement: the profile of all layers.
        options: bins and layer stride.
        layers: layers to read instead of every `layer_stride`-th.

    Returns:
        D. A bin holds ⌊L/3⌋ layers (⌊L/2⌋, ⌊L/4⌋) and D is NaN where that is none; a subset of
        layers has at least one in each bin, and D is NaN where it has one layer in all.
    """
    early, late = _bins(_values(agreement), options, layers)
    return float(early.mean() - late.mean())


def bin_size(layers: int, options: DropOptions = DEPLOYED) -> int:
    """How many layers the smaller of D's two bins holds, of so many with full attention."""
    return min(map(len, _bins(torch.zeros(layers), options, None)))


def late_plateau(
    agreement: Profile, options: DropOptions = DEPLOYED, layers: Sequence[int] | None = None
) -> float:
    """Mean of D's late bin (paper, appendix A.3.3); arguments and NaN as in `drop_of`."""
    return float(_bins(_values(agreement), options, layers)[1].mean())


def slope(agreement: Profile) -> float:
    """Least-squares slope of the agreement on depth (paper, appendix A.3.3).

    Depth runs from 0 at the first layer to 1 at the last, so that models compare; an agreement
    that decays has a negative slope. NaN for fewer than two layers.
    """
    values = _values(agreement)
    depth = torch.linspace(0, 1, len(values), dtype=torch.float64)
    depth -= depth.mean()
    return float((depth * values).sum() / depth.square().sum())


def monotonicity(agreement: Profile) -> float:
    """Share of neighbouring layers between which the agreement decreases (paper, A.3.3).

    Equal values do not decrease. NaN for fewer than two layers.
    """
    values = _values(agreement)
    if bool(values.isnan().any()):
        return float("nan")
    return float((values.diff() < 0).double().mean())


def chosen_pairs(n_pairs: int, options: DropOptions) -> list[int]:
    """Ascending indices of the head pairs to compare: max(1, round(share·pairs)) of them.

    Args:
        n_pairs: H(H-1)/2, in lexicographic order.
        options: share and seed; nothing else decides, so all layers and prompts have the same.
    """
    wanted = min(n_pairs, max(1, round(options.head_pairs * n_pairs)))
    return sorted(random.Random(options.seed).sample(range(n_pairs), wanted))


def mean_of_pairs(
    pair_agreement: Tensor | Sequence[Sequence[float]], options: DropOptions
) -> Tensor:
    """The profile from the Jaccard similarities of head pairs, all of them or a share.

    Args:
        pair_agreement: `[L, H(H-1)/2]`, pairs in lexicographic order.
        options: share and seed.

    Returns:
        fp64 `[L]`; NaN where there are no pairs.
    """
    pairs = torch.as_tensor(pair_agreement, dtype=torch.float64)
    return pairs[:, chosen_pairs(pairs.shape[1], options)].mean(-1)


def _bins(
    values: Tensor, options: DropOptions, layers: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    subset = layers is not None or options.layer_stride > 1
    if layers is not None:
        values = values[list(layers)]
    elif subset:
        values = values[:: options.layer_stride]
    n, parts = len(values), _PARTS[options.bins]
    size = n // parts
    if subset:
        # One layer alone cannot be early and late.
        size = max(size, 1) if n > 1 else 0
    start = (parts - 1) * n // parts if options.late_bin == "strict" and size else n - size
    return values[:size], values[start:]


def _values(profile: Profile) -> Tensor:
    values = profile.cpu() if isinstance(profile, Tensor) else profile
    return torch.as_tensor(values, dtype=torch.float64)
