"""References in plain loops for evictors that read attention, sharing no code with the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy
import torch
from reference import top_keys
from reference_inputs import LayerInputs

LENGTH = 150
WINDOW = 16
N_SINK = 4

Rows = list[list[float]]
"""A score per KV head and position."""


def last_rows(layer: LayerInputs, head: int, rows: int) -> list[float]:
    """What the last query rows of a query head attend to, on average."""
    last = layer.attention[head, -rows:].double().tolist()
    return [sum(column) / len(last) for column in zip(*last, strict=True)]


def reduce(values: Sequence[float], how: str) -> float:
    return {"mean": sum(values) / len(values), "max": max(values), "sum": sum(values)}[how]


def pool(row: list[float], size: int, how: str) -> list[float]:
    pooled = []
    for i in range(len(row)):
        near = range(i - size // 2, i + size // 2 + 1)
        inside = [row[j] for j in near if 0 <= j < len(row)]
        pooled.append(max(inside) if how == "max" else sum(inside) / size)
    return pooled


def over_heads(layer: LayerInputs, rows: Callable[[int], list[float]], how: str = "mean") -> Rows:
    heads = []
    for kv_head in range(len(layer.k)):
        group = [rows(j) for j in layer.group(kv_head)]
        heads.append([reduce(values, how) for values in zip(*group, strict=True)])
    return heads


def snapkv(
    layer: LayerInputs,
    form: str,
    window: int = WINDOW,
    size: int = 5,
    how: str = "avg",
    reduction: str = "mean",
) -> Rows:
    heads = over_heads(layer, lambda j: last_rows(layer, j, window), reduction)
    if form == "paper":
        return heads
    before = LENGTH - window
    pooled = [pool(row[:before], size, how) for row in heads]
    return [row + [math.inf] * window for row in pooled]


def h2o(
    layer: LayerInputs, form: str, n_keep: int, reduction: str = "mean", by_age: bool = False
) -> Rows:
    def mass(head: int) -> list[float]:
        columns = layer.attention[head].double().T.tolist()
        ages = [LENGTH - i for i in range(LENGTH)]
        sums = [sum(column) for column in columns]
        if by_age:
            return [total / age for total, age in zip(sums, ages, strict=True)]
        return [total / LENGTH for total in sums] if form == "paper" else sums

    heads = over_heads(layer, mass, reduction)
    if form == "published":
        for row in heads:
            row[LENGTH - n_keep // 2 :] = [math.inf] * (n_keep // 2)
    return heads


def tova(layer: LayerInputs) -> Rows:
    rows = [layer.attention[j, -1].double().tolist() for j in range(len(layer.q))]
    mean = [sum(values) / len(rows) for values in zip(*rows, strict=True)]
    return [mean for _ in range(len(layer.k))]


def mean_rows(rows: Sequence[list[float]]) -> list[float]:
    return [sum(values) / len(rows) for values in zip(*rows, strict=True)]


def kept(scores: list[Rows], counts: list[list[int]], granularity: str, recent: int) -> list[Rows]:
    """Which positions stay, 0 or 1, `[L'][H'][T]`, from scores and counts `[L][H_kv]`."""

    def cut(row: list[float], count: int) -> list[float]:
        middle = torch.tensor(row[N_SINK : LENGTH - recent], dtype=torch.float64)
        chosen = {N_SINK + i for i in top_keys(middle, count - N_SINK - recent)}
        protected = {*range(N_SINK), *range(LENGTH - recent, LENGTH)}
        return [float(i in chosen | protected) for i in range(LENGTH)]

    if granularity == "head":
        return [
            [cut(row, n) for row, n in zip(layer, per_head, strict=True)]
            for layer, per_head in zip(scores, counts, strict=True)
        ]
    layers = [mean_rows(layer) for layer in scores]
    if granularity == "layer":
        return [[cut(row, n[0])] for row, n in zip(layers, counts, strict=True)]
    return [[cut(mean_rows(layers), counts[0][0])]]


def rounded(shares: list[Fraction]) -> list[int]:
    """Whole numbers with the same sum; where fractions are equal, earlier ones are rounded up."""
    down = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (down[i] - shares[i], i))
    for i in order[: int(sum(shares)) - sum(down)]:
        down[i] += 1
    return down


def within(weights: list[Fraction], total: int, least: int, most: int) -> list[Fraction]:
    """Shares c·weight, clipped to bounds, with this sum."""

    def clipped(c: Fraction) -> list[Fraction]:
        return [min(max(c * w, Fraction(least)), Fraction(most)) for w in weights]

    corners = sorted({Fraction(b) / w for w in weights for b in (least, most)})
    low = max((c for c in corners if sum(clipped(c)) <= total), default=Fraction(0))
    inside = [least < c < most for c in clipped(low + Fraction(1, 10**12))]
    slope = sum(w for w, free in zip(weights, inside, strict=True) if free)
    missing = total - sum(clipped(low))
    return clipped(low + missing / slope) if slope else clipped(low)


def pyramid_weights(n_layers: int, bottom: Fraction, top: Fraction) -> list[Fraction]:
    return [bottom + (top - bottom) * Fraction(i, max(n_layers - 1, 1)) for i in range(n_layers)]


def pyramid_line(n_layers: int, mean: int, beta: Fraction, most: int) -> list[Fraction]:
    """Free entries of each layer on a line with this mean, the first layer's at most `most`."""
    bottom = min(2 * mean - mean / beta, Fraction(most))
    if n_layers == 1:
        return [Fraction(mean)]
    step = 2 * (bottom - mean) / (n_layers - 1)
    return [bottom - i * step for i in range(n_layers)]


def best_per_head(rows: numpy.ndarray, k: int) -> list[int]:
    """Of the k best of `rows` `[H, M]` how many are in each row; ties to the lower position."""
    heads = len(rows)
    order = numpy.argsort(-rows.T.reshape(-1), kind="stable")[:k]
    return [int((order % heads == head).sum()) for head in range(heads)]


def ada_counts(
    rows: numpy.ndarray, total: int, allocation: str, alpha: Fraction, protected: int
) -> list[int]:
    """Free entries per head of one layer with scores `[H, M]` that compete."""
    heads = len(rows)
    if allocation == "adakv":
        counts = best_per_head(rows, total)
        return rounded([(1 - alpha) * c + alpha * Fraction(total, heads) for c in counts])
    mean = total // heads
    floor = int(alpha * mean)
    if allocation == "kvpress":
        floor = max(0, int(alpha * (mean + protected)) - protected)
    lifted = rows.astype(float).copy()
    for row in lifted:
        row[numpy.argsort(-row, kind="stable")[:floor]] = numpy.inf
    return best_per_head(lifted, total)


def need_of(row: list[float], best: int = 64) -> float:
    """What of a layer's attention does not fall on its best positions."""
    return 1 - sum(sorted(row, reverse=True)[:best]) / sum(row)


def counts_by_need(needs: list[float], mean: int, floor_share: float = 0.2) -> list[int]:
    """Free entries per layer as the PAGE paper's own code shares them out."""
    layers, total = len(needs), mean * len(needs)
    floor = int(floor_share * mean + 1e-9)
    counts = [floor + round(need / sum(needs) * (total - layers * floor)) for need in needs]
    by_need = sorted(range(layers), key=lambda i: needs[i])
    while sum(counts) < total:
        counts[by_need.pop()] += 1
    for i in by_need[: sum(counts) - total]:
        counts[i] -= 1
    return counts
