"""How well a signal tells inputs apart, and what of D its bins, layers and head pairs carry.

All from stored traces (paper, Tables 5, 6, 9 and 10). Two ways of saying which inputs are to stay
closed stand side by side: by task, as in the paper, and by what happened to the input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from page_bench.analysis.estimates import BOOTSTRAP, without_interval
from page_bench.analysis.intervals import DRAWS, SEED, ClusterBootstrap, Estimate
from page_bench.analysis.outcomes import Outcomes
from page_bench.analysis.pairs import Pair
from page_bench.analysis.regate import is_task
from page_bench.analysis.stored_signals import profile_of, signal_of
from page_bench.gating.profile import Bins, DropOptions, LateBin, drop_of, mean_of_pairs
from page_bench.gating.rules import CAPACITY_BOUND
from page_bench.gating.signal_gates import SIDES
from page_bench.gating.threshold import Side
from page_bench.inputs.errors import UsageError

HEAD_PAIR_SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
HEAD_PAIR_DRAWS = 20
"""Shares and random subsets of each, as in the paper's Table 9."""

Kind = Literal["bins", "layers", "head_pairs", "signals"]


@dataclass(frozen=True)
class Contrast:
    """How a signal stands on inputs that are to stay closed, against the others.

    Attributes:
        label: the signal, or how it was taken.
        side: where its gate opens, so that `above` expects closed inputs to be low.
        n: inputs.
        capacity_mean: mean over the capacity-bound tasks.
        nearest_task, nearest_mean: the other task whose mean comes nearest to it, or farthest past.
        margin: nearest_mean − capacity_mean, signed so that more than 0 is a separating τ. Which
            task is nearest is chosen on these inputs, so that the interval reaches from the least
            lower to the least upper end over all of them. n counts the inputs of all tasks.
        separates: whether the capacity-bound mean is strictly `below` or `above` all other tasks'
            means, or `no`; the side is free here. `–` without tasks of both kinds.
        auc_task: per-input AUC of capacity-bound tasks against the others.
        n_harmed: inputs that are right with the full cache and wrong under eviction.
        auc_harm: per-input AUC of these against all others.
        oriented_harm: max(AUC, 1 − AUC), the sign chosen on these same inputs as in Table 5.
        found_side: where a gate would have to open for that.

    An AUC is the probability that an input which is to stay closed lies on the closed side of
    another; 0.5 is chance. Where a class is empty it is NaN.
    """

    label: str
    side: Side
    n: int
    capacity_mean: Estimate
    nearest_task: str
    nearest_mean: Estimate
    margin: Estimate
    separates: str
    auc_task: Estimate
    n_harmed: int
    auc_harm: Estimate
    oriented_harm: float
    found_side: str


@dataclass(frozen=True)
class PairDraws:
    """D from random subsets of the head pairs.

    Attributes:
        share: of the head pairs.
        pairs: how many these are.
        draws: subsets; 1 where all pairs are in.
        n: inputs.
        margin: mean over the draws of the margin between task means (see `Contrast`).
        lowest, highest: margin of the draws at the ends.
        ordered: draws with a margin above 0.
    """

    share: float
    pairs: int
    draws: int
    n: int
    margin: float
    lowest: float
    highest: float
    ordered: int


class Ablation:
    """Contrasts over the inputs of one arm.

    Args:
        pairs: of the arm.
        capacity_bound: names or patterns of the tasks that are to stay closed, as in
            `gate=task_oracle`.
        metric, draws, seed: as in `outcomes.summarise`.

    Attributes:
        pairs: as given.
        bootstrap: resamples of their inputs.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        capacity_bound: str = CAPACITY_BOUND,
        metric: str = "correct",
        draws: int = DRAWS,
        seed: int = SEED,
    ) -> None:
        self.pairs = pairs
        self._columns = Outcomes.of(pairs, metric)
        self.bootstrap = self._columns.bootstrap(draws, seed)
        tasks = [pair.sample.task for pair in pairs]
        self._tasks = np.array(tasks, dtype=np.str_)
        self._is_capacity = np.array([is_task(capacity_bound, task) for task in tasks], dtype=bool)

    @property
    def closed_tasks(self) -> dict[str, bool]:
        """By task, whether it is to stay closed."""
        return dict(zip(self._tasks.tolist(), self._is_capacity.tolist(), strict=True))

    @property
    def n_harmed(self) -> int:
        """Inputs that are right with the full cache and wrong under eviction."""
        return int(self._columns.harmed.sum())

    def signals(self, names: Iterable[str] = tuple(SIDES)) -> tuple[list[Contrast], list[str]]:
        """One contrast per signal that all records hold, and the names of the others."""
        found, missing = [], []
        for name in names:
            try:
                values = [signal_of(pair.plain, name) for pair in self.pairs]
            except UsageError:
                missing.append(name)
            else:
                found.append(self.contrast(name, values, SIDES[name]))
        return found, missing

    def bins(self) -> list[Contrast]:
        """D with bins of a quarter, a third and half of the layers, and either late bin."""
        sizes: tuple[Bins, ...] = ("quarter", "third", "half")
        ends: tuple[LateBin, ...] = ("equal", "strict")
        return [
            self._drop(f"{size} {end}", DropOptions(bins=size, late_bin=end))
            for size in sizes
            for end in ends
        ]

    def layers(self) -> list[Contrast]:
        """D from every layer, every second and fourth, the early third, and first and last."""
        depth = len(self.pairs[0].plain.agreement)
        return [
            self._drop("all", DropOptions()),
            *(self._drop(f"stride {s}", DropOptions(layer_stride=s)) for s in (2, 4)),
            self._drop("early third", DropOptions(), range(depth // 3)),
            self._drop("first and last", DropOptions(), (0, depth - 1)),
        ]

    def head_pairs(
        self, shares: Sequence[float] = HEAD_PAIR_SHARES, draws: int = HEAD_PAIR_DRAWS
    ) -> list[PairDraws]:
        """The margin of D from random subsets of head pairs, the same in all layers and inputs.

        Raises:
            UsageError: the records do not hold the agreement of single pairs.
        """
        stored = [pair.plain.pair_agreement for pair in self.pairs]
        if any(one is None for one in stored):
            raise UsageError(
                "the traces do not hold the agreement of single head pairs; run again with "
                "signals=pairs."
            )
        agreement = torch.tensor(stored, dtype=torch.float64)  # [n, L, pairs]
        n, layers, pairs = agreement.shape
        rows = []
        for share in shares:
            margins = []
            for seed in range(1 if share == 1 else draws):
                options = DropOptions(head_pairs=share, seed=seed)
                profiles = mean_of_pairs(agreement.flatten(0, 1), options).view(n, layers)
                drops = np.array([drop_of(profile, options) for profile in profiles])
                margins.append(self._margin(drops, SIDES["drop"])[0])
            rows.append(
                PairDraws(
                    share=share,
                    pairs=max(1, round(share * pairs)),
                    draws=len(margins),
                    n=n,
                    margin=float(np.mean(margins)),
                    lowest=min(margins),
                    highest=max(margins),
                    ordered=sum(margin > 0 for margin in margins),
                )
            )
        return rows

    def contrast(self, label: str, values: Sequence[float], side: Side) -> Contrast:
        """A signal on capacity-bound and on harmed inputs, against the others.

        Args:
            label: what to call it.
            values: the signal on the pairs.
            side: where its gate opens.

        Returns:
            The contrast; all NaN if a value is not a number, and the label says so.
        """
        read = np.array(values, dtype=np.float64)
        if missing := int(np.isnan(read).sum()):
            label = f"{label} (no number on {missing} of {len(read)} inputs)"
            read = np.full(len(read), np.nan)
        sign = 1.0 if side == "above" else -1.0
        capacity, harmed = self._is_capacity, self._columns.harmed
        nearest = "" if missing else self._margin(read, side)[1]
        low = self._by_input(read, capacity)
        others = [self._by_input(read, self._tasks == task) for task in self._other_tasks()]
        among = np.column_stack([capacity, self._tasks == nearest])
        columns = np.column_stack([read, read])
        capacity_mean, nearest_mean = self.bootstrap.means(columns, "free", among)
        auc = self._auc(sign * read, harmed)
        found: str = {"above": "below", "below": "above"}[side] if auc.value < 0.5 else side
        return Contrast(
            label=label,
            side=side,
            n=len(read),
            capacity_mean=capacity_mean,
            nearest_task=nearest,
            nearest_mean=nearest_mean,
            margin=self._margin_of(sign * read),
            separates=_separates(low, others),
            auc_task=self._auc(sign * read, capacity),
            n_harmed=self.n_harmed,
            auc_harm=auc,
            oriented_harm=max(auc.value, 1 - auc.value),
            found_side="–" if np.isnan(auc.value) else found,
        )

    def _drop(
        self, label: str, options: DropOptions, layers: Sequence[int] | None = None
    ) -> Contrast:
        values = []
        for pair in self.pairs:
            own = dataclasses.replace(options, top_k=pair.plain.top_k)
            values.append(drop_of(profile_of(pair.plain, own), own, layers))
        return self.contrast(label, values, SIDES["drop"])

    def _other_tasks(self) -> list[str]:
        return sorted(set(self._tasks[~self._is_capacity].tolist()))

    def _margin(self, values: NDArray[Any], side: Side) -> tuple[float, str]:
        """The margin between task means, and the task that sets it; NaN and "" without both."""
        others = self._other_tasks()
        if not others or not self._is_capacity.any():
            return float("nan"), ""
        sign = 1.0 if side == "above" else -1.0
        means = {task: sign * float(values[self._tasks == task].mean()) for task in others}
        nearest = min(means, key=means.__getitem__)
        return means[nearest] - sign * float(values[self._is_capacity].mean()), nearest

    def _margin_of(self, values: NDArray[Any]) -> Estimate:
        """The same with its interval, of signed values."""
        others = self._other_tasks()
        if not others or not self._is_capacity.any() or np.isnan(values).any():
            return without_interval(np.nan, self.bootstrap.n)
        groups = [self._is_capacity, *(self._tasks == task for task in others)]
        return least_difference(self.bootstrap, values, groups)

    def _auc(self, values: NDArray[Any], is_low: NDArray[Any]) -> Estimate:
        if np.isnan(values).any():
            return without_interval(np.nan, len(values))
        return self.bootstrap.auc(values, is_low)

    def _by_input(self, values: NDArray[Any], among: NDArray[Any]) -> NDArray[np.float64]:
        """Mean per input, where one has several records."""
        by_input: dict[object, list[float]] = {}
        for i in np.flatnonzero(among):
            by_input.setdefault(self._columns.clusters[i], []).append(float(values[i]))
        return np.array([np.mean(own) for own in by_input.values()], dtype=np.float64)


def least_difference(
    boot: ClusterBootstrap, values: NDArray[Any], groups: Sequence[NDArray[np.bool_]]
) -> Estimate:
    """Least mean of all groups but the first, minus the first's.

    Args:
        boot: resamples of the values.
        values: `[n]`.
        groups: bool `[n]` each, which values are in it.

    Returns:
        An estimate whose n is the number of all clusters. Its interval reaches from the least
        lower to the least upper end of the differences: resampling their minimum would come out
        too low where several are alike.
    """
    draws = boot.parts(np.column_stack([values] * len(groups)), np.column_stack(groups))
    each = draws.map(lambda means: means[:, 1:] - means[:, :1]).estimates()
    value = min(one.value for one in each)
    if not all(one.has_interval for one in each):
        return without_interval(value, boot.n)
    return Estimate(
        value, min(one.low for one in each), min(one.high for one in each), boot.n, BOOTSTRAP
    )


def _separates(low: NDArray[Any], others: Sequence[NDArray[Any]]) -> str:
    if not len(low) or not others:
        return "–"
    means = [own.mean() for own in others]
    if np.isnan(means).any():
        return "–"
    if low.mean() < min(means):
        return "below"
    return "above" if low.mean() > max(means) else "no"
