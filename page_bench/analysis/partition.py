"""Which tasks eviction can help and which it can only hurt, by ρ and by the gate (paper, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from page_bench.analysis.cells import Cell
from page_bench.analysis.estimates import without_interval
from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.pools import inputs, is_binary, mean, rate

if TYPE_CHECKING:
    import pandas as pd

DILUTION, CAPACITY, UNDECIDED = "dilution-prone", "capacity-bound", "undecided"
OPEN, CLOSED = "mostly open", "mostly closed"


@dataclass(frozen=True)
class Call:
    """The class of a task.

    Attributes:
        name: `DILUTION`, `CAPACITY` or `UNDECIDED`.
        reason: what the name rests on, in a few words.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Part:
    """A task under one evictor.

    Attributes:
        task: its name.
        n: inputs.
        budgets: how many below 1 an input was tried at; the more, the larger ρ can be.
        rho: share of inputs whose best evicted answer scores more than the one from the full
            cache: wrong there and right at some budget below 1.
        full: mean of the metric with the full cache.
        headroom: 1 − `full`, which ρ cannot exceed where answers are right or wrong.
        always: share of inputs that score less at every budget below 1 than with the full cache,
            the paper's capacity-bound inputs.
        ratio: ρ / headroom: the share of the inputs wrong with the full cache that some budget
            below 1 sets right; NaN without such inputs or where answers are not right or wrong.
        by_point: the paper's call, by ρ alone without its interval; None where answers are not
            right or wrong.
        call: see `call_of`; None likewise.
    """

    task: str
    n: int
    budgets: int
    rho: Estimate
    full: Estimate
    headroom: float
    always: Estimate
    ratio: Estimate
    by_point: str | None
    call: Call | None


@dataclass(frozen=True)
class Gating:
    """What the gate does with a task.

    Attributes:
        task: its name.
        drop: mean of D.
        open: share of inputs and budgets below 1 at which the gate opens.
        call: `OPEN` if that is half of them or more, else `CLOSED`.
    """

    task: str
    drop: Estimate
    open: Estimate
    call: str

    def agrees(self, call: Call | None) -> bool | None:
        """Whether it opens on a dilution-prone task or closes on a capacity-bound one.

        None where the class is not decided.
        """
        if call is None or call.name == UNDECIDED:
            return None
        return (call.name == DILUTION) == (self.call == OPEN)


def parts(
    frames: Sequence[pd.DataFrame], threshold: float, draws: int = DRAWS, seed: int = SEED
) -> list[Part]:
    """One part per task, the inputs of all frames taken together.

    Args:
        frames: from `pools.inputs`, of one cell, or of several that share no input.
        threshold: ρ from which on a task is dilution-prone.
        draws, seed: of the bootstrap where a document stands there several times.
    """
    import pandas as pd

    together = pd.concat(frames)
    return [
        _part(str(task), rows, threshold, draws, seed)
        for task, rows in together.groupby("task", sort=True)
    ]


def gatings(cell: Cell, draws: int = DRAWS, seed: int = SEED) -> list[Gating]:
    """What the gate of a cell does with each task.

    Args:
        cell: one evictor and gate.
        draws, seed: of the bootstrap where a document stands there several times, or the gate
            decides otherwise at other budgets.
    """
    found = []
    for task, rows in inputs(cell).groupby("task", sort=True):
        opened, clusters = rows["open"].to_numpy(), list(rows["unit"])
        open_ = mean(opened, clusters, draws, seed, "share")
        drop = mean(rows["drop"].to_numpy(), clusters, draws, seed, "change")
        found.append(Gating(str(task), drop, open_, OPEN if open_.value >= 0.5 else CLOSED))
    return found


def call_of(rho: Estimate, headroom: float, always: Estimate, threshold: float) -> Call:
    """The class that ρ's whole interval speaks for.

    Dilution-prone needs an interval at or above the threshold. Capacity-bound needs one below it,
    and besides, since ρ is as small where nothing can be recovered or nothing changes, a share
    of `always` that reaches the threshold.

    Args:
        rho, headroom, always: see `Part`.
        threshold: of ρ.
    """
    if np.isnan(rho.value):
        return Call(UNDECIDED, "no input")
    if not rho.has_interval:
        return Call(UNDECIDED, f"{rho.method} for an interval of ρ")
    if rho.low >= threshold:
        return Call(DILUTION, f"ρ's interval is at or above {threshold:g}")
    if rho.high >= threshold:
        if headroom < threshold:
            return Call(UNDECIDED, f"saturated, headroom {headroom:.3f}")
        return Call(UNDECIDED, f"ρ's interval holds {threshold:g}")
    if always.value >= threshold:
        return Call(CAPACITY, f"ρ's interval is below {threshold:g}, and every budget harms")
    if headroom < threshold:
        return Call(UNDECIDED, f"saturated, headroom {headroom:.3f}")
    return Call(UNDECIDED, "budget-insensitive, headroom that no budget recovers")


def _part(task: str, rows: pd.DataFrame, threshold: float, draws: int, seed: int) -> Part:
    full, best = rows["full"].to_numpy(), rows["best"].to_numpy()
    clusters = list(rows["unit"])
    gained, lost = best > full, best < full
    rho, always = (rate(flags, clusters, draws, seed) for flags in (gained, lost))
    right_or_wrong = is_binary(full) and is_binary(best)
    by_point: str | None = None
    call: Call | None = None
    if right_or_wrong:
        accuracy = rate(full == 1, clusters, draws, seed)
        wrong = full == 0
        of_wrong = [cluster for cluster, is_in in zip(clusters, wrong, strict=True) if is_in]
        ratio = rate(gained[wrong], of_wrong, draws, seed)
        by_point = DILUTION if rho.value >= threshold else CAPACITY
        call = call_of(rho, 1 - accuracy.value, always, threshold)
    else:
        accuracy = mean(full, clusters, draws, seed, "share")
        ratio = without_interval(np.nan, 0)
    return Part(
        task=task,
        n=len(rows),
        budgets=int(rows["budgets"].max()),
        rho=rho,
        full=accuracy,
        headroom=1 - accuracy.value,
        always=always,
        ratio=ratio,
        by_point=by_point,
        call=call,
    )
