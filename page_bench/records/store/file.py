"""The SQLite file behind a run store: opened and checked, and what goes wrong with it in words."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from page_bench.inputs.errors import UsageError

APPLICATION_ID = 0x50414745
"""What marks an SQLite file as a run store: `PAGE`."""
SCHEMA_VERSION = 1
_MISREAD = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

_SCHEMA = (
    """CREATE TABLE parts (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, json TEXT NOT NULL,
        UNIQUE (name, digest))""",
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
        value TEXT NOT NULL, value_sha256 TEXT NOT NULL, about TEXT NOT NULL,
        page_bench TEXT NOT NULL, created REAL NOT NULL)""",
    """CREATE TABLE record_parts (
        record INTEGER NOT NULL REFERENCES records ON DELETE CASCADE,
        part INTEGER NOT NULL REFERENCES parts, PRIMARY KEY (record, part)) WITHOUT ROWID""",
    "CREATE INDEX record_parts_by_part ON record_parts (part)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def open_file(path: Path, read_only: bool, patience_s: float) -> sqlite3.Connection:
    """Open a store, and set it up where there is none; inside `explained`.

    Args:
        path: absolute.
        read_only: write nothing; there must be a store.
        patience_s: seconds to wait for another process that is writing.

    Raises:
        UsageError: there is something else, or a store of another version.
    """
    if path.is_dir():
        raise UsageError(f"store={path} is a folder; give the name of a file in it.")
    return _open_to_read(path, patience_s) if read_only else _open_to_write(path, patience_s)


@contextmanager
def explained(path: Path, patience_s: float) -> Iterator[None]:
    """Turn what SQLite and the file system say into `UsageError`s that name the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # Errors of Python's own module have no code; all but this one are not the file's fault.
        if not _code(error) and "decode" not in str(error):
            raise
        raise UsageError(_sentence(error, path, patience_s)) from error
    except OSError as error:
        raise UsageError(
            f"store={path} cannot be written ({error.strerror or error}); give a path in "
            f"a folder that is writable."
        ) from error


@contextmanager
def read_as_stored(path: Path) -> Iterator[None]:
    """Turn what damaged records make of their reading into a `UsageError` that names the file."""
    try:
        yield
    except UsageError:
        raise
    except _MISREAD as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"store={path} holds a record that is damaged ({type(error).__name__}: {error!s:.100}); "
        f"page-bench store verify names it, and page-bench store merge saves the others into a new "
        f"store."
    )


def _open_to_write(path: Path, patience_s: float) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None)
    try:
        # Before anything is written: the file may be somebody else's.
        _check(path, connection)
        _use_log(path, connection, patience_s)
        # A log outlives a killed process; only a machine that fails may lose what is last.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        if _check(path, connection):
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_to_read(path: Path, patience_s: float) -> sqlite3.Connection:
    if not path.exists():
        raise UsageError(f"there is no run store {path}; give the path of one.")
    try:
        return _open_uri(path, "mode=ro", patience_s)
    except sqlite3.OperationalError as error:
        # Beside a log stands an index that even readers write to. Without either, in a folder
        # where nothing can be written, the file is all there is.
        log = path.with_name(path.name + "-wal")
        unwritable = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not unwritable or (log.exists() and log.stat().st_size):
            raise
        return _open_uri(path, "mode=ro&immutable=1", patience_s)


def _open_uri(path: Path, options: str, patience_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{options}",
        timeout=patience_s,
        isolation_level=None,
        uri=True,
    )
    try:
        if _check(path, connection):
            raise UsageError(f"{path} holds nothing yet; give the path of a run store.")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> bool:
    """Raise unless the file may be used; whether it has still to be set up."""
    marked, version, tables = _marks(connection)
    if marked == 0 and tables == 0:
        return True
    if marked != APPLICATION_ID:
        raise UsageError(f"store={path} is an SQLite file of another program; give another path.")
    if version != SCHEMA_VERSION:
        age = "a later" if version > SCHEMA_VERSION else "an earlier"
        raise UsageError(
            f"store={path} was written by {age} page-bench (format {version}, this one "
            f"reads {SCHEMA_VERSION}); use that version, or give another path."
        )
    return False


def _marks(connection: sqlite3.Connection) -> list[int]:
    """Whose file it is, of which format, and how many tables and indices it has."""
    # One state: another process may be setting the file up just now.
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    found = [
        connection.execute(query).fetchone()[0]
        for query in (
            "PRAGMA application_id",
            "PRAGMA user_version",
            "SELECT count(*) FROM sqlite_master",
        )
    ]
    if alone:
        connection.execute("COMMIT")
    return found


def _use_log(path: Path, connection: sqlite3.Connection, patience_s: float) -> None:
    """Turn the write-ahead log on; SQLite does not wait here for others of its own accord."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            busy = _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if mode != "wal":
        raise UsageError(
            f"store={path} is on a file system where SQLite has no write-ahead log; give "
            f"a path on a local disk."
        )


def _sentence(error: sqlite3.DatabaseError, path: Path, patience_s: float) -> str:
    code, what = _code(error), f"store={path}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"{what} has been locked by another process for {patience_s:g} s; let that "
            f"one end, or give another path."
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return (
            f"{what} could not be read or written ({error}): the disk is full, a limit on the "
            f"size of files is reached or the disk fails; what was stored before is kept, so "
            f"make room and start again."
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return f"{what} cannot be written ({error}); give a path in a folder that is writable."
    if code == sqlite3.SQLITE_NOTADB:
        return f"{what} is not a run store but some other file; give another path."
    if code in (sqlite3.SQLITE_CORRUPT, 0):
        return (
            f"{what} is damaged ({error}); page-bench store export may still read some of it, "
            f"else move it away and start anew."
        )
    return f"{what} cannot be used: {error}; move it away, or give another path."


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error that is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
