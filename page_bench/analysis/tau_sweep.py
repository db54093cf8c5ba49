"""What a gate comes to at every τ, and where it hardly matters (paper, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.outcomes import Outcomes
from page_bench.gating.threshold import Side
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 200
NEAR_DELTA = 0.01
NEAR_ERRORS = 0.10
"""The paper's plateau: Δ this near to that of its τ, and false rates that add up to no more."""

PLATEAU = "longest interval of τ in which Δ stays within the interval of the best Δ"
AROUND = (
    f"interval around τ in which Δ differs by at most {NEAR_DELTA} and false positives and "
    f"negatives add up to at most {NEAR_ERRORS:.2f} (paper, Figure 6)"
)
FIGURE_FORMATS = (".png", ".svg")


@dataclass(frozen=True)
class Point:
    """A gate at one τ.

    Attributes:
        tau: τ.
        open: share that takes the plain answer.
        delta: gated − plain, input by input.
        false_positive: share open among inputs that are right with the full cache and wrong plain.
        false_negative: share closed among inputs for which the plain answer is as good.
        kept_kv: mean kept share of the cache.
        capacity_open, others_closed: the same two rates as in the paper, by task: share open among
            inputs of capacity-bound tasks, share closed among all others; None where no tasks are
            named.
    """

    tau: float
    open: Estimate
    delta: Estimate
    false_positive: Estimate
    false_negative: Estimate
    kept_kv: Estimate
    capacity_open: Estimate | None = None
    others_closed: Estimate | None = None

    @property
    def by_task(self) -> bool:
        """Whether tasks are named."""
        return self.capacity_open is not None

    @property
    def errors(self) -> tuple[Estimate, Estimate]:
        """False positives and negatives: by task where tasks are named, else by outcome."""
        if self.capacity_open is None or self.others_closed is None:
            return self.false_positive, self.false_negative
        return self.capacity_open, self.others_closed


@dataclass(frozen=True)
class Sweep:
    """A gate at every τ.

    Attributes:
        signal: what is compared with τ.
        side: on which side the gate opens.
        metric: what Δ and the false rates are taken from.
        points: ascending in τ.
        best: τ of the largest Δ.
        plateau: ends of the plateau, see `PLATEAU`; None where the best Δ has no interval.
        tau: the τ that `around` stands around.
        around: ends of the paper's plateau, see `AROUND`; None where τ itself is on none, or one
            of the two rates is of no inputs. The rates are those of `Point.errors`.
    """

    signal: str
    side: Side
    metric: str
    points: tuple[Point, ...]
    best: float
    plateau: tuple[float, float] | None
    tau: float
    around: tuple[float, float] | None


def sweep(
    columns: Outcomes,
    values: Sequence[float] | NDArray[np.float64],
    tau: float,
    *,
    signal: str = "drop",
    side: Side = "above",
    taus: Sequence[float] = (),
    is_capacity: Sequence[bool] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Sweep:
    """Let a gate decide at every τ.

    Args:
        columns: answers to the inputs of one arm, at one budget or several.
        values: the signal on them.
        tau: a τ that is swept as well.
        signal, side: of the gate.
        taus: others; none for all that decide differently (see `grid`).
        is_capacity: which inputs are of capacity-bound tasks; None where no tasks are named.
        draws, seed: as in `outcomes.summarise`.

    Raises:
        UsageError: no value is a number.
    """
    read = np.asarray(values, dtype=np.float64)
    where = np.unique([*(taus or grid(read, MAX_POINTS - 1)), tau])
    boot = columns.bootstrap(draws, seed)
    opened = read[:, None] >= where if side == "above" else read[:, None] <= where
    loss = (columns.full - columns.plain)[:, None]
    kept = np.where(opened, columns.plain_kept[:, None], columns.full_kept[:, None])
    harmed = columns.harmed
    by_task: list[Sequence[Estimate]] = []
    if is_capacity is not None:
        capacity = np.asarray(is_capacity, dtype=bool)
        by_task = [
            boot.ratios(opened & capacity[:, None], capacity),
            boot.ratios(~opened & ~capacity[:, None], ~capacity),
        ]
    points = tuple(
        Point(float(t), *estimates)
        for t, *estimates in zip(
            where,
            boot.ratios(opened, np.ones(len(read))),
            boot.means(np.where(opened, 0.0, loss), "change"),
            boot.ratios(opened & harmed[:, None], harmed),
            boot.ratios(~opened & ~harmed[:, None], ~harmed),
            boot.means(kept, "share"),
            *by_task,
            strict=True,
        )
    )
    best = max(points, key=lambda point: point.delta.value)
    flat = [best.delta.low <= point.delta.value <= best.delta.high for point in points]
    return Sweep(
        signal,
        side,
        columns.metric,
        points,
        best.tau,
        _longest(where, flat),
        tau,
        around(points, tau),
    )


def grid(values: NDArray[np.float64], at_most: int = MAX_POINTS) -> list[float]:
    """τ between all neighbouring values, and one beyond each end; evenly thinned if too many.

    Raises:
        UsageError: no value is a number.
    """
    distinct = np.unique(values[~np.isnan(values)])
    if len(distinct) == 0:
        raise UsageError("the signal is not a number on any input; choose another gate.")
    step = (distinct[-1] - distinct[0]) / max(1, len(distinct) - 1) or 1e-6
    middles = (distinct[1:] + distinct[:-1]) / 2
    # Neighbours among the floats have nothing between them.
    middles = np.where(middles > distinct[:-1], middles, distinct[1:])
    taus = np.array([distinct[0] - step / 2, *middles, distinct[-1] + step / 2])
    if len(taus) > at_most:
        taus = taus[np.linspace(0, len(taus) - 1, at_most).round().astype(int)]
    return [float(tau) for tau in taus]


def figure_path(name: str) -> Path:
    """The file of a figure.

    Raises:
        UsageError: of a format that is not written, or in a folder that is not there.
    """
    path = user_path(name, "--figure")
    if path.suffix.lower() not in FIGURE_FORMATS:
        raise UsageError(f"--figure {name} is no file name in {' or '.join(FIGURE_FORMATS)}.")
    if not path.parent.is_dir():
        raise UsageError(f"--figure {name}: there is no folder {path.parent}; make it first.")
    return path


def draw(sweep: Sweep, path: Path, title: str) -> None:
    """Write the figure: Δ above, rates and kept KV below, both over τ, with both plateaus."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    taus = [point.tau for point in sweep.points]
    _line(upper, taus, [point.delta for point in sweep.points], "Δ (gated − plain)")
    upper.set_ylabel(f"Δ {sweep.metric}")
    for name, label in (
        ("open", "open rate"),
        ("false_positive", "false positives"),
        ("false_negative", "false negatives"),
        ("capacity_open", "capacity-bound tasks open"),
        ("others_closed", "other tasks closed"),
        ("kept_kv", "kept KV"),
    ):
        if getattr(sweep.points[0], name) is None:
            continue
        _line(lower, taus, [getattr(point, name) for point in sweep.points], label)
    lower.set_ylim(-0.02, 1.02)
    lower.set_ylabel("share")
    lower.set_xlabel(f"τ on {sweep.signal} (opens {sweep.side})")
    for axes, named in ((upper, True), (lower, False)):
        if sweep.plateau is not None:
            axes.axvspan(
                *sweep.plateau,
                color="tab:gray",
                alpha=0.15,
                lw=0,
                label="plateau" if named else None,
            )
        if sweep.around is not None:
            axes.axvspan(
                *sweep.around,
                color="tab:green",
                alpha=0.15,
                lw=0,
                label="plateau around τ (paper)" if named else None,
            )
        axes.axvline(
            sweep.tau, color="black", ls=":", lw=1, label=f"τ = {sweep.tau:.4f}" if named else None
        )
    figure.legend(loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    first = sweep.points[0]
    figure.suptitle(
        f"{title}: n = {first.delta.n} inputs, {first.false_positive.n} right with "
        f"the full cache and wrong plain; 95 % intervals",
        fontsize="small",
    )
    figure.savefig(path)


def _line(axes: Axes, taus: Sequence[float], estimates: Sequence[Estimate], label: str) -> None:
    values, lows, highs = (
        [getattr(estimate, name) for estimate in estimates] for name in ("value", "low", "high")
    )
    (line,) = axes.plot(taus, values, label=label)
    axes.fill_between(taus, lows, highs, color=line.get_color(), alpha=0.15, lw=0)


def within(tau: float, ends: tuple[float, float] | None) -> bool:
    """Whether τ lies on a plateau."""
    return ends is not None and ends[0] <= tau <= ends[1]


def around(points: Sequence[Point], tau: float) -> tuple[float, float] | None:
    """Ends of the paper's plateau, see `AROUND`; None where τ, one of the points, is on none."""
    (middle,) = (i for i, point in enumerate(points) if point.tau == tau)
    near = [
        abs(point.delta.value - points[middle].delta.value) <= NEAR_DELTA
        and sum(rate.value for rate in point.errors) <= NEAR_ERRORS
        for point in points
    ]
    if not near[middle]:
        return None
    first = last = middle
    while first > 0 and near[first - 1]:
        first -= 1
    while last + 1 < len(points) and near[last + 1]:
        last += 1
    return points[first].tau, points[last].tau


def _longest(taus: NDArray[np.float64], inside: Sequence[bool]) -> tuple[float, float] | None:
    """Ends of the longest stretch of neighbouring τ that are all inside; None without any."""
    best: tuple[float, float] | None = None
    start: int | None = None
    for i, within in enumerate([*inside, False]):
        if within and start is None:
            start = i
        elif not within and start is not None:
            ends = float(taus[start]), float(taus[i - 1])
            if best is None or ends[1] - ends[0] > best[1] - best[0]:
                best = ends
            start = None
    return best
