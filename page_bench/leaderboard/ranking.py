"""Which rows may be ranked together, and in which order.

Rows are compared within a *group*: one model and its numerics, suite, length, protocol, data and
set of n answers. In a group they are compared at matched achieved kept-KV: rows whose `kept_kv`
falls into the same *bin* kept about as much. The bins lie around the budgets that are usually
tried, an eighth of the cache apart, so that a gate that keeps more than its budget says stands
beside what keeps as much without it.

In a bin a row's rank is 1 plus the number of rows whose whole interval of `correct` lies above its
own. Rows that the inputs do not tell apart thus share a rank. Within a rank the order is by
correct, then harm, then kept-KV; the order says nothing that the ranks do not. Gates that read
labels (`oracle`, `task_oracle`, `static`) have no rank: they show what could be had.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from page_bench.gating.gates import GATES
from page_bench.leaderboard.row import Row, Value, to_text

GROUPED_BY = (
    *("source", "model", "dtype", "attn_implementation", "suite", "length", "protocol"),
    *("chat_template", "compress", "data", "n", "tasks", "inputs"),
)
"""Rows that differ in one of these are never ranked together."""
EDGES = (0.09375, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125, 0.9375)
"""Achieved kept-KV at which a bin ends and the next begins, halfway between 1/16, 1/8, 1/4, … 1."""


@dataclass(frozen=True)
class Place:
    """A row in its bin.

    Attributes:
        row: the row.
        rank: from 1 on; None where it is not ranked.
        tied: whether others have the same rank.
    """

    row: Row
    rank: int | None
    tied: bool

    @property
    def shown(self) -> str:
        """The rank as it is written: `2=` for one of several second ones, `–` for none."""
        return "–" if self.rank is None else f"{self.rank}{'=' if self.tied else ''}"


@dataclass(frozen=True)
class Bin:
    """Rows of a group that kept about as much of the cache.

    Attributes:
        low, high: kept_kv lies in [low, high); the last bin holds 1 as well.
        places: its rows, in order.
    """

    low: float
    high: float
    places: tuple[Place, ...]

    @property
    def label(self) -> str:
        """Its bounds."""
        return f"{self.low:g}–{self.high:g}"


@dataclass(frozen=True)
class Group:
    """Rows that may be ranked together.

    Attributes:
        key: the values of `GROUPED_BY`.
        bins: those that hold rows, by kept-KV, ascending.
    """

    key: dict[str, Value]
    bins: tuple[Bin, ...]

    @property
    def label(self) -> str:
        """What the rows have in common, in words."""
        key = self.key
        words = [f"{key['model']} ({key['dtype']}, {key['attn_implementation']})"]
        words += [f"{key['suite']}", f"protocol {key['protocol'] or 'unsaid'}"]
        words += ["chat template" if key["chat_template"] else "no chat template"]
        words += [f"compress {key['compress']}", f"n = {key['n']}"]
        words += ["published"] if key["source"] == "published" else []
        return ", ".join(words)


def groups(rows: Iterable[Row]) -> list[Group]:
    """The groups of rows, in the order of what tells them apart."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(to_text(row[name]) for name in GROUPED_BY), []).append(row)
    return [
        Group({name: own[0][name] for name in GROUPED_BY}, _bins(own))
        for _, own in sorted(found.items())
    ]


def is_ranked(row: Row) -> bool:
    """Whether a row takes part: its gate reads no labels, and its numbers are known."""
    gate = GATES.get(str(row["gate"]))
    known = all(row[name] is not None for name in ("correct_low", "correct_high"))
    return known and (gate is None or gate.labels == "none")


def _bins(rows: Sequence[Row]) -> tuple[Bin, ...]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(bisect.bisect_right(EDGES, _number(row, "kept_kv", 1.0)), []).append(row)
    ends = (0.0, *EDGES, 1.0)
    return tuple(Bin(ends[i], ends[i + 1], _places(own)) for i, own in sorted(found.items()))


def _places(rows: Sequence[Row]) -> tuple[Place, ...]:
    ranked = [row for row in rows if is_ranked(row)]
    ranks: dict[object, int] = {}
    for row in ranked:
        high = _number(row, "correct_high", 0.0)
        ranks[row["row"]] = 1 + sum(_number(other, "correct_low", 0.0) > high for other in ranked)
    of_rank = list(ranks.values())
    places = [
        Place(row, ranks.get(row["row"]), of_rank.count(ranks.get(row["row"], 0)) > 1)
        for row in rows
    ]
    return tuple(sorted(places, key=_order))


def _order(place: Place) -> tuple[float | str, ...]:
    row = place.row
    return (
        math.inf if place.rank is None else place.rank,
        -_number(row, "correct", 0.0),
        _number(row, "harm", math.inf),
        _number(row, "kept_kv", 1.0),
        str(row["row"]),
    )


def _number(row: Row, name: str, unknown: float) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else unknown
