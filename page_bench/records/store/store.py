"""The run store: what prefills showed and arms answered, in one SQLite file that processes share.

Every record stands under the digest of its `key.Key`. Records are written in transactions
to a write-ahead log, so that a process which is killed leaves whole ones only. A store must not
lie on a network file system, since SQLite's log works on one machine only; a copy of a store that
is in use needs the files `-wal` and `-shm` beside it (`page-bench store merge` does without).
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from page_bench import __version__
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.records.store.file import explained, open_file
from page_bench.records.store.key import Key, canonical_json

PATIENCE_S = 60.0
"""Seconds to wait for another process that is writing."""


@dataclass(frozen=True)
class Record:
    """A record as it stands in the file.

    Attributes:
        digest: of the key.
        kind: `seen` or `answer`.
        value, about: JSON.
        value_sha256: of the value, as it was when it was written.
        parts: of the key, by name, as canonical JSON.
        page_bench: version that wrote it.
        created: seconds since 1970.
    """

    digest: str
    kind: str
    value: str
    value_sha256: str
    about: str
    parts: Mapping[str, str]
    page_bench: str
    created: float


class RunStore:
    """A store, open; also a context manager.

    Args:
        path: of the file, made with its folder where there is none.
        read_only: write nothing, and let a store be where nothing can be written.
        patience_s: seconds to wait for another process that is writing.

    Raises:
        UsageError: here and in every method, where the file cannot be what it must be: no store,
            another program's, a later version's, damaged, locked, on a full disk, not writable.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.path = user_path(path, "store").absolute()
        self.patience_s = patience_s
        with self._explained():
            self._connection = open_file(self.path, read_only, patience_s)

    def seen(self, key: Key) -> dict[str, Any] | None:
        """What a prefill showed; None where it is not stored."""
        return self._value(key)

    def answer(self, key: Key) -> dict[str, Any] | None:
        """An answer; None where it is not stored."""
        return self._value(key)

    def put(
        self,
        seen: tuple[Key, dict[str, Any]] | None,
        answers: Sequence[tuple[Key, dict[str, Any]]],
    ) -> None:
        """Store what a prefill showed, if it is not stored yet, and some answers; see `put_all`."""
        self.put_all([*([] if seen is None else [seen]), *answers])

    def put_all(self, records: Sequence[tuple[Key, dict[str, Any]]]) -> None:
        """Store several records, all of them or, on an error, none.

        What stands under a key already stays as it is.

        Args:
            records: keys with values, objects that JSON can hold. Every float comes back the same
                to the bit, infinities too; NaN comes back as NaN and None as None, since they
                stand in the file as Python's json writes them, `NaN` and `null`.
        """
        written = [_record(key, value) for key, value in records]
        with self.transaction() as connection:
            for record in written:
                insert(connection, record)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Several statements of which all count, or none."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several queries that see one state, whatever other processes write meanwhile."""
        with self._explained():
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    def rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one after another."""
        with self._explained():
            yield from self._connection.execute(query, values)

    def compact(self) -> None:
        """Give the room of deleted records back to the file system."""
        with self._explained():
            self._connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file; a store that was left open loses nothing."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _value(self, key: Key) -> dict[str, Any] | None:
        with self._explained():
            row = self._connection.execute(
                "SELECT value, value_sha256 FROM records WHERE digest = ?", (key.digest,)
            ).fetchone()
        if row is None:
            return None
        if not isinstance(row[0], str) or sha256(row[0]) != row[1]:
            raise UsageError(
                f"store={self.path} is damaged: the record {key.digest} is not what was written; "
                f"look at it with page-bench store verify."
            )
        value: dict[str, Any] = json.loads(row[0])
        return value

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.path, self.patience_s)


def insert(connection: sqlite3.Connection, record: Record) -> bool:
    """Insert a record inside a transaction; False where its digest is there already."""
    new = connection.execute(
        "INSERT OR IGNORE INTO records (digest, kind, value, value_sha256, about, page_bench,"
        " created) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(record.digest, record.kind, record.value, record.value_sha256),
            *(record.about, record.page_bench, record.created),
        ),
    )
    if not new.rowcount:
        return False
    for name, text in record.parts.items():
        part = (name, sha256(text))
        connection.execute(
            "INSERT OR IGNORE INTO parts (name, digest, json) VALUES (?, ?, ?)", (*part, text)
        )
        connection.execute(
            "INSERT INTO record_parts SELECT ?, id FROM parts WHERE name = ? AND digest = ?",
            (new.lastrowid, *part),
        )
    return True


def _record(key: Key, value: Mapping[str, Any]) -> Record:
    text = json.dumps(value, separators=(",", ":"))
    return Record(
        digest=key.digest,
        kind=str(key.parts["record"]),
        value=text,
        value_sha256=sha256(text),
        about=json.dumps(dict(key.about), sort_keys=True),
        parts={name: canonical_json(part) for name, part in key.parts.items()},
        page_bench=__version__,
        created=time.time(),
    )


def sha256(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
