"""A run store checked, merged with another, and pruned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from page_bench.records.store.contents import FULL, KINDS, PartTable, overview, records
from page_bench.records.store.file import read_as_stored
from page_bench.records.store.key import NUMERICS_VERSION, canonical_json, digest_of
from page_bench.records.store.store import Record, RunStore, insert, sha256

_MERGED_AT_ONCE = 500
# Besides seconds, what differs between runs of the same code on the same machine.
_MEASURED = ("decode_rows", "decode_rows_limit", "decode_rows_lowered")


@dataclass(frozen=True)
class Selection:
    """Which records to prune: those that fit all that is given.

    Attributes:
        model: its name, or the first characters of the checksum of its weights.
        evictor: title, or `full`; signals stay.
        budget, granularity: of the arm; signals stay.
        numerics: version, or `old` for all that this page-bench does not read.
    """

    model: str | None = None
    evictor: str | None = None
    budget: float | None = None
    granularity: str | None = None
    numerics: int | str | None = None

    def fits(self, model: dict[str, Any], name: str, numerics: int, arm: object) -> bool:
        """Whether a record is meant.

        Args:
            model, numerics, arm: parts of its key; the arm is `...` for a `seen` record.
            name: of the model.
        """
        if self.model is not None and name != self.model:
            by_weights = len(self.model) >= 6 and str(model.get("weights")).startswith(self.model)
            if not by_weights:
                return False
        if self.numerics == "old" and numerics == NUMERICS_VERSION:
            return False
        if self.numerics not in (None, "old", numerics):
            return False
        if self.evictor is None and self.budget is None and self.granularity is None:
            return True
        if arm is ...:
            return False
        described = arm if isinstance(arm, dict) else {"evictor": FULL}
        return (
            self.evictor in (None, described["evictor"])
            and self.budget in (None, described.get("budget"))
            and self.granularity in (None, described.get("granularity"))
        )


@dataclass
class Merged:
    """What came of a merge.

    Attributes:
        added: records that the store lacked.
        equal: those it had.
        damaged: one phrase for each record that was left out because it is damaged.
        conflicts: one phrase for each record that says something else there, or that is damaged
            in the store itself; the store keeps its own.
    """

    added: int = 0
    equal: int = 0
    damaged: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def faults(store: RunStore) -> Iterator[str]:
    """What is wrong with a store, one phrase each; nothing where all is well."""
    for (line,) in store.rows("PRAGMA integrity_check"):
        if line != "ok":
            yield f"the file: {line}"
    for table, row, *_ in store.rows("PRAGMA foreign_key_check"):
        yield f"row {row} of {table} refers to nothing"
    for name, digest, text in store.rows("SELECT name, digest, json FROM parts"):
        if not isinstance(text, str) or sha256(text) != digest:
            yield f"part {name} {str(digest)[:12]} is not what was written"
    for record in records(store):
        for fault in _faults_of(record):
            yield f"record {str(record.digest)[:12]}: {fault}"


def merge(store: RunStore, source: RunStore) -> Merged:
    """Add what another store holds; a transaction for every few hundred records."""
    merged, waiting = Merged(), records(source)
    while batch := list(islice(waiting, _MERGED_AT_ONCE)):
        with store.transaction() as connection:
            for record in batch:
                if faulty := list(_faults_of(record)):
                    merged.damaged.append(f"{record.kind} {str(record.digest)[:12]}: {faulty[0]}")
                    continue
                if insert(connection, record):
                    merged.added += 1
                    continue
                ((ours, known),) = connection.execute(
                    "SELECT value, value_sha256 FROM records WHERE digest = ?", (record.digest,)
                )
                if not isinstance(ours, str) or sha256(ours) != known:
                    merged.conflicts.append(
                        f"{record.kind} {record.digest[:12]} is damaged here and sound in the "
                        f"other; merge both stores into a new one"
                    )
                elif different := _differences(ours, record.value):
                    about = json.loads(record.about)
                    merged.conflicts.append(
                        f"{record.kind} {record.digest[:12]} (model {about.get('model')}, task "
                        f"{about.get('task')}, document {about.get('doc_id')}) differs in "
                        f"{', '.join(different)}"
                    )
                else:
                    merged.equal += 1
    return merged


def prune(store: RunStore, selection: Selection, dry: bool) -> dict[str, int]:
    """Delete records.

    Args:
        store: open to write, unless it is a trial.
        selection: which.
        dry: only count.

    Returns:
        Records that go, by kind.
    """
    with (
        store.snapshot() if dry else store.transaction() as connection,
        read_as_stored(store.path),
    ):
        chosen = _chosen(store, selection)
        if not dry:
            gone = ((number,) for numbers in chosen.values() for number in numbers)
            connection.executemany("DELETE FROM records WHERE id = ?", gone)
            connection.execute("DELETE FROM parts WHERE id NOT IN (SELECT part FROM record_parts)")
    return {kind: len(numbers) for kind, numbers in chosen.items()}


def _chosen(store: RunStore, selection: Selection) -> dict[str, list[int]]:
    parts = PartTable(store)
    chosen: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for row in overview(store, parts):
        arm = parts.value(row.eviction) if row.kind == "answer" else ...
        name = str(row.about.get("model"))
        if selection.fits(parts.value(row.model), name, parts.value(row.numerics), arm):
            chosen.setdefault(row.kind, []).append(row.number)
    return chosen


def _faults_of(record: Record) -> Iterator[str]:
    texts = record.digest, record.kind, record.value, record.value_sha256, record.about
    if not all(isinstance(text, str) for text in (*texts, *record.parts.values())):
        yield "a field of it is no text"
        return
    if record.kind not in KINDS:
        yield f"its kind {record.kind} does not exist"
    elif record.parts.get("record") != canonical_json(record.kind):
        yield f"its kind {record.kind} is not that of its key"
    if digest_of({name: sha256(text) for name, text in record.parts.items()}) != record.digest:
        yield "its key is not the one it was stored under"
    if sha256(record.value) != record.value_sha256:
        yield "its value is not what was written"
    for what, text in (("value", record.value), ("description", record.about)):
        try:
            if not isinstance(json.loads(text), dict):
                yield f"its {what} is no object"
        except (ValueError, RecursionError):
            yield f"its {what} is not JSON"


def _differences(ours: str, theirs: str) -> list[str]:
    """Fields that differ, those aside that are measured anew in each run."""
    if ours == theirs:
        return []
    left, right = json.loads(ours), json.loads(theirs)
    return sorted(
        name
        for name in {*left, *right}
        if not name.endswith("_s")
        and name not in _MEASURED
        and json.dumps(left.get(name)) != json.dumps(right.get(name))
    )
