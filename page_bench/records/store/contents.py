"""What a run store holds, counted and record by record."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from page_bench.records.store.file import read_as_stored
from page_bench.records.store.key import NUMERICS_VERSION
from page_bench.records.store.store import Record, RunStore

KINDS = ("seen", "answer")
FULL = "full"
"""What stands for the full cache where an evictor is named."""


@dataclass(frozen=True)
class Model:
    """A model in the store.

    Attributes:
        names: as given, each of which is this model.
        dtype, attn_implementation: as in the trace.
        devices, versions: what computed.
        weights: checksum.
        numerics: version of page-bench's numerics.
        current: whether this page-bench still reads the records.
        prompts: that stand in the store.
        seen, answers: records.
    """

    names: list[str]
    dtype: str
    attn_implementation: str
    devices: list[str]
    versions: dict[str, str]
    weights: str
    numerics: int
    current: bool
    prompts: int
    seen: int
    answers: int


@dataclass(frozen=True)
class Arm:
    """An arm in the store, over all models.

    Attributes:
        evictor: title; `full` for the full cache.
        budget: None for the full cache.
        granularity, score_norm, options: as in the trace; None or empty for the full cache.
        n_sink, recent: positions that always stay, first and last; None for the full cache.
        window: of observation, in positions; None for the full cache.
        answers: records.
    """

    evictor: str
    budget: float | None
    granularity: str | None
    score_norm: str | None
    options: dict[str, Any]
    n_sink: int | None
    recent: int | None
    window: int | None
    answers: int


@dataclass(frozen=True)
class Contents:
    """What `page-bench store ls` lists.

    Attributes:
        tasks: by name, how many distinct prompts were first stored for it.
        bytes: of the records' values, by kind.
    """

    models: list[Model]
    arms: list[Arm]
    tasks: dict[str, int]
    bytes: dict[str, int]


def to_line(record: Record) -> str:
    """A record as one line of JSON; what is not a number becomes null, as in the trace.

    Raises:
        ValueError, TypeError, RecursionError: it is damaged.
    """
    return json.dumps(
        {
            "digest": record.digest,
            "kind": record.kind,
            "key": {name: json.loads(text) for name, text in record.parts.items()},
            "about": json.loads(record.about),
            "page_bench": record.page_bench,
            "created": record.created,
            "value": json.loads(record.value, parse_constant=lambda constant: None),
        },
        allow_nan=False,
    )


def records(store: RunStore) -> Iterator[Record]:
    """All records, in the order in which they were stored."""
    for number, digest, kind, value, known, about, version, created in store.rows(
        "SELECT id, digest, kind, value, value_sha256, about, page_bench, created FROM records"
        " ORDER BY id"
    ):
        yield Record(
            digest=digest,
            kind=kind,
            value=value,
            value_sha256=known,
            about=about,
            parts=_parts(store, number),
            page_bench=version,
            created=created,
        )


def contents(store: RunStore) -> Contents:
    """What is stored, counted.

    Raises:
        UsageError: a record is damaged.
    """
    with store.snapshot(), read_as_stored(store.path):
        return _counted(store)


def _counted(store: RunStore) -> Contents:
    parts = PartTable(store)
    prompts: dict[tuple[int, int], set[int]] = defaultdict(set)
    counts: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    names: dict[tuple[int, int], set[str]] = defaultdict(set)
    arms: dict[str, int] = defaultdict(int)
    tasks: dict[str, set[int]] = defaultdict(set)
    sizes = dict.fromkeys(KINDS, 0)
    for row in overview(store, parts):
        which = row.model, row.numerics
        prompts[which].add(row.prompt)
        counts[which][row.kind] += 1
        names[which].add(str(row.about.get("model")))
        tasks[str(row.about.get("task"))].add(row.prompt)
        sizes[row.kind] = sizes.get(row.kind, 0) + row.bytes
        if row.kind == "answer":
            arm = parts.value(row.eviction)
            shown = {k: v for k, v in (arm or {}).items() if k != "code"}
            arms[json.dumps(shown, sort_keys=True)] += 1
    models = []
    for which, count in counts.items():
        part, numerics = parts.value(which[0]), parts.value(which[1])
        models.append(
            Model(
                names=sorted(names[which]),
                dtype=part.get("dtype", "?"),
                attn_implementation=part.get("attn_implementation", "?"),
                devices=part.get("setting", {}).get("devices", []),
                versions=part.get("setting", {}).get("versions", {}),
                weights=part.get("weights", "?"),
                numerics=numerics,
                current=numerics == NUMERICS_VERSION,
                prompts=len(prompts[which]),
                seen=count["seen"],
                answers=count["answer"],
            )
        )
    listed = [_arm(json.loads(text), count) for text, count in arms.items()]
    listed.sort(
        key=lambda arm: (
            *(arm.evictor != FULL, arm.evictor, arm.budget or 0),
            *(arm.n_sink or 0, arm.recent or 0, arm.window or 0),
        )
    )
    return Contents(models, listed, {k: len(v) for k, v in sorted(tasks.items())}, sizes)


@dataclass(frozen=True)
class Row:
    """A record in short; parts of its key by their number."""

    number: int
    kind: str
    bytes: int
    about: dict[str, Any]
    model: int
    numerics: int
    prompt: int
    eviction: int


class PartTable:
    """Parts of keys by their number, except what those of prompts say, which are many.

    Attributes:
        names: `model`, `eviction` and so on.
    """

    def __init__(self, store: RunStore) -> None:
        self._values = {}
        self.names: dict[int, str] = {}
        for number, name, text in store.rows("SELECT id, name, json FROM parts"):
            self.names[number] = name
            if name != "prompt":
                self._values[number] = json.loads(text)

    def value(self, number: int) -> Any:
        """What a part says."""
        return self._values[number]


def overview(store: RunStore, parts: PartTable) -> Iterator[Row]:
    """All records in short; inside a transaction, so that the parts are all there."""
    for number, kind, size, about, joined in store.rows(
        "SELECT r.id, r.kind, length(r.value), r.about, group_concat(p.part) FROM records r"
        " JOIN record_parts p ON p.record = r.id GROUP BY r.id"
    ):
        if kind not in KINDS:
            raise ValueError(f"its kind {kind!r} does not exist")
        mine = {parts.names[int(part)]: int(part) for part in joined.split(",")}
        yield Row(
            number,
            kind,
            size,
            json.loads(about),
            *(mine.get(name, -1) for name in ("model", "numerics", "prompt", "eviction")),
        )


def _arm(part: dict[str, Any], count: int) -> Arm:
    return Arm(
        evictor=part.get("evictor", FULL),
        budget=part.get("budget"),
        granularity=part.get("granularity"),
        score_norm=part.get("score_norm"),
        options=part.get("options", {}),
        n_sink=part.get("n_sink"),
        recent=part.get("recent"),
        window=part.get("window"),
        answers=count,
    )


def _parts(store: RunStore, record: int) -> dict[str, str]:
    return dict(
        store.rows(
            "SELECT p.name, p.json FROM record_parts r JOIN parts p ON p.id = r.part"
            " WHERE r.record = ? ORDER BY p.name",
            record,
        )
    )
