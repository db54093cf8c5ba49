"""How often each kind of 95 % interval holds the truth, by inputs per task.

    python benchmarks/coverage.py --worlds 300

Makes up cells of four tasks whose inputs are drawn from known chances, lets the product's own
analyses estimate from few inputs, and compares with a cell of very many. Each figure is the share
of intervals that hold the truth, averaged over several worlds; “none” is the share of estimates
that have no interval, and “alone” what the percentiles would cover if they were printed whatever n.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binom

from page_bench.analysis import estimates, intervals
from page_bench.analysis.batching import achieved, decay
from page_bench.analysis.cells import Cell
from page_bench.analysis.delta import parts_of
from page_bench.analysis.estimates import Estimate, share
from page_bench.analysis.frontier import frontier
from page_bench.analysis.intervals import ClusterBootstrap
from page_bench.analysis.mixture import mixture
from page_bench.analysis.oracle import oracle_of
from page_bench.analysis.resampling import Resampling
from page_bench.analysis.scaling import Point, fit
from page_bench.analysis.seeds import spread
from page_bench.gating import rules
from page_bench.gating.rules import midpoint_threshold, quantile_threshold, with_interval
from page_bench.gating.threshold import zscore_threshold
from page_bench.leaderboard.difference import of_shares

SIZES = (2, 5, 20, 100)
TASKS = ("mk3", "vt", "fwe", "qa")
BUDGETS = (0.25, 0.5)
MANY = 8_000
"""Inputs per task of the cell that the truth is read from."""
DRAWS = 1_000
RESAMPLING = Resampling(DRAWS)


@dataclass(frozen=True)
class World:
    """Chances that inputs are drawn from, by task.

    Attributes:
        full: of a right answer from the full cache.
        keeps: that eviction at the larger budget keeps a right answer; the smaller keeps less.
        recovers: that it sets a wrong one right.
        drop: mean of D, whose deviation is 0.04 and threshold 0.07.
    """

    full: tuple[float, ...]
    keeps: tuple[float, ...]
    recovers: tuple[float, ...]
    drop: tuple[float, ...]


WORLDS = (
    World((0.9, 0.8, 0.7, 0.6), (0.1, 0.9, 0.8, 0.9), (0.0, 0.3, 0.2, 0.2), (0.03, 0.11, 0.1, 0.1)),
    World((0.6,) * 4, (0.7,) * 4, (0.2,) * 4, (0.08,) * 4),
    World(
        (0.8, 0.5, 0.4, 0.3), (0.3, 0.7, 0.8, 0.6), (0.1, 0.4, 0.1, 0.3), (0.06, 0.09, 0.08, 0.1)
    ),
)


def cell_of(world: World, n: int, generator: np.random.Generator) -> Cell:
    """A cell of n inputs per task."""
    task = np.repeat(np.arange(len(TASKS)), n)
    full = generator.random(len(task)) < np.take(world.full, task)
    drop = generator.normal(np.take(world.drop, task), 0.04)
    frames = []
    for budget in BUDGETS:
        keeps = np.take(world.keeps, task) * (0.6 + 0.8 * budget)
        luck = generator.random(len(task))
        right = np.where(full, luck < keeps, luck < np.take(world.recovers, task))
        frames.append(
            pd.DataFrame(
                {
                    "task": np.take(TASKS, task),
                    "doc_id": np.tile(np.arange(n), len(TASKS)),
                    "repeat": 0,
                    "input": np.arange(len(task)),
                    "budget": budget,
                    "drop": drop,
                    "open": drop >= 0.07,
                    "plain": right.astype(float),
                    "full": full.astype(float),
                    "plain_kept": budget,
                    "full_kept": 1.0,
                }
            )
        )
    rows = pd.concat(frames, ignore_index=True).sort_values(["input", "budget"], ignore_index=True)
    return Cell("made up", "suite", "evictor", "page", 0.07, None, "correct", rows, None)


def is_capacity(task: str) -> bool:
    return task == TASKS[0]


def of_cell(cell: Cell, resampling: Resampling = RESAMPLING) -> dict[str, Estimate]:
    """Everything that a report takes from a cell by a bootstrap, and a share beside it."""
    parts = parts_of(cell, is_capacity, resampling)
    oracle = oracle_of(cell, is_capacity, resampling)
    both = frontier(cell, resampling, kept=(0.6,))
    last = achieved(cell, resampling)[-1]
    mixed = mixture([cell], is_capacity, resampling, shares=(0.1,))
    one = cell.rows[cell.rows["budget"] == BUDGETS[0]]
    boot = resampling.of(one)
    low = one["task"].map(is_capacity).to_numpy()
    harmed = (one["plain"] < one["full"]).to_numpy()
    return {
        "open rate": parts.every.open,
        "Δ, budgets pooled": parts.every.delta,
        "Δ of a task": parts.tasks[0].delta,
        "mean D": boot.mean(one["drop"].to_numpy(), "change"),
        "kept KV under a gate": last.kept,
        "compression": last.compression,
        "compression, batch of 8": decay([cell], BUDGETS[0], resampling).compression[8],
        "accuracy, budgets pooled": oracle.plain,
        "headroom of the oracle": oracle.headroom,
        "recovery": oracle.recovery,
        "share of Δ from capacity-bound": oracle.from_capacity,
        "advantage at equal kept KV": both.at_kept[0].advantage,
        "crossover": both.crossover,
        "Δ at another mixture": mixed.deltas[0],
        "AUC, by task": boot.auc(one["drop"].to_numpy(), low),
        "AUC, by harm": boot.auc(one["drop"].to_numpy(), harmed),
        "slope of ρ over headroom": _slope(cell),
    }


def _slope(cell: Cell) -> Estimate:
    points = []
    for task, rows in cell.rows.groupby("task"):
        inputs = rows.groupby("input").agg({"full": "first", "plain": "max"})
        gained = (inputs["plain"] > inputs["full"]).to_numpy(dtype=float)
        points.append(Point(str(task), 1 - inputs["full"].to_numpy(), gained))
    return fit(points, DRAWS).within


Sampler = Callable[[int, np.random.Generator], tuple[float, Estimate]]
"""From inputs per task to the truth and an estimate of it."""


def _mean_of(
    draw: Callable[[np.random.Generator, int], object], truth: float, kind: str
) -> Sampler:
    def sample(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
        values = np.asarray(draw(generator, n * len(TASKS)), dtype=float)
        boot = ClusterBootstrap(range(len(values)), DRAWS)
        return truth, boot.mean(values, kind)  # type: ignore[arg-type]

    return sample


def _repeats(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
    """A share of answers, three to each input, whose chances differ from input to input."""
    chances = np.repeat(generator.beta(1, 2, n * len(TASKS)), 3)
    set_ = generator.random(len(chances)) < chances
    boot = ClusterBootstrap(np.repeat(np.arange(n * len(TASKS)), 3).tolist(), DRAWS)
    return 1 / 3, boot.ratios(set_[:, None], np.ones(len(set_)))[0]


def _slope_of_points(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
    """As many points as inputs in the other rows, of 50 documents each, of slope ½."""
    points = []
    for x in generator.uniform(0.2, 0.8, n * len(TASKS)):
        y = float(np.clip(0.5 * x + generator.normal(0, 0.05), 0, 1))
        points.append(Point("", np.full(50, x), np.full(50, y)))
    return 0.5, fit(points, DRAWS).across


def _margin(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
    """Least of three tasks' mean D, two of them alike, minus a fourth's; see `Ablation`."""
    from page_bench.analysis.ablation import least_difference

    task = np.repeat(np.arange(4), n)
    values = generator.normal(np.take((0.03, 0.1, 0.1, 0.13), task), 0.04)
    boot = ClusterBootstrap(range(len(values)), DRAWS)
    return 0.07, least_difference(boot, values, [task == i for i in range(4)])


def _seeds(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
    return 0.2, spread(generator.normal(0.2, 0.03, n).tolist()).mean


def _newcombe(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
    ours, theirs = generator.binomial(n, 0.7), generator.binomial(2 * n, 0.5)
    found = of_shares(int(ours), n, int(theirs), 2 * n)
    return 0.2, Estimate(found.value, found.low, found.high, n, "newcombe")


def _tau(rule: str) -> Sampler:
    def sample(n: int, generator: np.random.Generator) -> tuple[float, Estimate]:
        values = generator.normal(0.1, 0.04, n).tolist()
        if rule == "zscore":
            found, truth = with_interval(zscore_threshold(values, -0.69), values), 0.1 - 0.69 * 0.04
        elif rule == "quantile":
            found = with_interval(quantile_threshold(values, 0.75), values)
            truth = 0.1 - 0.67449 * 0.04
        else:
            other = generator.normal(0.03, 0.04, n).tolist()
            found = with_interval(midpoint_threshold(other, values), other, values)
            truth = 0.065
        low, high = found.interval or (math.nan, math.nan)
        return truth, Estimate(found.tau, low, high, n, "bootstrap")

    return sample


def _ternary(generator: np.random.Generator, n: int) -> object:
    luck = generator.random(n)
    return (luck < 0.25) * 1.0 - (luck > 0.9)


SAMPLERS: dict[str, Sampler] = {
    "score between 0 and 1": _mean_of(lambda g, n: g.beta(0.5, 1, n), 1 / 3, "share"),
    "score, mostly 0": _mean_of(lambda g, n: g.random(n) * (g.random(n) < 0.05), 0.025, "share"),
    "Δ at one budget": _mean_of(_ternary, 0.15, "change"),
    "Δ, mostly 0": _mean_of(lambda g, n: (g.random(n) < 0.03) * 1.0, 0.03, "change"),
    "seconds, skewed": _mean_of(lambda g, n: g.lognormal(0, 0.5, n), math.exp(0.125), "free"),
    "share of repeats": _repeats,
    "slope, points resampled": _slope_of_points,
    "margin between tasks": _margin,
    "mean over seeds (n seeds)": _seeds,
    "difference of two shares": _newcombe,
    "τ by z-score (n prompts)": _tau("zscore"),
    "τ by quantile (n prompts)": _tau("quantile"),
    "τ by midpoint (n prompts each)": _tau("midpoint"),
}


def wilson(n: int) -> tuple[float, float, float]:
    """Coverage of Wilson's interval of n outcomes, exactly: mean over p, and its extremes."""
    ends = [(share(k, n).low, share(k, n).high) for k in range(n + 1)]
    low, high = np.array(ends).T
    chances = np.linspace(0, 1, 1001)[1:-1, None]
    held = (low <= chances) & (chances <= high)
    covered = (binom.pmf(np.arange(n + 1), n, chances) * held).sum(1)
    return float(covered.mean()), float(covered.min()), float(covered.max())


@dataclass
class Count:
    """Estimates of one quantity at one n: how many, with an interval, and holding the truth."""

    all: int = 0
    given: int = 0
    held: int = 0

    def add(self, truth: float, estimate: Estimate) -> None:
        if math.isnan(estimate.value):
            return
        self.all += 1
        self.given += estimate.has_interval
        self.held += estimate.low - 1e-9 <= truth <= estimate.high + 1e-9

    @property
    def coverage(self) -> float:
        return self.held / self.given if self.given else math.nan


def coverage(
    sizes: tuple[int, ...] = SIZES,
    repeats: int = 100,
    seed: int = 0,
    many: int = MANY,
    worlds: tuple[World, ...] = WORLDS,
) -> dict[str, dict[int, Count]]:
    """Count for every quantity and n.

    Args:
        sizes: inputs per task.
        repeats: samples of each world and sampler.
        seed: of the samples.
        many: see `MANY`.
        worlds: to draw cells from.
    """
    generator = np.random.default_rng(seed)
    counts: dict[str, dict[int, Count]] = defaultdict(lambda: {n: Count() for n in sizes})
    for n, name, truth, estimate in _samples(worlds, sizes, repeats, generator, many):
        counts[name][n].add(truth, estimate)
    return dict(counts)


def _samples(
    worlds: tuple[World, ...],
    sizes: tuple[int, ...],
    repeats: int,
    generator: np.random.Generator,
    many: int,
) -> Iterator[tuple[int, str, float, Estimate]]:
    for world in worlds:
        truths = of_cell(cell_of(world, many, generator), Resampling(1))
        for n in sizes:
            for _ in range(repeats):
                for name, estimate in of_cell(cell_of(world, n, generator)).items():
                    yield n, name, truths[name].value, estimate
    for name, sampler in SAMPLERS.items():
        for n in sizes:
            for _ in range(repeats):
                yield n, name, *sampler(n, generator)


def rejections(n: int, repeats: int, seed: int = 0) -> float:
    """How often p of Δ is at most 0.05 without a difference: n inputs, half of them equal."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice([-1.0, 0.0, 0.0, 1.0], (repeats, n))
    return float(np.mean([estimates.p_of_no_difference(own, DRAWS) <= 0.05 for own in drawn]))


def alone() -> None:
    """Print percentiles whatever n, as the rule for small n was not there."""
    estimates.LEAST = intervals.LEAST = rules.SMALL_PILOT = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--worlds", type=int, default=100, help="samples of each world")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="inputs per task")
    args = parser.parse_args()
    repeats, sizes = args.worlds, tuple(args.sizes)
    start = time.monotonic()
    printed = coverage(sizes, repeats)
    least = estimates.LEAST
    alone()
    bare = coverage(sizes, repeats)
    print(f"{repeats} samples of {len(WORLDS)} worlds, {DRAWS} draws; no interval below {least}")
    head = "".join(f"{f'n = {n}':>22}" for n in sizes)
    print(f"{'held by the interval (none; alone)':36}{head}")
    shares = "".join(f"{f'{wilson(n)[0]:.3f}':>22}" for n in sizes)
    print(f"{'share, Wilson, mean over p':36}{shares}")
    for name, own in printed.items():
        line = ""
        for n, count in own.items():
            none = 1 - count.given / count.all if count.all else math.nan
            text = "–" if math.isnan(count.coverage) else f"{count.coverage:.3f}"
            missed = bare[name][n].held / max(1, bare[name][n].all)
            line += f"{f'{text} ({none:.2f}; {missed:.3f})':>22}"
        print(f"{name:36}{line}")
    line = "".join(f"{rejections(n, 20 * repeats):>22.3f}" for n in sizes)
    print(f"{'p of Δ ≤ 0.05 without a difference':36}{line}")
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
