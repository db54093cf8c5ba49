"""Groups of rows that may be ranked together, and their order.

Rows are compared within a *group*: one model and its numerics, suite, length, protocol, data and
set of n answers. In a group they are compared at matched achieved kept-KV: rows whose `kept_kv`
falls into the same *bin* kept about as much. The bins lie around the budgets that are usually
tried, an eighth of the cache apart, so that a gate that keeps more than its budget says is
compared with what keeps as much without it.

In a bin a row's rank is 1 plus the number of rows whose whole interval of `correct` lies above its
own. Rows that the inputs do not tell apart thus share a rank. Within a rank the order is by
correct, then harm, then kept-KV; the order says nothing that the ranks do not. Gates that read
labels (`oracle`, `task_oracle`, `static`) have no rank: they show what could be had.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from page_bench.gating.gates import GATES
from page_bench.leaderboard.row import Row, to_text

GROUPED_BY = (
    *("source", "model", "dtype", "attn_implementation", "suite", "length", "protocol"),
    *("chat_template", "compress", "data", "n", "tasks", "inputs"),
)
"""Rows that differ in one of these are never ranked together."""
EDGES = (0.09375, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125, 0.9375)
"""Achieved kept-KV at which a bin ends and the next begins, halfway between 1/16, 1/8, 1/4, … 1."""


@dataclass(frozen=True)
class Ranked:
    """A row in its bin, with its rank from 1 on, or None, and whether others have the same."""

    row: Row
    rank: int | None
    tied: bool

    @property
    def shown(self) -> str:
        """The rank as it is written: `2=` for one of several second ones, `–` for none."""
        return "–" if self.rank is None else f"{self.rank}{'=' if self.tied else ''}"


@dataclass(frozen=True)
class Bin:
    """Rows of a group with kept_kv in [low, high), in order; the last bin holds 1 as well."""

    low: float
    high: float
    places: tuple[Ranked, ...]

    @property
    def label(self) -> str:
        """Its bounds."""
        return f"{self.low:g}–{self.high:g}"


@dataclass(frozen=True)
class Group:
    """Rows that may be ranked together: values of `GROUPED_BY`, and bins by kept-KV, ascending."""

    key: dict[str, Any]
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

    @property
    def rows(self) -> Iterator[Row]:
        """Its rows, in order."""
        return (place.row for own in self.bins for place in own.places)


def groups(rows: Iterable[Row]) -> list[Group]:
    """The groups of rows, sorted by what tells them apart."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(to_text(row[name]) for name in GROUPED_BY)].append(row)
    return [
        Group({name: own[0][name] for name in GROUPED_BY}, _bins(own))
        for _, own in sorted(found.items())
    ]


def _bins(rows: Sequence[Row]) -> tuple[Bin, ...]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        kept = 1.0 if row["kept_kv"] is None else row["kept_kv"]
        found[bisect.bisect_right(EDGES, kept)].append(row)
    ends = (0.0, *EDGES, 1.0)
    return tuple(Bin(ends[i], ends[i + 1], _places(own)) for i, own in sorted(found.items()))


def _is_ranked(row: Row) -> bool:
    """Whether a row takes part: its gate reads no labels, and its interval is known."""
    gate = GATES.get(row["gate"])
    known = None not in (row["correct_low"], row["correct_high"])
    return known and (gate is None or gate.labels == "none")


def _places(rows: Sequence[Row]) -> tuple[Ranked, ...]:
    ranked = [row for row in rows if _is_ranked(row)]
    lows = sorted(row["correct_low"] for row in ranked)
    ranks = {
        row["row"]: 1 + len(lows) - bisect.bisect_right(lows, row["correct_high"]) for row in ranked
    }
    n = Counter(ranks.values())
    places = [Ranked(row, ranks.get(row["row"]), n[ranks.get(row["row"], 0)] > 1) for row in rows]
    return tuple(sorted(places, key=_order))


def _order(place: Ranked) -> tuple[float | str, ...]:
    row = place.row
    harm = math.inf if row["harm"] is None else row["harm"]
    rank = math.inf if place.rank is None else place.rank
    return rank, -(row["correct"] or 0.0), harm, row["kept_kv"] or 1.0, row["row"]
